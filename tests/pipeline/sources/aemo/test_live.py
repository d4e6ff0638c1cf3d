"""AEMO's files from a replay of its hosts: what is asked for, once, and what a failure costs."""

import functools
import logging
from datetime import UTC, date, datetime, timedelta

import pytest

from compevo_core import errors
from compevo_pipeline.sources.aemo import live as aemo_live
from compevo_pipeline.sources.aemo import parse_operational
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.common.ledger import EntryState
from tests.support import nemweb
from tests.support.nemweb import ACTUAL, FORECAST, HOST, PRICES, ROOFTOP
from tests.support.replay import Answer, open_live

DAY = datetime(2026, 7, 19)  # noqa: DTZ001 - NEM time


def fetch_all(home, fetch=aemo_live.fetch_operational, **kwargs):
    live = open_live(home, **kwargs)
    files = list(fetch(live))
    live.ledger.confirm()
    return files


REPORT = aemo_live.names.ACTUAL_REPORT
fetch_prices = functools.partial(fetch_all, fetch=aemo_live.fetch_price_and_demand)


def serve_week(replay, date, halves, part="Archive"):
    week = f"{REPORT}_{date}.zip"
    files = {f"{part}/{ACTUAL}/": nemweb.listing(ACTUAL, [week])}
    files[f"CURRENT/{ACTUAL}/{week}"] = Answer(body=nemweb.pack(*halves))
    replay.serve({(HOST, f"/Reports/{path}"): answer for path, answer in files.items()})


def test_a_forecast_just_out_is_fetched(replay, tmp_path):
    issued = DAY.replace(hour=17)
    nemweb.serve_day(replay)
    files = fetch_all(tmp_path, now=datetime(2026, 7, 19, 7, 5, tzinfo=UTC))
    assert nemweb.forecast(issued)[0] in {file.packed_in for file in files}


def test_a_file_left_behind_hides_no_gap(replay, tmp_path):
    left_behind, *missing = (nemweb.actual(DAY - timedelta(days=days)) for days in (13, 8, 9))
    nemweb.serve_folder(replay, ACTUAL, [left_behind, nemweb.actual(DAY)])
    serve_week(replay, "20260705", missing)
    assert aemo.parse_all(fetch_all(tmp_path)).height == 3 * 5


@pytest.mark.parametrize("part", ["Archive", "ARCHIVE"])
def test_older_files_come_from_weekly_zips(replay, tmp_path, part):
    halves = [nemweb.actual(DAY - timedelta(days=8, minutes=30 * step)) for step in range(4)]
    nemweb.serve_folder(replay, ACTUAL, [nemweb.actual(DAY)])
    serve_week(replay, "20260705", halves, part)
    assert aemo.parse_all(fetch_all(tmp_path)).height == 5 * 5

    # The half-hours of the week were fetched with it: they are not asked for on their own.
    nemweb.serve_folder(replay, ACTUAL, [*halves, nemweb.actual(DAY)])
    assert fetch_all(tmp_path) == []


def test_older_actuals_come_from_mmsdm(replay, tmp_path):
    nemweb.serve_folder(replay, ACTUAL, [nemweb.actual(DAY)])
    name = "PUBLIC_ARCHIVE%2523DEMANDOPERATIONALACTUAL%2523FILE01%2523202501010000.zip"
    month = "/Data_Archive/Wholesale_Electricity/MMSDM/2025/MMSDM_2025_01/"
    folder = f"{month}MMSDM_Historical_Data_SQLLoader/DATA/"
    inner = nemweb.actual(datetime(2025, 1, 5))[1]  # noqa: DTZ001 - NEM time
    ((_, table),) = nemweb.unzip_all(inner)
    body = nemweb.pack((name.replace("%2523", "#").replace(".zip", ".CSV"), table))
    page = f'<pre><A HREF="{folder}{name}">{name}</A></pre>'
    replay.serve({(HOST, folder): Answer(body=page.encode(), kind="text/html")})
    replay.serve({(HOST, f"{folder}{name}"): Answer(body=body)})
    span = {"since": datetime(2025, 1, 4, tzinfo=UTC), "until": datetime(2025, 1, 8, tzinfo=UTC)}
    files = fetch_all(tmp_path, **span)

    starts = parse_operational.parse_operational(files[0])["start_utc"]
    assert set(starts) == {datetime(2025, 1, 4, 13, 30, tzinfo=UTC)}
    # A backfill that resumes requests nothing that it has.
    asked = len(replay.seen)
    assert fetch_all(tmp_path, **span) == []
    assert not [seen.path for seen in replay.seen[asked:] if seen.path.endswith(".zip")]


@pytest.mark.parametrize(
    ("folder", "status"), [(FORECAST, 404), (ROOFTOP, 403), (FORECAST, 500), (ROOFTOP, 200)]
)
def test_a_missing_forecast_costs_only_itself(replay, tmp_path, caplog, folder, status):
    nemweb.serve_day(replay, count=4)
    fault = Answer(status=status, body=b"<html>x")
    replay.serve({(HOST, f"/Reports/{part}/{folder}/"): fault for part in ("Current", "CURRENT")})
    with caplog.at_level(logging.WARNING):
        files = fetch_all(tmp_path)
    assert aemo.parse_all(files).height == 4 * 5
    assert len(files) == 5
    assert "left out" in caplog.text


