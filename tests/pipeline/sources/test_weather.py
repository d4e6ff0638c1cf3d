"""Weather: runs of forecasts, observed and collected tables, and the endpoint of the runs."""

import io
import json
import logging
import traceback
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core import errors
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.weather import collected
from compevo_pipeline.sources.weather import forecast as weather_runs
from compevo_pipeline.sources.weather import observed as weather
from compevo_pipeline.sources.weather.forecast import SOURCE, fetch_live, name_run
from tests.support.live import LiveHome
from tests.support.replay import Answer, open_live
from tests.support.sources import clock, raw
from tests.support.weather import ENDPOINT, RUN, answer, answer_run, make_run

NAME = weather_runs.name_run(RUN)
HALF_HOUR = timedelta(minutes=30)
ROW = "2020-01-15,NSW,294.17,301.15,10.3,83.0,1007.0,294.78,295.96,9.56"
DATASET = "electricity-operational"
FREE, PATH = ENDPOINT
HOST = f"customer-{FREE}"
KEY = "canary-Key_0123456789"


def parse(document, name=NAME):
    content = document if isinstance(document, str | bytes) else json.dumps(document)
    return weather_runs.parse(raw(name, content, weather_runs.SOURCE))


def values(frame, name, entity="NSW1"):
    return frame.filter(name=name, entity=entity).sort("start_utc")["value"].to_list()


def test_an_evening_run_covers_the_next_day():
    frame = parse(make_run(hours=72))
    assert NAME == "ecmwf_ifs_20251110T1800Z.json"
    assert frame["start_utc"].min() == RUN
    assert set(frame["entity"]) == set(weather_runs.PLACES)
    assert frame["available_at"].unique().to_list() == [RUN + timedelta(hours=12)]

    # Known at 17:00 on the market's clock, 07:00 UTC, for the day that starts at 14:00 UTC.
    issue_time = datetime(2025, 11, 11, 7, tzinfo=UTC)
    assert frame["available_at"].max() <= issue_time
    start = issue_time + timedelta(hours=7)
    day = frame.filter(pl.col("start_utc").is_between(start, start + timedelta(hours=23.5)))
    assert day.height == 5 * len(weather_runs.VARIABLES) * 48


def test_half_hours_lie_between_hours():
    document = make_run(hours=4)
    for place in document:
        place["hourly"]["temperature_2m"] = [10.0, 12.0, None, 20.0]
        place["hourly"]["shortwave_radiation"] = [0.0, 100.0, 300.0, None]
    frame = parse(document)

    temperature = frame.filter(name="temperature_c", entity="QLD1").sort("start_utc")
    at = [(stamp - RUN) / HALF_HOUR for stamp in temperature["start_utc"]]
    # Between a value and none there is none.
    found = dict(zip(at, temperature["value"], strict=True))
    assert found == {0: 10.0, 1: 11.0, 2: 12.0, 6: 20.0}
    # The value at the run's own stamp is of the hour before it: no forecast.
    assert values(frame, "solar_radiation_w_m2", "QLD1") == [100.0, 100.0, 300.0, 300.0]


def test_an_older_run_can_be_read():
    document = make_run()
    for place in document:
        for added in ("dew_point_2m", "cloud_cover", "sunshine_duration"):
            del place["hourly"][added], place["hourly_units"][added]
    names = {"temperature_c", "wind_speed_m_s", "solar_radiation_w_m2"}
    assert set(parse(document)["name"]) == names


def test_runs_of_an_archive_are_read(tmp_path):
    folder = tmp_path / weather_runs.SOURCE
    folder.mkdir()
    (folder / NAME).write_text(json.dumps(make_run()))
    (found,) = weather_runs.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock)
    assert weather_runs.parse(found).height == parse(make_run()).height
    assert not list(weather_runs.read_files(Mode.SAMPLE, archive=None, clock=clock))
    with pytest.raises(errors.SourceAbsent, match="open_meteo"):
        list(weather_runs.read_files(Mode.ARCHIVE, archive=tmp_path / "none", clock=clock))


def parse_table(*rows):
    text = "\r\n".join([",".join(weather.HEADER), *rows]) + "\r\n"
    return weather.parse(raw("combined_weather_data.csv", text, weather.SOURCE))


def at(frame, name):
    return frame.filter(name=name).row(0, named=True)


