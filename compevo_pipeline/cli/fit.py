"""``compevo fit``."""

import logging
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import Changes, Preset, Restart, parse_changes

log = logging.getLogger(__name__)


def fit(
    dataset: Annotated[str, typer.Argument(help="Data set; one of your own, or a built-in one.")],
    preset: Preset = "default",
    changes: Changes = None,
    restart: Restart = False,
) -> None:
    """Read a data set's files, cut its windows and train a population on them, in one go.

    The trained population becomes the one that `compevo forecast` and `compevo evaluate` use. Asked
    again with the same files and settings, it is found again and not trained twice.
    """
    from datetime import UTC, datetime

    from compevo_core.config import RunConfig
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.training.trainer import train
    from compevo_pipeline.embedded_news import write_news
    from compevo_pipeline.launchers.progress import describe_round
    from compevo_pipeline.preparation import cut_windows, ingest_dataset
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings, disable_progress_bars
    from compevo_pipeline.storage.runs import make_run_name, set_current_run

    disable_progress_bars()
    # Checked before anything is read: a misspelt setting ends at once.
    config = RunConfig.preset(preset).with_overrides(parse_changes(changes or []))
    workspace = Workspace(settings=Settings.from_environment())
    layout = workspace.layout
    read = ingest_dataset(workspace, dataset, clock=lambda: datetime.now(UTC), log=log)
    for feed, counts in read.items():
        typer.echo(f"{feed}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))

    windows = cut_windows(workspace, dataset)
    windows.write(layout.windows(dataset))
    news = NewsPool.read(write_news(workspace, config.news.encoder, windows, log=log))
    by_split = ", ".join(
        f"{count} {name}" for name, count in windows.manifest["n_by_split"].items()
    )
    typer.echo(f"{len(windows)} windows ({by_split}), {len(news)} articles")

    name = make_run_name(f"compevo-{dataset}", config, windows)
    summary = train(
        config,
        windows.split("train"),
        windows.split("val"),
        news,
        layout.run(name),
        resume=not restart,
        on_round=lambda record: typer.echo(describe_round(record)),
    )
    set_current_run(layout, dataset, name)
    typer.echo(f"trained in {layout.run(name)} ({len(summary)} facts in its summary)")
    typer.echo(f"Next: compevo forecast --dataset {dataset}, or compevo evaluate {dataset}")
