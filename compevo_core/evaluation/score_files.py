"""The files that scoring leaves in a results folder and in a run folder.

What belongs here: which part of the scores goes into which file, replacing rows of a shared file,
and the configurations that rows name by hash, ``results/configs/<hash>.json``. What does not: the
form of rows, forecasts and panels.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import one_seed, write_forecasts, write_panels
from compevo_core.evaluation.scoring import PopulationScores
from compevo_core.runtime.files import file_lock, read_json, write_atomically, write_text
from compevo_core.training.run_folder import RunFolder

CONFIGS_FOLDER = "configs"


def write_config(results: Path, config: RunConfig) -> Path:
    """Write a configuration into a results folder, named by the hash that rows carry."""
    path = results / CONFIGS_FOLDER / f"{config.hash}.json"
    return write_text(path, json.dumps(config.to_dict(), indent=1, sort_keys=True) + "\n")


def read_configs(results: Path) -> dict[str, Mapping[str, Any]]:
    """Return the configurations of a results folder by the hash that rows carry.

    DataError if a file is not a JSON object, ConfigError if it holds an unknown setting.
    """
    return {
        path.stem: RunConfig.from_mapping(
            read_json(path, "restore the file or evaluate the run again")
        ).to_dict()
        for path in sorted((results / CONFIGS_FOLDER).glob("*.json"))
    }


REGRET_FOLDER = "regret"  # folder of rows of another form than results, below the results


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
    """Write everything that scoring a population leaves behind; return the file of result rows.

    ``<rows_name>.csv``, ``<paired_name>.csv`` and the configuration go to ``results``, forecasts
    and panels to ``run``.
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
    """Write result rows, paired tests and the configurations; return the file of result rows."""
    rows_file = results / f"{rows_name}.csv"
    write_rows(rows_file, rows)
    write_atomically(results / f"{paired_name}.csv", paired_tests.write_csv)
    for config in configs:
        write_config(results, config)
    return rows_file


def write_run_forecasts(scores: PopulationScores, run: RunFolder) -> None:
    """Write forecasts and panels of one model into its run folder."""
    forecasts = [(scope, one_seed(by_method)) for scope, by_method in scores.predictions]
    write_forecasts(run.predictions_file, forecasts)
    write_panels(run.panels_file, scores.panels)


def replace_own_rows(
    path: Path,
    rows: pl.DataFrame,
    key: Sequence[str],
    *,
    read: Callable[[Path], pl.DataFrame] | None = None,
    arrange: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows,
) -> None:
    """Replace the rows of a file that many writers share which agree with new ones in ``key``.

    No key may be null. ``read`` returns what the file holds, with the columns of ``rows``, by
    default in their types; ``arrange`` puts all rows in an order that does not depend on who came
    first. StoreBusy if others write the file for longer than a minute.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with file_lock(lock, exclusive=True):
        if path.exists():
            # An empty text comes back as a null, and would no longer equal what is written now.
            stored = read(path) if read else pl.read_csv(path, schema=rows.schema)
            stored = stored.with_columns(pl.col(pl.String).fill_null(""))
            rows = pl.concat([stored.join(rows, on=key, how="anti"), rows])
        write_atomically(path, arrange(rows).write_csv)
        # Nothing but rows stays in a folder that is committed.
        lock.unlink()