def test_readings_are_known_by_local_time():
    frame = parse_table(ROW)
    assert at(frame, "afternoon_temp_k")["available_at"] == datetime(2020, 1, 15, 7, 0, tzinfo=UTC)
    assert at(frame, "max_temp_k")["available_at"] == datetime(2020, 1, 15, 22, 0, tzinfo=UTC)
    assert at(frame, "max_temp_k")["value"] == 301.15
    assert frame["entity"].unique().to_list() == ["NSW1"]
    assert frame["valid_date"].unique().to_list() == [date(2020, 1, 15)]
    assert frame.height == 8

    others = [ROW.replace("NSW", state) for state in ("QLD", "SA")]
    frame = parse_table(ROW, *others, ROW.replace("2020-01", "2020-07"))
    found = frame.filter(name="afternoon_temp_k").select("entity", "available_at").rows()
    hours = {(entity, stamp.month): stamp.hour + stamp.minute / 60 for entity, stamp in found}
    assert hours == {("NSW1", 1): 7.0, ("QLD1", 1): 8.0, ("SA1", 1): 7.5, ("NSW1", 7): 8.0}


HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LAST = datetime(2026, 3, 1, tzinfo=UTC)
STATES = datetime(2026, 2, 13, 22, tzinfo=UTC)
ISSUED = datetime(2026, 2, 25, 6, 30, tzinfo=UTC)
VALUES = {
    "dew_point_2m": 8.0,
    "cloud_cover": 60.0,
    "wind_speed_10m": 36.0,
    "sunshine_duration": 1800.0,
}


def true_temperature(hour):
    return 20.0 + 5.0 * np.sin((hour - FIRST) / DAY * 2 * np.pi)


def make_hours(first, n, city, add=0.0):
    return [
        {"city": city, "hour": hour, "temperature_2m": true_temperature(hour) + add, **VALUES}
        for hour in (first + i * HOUR for i in range(n))
    ]


def pack(name, rows, **names):
    content = io.BytesIO()
    pl.DataFrame(rows).rename(names).write_parquet(content)
    return raw(name, content.getvalue(), collected.SOURCE)


def make_files(late=0.0):
    """Both parts; Hobart's forecasts are too warm, ``late`` is added to what is known later."""
    observed, forecasts = [], []
    for city in collected.CITIES.values():
        n_known = int((ISSUED - collected.OBSERVED_AFTER - FIRST) / HOUR) + 1
        observed += make_hours(FIRST, n_known, city)
        rest = int((LAST - FIRST) / HOUR) - n_known
        observed += make_hours(FIRST + n_known * HOUR, rest, city, late)

        known_at = STATES
        while known_at < LAST - 3 * DAY:
            warm = 3.0 * (city == "Hobart") + late * (known_at > ISSUED) + 0.7 * (known_at.day % 3)
            day = known_at.replace(hour=0, minute=0)
            rows = make_hours(day, 65, city, warm)
            forecasts += [row | {"known_at_utc": known_at} for row in rows]
            known_at += 8 * HOUR + HALF_HOUR
    return [
        pack("2026-01.parquet", observed, hour="time"),
        pack(collected.FORECASTS, forecasts, hour="valid_time_utc"),
    ]


@pytest.fixture(scope="module")
def frame():
    return collected.parse_all(make_files())


def is_substitute(frame):
    return frame["source"].str.contains(collected.SUBSTITUTE)


def test_units_are_those_of_live_runs(frame):
    means = dict(frame.group_by("name").agg(pl.col("value").mean()).iter_rows())
    assert means["wind_speed_m_s"] == pytest.approx(10.0)
    assert means["sunshine_share"] == pytest.approx(0.5)
    assert means["cloud_cover_pct"] == pytest.approx(60.0)


def test_each_day_has_the_newest_states(frame):
    real = frame.filter(~is_substitute(frame), entity="NSW1", name="temperature_c")
    known = real["available_at"].unique().sort().to_list()
    # Both came before 17:00 on the market's clock, 07:00 UTC: the newer one counts.
    assert datetime(2026, 2, 14, 6, 30, tzinfo=UTC) in known
    assert datetime(2026, 2, 13, 22, tzinfo=UTC) not in known
    # A state reaches to the end of the day that is forecast, and no further.
    newest = real.filter(available_at=known[-1])
    end = known[-1].replace(hour=0, minute=0, second=0) + 38 * HOUR

    assert newest["start_utc"].max() == end - timedelta(minutes=30)


