"""``compevo backfill``."""

import logging
from datetime import datetime
from typing import Annotated

import typer


def backfill(
    dataset: Annotated[str, typer.Argument(help="Data set, or news.")],
    since: Annotated[
        datetime, typer.Option(help="First day to fetch (UTC).", formats=["%Y-%m-%d"])
    ],
    until: Annotated[
        datetime | None,
        typer.Option(help="The day after the last one; up to now.", formats=["%Y-%m-%d"]),
    ] = None,
    feed: Annotated[
        list[str] | None, typer.Option(help="Feed to read; all that have an endpoint.")
    ] = None,
) -> None:
    """Fetch what is missing of a past span from the publishers, month by month (live mode).

    Stopped or failed, it goes on where it was when it is started again.
    """
    from datetime import UTC

    from compevo_pipeline.backfill import backfill as fetch_missing
    from compevo_pipeline.backfill import choose_feeds
    from compevo_pipeline.feeds import default_feeds
    from compevo_pipeline.resources import Clock, Workspace
    from compevo_pipeline.settings import Settings

    settings = Settings.from_environment()
    workspace = Workspace(settings=settings)
    built_in = default_feeds(settings.news_queries, settings.pems_stations)
    own = {declared.name: declared.feeds for declared in workspace.registry().own}
    # Progress goes to standard error, a line a month.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    counts = fetch_missing(
        workspace,
        dataset,
        choose_feeds({**built_in, **own}, dataset, feed),
        since=since.replace(tzinfo=UTC),
        until=None if until is None else until.replace(tzinfo=UTC),
        clock=Clock(),
        log=logging.getLogger(__name__),
    )
    for name, found in counts.items():
        typer.echo(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in found.items()))
