"""What every asset that reads sources shares: its run configuration and the choice of feeds.

What belongs here: which feeds a run reads. What does not: reading them (``assets.series``,
``assets.news``), which feeds exist (``feeds``).
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from compevo_core.errors import ConfigError, SourceAbsent
from compevo_pipeline.feeds import Feed
from compevo_pipeline.sources.common.base import Mode


class IngestConfig(dg.Config):
    """What to read."""

    feeds: list[str] = Field(
        default=[], description="feeds to read; empty: all that exist in the run's mode"
    )
    since: str = Field(
        default="",
        description=(
            "live mode: first day of a backfill, such as 2026-01-31; empty: what is new since the "
            "last run"
        ),
    )
    until: str = Field(default="", description="live mode: the day after the backfill's last day")

    def read_span(self) -> tuple[datetime | None, datetime | None]:
        """Return start and end of the backfill in UTC, None where not named.

        Raises:
            ConfigError: a text that is no date.
        """
        return _read_day(self.since, "since"), _read_day(self.until, "until")


def select_feeds(feeds: Sequence[Feed], names: Sequence[str], mode: Mode) -> list[Feed]:
    """Return the feeds to read in a mode.

    Args:
        feeds: all feeds of a data set.
        names: the feeds a run asks for; empty for all.
        mode: where data comes from.

    Raises:
        ConfigError: a name that no feed has.
        SourceAbsent: none of the feeds exists in the mode.
    """
    known = ", ".join(feed.name for feed in feeds)
    unknown = sorted(set(names) - {feed.name for feed in feeds})
    if unknown:
        raise ConfigError(
            f"no feed {', '.join(unknown)}; known: {known}: correct the run configuration"
        )

    selected = [
        feed for feed in feeds if feed.exists_in(mode) and (not names or feed.name in names)
    ]
    # Some sources have no endpoint that a program may call, so live mode lacks them.
    if not selected:
        raise SourceAbsent(f"none of the feeds {known} exists in {mode} mode; choose another mode")

    return selected


def _read_day(text: str, name: str) -> datetime | None:
    if not text:
        return None

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{name} {text!r} is not a day like 2026-01-31; correct the run configuration"
        ) from error
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