def test_only_the_known_difference_is_taken_off(frame):
    def mean_error(table, entity, since):
        rows = table.filter(~is_substitute(table), entity=entity, name="temperature_c")
        rows = rows.filter(pl.col("available_at") >= since, pl.col("start_utc").dt.minute() == 0)
        true = np.array([true_temperature(at) for at in rows["start_utc"]])
        return float((rows["value"] - true).mean())

    first, later = STATES, datetime(2026, 2, 24, tzinfo=UTC)
    assert mean_error(frame, "TAS1", later) < 1.0 < mean_error(frame, "TAS1", first)

    # What becomes known after a state was issued changes nothing in it.
    poisoned = collected.parse_all(make_files(late=50.0))
    before = pl.col("available_at") <= ISSUED
    assert poisoned.filter(before).equals(frame.filter(before))
    assert not poisoned.filter(~before).equals(frame.filter(~before))


def test_substitutes_have_errors_and_end(frame):
    rows = frame.filter(is_substitute(frame), name="temperature_c")
    assert rows["start_utc"].max() < datetime(2026, 2, 13, 14, tzinfo=UTC)
    assert {at.hour for at in rows["available_at"].unique()} == {7}

    on_hours = rows.filter(pl.col("start_utc").dt.minute() == 0)
    true = np.array([true_temperature(at) for at in on_hours["start_utc"]])
    error = (on_hours["value"] - true).abs()
    ahead = on_hours["start_utc"] > on_hours["available_at"]
    assert error.filter(~ahead).mean() < error.filter(ahead).mean()
    assert collected.parse_all(make_files()).equals(frame)


def test_a_missing_part_or_a_hole_is_named():
    observed, forecasts = make_files()
    with pytest.raises(errors.SourceAbsent, match="observed"):
        collected.parse_all([forecasts])
    with pytest.raises(errors.SchemaDrift, match=r"weather_forecasts\.parquet"):
        collected.parse_all([observed, raw(collected.FORECASTS, "city,hour", collected.SOURCE)])

    table = pl.read_parquet(io.BytesIO(forecasts.content))
    holed = pack(collected.FORECASTS, table.filter(pl.col("valid_time_utc").dt.hour() != 9))
    with pytest.raises(errors.SchemaDrift, match="hole"):
        collected.parse_all([observed, holed])


NOW = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)
NEWEST = datetime(2026, 7, 19, 18, tzinfo=UTC)
SINCE = NEWEST - HOUR
NO_RUN = b"Unexpected error while streaming data: modelRunUnavailable(model: ecmwf_ifs, run: x)"


def fetch(home, **span):
    live = open_live(home, **{"now": NOW} | span)
    files = list(fetch_live(live))
    live.ledger.confirm()
    return [file.name for file in files]


def states(home):
    return {entry.name: entry.state for entry in open_live(home).ledger.list_entries(SOURCE)}


def test_a_refresh_asks_for_public_runs_once(replay, tmp_path):
    replay.serve({ENDPOINT: answer})
    early = NEWEST + timedelta(hours=11, minutes=59)
    assert name_run(NEWEST) not in fetch(tmp_path / "early", now=early)
    assert name_run(NEWEST) in fetch(tmp_path / "early", now=NEWEST + timedelta(hours=12))

    replay.seen.clear()
    assert fetch(tmp_path) == [name_run(NEWEST - i * DAY) for i in (3, 2, 1, 0)]
    query = replay.seen[0].query
    assert query["timezone"] == ["GMT"] and query["wind_speed_unit"] == ["ms"]
    assert query["latitude"][0].split(",")[0] == "-33.87" and query["models"] == ["ecmwf_ifs"]

    assert fetch(tmp_path) == []
    assert len(replay.seen) == 4


def test_an_absent_run_is_given_up(replay, tmp_path):
    reason = json.dumps({"error": True, "reason": "The requested model run is not available"})
    spellings = ((200, NO_RUN), (400, reason.encode()), (404, b"{}"))
    answers = [Answer(status=s, body=body, kind="application/json") for s, body in spellings]
    replay.serve({ENDPOINT: answers})
    assert fetch(tmp_path) == []
    assert set(states(tmp_path).values()) == {EntryState.ABSENT}

    # Asked again after a pause, and no more after the last one.
    fetch(tmp_path)
    assert len(replay.seen) == 4
    for days in range(1, 60):
        fetch(tmp_path, now=NOW + days * DAY, since=SINCE, until=NEWEST + HOUR)
    assert states(tmp_path)[name_run(NEWEST)] is EntryState.FROZEN
    assert len(replay.seen) == 4 + 6


