"""Values that look wrong are described, and usual ones are not."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.content import describe_changes, describe_faults, find_faults, is_code
from compevo_core.data.steps import DAY

HOUR = timedelta(hours=1)
FIRST = datetime(2024, 1, 1, tzinfo=UTC)


def make_load(count=24 * 60):
    """Hours of a load of about 1,000, never below 700."""
    noise = np.random.default_rng(3).normal(0, 10, count)
    return 1000 + 200 * np.sin(np.arange(count) / 24 * 2 * np.pi) + noise


def make_frame(values, step=HOUR):
    stamps = [FIRST + i * step for i in range(len(values))]
    return pl.DataFrame({"start_utc": stamps, "value": values})


def describe(values, step=HOUR):
    return describe_faults("load", make_frame(values, step), step)


@pytest.mark.parametrize("filler", [-9999.0, -1.0, 0.0, 5000.0])
@pytest.mark.parametrize("share", [0.005, 0.08, 0.3])
def test_a_filler_is_described_however_often_it_comes(filler, share):
    load = make_load()
    is_filled = np.random.default_rng(4).random(len(load)) < share
    (fault,) = describe(np.where(is_filled, filler, load))
    assert fault.startswith(f"load: {is_filled.sum():,} value(s) are far from the others")


@pytest.mark.parametrize("code", [-99.0, -9999.0, -999.25, 99999.0, 1e20, -3.4e38, -1.7e308])
def test_only_a_code_far_from_all_others_is_one(code):
    load = make_load(48).tolist()
    # 999 is a load among others of about 1,000; another series may be far from both.
    rows = pl.DataFrame({"id": ["a"] * 51 + ["b"] * 3, "y": [*load, 999.0, code, code, 1, code, 2]})
    found = rows.select(is_code("y", "id")).to_series()
    assert found.arg_true().to_list() == [49, 50, 52]


@pytest.mark.parametrize("begin", [400, 24 * 60 - 6])
def test_a_stuck_sensor_is_described(begin):
    load = make_load()
    load[begin : begin + 6] = load[begin]
    (fault,) = describe(load)
    assert "6 values" in fault and "more than 1" in fault


@pytest.mark.parametrize("times", [0.001, 0.1, 10.0, 1000.0])
@pytest.mark.parametrize("first", [10, 720, 1400])
def test_a_unit_that_changes_within_the_series_is_described(first, times):
    load = make_load()
    load[first:] *= times
    (fault,) = [fault for fault in describe(load) if "if their unit changed" in fault]
    assert f"from {FIRST + first * HOUR:%Y-%m-%d %H:%M} UTC on" in fault
    assert f"times as {'high' if times > 1 else 'low'} as all before" in fault


def test_a_collapse_between_two_jumps_is_described():
    load = make_load()
    load[700:706] = 75.0 + np.arange(6)
    assert describe(load)[0].startswith("load: 6 value(s) are far from the others, first 75 at")


@pytest.mark.parametrize(("count", "factor"), [(1, 0.0), (5, 0.0), (1, 0.3), (1, 1.25), (20, 3.0)])
def test_an_end_that_does_not_continue_is_described(count, factor):
    load = make_load()
    load[-count:] *= factor
    (fault,) = [fault for fault in describe(load) if "not go on" in fault]
    assert f"the last {count} value(s)" in fault


@pytest.mark.parametrize(
    ("filler", "step"), [(-1.0, DAY), (-1.0, 7 * DAY), (0.0, 7 * DAY), (999.0, 7 * DAY)]
)
def test_fillers_of_counts_and_weeks_are_described(filler, step):
    rng = np.random.default_rng(5)
    values = rng.poisson(2 if step == DAY else 300, 700).astype(float)
    values[rng.random(700) < 0.02] = filler
    assert "are far from the others" in describe(values, step)[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda load: load * 1000, "1000 times as high; if their unit changed"),
        (lambda load: np.roll(load, 2), "to those 2 step(s) before; if stamps were moved"),
        (lambda load: np.roll(load, -3), "to those 3 step(s) after; if stamps were moved"),
        (lambda load: load[::-1], "known values have changed; the newer ones count"),
        (lambda load: load + 1e-7, ""),
        (lambda load: np.where(np.arange(len(load)) % 3, load, 5.0), ""),
    ],
)
def test_a_table_that_comes_again_with_other_values_is_described(change, said):
    load = make_load()
    described = describe_changes("load", make_frame(load), make_frame(change(load)))
    assert len(described) == bool(said) and said in "".join(described)


def test_zeros_hide_no_other_unit():
    sun = np.where(np.arange(24 * 60) % 24 < 15, 0.0, make_load())
    changes = describe_changes("sun", make_frame(sun), make_frame(sun / 1000))
    assert ", 0.001 times as high" in "".join(changes)


def make_rides():
    """Hours of a count that reaches low values at night, and never zero."""
    noise = np.random.default_rng(4).gamma(4, 0.25, 24 * 90)
    wave = 1.05 - np.cos(np.arange(24 * 90) / 24 * 2 * np.pi)
    return np.ceil(100 * wave * noise)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rides: np.append(rides[:-24], rides[-24:] / 10),
        lambda rides: np.append(rides[:-1], 0.0),
        lambda rides: np.where(np.arange(len(rides)) % 53 == 7, 0.0, rides),
        lambda rides: np.append(rides[:-200], np.repeat(rides[-200], 200)),
    ],
    ids=["a tenth of the last day", "a zero", "zeros among usual values", "stuck"],
)
def test_faults_of_a_noisy_series_are_described(spoil):
    rides = make_rides()
    assert describe(rides) == []
    assert describe(spoil(rides))


def test_a_sensor_stuck_by_day_is_described_where_nights_are_zero():
    sun = np.clip(np.sin(np.arange(24 * 60) / 24 * 2 * np.pi), 0, None)
    sun *= np.random.default_rng(5).uniform(50, 99, len(sun))
    assert describe(sun) == []
    sun[24 * 30 : 24 * 30 + 9] = sun[24 * 30 + 3]
    assert "9 values in a row" in "".join(describe(sun))


def test_a_lone_negative_or_record_is_described():
    rng = np.random.default_rng(5)
    # Peaks of every height, none of which exceeds the ones before by half.
    views = 1000 * np.exp(0.5 * np.abs(rng.normal(size=700)))
    for at, value in ((350, -2500.0), (350, 60_000.0)):
        faulty = views.copy()
        faulty[at] = value
        said = f"1 value(s) are far from the others, first {value:,.10g}"
        assert said in describe(faulty, DAY)[0]
    sold = np.where(rng.random(700) < 0.5, rng.integers(1, 9, 700), 0).astype(float)
    sold[400] = -7.0
    assert "first -7 at" in describe(sold, DAY)[0]
    degrees = 3 + np.abs(rng.normal(0, 3, 700))
    degrees[400] = -0.4
    assert describe(degrees, DAY) == []


def test_usual_series_are_not_described():
    rng = np.random.default_rng(5)
    days = np.arange(700)
    closed_on_sundays = np.where(days % 7 == 6, 0.0, 500 + 50 * rng.normal(size=700))
    sparse = np.where(rng.random(700) < 0.05, rng.integers(1, 6, 700), 0).astype(float)
    # On sale from the hundredth day on, with a bulk order.
    launched = np.where((days > 100) & (days % 3 > 0), rng.integers(1, 9, 700), 0).astype(float)
    launched[400] = 600.0
    peaks = np.exp(rng.standard_exponential(700)) * np.where(rng.random(700) < 0.02, 50.0, 1.0)
    held_for_years = np.append(np.repeat(rng.normal(size=60), 2), np.full(40, 0.5))
    opened_late = np.append(np.zeros(612), make_rides()[612:])
    nightly = np.clip(np.sin(np.arange(1440) / 24 * 2 * np.pi) + 0.1 * rng.random(1440), 0, None)

    for values, step in (
        (make_load(), HOUR),
        (closed_on_sundays, DAY),
        (sparse, DAY),
        (launched, DAY),
        (nightly, HOUR),
        (opened_late, HOUR),
        ((days % 3 == 0).astype(float), DAY),
        (peaks, DAY),
        (held_for_years, 5 * DAY),
        (np.cumsum(rng.normal(size=900)), DAY),
    ):
        assert describe(values, step) == []


def test_a_stuck_or_collapsed_meter_is_found():
    load = make_load()
    load[300:306], load[500:505], load[700:704], load[900:] = load[300], load[500], 75.0, 75.0
    faults = find_faults(make_frame(load).head(1000), HOUR)
    # Of a run the first value may be true, five are no run, and nothing came back from the last.
    assert np.flatnonzero(faults["stuck"]).tolist() == [*range(301, 306), *range(901, 1000)]
    assert np.flatnonzero(faults["collapse"]).tolist() == [*range(700, 704)]


def test_equal_values_are_nothing_to_forecast():
    (fault,) = describe(np.ones(100))
    assert "load are equal" in fault and "nothing to forecast" in fault
    assert describe([None] * 100) == ["load has no value"]
