"""The files that scoring leaves in a results folder and in a run folder.

What belongs here: which part of the scores goes into which file. What does not: the form of each
file (``evaluation.result_rows``, ``evaluation.scopes``, ``evaluation.panels``,
``evaluation.configs``), computing scores (``evaluation.scoring``).
"""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from compevo_core.config import RunConfig
from compevo_core.data.files import write_atomically
from compevo_core.evaluation.configs import write_config
from compevo_core.evaluation.panels import write_panels
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import one_seed, write_forecasts
from compevo_core.evaluation.scoring import PopulationScores
from compevo_core.training.run_folder import RunFolder

REGRET_FOLDER = "regret"
"""Folder of rows of another form than results, below the results."""


def write_population_scores(
    scores: PopulationScores,
    paired_tests: pl.DataFrame,
    config: RunConfig,
    results: Path,
    run: RunFolder,
    *,
    rows_name: str,
    paired_name: str,
) -> Path:
    """Write everything that scoring a population leaves behind.

    Args:
        scores: what to write.
        paired_tests: of the population with every opponent.
        config: the configuration that the population was trained with.
        results: gets ``<rows_name>.csv`` and ``<paired_name>.csv``, and the configuration.
        run: gets the forecasts and the panels.
        rows_name: name of the file of result rows, without its ending.
        paired_name: name of the file of paired tests, without its ending.

    Returns:
        The file of result rows.
    """
    # Rows first: they took the time, and a report without paired tests or panels is still right.
    rows_file = write_tables(scores.rows, paired_tests, [config], results, rows_name, paired_name)
    write_run_forecasts(scores, run)
    if scores.regret.height:
        regret_file = results / REGRET_FOLDER / f"{rows_name}.csv"
        write_atomically(regret_file, scores.regret.write_csv)
    return rows_file


def write_tables(
    rows: pl.DataFrame,
    paired_tests: pl.DataFrame,
    configs: Iterable[RunConfig],
    results: Path,
    rows_name: str,
    paired_name: str,
) -> Path:
    """Write result rows, paired tests and the configurations that rows name by their hash.

    Returns:
        The file of result rows.
    """
    rows_file = results / f"{rows_name}.csv"
    write_rows(rows_file, rows)
    write_atomically(results / f"{paired_name}.csv", paired_tests.write_csv)
    for config in configs:
        write_config(results, config)
    return rows_file


def write_run_forecasts(scores: PopulationScores, run: RunFolder) -> None:
    """Write forecasts and panels into the run folder: they are of this model alone.

    A report reads one run folder at a time.
    """
    write_forecasts(
        run.predictions_file, [(scope, one_seed(found)) for scope, found in scores.predictions]
    )
    write_panels(run.panels_file, scores.panels)
