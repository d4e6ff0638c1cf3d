"""``compevo pair``."""

from pathlib import Path
from typing import Annotated

import typer


def pair(
    dataset: Annotated[str, typer.Argument(help="Name of a data set that was benchmarked.")],
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="Evaluated runs of the full method that differ by seed alone; left out: the "
            "data set's current run, or what the benchmark trained where there is none.",
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of result rows; else that of the deployment.")
    ] = None,
) -> None:
    """Pair the population with every method of the benchmark, window by window.

    Nothing is trained: the forecasts that `compevo evaluate` and `compevo benchmark` kept are read.
    Tests go to paired-benchmark-DATASET.csv, and `compevo table main` shows them.
    """
    from compevo_core.data.files import write_atomically
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.pairing import pair_stored
    from compevo_core.evaluation.scopes import select_test_scopes
    from compevo_core.evaluation.scoring import COMPEVO
    from compevo_core.evaluation.seeds import read_seeds
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings
    from compevo_pipeline.storage.runs import find_current_run, has_current_run

    workspace = Workspace(settings=Settings.from_environment())
    layout = workspace.layout
    name = workspace.registry()[dataset].name
    chosen = runs or ([find_current_run(layout, name)] if has_current_run(layout, name) else [])
    # Seeds of one method alone: a mean over two configurations would be the error of neither.
    if chosen:
        read_seeds(chosen)

    tests = pair_stored(
        select_test_scopes(WindowSet.read(layout.windows(name))),
        [RunFolder(run).predictions_file for run in chosen],
        layout.forecasts / f"benchmark-{name}",
        COMPEVO,
    )
    path = (results or layout.results) / f"paired-benchmark-{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, tests.write_csv)
    typer.echo(f"{tests.height} pairs: {path}")
