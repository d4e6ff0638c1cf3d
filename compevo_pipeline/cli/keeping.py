"""Commands that keep the stored data safe: ``accept``, ``rebuild``, ``backup``, ``restore``.

What belongs here: these commands. What does not: what they do (``work.preparation``,
``work.backup``, ``storage.series_store``).
"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli import arguments


def accept(
    dataset: Annotated[str, typer.Argument(help="Data set.")],
) -> None:
    """Accept waiting changes of known values: the next run of the source applies them.

    Changes wait where a file removes or changes many known values. Look at them first, on the page
    of the data set's series in the UI. If you do nothing, a fetch half a day later confirms them.
    """
    from compevo_pipeline.storage.series_changes import describe_waiting

    deployment = arguments.open_deployment()
    name = deployment.registry[dataset].name
    store = deployment.series_store()
    waiting = store.read_waiting(name)
    if waiting.is_empty():
        typer.echo(f"{name} has no changes to accept")
        return

    typer.echo(describe_waiting(waiting, name))
    typer.echo(f"accepted {store.accept_waiting(name):,}: the next run of the source applies them")


def rebuild(
    dataset: Annotated[
        str, typer.Argument(help="Data set, or news (default: everything with stored raw files).")
    ] = "",
) -> None:
    """Rebuild series, news and embeddings from the stored raw files.

    For stores that are lost or damaged (delete those first). Stored rows stay, nothing is
    fetched, and the ledger is not needed.
    """
    from compevo_core.config.run import RunConfig
    from compevo_core.errors import ConfigError
    from compevo_pipeline.sources.common.base import Mode
    from compevo_pipeline.work.deployment import utc_now
    from compevo_pipeline.work.embedded_news import embed_nameable
    from compevo_pipeline.work.preparation import rebuild as read_again
    from compevo_pipeline.work.source_coverage import NEWS

    deployment = arguments.open_deployment()
    known = deployment.feeds()
    if deployment.data_mode is Mode.SAMPLE:
        raise ConfigError("sample data are made by their jobs: set COMPEVO_MODE to archive or live")
    if dataset and dataset not in known:
        raise ConfigError(f"no sources of {dataset!r}; known: {', '.join(known)}")

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log = logging.getLogger(__name__)
    for name in [dataset] if dataset else known:
        counts = read_again(deployment, name, clock=utc_now, log=log)
        files = sum(of_feed.get("files", 0) for of_feed in counts.values())
        typer.echo(f"{name}: {files:,} files read again")
        if name == NEWS and files:
            encoder = RunConfig.preset(deployment.preset_for()).news.encoder
            embedded = embed_nameable(deployment, encoder, log=log)
            typer.echo(f"embeddings: {embedded.embedded:,} titles made again")


def backup(
    folder: Annotated[Path, typer.Argument(help="New folder for the copy, on another disk.")],
) -> None:
    """Copy COMPEVO_HOME and Dagster's storage, complete and consistent, even during runs."""
    from compevo_pipeline.config.settings import Settings, ensure_dagster_home
    from compevo_pipeline.work.backup import back_up
    from compevo_pipeline.work.deployment import utc_now

    home = Settings.from_environment().home
    count = back_up(home, ensure_dagster_home(), folder, utc_now())
    typer.echo(f"{folder}: {count:,} files; restore them with `compevo restore {folder}`")


def restore(
    folder: Annotated[Path, typer.Argument(help="Folder of a backup.")],
) -> None:
    """Check a backup and restore it into an empty COMPEVO_HOME and DAGSTER_HOME."""
    from compevo_pipeline.config.settings import Settings, ensure_dagster_home
    from compevo_pipeline.work.backup import restore as bring_back

    home = Settings.from_environment().home
    count = bring_back(folder, home, ensure_dagster_home())
    typer.echo(f"{home}: {count:,} files restored; start Dagster, then run `compevo verify`")