def test_an_empty_run_is_asked_again(replay, tmp_path):
    empty = make_run(NEWEST)
    for place in empty:
        stamps = place["hourly"]["time"]
        place["hourly"] = dict.fromkeys(place["hourly"], [None] * len(stamps)) | {"time": stamps}
        place["hourly_units"] = dict.fromkeys(place["hourly_units"], "undefined")
    body = json.dumps(empty).encode()
    replay.serve({ENDPOINT: [Answer(body=body, kind="application/json"), answer_run(NEWEST)]})

    assert fetch(tmp_path, since=SINCE) == []
    assert states(tmp_path) == {name_run(NEWEST): EntryState.ABSENT}
    assert fetch(tmp_path, now=NOW + DAY, until=NOW, since=SINCE) == [name_run(NEWEST)]


def test_a_broken_answer_is_fetched_anew(replay, tmp_path):
    # More than the client looks at before it keeps an answer.
    body = answer_run(NEWEST).body[:-2].ljust(70_000) + b"Unexpected error while streaming data: x"
    broken = Answer(body=body, kind="application/json")
    replay.serve({ENDPOINT: [broken, answer_run(NEWEST)]})

    with pytest.raises(errors.SourceTransient):
        fetch(tmp_path, since=SINCE)
    assert states(tmp_path) == {name_run(NEWEST): EntryState.FAILED}
    assert fetch(tmp_path, since=SINCE) == [name_run(NEWEST)]


def quote(status):
    """Refuses, and quotes the key and the whole address, as servers do."""

    def refuse(seen):
        # The key first: of a long answer only the beginning is shown.
        reason = f"{seen.query['apikey']}: {dict(seen.query)}"
        body = json.dumps({"reason": reason, "error": True})
        return Answer(body=body.encode(), status=status, kind="application/json")

    return refuse


@pytest.fixture
def home(tmp_path):
    return LiveHome(tmp_path / "home", NOW, {"open_meteo_key": KEY})


def ingest(home):
    return home.ingest(DATASET, only=["weather-forecast"])


def test_a_key_chooses_the_customers_host(home, replay, tmp_path):
    replay.serve({(HOST, PATH): answer, (FREE, PATH): answer})
    ingest(home)
    assert {(seen.host, *seen.query["apikey"]) for seen in replay.seen} == {(HOST, KEY)}
    asked = len(replay.seen)
    assert ingest(home)["weather-forecast"]["files"] == 0
    assert len(replay.seen) == asked

    ingest(LiveHome(tmp_path / "free", NOW))
    assert {(seen.host, "apikey" in seen.query) for seen in replay.seen[asked:]} == {(FREE, False)}


MOVED = Answer(status=302, headers={"Location": f"https://{FREE}{PATH}?apikey={KEY}"})
REFUSALS = (
    (quote(400), errors.SourceRejected),
    (quote(503), errors.SourceTransient),
    (Answer(is_reset=True), errors.SourceTransient),
    (MOVED, errors.SourceRejected),
)


def test_the_key_reaches_no_text_log_or_file(home, replay, caplog):
    caplog.set_level(logging.DEBUG)
    replay.serve({(HOST, PATH): answer})
    texts = [repr(home.workspace.settings), str(ingest(home))]
    for reply, expected in REFUSALS:
        home.wait(days=1)
        replay.serve({(HOST, PATH): reply})
        with pytest.raises(expected) as caught:
            ingest(home)
        texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    result = home.materialize(DATASET)
    texts += [str(event) for event in result.all_events]
    home.wait(days=1)
    replay.bad_certificates.add(HOST)
    with pytest.raises(errors.CompEvoError, match="certificate") as caught:
        ingest(home)
    texts += ["".join(traceback.format_exception(caught.value)), caplog.text]

    assert [text for text in texts if KEY in text] == []
    assert "apikey" in str(replay.seen[-1].query)
    assert {seen.host for seen in replay.seen if "apikey" in seen.query} == {HOST}
    written = [path for path in home.home.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []
