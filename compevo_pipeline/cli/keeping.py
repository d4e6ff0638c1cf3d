"""Commands that keep what is known: ``accept``, ``rebuild``, ``backup`` and ``restore``.

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
    """Accept the changes of known values that wait: the next run of the source applies them.

    They wait where a file takes away or changes many known values. Look at them first, on the page
    of the data set's series in the UI; unasked, a fetch half a day later confirms them.
    """
    from compevo_pipeline.storage.series_changes import describe_waiting

    deployment = arguments.open_deployment()
    name = deployment.registry[dataset].name
    store = deployment.series_store()
    waiting = store.read_waiting(name)
    if waiting.is_empty():
        typer.echo(f"nothing of {name} waits to be accepted")
        return

    typer.echo(describe_waiting(waiting, name))
    typer.echo(f"accepted {store.accept_waiting(name):,}: the next run of the source applies them")


def rebuild(
    dataset: Annotated[
        str, typer.Argument(help="Data set, or news (default: all that raw files are kept of).")
    ] = "",
) -> None:
    """Make series, news and embeddings again from the raw files that are kept.

    For stores that are lost or torn (remove these first). Rows that are stored stay, nothing is
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
    """Copy COMPEVO_HOME and Dagster's storage, whole and consistent, while everything runs."""
    from compevo_pipeline.config.settings import Settings, ensure_dagster_home
    from compevo_pipeline.work.backup import back_up
    from compevo_pipeline.work.deployment import utc_now

    home = Settings.from_environment().home
    count = back_up(home, ensure_dagster_home(), folder, utc_now())
    typer.echo(f"{folder}: {count:,} files; bring them back with `compevo restore {folder}`")


def restore(
    folder: Annotated[Path, typer.Argument(help="Folder of a backup.")],
) -> None:
    """Bring a backup back into an empty COMPEVO_HOME and DAGSTER_HOME; it is checked first."""
    from compevo_pipeline.config.settings import Settings, ensure_dagster_home
    from compevo_pipeline.work.backup import restore as bring_back

    home = Settings.from_environment().home
    count = bring_back(folder, home, ensure_dagster_home())
    typer.echo(f"{home}: {count:,} files are back; start Dagster, then `compevo verify`")
