"""Two refreshes in a row over every live feed: the second asks conditionally, and writes no row."""

from datetime import UTC, date, datetime

import pytest

from compevo_pipeline.sources.bitinfocharts.source import METRICS
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work.ingest import WHAT_IS_NEW
from tests.pipeline.sources.bitinfocharts import test_bitinfocharts_live as charts
from tests.pipeline.sources.exchange import test_exchange_live as rates
from tests.pipeline.sources.gdelt import test_doc_live as doc
from tests.pipeline.sources.gdelt import test_gdelt_live as gdelt
from tests.pipeline.sources.pems import test_pems_live as pems
from tests.support import nemweb
from tests.support.live import NEWS, LiveHome
from tests.support.replay import Answer
from tests.support.weather import ENDPOINT
from tests.support.weather import answer as answer_weather

EVENING = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)


def serve_prices(replay):
    nemweb.serve_prices(replay, date(2026, 6, 1), date(2026, 7, 1))


def serve_operational(replay):
    nemweb.serve_day(replay)
    replay.serve({ENDPOINT: answer_weather})


def serve_rates(replay):
    replay.serve(
        {
            rates.BULK: rates.BULK_ANSWER,
            rates.DAYS: rates.answer_days,
            rates.TABLE: rates.RBA_ANSWER,
        }
    )


def serve_charts(replay):
    # No tag: the program's own time of the last fetch has to do.
    page = Answer(body=charts.page(), kind="text/html", modified="Fri, 20 Nov 2026 07:00:00 GMT")
    replay.serve({charts.path(slug): page for slug in METRICS})


def serve_traffic(replay):
    replay.serve({("pems.dot.ca.gov", "/"): pems.Site()})


def serve_news(replay):
    gdelt.serve_gal(replay)
    replay.serve({doc.DOC: doc.answer_every(30)})


CASES = {
    "electricity": (serve_prices, EVENING, WHAT_IS_NEW),
    "electricity-operational": (serve_operational, EVENING, WHAT_IS_NEW),
    "exchange": (serve_rates, rates.FRIDAY_EVENING, WHAT_IS_NEW),
    "bitcoin": (serve_charts, charts.NOW, WHAT_IS_NEW),
    "traffic": (serve_traffic, pems.NOW, WHAT_IS_NEW),
    # An hour of it: a day is hundreds of files.
    NEWS: (serve_news, gdelt.NOW, gdelt.HOUR),
}


def stored_files(home):
    """What is stored, without the bytes as they came and the ledger."""
    root = home.workspace.layout.root
    paths = (path for path in root.rglob("*") if path.is_file() and "raw" not in path.parts)
    return {path.relative_to(root): path.read_bytes() for path in paths if path.name != ".lock"}


def test_every_feed_with_an_endpoint_is_in_a_case():
    connected = {
        dataset
        for dataset, feeds in default_feeds().items()
        if any(feed.exists_in(Mode.LIVE) for feed in feeds)
    }
    assert connected == set(CASES)


@pytest.mark.parametrize("dataset", CASES)
def test_a_second_refresh_sends_only_conditional_requests_and_writes_no_row(
    replay, tmp_path, dataset
):
    serve, now, span = CASES[dataset]
    serve(replay)
    archive = tmp_path / "archive"
    archive.mkdir()
    home = LiveHome(
        tmp_path / "home",
        now,
        {"archive": archive, "pems_user": pems.USER, "pems_password": pems.PASSWORD},
    )

    first = home.ingest(dataset, span=span)
    assert all(counts["files"] > 0 for counts in first.values())
    before, asked = stored_files(home), len(replay.seen)

    home.wait(minutes=5)
    second = home.ingest(dataset, span=span)
    again = [
        (seen.path, dict(seen.query)) for seen in replay.seen[asked:] if not seen.is_conditional
    ]
    assert again == []
    assert {name: counts["files"] for name, counts in second.items()} == dict.fromkeys(first, 0)
    assert stored_files(home) == before
