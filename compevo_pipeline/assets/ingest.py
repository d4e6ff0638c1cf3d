"""What every asset that reads sources shares: its run configuration and the choice of feeds.

What belongs here: which feeds a run reads, and what it accepts of them. What does not: parsing and
storing (``preparation``), which feeds exist (``feeds``).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

import dagster as dg
from pydantic import Field, create_model, model_validator

from compevo_core.errors import SourceAbsent
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.feeds import Feed
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.preparation import ingest_feeds
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.common.base import Mode


class IngestConfig(LaunchConfig):
    """What to read."""

    feeds: list[str] | None = Field(default=None, min_length=1)
    """feeds to read; left out: all that exist in the run's mode"""
    since: str | None = None
    """live mode: first day of a backfill, such as 2026-01-31; left out: what is new since the last
    run"""
    until: str | None = None
    """live mode: the day after the backfill's last day"""
    tolerate_gaps: bool = False
    """accept files whose publisher left rows out: their values are missing, and counted as gaps"""

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        since, until = self.read_span()
        if since and until and since >= until:
            raise ValueError(f"since {self.since} is not before until {self.until}")
        return self

    def read_span(self) -> tuple[datetime | None, datetime | None]:
        """Return start and end of the backfill in UTC, None where not named.

        Raises:
            ValueError: a text that is no date.
        """
        return (
            None if self.since is None else read_day(self.since, "since"),
            None if self.until is None else read_day(self.until, "until"),
        )


def make_ingest_config(feeds: Sequence[Feed]) -> type[IngestConfig]:
    """Return the run configuration of an asset, with its own feeds as choices."""
    kind: Any = list[Literal[tuple(feed.name for feed in feeds)]]  # type: ignore[misc]  # known when wired
    note = IngestConfig.model_fields["feeds"].description
    return create_model(
        "IngestConfig",
        __base__=IngestConfig,
        __doc__=IngestConfig.__doc__,
        feeds=(kind | None, Field(default=None, min_length=1, description=note)),
    )


def ingest_chosen(
    context: dg.AssetExecutionContext,
    launch: type[IngestConfig],
    workspace: Workspace,
    feeds: Sequence[Feed],
    dataset: str,
    clock: Clock,
) -> dict[str, dict[str, int]]:
    """Read the feeds that a run's configuration chooses, and store what they give.

    Args:
        context: of the running step.
        launch: the asset's run configuration.
        workspace: where the run's data is.
        feeds: all feeds of a data set.
        dataset: its name.
        clock: tells the time.

    Returns:
        Counts by feed.

    Raises:
        dg.Failure, dg.RetryRequested: as ``translate_errors`` decides.
    """
    # A file on disk does not mend itself: only a live source is worth another try.
    is_live = workspace.data_mode is Mode.LIVE

    with translate_errors(attempt=context.retry_number, retry=is_live):
        config = launch.read(context)
        selected = select_feeds(feeds, config.feeds, workspace.data_mode)
        if config.tolerate_gaps:
            selected = [feed.accept_gaps() for feed in selected]

        return ingest_feeds(
            workspace, selected, dataset, clock=clock, log=context.log, span=config.read_span()
        )


def select_feeds(feeds: Sequence[Feed], names: Sequence[str] | None, mode: Mode) -> list[Feed]:
    """Return the feeds to read in a mode.

    Args:
        feeds: all feeds of a data set.
        names: the feeds a run asks for; None for all.
        mode: where data comes from.

    Raises:
        SourceAbsent: none of the feeds exists in the mode.
    """
    selected = [
        feed for feed in feeds if feed.exists_in(mode) and (not names or feed.name in names)
    ]
    # Some sources have no endpoint that a program may call, so live mode lacks them.
    if not selected:
        known = ", ".join(feed.name for feed in feeds)
        raise SourceAbsent(f"none of the feeds {known} exists in {mode} mode; choose another mode")

    return selected


def read_day(text: str, name: str) -> datetime:
    """Return a day, or an instant, of a run configuration in UTC.

    Args:
        text: such as 2026-01-31.
        name: how messages call it.

    Raises:
        ValueError: it is no date.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{name} {text!r} is not a day like 2026-01-31") from error
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
