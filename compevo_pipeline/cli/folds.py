"""``compevo folds``."""

from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import (
    Changes,
    NewsFolder,
    Preset,
    Restart,
    WindowsFolder,
    parse_changes,
)


def folds(
    windows: WindowsFolder,
    news: NewsFolder,
    out: Annotated[
        Path, typer.Option(help="Folder that gets a run folder fold_0, fold_1, ... and folds.csv.")
    ],
    preset: Preset = "default",
    changes: Changes = None,
    restart: Restart = False,
) -> None:
    """Cross-validate a configuration: train on each of the five folds within the train split.

    Prints the errors of population and prior on every fold's validation windows, their mean and
    their standard deviation, as CSV.
    """
    from compevo_core.config import RunConfig
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.experiments.folds import train_folds
    from compevo_pipeline.launchers.progress import describe_round
    from compevo_pipeline.provenance import read_commit

    # Checked before anything is loaded: a misspelt setting ends at once.
    config = RunConfig.preset(preset).with_overrides(parse_changes(changes or []))

    rows = train_folds(
        config,
        WindowSet.read(windows),
        NewsPool.read(news),
        out,
        resume=not restart,
        # To standard error: standard output holds the table alone.
        on_round=lambda fold, record: typer.echo(
            f"fold {fold}: {describe_round(record)}", err=True
        ),
        commit=read_commit(),
    )
    typer.echo(rows.write_csv(), nl=False)
