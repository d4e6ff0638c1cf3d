"""The collected weather: which states count, what is taken off them, and what came before them."""

import io
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.weather import collected
from tests.support.sources import raw

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
    hours = [first + i * HOUR for i in range(n)]
    return [
        {"city": city, "hour": hour, "temperature_2m": true_temperature(hour) + add, **VALUES}
        for hour in hours
    ]


def pack(name, rows, **names):
    content = io.BytesIO()
    pl.DataFrame(rows).rename(names).write_parquet(content)
    return raw(name, content.getvalue(), collected.SOURCE)


def make_files(bias=3.0, late=0.0, **states):
    """Both parts; Hobart's forecasts are too warm, ``late`` is added to what is known later."""
    observed, forecasts = [], []
    for city in collected.CITIES.values():
        n_known = int((ISSUED - collected.OBSERVED_AFTER - FIRST) / HOUR) + 1
        observed += make_hours(FIRST, n_known, city)
        rest = int((LAST - FIRST) / HOUR) - n_known
        observed += make_hours(FIRST + n_known * HOUR, rest, city, late)

        known_at = STATES
        while known_at < LAST - 3 * DAY:
            warm = (
                bias * (city == "Hobart") + late * (known_at > ISSUED) + (0.7 * (known_at.day % 3))
            )
            day = known_at.replace(hour=0, minute=0)
            rows = make_hours(day, 65, city, warm)
            forecasts += [row | {"known_at_utc": known_at} for row in rows]
            known_at += 8 * HOUR + 30 * timedelta(minutes=1)
    return [
        pack("2026-01.parquet", observed, hour="time"),
        pack(collected.FORECASTS, forecasts, hour="valid_time_utc"),
    ]


@pytest.fixture(scope="module")
def frame():
    return collected.parse_all(make_files())


def is_substitute(frame):
    return frame["source"].str.contains(collected.SUBSTITUTE)


def test_units_are_those_of_the_runs_that_are_fetched_live(frame):
    means = dict(frame.group_by("name").agg(pl.col("value").mean()).iter_rows())
    assert means["wind_speed_m_s"] == pytest.approx(10.0)
    assert means["sunshine_share"] == pytest.approx(0.5)
    assert means["cloud_cover_pct"] == pytest.approx(60.0)


def test_each_day_has_the_newest_states_before_both_instants(frame):
    real = frame.filter(~is_substitute(frame), entity="NSW1", name="temperature_c")
    known = real["available_at"].unique().sort().to_list()
    # Both came before 17:00 on the market's clock, 07:00 UTC: the newer one counts.
    assert datetime(2026, 2, 14, 6, 30, tzinfo=UTC) in known
    assert datetime(2026, 2, 13, 22, tzinfo=UTC) not in known
    # A state reaches to the end of the day that is forecast, and no further.
    newest = real.filter(available_at=known[-1])
    end = known[-1].replace(hour=0, minute=0, second=0) + 38 * HOUR
    assert newest["start_utc"].max() == end - timedelta(minutes=30)


def test_the_mean_difference_that_was_known_is_taken_off_and_no_later_one(frame):
    def mean_error(table, entity, since):
        rows = table.filter(~is_substitute(table), entity=entity, name="temperature_c")
        rows = rows.filter(pl.col("available_at") >= since).filter(
            pl.col("start_utc").dt.minute() == 0
        )
        true = np.array([true_temperature(at) for at in rows["start_utc"]])
        return float((rows["value"] - true).mean())

    first, later = STATES, datetime(2026, 2, 24, tzinfo=UTC)
    assert mean_error(frame, "TAS1", later) < 1.0 < mean_error(frame, "TAS1", first)

    # What becomes known after a state was issued changes nothing in it.
    poisoned = collected.parse_all(make_files(late=50.0))
    before = pl.col("available_at") <= ISSUED
    assert poisoned.filter(before).equals(frame.filter(before))
    assert not poisoned.filter(~before).equals(frame.filter(~before))


def test_substitutes_are_known_weather_with_errors_and_end_before_the_first_forecast(frame):
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
    with pytest.raises(SourceAbsent, match="observed"):
        collected.parse_all([forecasts])
    with pytest.raises(SchemaDrift, match=r"weather_forecasts.parquet is not a table"):
        collected.parse_all([observed, raw(collected.FORECASTS, "city,hour", collected.SOURCE)])

    table = pl.read_parquet(io.BytesIO(forecasts.content))
    content = io.BytesIO()
    table.filter(pl.col("valid_time_utc").dt.hour() != 9).write_parquet(content)
    holed = raw(collected.FORECASTS, content.getvalue(), collected.SOURCE)
    with pytest.raises(SchemaDrift, match="has a hole"):
        collected.parse_all([observed, holed])
