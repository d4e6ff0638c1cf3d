"""``compevo benchmark``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.durations import format_duration
from compevo_core.errors import ConfigError
from compevo_pipeline.cli.evaluated_runs import render_scores

if TYPE_CHECKING:
    import polars as pl

ALL = "all"


def benchmark(
    dataset: Annotated[str, typer.Argument(help="Name of a data set whose windows are built.")],
    methods: Annotated[
        str, typer.Option(help="Networks to fit, separated by commas; all: every one.")
    ] = ALL,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many seeds; else five, three for language models."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Score every n-th origin.")] = 1,
    results: Annotated[
        Path | None, typer.Option(help="Folder of result rows; else that of the deployment.")
    ] = None,
) -> None:
    """Fit the neural forecasters of the paper's comparison and score them on the test windows.

    Rows go into networks-DATASET.csv, where they replace those of the same methods: a method can
    be run again alone.
    """
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.baseline_scores import list_networks, score_candidates
    from compevo_core.evaluation.result_rows import write_rows
    from compevo_core.evaluation.scopes import select_test_scopes
    from compevo_core.report.rows import read_result_file
    from compevo_pipeline.provenance import read_commit
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings

    names = _parse_methods(methods)
    workspace = Workspace(settings=Settings.from_environment())
    windows = WindowSet.read(workspace.layout.windows(workspace.registry()[dataset].name))
    train, val = windows.split("train"), windows.split("val")
    scopes = select_test_scopes(windows, every)
    path = (results or workspace.layout.results) / f"networks-{dataset}.csv"

    # Written method by method: what was fitted before an interruption is kept.
    for candidate in list_networks(names, train, val, seeds=seeds):
        scores = score_candidates(
            [candidate],
            train,
            scopes,
            val=val,
            experiment="test",
            commit=read_commit(),
            on_fitted=_report_fit,
        )
        write_rows(path, _replace_methods(path, scores.rows))

    typer.echo(render_scores(read_result_file(path)))
    typer.echo(f"\nRows by series: {path}")


def _parse_methods(methods: str) -> list[str]:
    """Return names of networks.

    Raises:
        ConfigError: no name.
    """
    from compevo_core.networks.forecaster import NETWORKS, find_network

    names = list(NETWORKS) if methods == ALL else [name for name in methods.split(",") if name]
    if not names:
        raise ConfigError(f"--methods names none; known: {', '.join(NETWORKS)}, or {ALL}")
    # Before hours of fitting: a later name may be misspelt.
    for name in names:
        find_network(name)
    return names


def _report_fit(name: str, seed: int, seconds: float) -> None:
    typer.echo(f"{name}, seed {seed}: fitted in {format_duration(seconds)}")


def _replace_methods(path: Path, rows: "pl.DataFrame") -> "pl.DataFrame":
    """Return stored rows of other methods, and the new ones."""
    import polars as pl

    from compevo_core.report.rows import read_result_file

    if not path.exists():
        return rows
    others = read_result_file(path).filter(
        ~pl.col("method").is_in(rows["method"].unique().to_list())
    )
    return pl.concat([others, rows])
