"""``compevo forecast``: a day whose truth is unknown, from what a deployment has stored."""

import json
import shutil
from datetime import datetime, timedelta
from functools import partial

import polars as pl
import pytest

from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.issued import read_chain, read_issued
from compevo_pipeline.cli.forecast import read_day
from compevo_pipeline.storage.series_store import SeriesStore
from tests.support.commands import invoke
from tests.support.operational import DATASET, make_deployment, make_frames
from tests.support.window_samples import from_nem

ORIGIN = from_nem(2026, 2, 24)
ISSUE_TIME = ORIGIN - timedelta(hours=7)


@pytest.fixture(scope="module")
def layout(tmp_path_factory, operational_run):
    """A deployment at 17:00 of the day before."""
    return make_deployment(tmp_path_factory.mktemp("home"), ISSUE_TIME, operational_run)


@pytest.fixture
def forecast(layout):
    return partial(invoke, "forecast", "--day=2026-02-24", home=layout.root.parent)


def read(layout, known):
    day = layout.issued(DATASET) / f"{ORIGIN:%Y%m%dT%H%MZ}"
    return day / f"known-{known:%Y%m%dT%H%MZ}"


def test_later_data_change_no_forecast(layout, forecast, tmp_path):
    shown = forecast("--csv", str(tmp_path / "tomorrow.csv"))
    assert "24 February 2026" in shown and "2026 17:00" in shown
    assert "[sample: synthetic data]" in shown.splitlines()
    # The table is what stands last.
    assert shown.splitlines()[-1].split()[0] == "NSW1"

    first = read_issued(read(layout, ISSUE_TIME))
    assert first.rows["start_utc"].min() == ORIGIN
    assert datetime.fromisoformat(first.facts["issued_at"]).utcoffset() == timedelta(0)
    rows = pl.read_csv(tmp_path / "tomorrow.csv")
    assert rows["start"][0] == "2026-02-24T00:00:00+10:00" and rows.height == 48
    assert rows["compevo"].to_list() == first.select_points("NSW1")["forecast"].tolist()
    said = json.loads(forecast("--json", "--page", str(tmp_path / "tomorrow.html")))
    assert said["record"] == str(read(layout, ISSUE_TIME)) and said["facts"] == first.facts
    assert [row["compevo"] for row in said["rows"]] == rows["compevo"].to_list()
    assert said["rows"][0]["start_utc"] == "2026-02-23T14:00:00Z"
    assert "24 February 2026" in (tmp_path / "tomorrow.html").read_text("utf-8")
    (facts,) = first.facts["series"]
    # Nothing is stored of a week before, and 7 days are too few for bands of the day.
    assert facts["last_week"] == [None] * 48 and facts["day_quantiles"] == {}

    # The whole of tomorrow becomes known: a backfill issues the very same forecast.
    series, _ = make_frames()
    SeriesStore(layout.root).write(DATASET, series)
    issued = layout.issued(DATASET)
    shutil.move(issued, tmp_path / "live")
    forecast()
    backfilled = read_issued(read(layout, ISSUE_TIME))
    assert backfilled.hash == first.hash
    shutil.rmtree(issued)
    shutil.move(tmp_path / "live", issued)
    forecast()
    again = read_issued(read(layout, ISSUE_TIME))
    assert (again.hash, again.facts["issued_at"]) == (first.hash, first.facts["issued_at"])

    # Known to midnight it is another forecast, of a model that has seen one more day of errors.
    forecast("--known-to", "midnight")
    midnight = read_issued(read(layout, ORIGIN))
    assert midnight.hash != first.hash
    assert midnight.facts["series"][0]["unknown_inputs"] == 0


def test_a_superseded_day_is_verified(layout, forecast):
    forecast()
    # The same forecast is the one that was issued, whoever asks.
    assert "Supersedes" not in forecast("--supersede")

    first = read_issued(read(layout, ISSUE_TIME))
    store = SeriesStore(layout.root)
    stored = store.read(DATASET)
    at = ISSUE_TIME - timedelta(hours=3)
    is_revised = pl.col("start_utc") == at
    revised = stored.with_columns(pl.col("value") + pl.when(is_revised).then(50.0).otherwise(0.0))
    store.write(DATASET, revised)
    try:
        shown = forecast("--supersede")
    finally:
        store.write(DATASET, stored)
    assert f"Supersedes the issue of {first.facts['issued_at']}" in shown
    later = read(layout, ISSUE_TIME).with_name(f"{read(layout, ISSUE_TIME).name}-02")
    assert read_issued(later).facts["supersedes"] == first.hash
    # It represents the day from now on.
    assert str(later) in forecast() and read_issued(read(layout, ISSUE_TIME)).hash == first.hash

    head = read_chain(layout.issued(DATASET)).head
    assert f"of chain {head[:16]}" in shown
    for words in (["verify"], ["verify", DATASET]):
        assert head in invoke(*words, home=layout.root.parent)
    with pytest.raises(DataError, match="exchange"):
        invoke("verify", "exchange", home=layout.root.parent)


def test_an_empty_home_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="compevo fit") as caught:
        invoke("forecast", home=tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataError, match="synthetic data") as missing:
        invoke("forecast", DATASET, home=tmp_path)
    assert str(tmp_path) in str(missing.value).partition("COMPEVO_HOME")[2]


def test_a_day_is_a_date_or_word():
    now = datetime(2026, 2, 24, 23, 0)  # noqa: DTZ001 - of the market
    days = {"today": "2026-02-24", "tomorrow": "2026-02-25", "2026-03-01": "2026-03-01"}
    assert {text: str(read_day(text, now)) for text in days} == days
    assert read_day("", now) is None
    with pytest.raises(ConfigError, match="YYYY-MM-DD"):
        read_day("2026-02-30", now)


def test_what_cannot_be_forecast_is_refused(forecast):
    with pytest.raises(DataError, match=r"NSW1.*2026-02-2"):
        forecast("--day", "2026-03-05")
    for words in (["traffic"], ["electricity", "--known-to", "issue-time"], ["demand"]):
        with pytest.raises(ConfigError, match=words[0]):
            forecast(*words)
