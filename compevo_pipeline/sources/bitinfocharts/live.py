"""Live chart pages of BitInfoCharts: one every ten seconds, each at most once a day.

What belongs here: which pages to ask for, what to do when the site's protection answers. What does
not: HTTP and its pace (``common.http``, ``common.hosts``), parsing (``bitinfocharts.chart_page``).

The protection is never circumvented. When it answers, no further page is asked for; pages that a
person saved in a browser, into ``bitcoin/`` of the archive folder, take the place of the missing
ones.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from compevo_core.errors import SourceBlocked
from compevo_pipeline.sources.bitinfocharts.chart_page import PAGE_IDS, has_chart
from compevo_pipeline.sources.bitinfocharts.source import FOLDER, SOURCE
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.saved import read_new_saved_files

PAGES = "https://bitinfocharts.com/comparison"

_REMEDY = (
    "this is not circumvented, and what is stored stays; to go on, open the pages in a browser and "
    f"save them into the folder {FOLDER} of COMPEVO_ARCHIVE"
)


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Fetch the pages of the 18 metrics that were not fetched today, then the pages saved by hand.

    Raises:
        SourceBlocked: the protection answered, and no saved page is newer than what is stored.
        SourceError: any other failure.
    """
    blocked: SourceBlocked | None = None
    try:
        for slug in PAGE_IDS:
            raw = _fetch_page(live, f"{slug}-btc.html")
            if raw is not None:
                yield raw
    except SourceBlocked as error:
        blocked = error

    saved = list(read_new_saved_files(live, FOLDER, "*.html", source=SOURCE))
    yield from saved
    if blocked is not None and not saved:
        raise SourceBlocked(f"{blocked}; {_REMEDY}") from blocked


def _fetch_page(live: LiveContext, name: str) -> RawFile | None:
    entry = live.ledger.get(SOURCE, name)
    came_at = entry.stored_at if entry else None
    # A page is a megabyte and its newest whole day changes once a day.
    if came_at and _day_of(came_at) == _day_of(live.now):
        return None

    raw = live.client.fetch(f"{PAGES}/{name}", source=SOURCE, name=name, html_expected=True)
    if raw is None or has_chart(raw.content):
        return raw

    message = f"{PAGES}/{name}: a page without chart data (bot protection or a log-in)"
    live.ledger.reject(SOURCE, name, message)
    raise SourceBlocked(message)


def _day_of(moment: datetime) -> object:
    return moment.astimezone(UTC).date()
