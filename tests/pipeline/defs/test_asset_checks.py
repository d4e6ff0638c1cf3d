"""What the checks say of the age of data and of silent series."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_pipeline.defs.asset_checks import judge_data_age, judge_series_age, select_disjoint
from compevo_pipeline.sources.common.base import Mode
from tests.support.deployment import open_home
from tests.support.scored_samples import make_rows

NOW = datetime(2026, 4, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("mode", "read", "age", "passed"),
    [
        (Mode.LIVE, None, timedelta(days=4), True),
        (Mode.LIVE, None, timedelta(days=6), False),
        (Mode.LIVE, None, None, False),
        (Mode.ARCHIVE, None, timedelta(days=900), True),
        # Other data of a live deployment clear no warning.
        (Mode.LIVE, Mode.SAMPLE, timedelta(0), False),
        (Mode.LIVE, Mode.ARCHIVE, timedelta(0), False),
    ],
)
def test_data_age_by_source_and_files_never(tmp_path, mode, read, age, passed):
    workspace = replace(open_home(tmp_path, mode, archive=tmp_path), mode=read)
    newest = None if age is None else NOW - age
    result = judge_data_age(newest, timedelta(days=5), workspace, NOW)
    assert (result.name, result.passed) == ("data_age", passed)
    assert result.numbers["limit_hours"] == 120


@pytest.mark.parametrize(
    ("days", "source", "silent"),
    [(1, "live:ecb/x", 0), (6, "live:ecb/x", 1), (6, "archive:ecb/x", 0), (40, "live:ecb/x", 0)],
)
def test_a_silent_series_is_seen(tmp_path, days, source, silent):
    workspace = open_home(tmp_path, "live")
    frame = pl.DataFrame(
        {
            "series_id": ["ECB/EUR", "ECB/GBP", "ECB/GBP"],
            "variable": "rate",
            "start_utc": [NOW, NOW - timedelta(days=days), NOW],
            "value": [1.0, 1.0, None],
            "source": ["live:ecb/x", source, source],
        }
    )
    result = judge_series_age(frame, timedelta(days=5), workspace, NOW)

    assert (result.passed, result.numbers.get("silent", 0)) == (not silent, silent)
    assert ("ECB/GBP" in result.text) is bool(silent) and "ECB/EUR" not in result.text


def test_a_stale_publisher_is_named(tmp_path):
    workspace = open_home(tmp_path, "live")
    then = NOW - timedelta(days=9)
    row = {"series_id": "ECB/EUR", "variable": "rate", "start_utc": then, "value": 1.0}
    frame = pl.DataFrame([row | {"source": "live:ecb/x"}])
    ledger = workspace.ledger()
    ledger.record_fetched("ecb", "x", url="http://ecb.example/x", sha256="0", now=then)
    assert "answers" not in judge_series_age(frame, timedelta(days=5), workspace, NOW).text

    ledger.record_unchanged("ecb", "x", NOW)
    found = judge_series_age(frame, timedelta(days=5), workspace, NOW)
    assert not found.passed and "; ecb answers, with nothing newer" in found.text


def test_overlapping_forecasts_are_counted_once():
    rows = make_rows({"forecast": [1.0] * 10})
    days = sorted(set(rows["day"]))
    assert sorted(set(select_disjoint(rows, DAY)["day"])) == days
    assert sorted(set(select_disjoint(rows, 4 * DAY)["day"])) == days[::4]
    # Days that were not asked for do not shift the days that count.
    late = rows.filter(pl.col("day") != days[4])
    assert sorted(set(select_disjoint(late, 4 * DAY)["day"])) == [days[0], days[5], days[9]]
