"""``compevo train``."""

import json
from enum import StrEnum
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


class Validation(StrEnum):
    """Which windows choose the round."""

    SPLIT = "split"
    LAST_FOLD = "last-fold"


def train(
    windows: WindowsFolder,
    news: NewsFolder,
    out: Annotated[
        Path, typer.Option(help="Run folder; an unfinished run of the same identity is resumed.")
    ],
    preset: Preset = "default",
    changes: Changes = None,
    variant: Annotated[
        str,
        typer.Option(
            help="Train a variant of the ablation, a control or another system of agents in place "
            "of the full method, for example no-grpo, no-news or mael."
        ),
    ] = "",
    validation: Annotated[
        Validation,
        typer.Option(help="Windows that choose the round: the split's, or the last fold of train."),
    ] = Validation.SPLIT,
    restart: Restart = False,
    shard_backbone: Annotated[
        bool,
        typer.Option(
            "--shard-backbone",
            help="Under torchrun, split the layers of the backbone over the processes in place of "
            "the agents: for a backbone that one device cannot hold.",
        ),
    ] = False,
) -> None:
    """Train a population on the train split; validation chooses the round.

    Under torchrun the processes share the agents, and the first one alone prints.
    """
    from compevo_core.config import RunConfig
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.splits import choose_validation
    from compevo_core.data.window import WindowSet
    from compevo_core.distributed import process_group
    from compevo_core.experiments.ablation import FULL_METHOD
    from compevo_core.experiments.controls import configure_experiment, prepare_windows
    from compevo_core.training.trainer import train as train_population
    from compevo_pipeline.judges.selector import read_selector
    from compevo_pipeline.launchers.progress import describe_round
    from compevo_pipeline.settings import process_rank

    # Checked before anything is loaded: a misspelt setting ends at once.
    base = RunConfig.preset(preset).with_overrides(parse_changes(changes or []))
    name = variant or FULL_METHOD
    config = configure_experiment(base, name)
    window_set = prepare_windows(WindowSet.read(windows), name)
    train_windows, val_windows = choose_validation(
        window_set, last_fold=validation is Validation.LAST_FOLD
    )
    rank, processes, local_rank = process_rank()

    with process_group(rank, processes, local_rank):
        summary = train_population(
            config,
            train_windows,
            val_windows,
            NewsPool.read(news),
            out,
            resume=not restart,
            on_round=lambda record: typer.echo(describe_round(record)),
            shard_backbone=shard_backbone,
            selector=read_selector(config),
        )

    # The processes of torchrun share one terminal.
    if rank == 0:
        typer.echo(json.dumps(summary, indent=1, sort_keys=True))
