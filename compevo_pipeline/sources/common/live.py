"""What a source's live mode works with: the client, the ledger, the time and the span asked for.

What belongs here: this one object. What does not: what to ask of whom (a source's own ``live``
module), how it is asked (``common.http``).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from compevo_core.errors import ConfigError
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.common.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class LiveContext:
    """One live fetch of one feed.

    Attributes:
        client: asks the publishers.
        ledger: what was asked, what came, what is absent.
        now: present time in UTC.
        since: start of a backfill's span; None is what a daily refresh needs.
        until: end of a backfill's span; None is now.
    """

    client: Client
    ledger: Ledger
    now: datetime
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse a span that is not in UTC or ends before it starts."""
        moments = [self.now, *(m for m in (self.since, self.until) if m is not None)]
        if any(moment.utcoffset() != timedelta(0) for moment in moments):
            raise ConfigError("since, until and now must be in UTC; write them with +00:00")
        if self.until is not None and self.since is None:
            raise ConfigError("a span with until needs since as well; name both, or neither")
        if self.since is not None and self.since >= (self.until or self.now):
            raise ConfigError(f"since {self.since} is not before until {self.until or self.now}")

    def span(self, lookback: timedelta) -> tuple[datetime, datetime]:
        """Return the start and end to fetch: the backfill's, or the ``lookback`` up to now."""
        end = min(self.until or self.now, self.now)
        return (self.since or self.now - lookback), end