NO_DAYS = [f"{REPORT}_00010101.zip", f"{REPORT}_99991231.zip"]
NO_ADDRESS = f'<a href="https://[/{REPORT}_202607190030.zip">'.encode()
OTHER_HOST = f'<a href="https://files.example/{REPORT}_202607190030.zip">'.encode()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(status=403), errors.SourceBlocked),
        (Answer(status=503), errors.SourceTransient),
        (Answer(body=b"<html>maintenance</html>", kind="text/html"), errors.SourceAbsent),
        (nemweb.listing(ACTUAL, []), errors.SourceAbsent),
        (nemweb.listing(ACTUAL, ["PUBLIC_DEMAND_RENAMED_202607190030.zip"]), errors.SchemaDrift),
        (nemweb.listing(ACTUAL, [f"{REPORT}_LATEST.zip"]), errors.SchemaDrift),
        (nemweb.listing(ACTUAL, NO_DAYS), errors.SchemaDrift),
        (Answer(body=NO_ADDRESS, kind="text/html"), errors.SourceRejected),
        (Answer(body=OTHER_HOST, kind="text/html"), errors.SourceRejected),
    ],
)
def test_without_actuals_forecasts_are_kept(replay, tmp_path, fault, error):
    nemweb.serve_day(replay, count=1)
    replay.serve({(HOST, f"/Reports/{part}/{ACTUAL}/"): fault for part in ("Current", "CURRENT")})
    live = open_live(tmp_path)
    came = []
    with pytest.raises(error):
        came.extend(aemo_live.fetch_operational(live))
    states = {entry.state for entry in live.ledger.list_entries("aemo_operational_demand")}

    assert EntryState.FETCHED in states
    assert {seen.host for seen in replay.seen} == {HOST}


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_broken_half_hour_is_fetched_again(replay, tmp_path, is_empty):
    nemweb.serve_day(replay, count=4)
    name, body = nemweb.actual(DAY + timedelta(minutes=60))
    path = (HOST, f"/Reports/CURRENT/{ACTUAL}/{name}")
    replay.serve({path: Answer(body=nemweb.pack() if is_empty else body[: len(body) // 2])})
    assert len(fetch_all(tmp_path)) == 5
    replay.serve({path: Answer(body=body)})
    assert [file.packed_in for file in fetch_all(tmp_path)] == [name]


def test_a_host_down_is_not_asked_on(replay, tmp_path):
    nemweb.serve_day(replay, count=48)
    files = [key for key in replay.answers if f"CURRENT/{ACTUAL}/PUBLIC" in key[1]]
    replay.serve(dict.fromkeys(files, Answer(status=500)))
    with pytest.raises(errors.SourceTransient):
        fetch_all(tmp_path)
    # Three files, each tried three times.
    assert sum("ACTUAL" in path and path.endswith(".zip") for path in replay.paths()) == 9


def test_a_month_begins_in_nem_time(replay, tmp_path):
    fetched = datetime(2026, 7, 31, 14, 30, tzinfo=UTC)  # half past midnight of 1 August in NEM
    nemweb.serve_prices(replay, date(2026, 7, 1))
    files = fetch_prices(tmp_path, now=fetched)
    assert {file.name[17:23] for file in files} == {"202607"}
    assert any("202608" in path for path in replay.paths())
    assert not any("202606" in path for path in replay.paths())


def test_a_backfill_asks_for_months_once(replay, tmp_path):
    nemweb.serve_prices(replay, date(2004, 12, 1), days=2, minutes=30)
    replay.answers = {key: value for key, value in replay.answers.items() if "TAS1" not in key[1]}
    span = {"since": datetime(2004, 12, 2, tzinfo=UTC), "until": datetime(2004, 12, 9, tzinfo=UTC)}

    assert len(fetch_prices(tmp_path, **span)) == 4
    assert fetch_prices(tmp_path, **span) == []
    assert len(replay.seen) == 5
    ledger, name = open_live(tmp_path).ledger, "PRICE_AND_DEMAND_200412_TAS1.csv"
    assert ledger.get("aemo_price_and_demand", name).state is EntryState.ABSENT


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_backfill_completes_a_grown_month(replay, tmp_path, is_stored):
    june = date(2026, 6, 1)
    nemweb.serve_prices(replay, june)
    live = open_live(tmp_path, now=datetime(2026, 6, 4, tzinfo=UTC))
    assert len(list(aemo_live.fetch_price_and_demand(live))) == 5
    if is_stored:
        live.ledger.confirm()

    grown = dict(nemweb.price_file(region, june, days=30) for region in nemweb.REGIONS)
    for name, body in grown.items():
        replay.serve({(PRICES, f"{nemweb.PRICE_FOLDER}/{name}"): Answer(body=body)})
    span = {"since": datetime(2026, 6, 1, tzinfo=UTC), "until": datetime(2026, 6, 30, tzinfo=UTC)}
    later = datetime(2026, 9, 4, tzinfo=UTC)
    files = fetch_prices(tmp_path, now=later, **span)
    assert sorted(file.content for file in files) == sorted(grown.values())
    assert fetch_prices(tmp_path, now=later, **span) == []
    # Five of May, which has no file, five that grew, and the same five complete.
    assert len(replay.seen) == 5 + 5 + 5


def test_a_first_run_takes_whole_weeks(replay, tmp_path, monkeypatch):
    monkeypatch.setattr(aemo_live, "MANY_FILES", 3)
    halves = [nemweb.actual(DAY - timedelta(minutes=30 * step)) for step in range(6)]
    nemweb.serve_folder(replay, ACTUAL, halves)
    serve_week(replay, "20260712", halves[1:])

    assert aemo.parse_all(fetch_all(tmp_path)).height == 6 * 5
    asked = [path.rsplit("/", 1)[-1] for path in replay.paths() if path.endswith(".zip")]
    assert asked == [f"{REPORT}_20260712.zip", halves[0][0]]
