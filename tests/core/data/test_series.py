"""Series and frames: contracts, gaps, causal fill, resampling, known faults, inputs, scales."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data import series as series_module
from compevo_core.data.arrays import evenly_spaced
from compevo_core.data.cutting import apply_known_faults, cut_inputs, grid_series
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.scaling import Scaler
from compevo_core.data.schemas import (
    ARTICLE_SCHEMA,
    BENCHMARK_SCHEMA,
    COLUMN_MEANINGS,
    COVARIATE_SCHEMA,
    PUBLISHED_SCHEMA,
    SERIES_SCHEMA,
    validate_frame,
)
from compevo_core.errors import DataError
from tests.support.window_samples import (
    DAY,
    HALF_HOUR,
    NEW_YEAR,
    NOW,
    from_nem,
    make_series,
    make_window,
    make_window_set,
)

FIVE_MINUTES = timedelta(minutes=5)
HOUR = timedelta(hours=1)


def test_a_series_is_sorted_and_keeps_rows():
    frame = make_series([1.0, 2.0, 3.0, None])
    assert series_module.validate_series(frame.reverse()).equals(frame)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (make_series([1.0]).drop("fetched_at"), r"series.* lacks column\(s\) fetched_at"),
        (pl.concat([make_series([1.0]), make_series([2.0])]), "2 rows share a key"),
        (make_series([float("nan")]), "NaN or infinite"),
        *(
            (make_series([1.0]).with_columns(flag=pl.lit(flag)), "flag")
            for flag in ("missing", "nulled:stuck", "guessed")
        ),
    ],
)
def test_a_frame_that_breaks_a_rule_is_refused(frame, message):
    with pytest.raises(DataError, match=message):
        series_module.validate_series(frame)


def test_absent_rows_return_as_missing_and_counted():
    frame = make_series([1.0, 2.0, 3.0, 4.0, 5.0]).filter(~pl.col("value").is_in([2.0, 3.0]))
    full, report = series_module.regularise_series(frame, HALF_HOUR)
    assert full["value"].to_list() == [1.0, None, None, 4.0, 5.0]
    assert full["flag"].to_list() == ["observed", "missing", "missing", "observed", "observed"]
    assert (report["rows"], report["missing"], report["longest_gap_steps"]) == (5, 2, 2)
    assert full.schema == SERIES_SCHEMA

    between = make_series([3.0], first=NEW_YEAR + HOUR / 3)
    with pytest.raises(DataError, match="0:30:00 grid"):
        series_module.regularise_series(pl.concat([frame, between]), HALF_HOUR)


def test_a_fortnightly_gap_is_usual():
    hours = pl.datetime_range(NOW, NOW + 10 * 7 * DAY, "1h", eager=True, closed="left")
    office = hours.filter((hours.dt.weekday() < 6) & hours.dt.hour().is_between(8, 17))
    closed = (office < NOW + 21 * DAY) | (office > NOW + 30 * DAY)
    steps, longest, usual = series_module.measure_gaps(office.filter(closed), timedelta(hours=1))
    assert (usual, longest > 200) == (62, True)
    assert steps == (office[-1] - office[0]) // timedelta(hours=1) + 1
    assert series_module.measure_gaps(office.head(2), timedelta(hours=1)) == (2, 0, 0)


def test_filling_goes_forward_up_to_a_limit():
    spec = replace(ELECTRICITY, max_fill_steps=2)
    series = grid_series(make_series([None, 1.0, None, None, None, 9.0]), spec)
    assert np.array_equal(series.filled, [np.nan, 1.0, 1.0, 1.0, np.nan, 9.0], equal_nan=True)


CHANGE = from_nem(2021, 10, 1)  # to readings of five minutes
TWELVE = [float(i) for i in range(12)]


def minutes(values, *, hours=0, late=timedelta()):
    """Readings of five minutes, so many hours after the change and a little later."""
    return make_series(values, first=CHANGE + hours * HOUR + late, step=FIVE_MINUTES)


def half_hours(*values, hours):
    return make_series(values, first=CHANGE + hours * HOUR)


HOURS = half_hours(*[10.0, 20.0] * 4, hours=-4)
WITH_A_HOLE = HOURS.filter(pl.col("start_utc") != from_nem(2021, 9, 30, 22))
OUTAGE = [minutes([2.0] * 12), half_hours(*[9.0] * 4, hours=3)]


@pytest.mark.parametrize(
    ("parts", "step", "values"),
    [
        ([minutes(TWELVE)], HALF_HOUR, [2.5, 8.5]),
        ([minutes(TWELVE).filter(pl.col("value") != 9.0)], HALF_HOUR, [2.5]),
        # Half-hours before the change stay as they are, and make hours although minutes follow.
        ([half_hours(10.0, 20.0, hours=-1), minutes(TWELVE[:6])], HALF_HOUR, [10.0, 20.0, 2.5]),
        ([HOURS, minutes([2.0] * 24)], HOUR, [15.0] * 4 + [2.0] * 2),
        ([WITH_A_HOLE, minutes([2.0] * 24)], HOUR, [15.0] * 3 + [2.0] * 2),
        # Readings of minutes half an hour apart in an outage make no hour, and one no half-hour.
        (OUTAGE, HOUR, [2.0]),
        ([*OUTAGE, minutes([4.0] * 12, hours=8)], HOUR, [2.0, 4.0]),
        ([minutes([2.0] * 6), minutes([9.0], hours=3, late=FIVE_MINUTES)], HALF_HOUR, [2.0]),
    ],
)
def test_whole_intervals_alone_are_resampled(parts, step, values):
    assert series_module.resample_to_step(pl.concat(parts), step)["value"].to_list() == values


EASTER = {"first": from_nem(2019, 4, 21)}
TOTAL = EASTER | {"series_id": "AEMO/TOTALDEMAND/NSW1"}
RATES = {"series_id": "N2F/AUD", "step": DAY, "variable": "rate_usd_per_aud"}
BITCOIN = {"series_id": "BITINFOCHARTS/price", "first": from_nem(2013, 12, 31, 10), "step": DAY}


@pytest.mark.parametrize(
    ("values", "series", "fault", "nulled"),
    [
        ([5.0] * 48, EASTER, "stuck", range(38, 46)),  # 19:00 to 22:30
        ([5.0] * 48, TOTAL, "none of this measure", []),
        # By their decimals.
        ([0.7012, 0.70118833, 0.69, 0.701234], RATES, "interpolated", [1]),
        ([1.0] * 4, BITCOIN, "unreliable-before-2014", [0]),
    ],
)
def test_known_faults_are_nulled_and_their_neighbours_kept(values, series, fault, nulled):
    rows = apply_known_faults(make_series(values, **series))
    flags = ["observed"] * len(values)
    for place in nulled:
        flags[place] = f"nulled:{fault}"
    assert rows["flag"].to_list() == flags
    assert [i for i, value in enumerate(rows["value"]) if value is None] == list(nulled)
    assert apply_known_faults(rows).equals(rows)


def test_sample_rows_make_a_series_synthetic():
    sample = make_series([1.0], source="sample:aemo", first=NOW)
    assert series_module.is_synthetic(pl.concat([make_series([1.0]), sample]))
    assert not series_module.is_synthetic(make_series([1.0]))


def test_inputs_reach_filling_limit_and_series_end():
    values = [float(i) for i in range(96)]
    values[10:13] = [None] * 3
    values[60] = None
    series = grid_series(make_series(values), replace(ELECTRICITY, max_fill_steps=6))

    def cut(position, most_filled=3, **known):
        spec = replace(ELECTRICITY, max_filled_inputs=most_filled)
        return cut_inputs(series, position, spec, **known)

    inputs = cut(48)
    assert inputs.n_filled == 3
    assert inputs.x[9:13].tolist() == [9.0] * 4
    assert "too many filled" in cut(48, most_filled=2)
    assert cut(96).x[-1] == 95.0
    for end in (97, 47):
        assert "does not reach" in cut(end)
    # Where the newest steps were not measured yet, the day before stands in for them.
    assert cut(97, unknown_steps=1).x[-1] == 48.0


def test_a_longer_gap_has_the_season_before():
    values = [None if 120 <= step < 130 else float(step) for step in range(144)]
    spec = replace(ELECTRICITY, max_fill_steps=6, max_filled_inputs=10)
    series = grid_series(make_series(values), spec)

    inputs = cut_inputs(series, 144, spec, repeats=True)

    assert inputs.n_filled == 10 and inputs.x[24:35].tolist() == [*range(72, 82), 130]
    assert "longer than the fill limit" in cut_inputs(series, 144, spec)


def test_a_gap_has_what_lies_nearer_to_it():
    spec = replace(ELECTRICITY, lookback_steps=144, max_fill_steps=40, max_filled_inputs=100)

    def fill(value, gap, closed=()):
        values = [None if i in gap or i % 48 in closed else value(i) for i in range(576)]
        inputs = cut_inputs(grid_series(make_series(values), spec), 576, spec, repeats=True)
        return inputs.n_repeated, inputs.x[np.array(gap) - 432].tolist()

    in_day, night = lambda step: float(step % 48), range(20, 48)
    assert fill(in_day, range(500, 510)) == (10, [*range(20, 30)])
    assert fill(float, range(500, 510)) == (0, [499.0] * 10)
    # What is closed every week is no gap.
    assert fill(in_day, range(500, 528), night) == (0, [19.0] * 28)
    assert fill(in_day, range(490, 500), night) == (10, [*range(10, 20)])


def test_scaling_is_reversible_for_entities_of_train():
    scaler = Scaler.from_json(Scaler.fit(make_window_set()).to_json())
    x = np.linspace(-5.0, 2000.0, 48)

    np.testing.assert_allclose(scaler.unscale(scaler.scale(x, "NSW1"), "NSW1"), x, rtol=1e-12)
    with pytest.raises(DataError, match=r"'QLD1'.*known: NSW1"):
        scaler.scale(x, "QLD1")


def test_each_entity_is_scaled_by_known_values():
    big = make_window(0, x=[10.0, 30.0] * 24, y=[10.0, 30.0] * 24)
    small = make_window(1, x=[1.0, 3.0] * 24, y=[1.0, 3.0] * 24, entity="SA1")
    masked = make_window(2, x=[2.0, 4.0] * 24, y=[np.nan] * 48, entity="VIC1")

    scaler = Scaler.fit([big, small, masked])

    assert scaler.mean == {"NSW1": 20.0, "SA1": 2.0, "VIC1": 3.0}
    assert scaler.std == {"NSW1": 10.0, "SA1": 1.0, "VIC1": 1.0}


@pytest.mark.parametrize("split", ["val", "test", "inference"])
def test_a_window_of_another_split_is_refused(split):
    with pytest.raises(DataError, match=split):
        Scaler.fit([make_window(0), make_window(1, split=split)])


@pytest.mark.parametrize("level", [0.0, 0.1, 5.0])
def test_a_constant_series_is_scaled_by_one(level):
    scaler = Scaler.fit([make_window(0, x=[level] * 48, y=[level] * 48)])
    assert scaler.std["NSW1"] == 1.0
    assert scaler.scale(np.array(level + 2), "NSW1") == pytest.approx(2.0)


SCHEMAS = (ARTICLE_SCHEMA, BENCHMARK_SCHEMA, COVARIATE_SCHEMA, PUBLISHED_SCHEMA, SERIES_SCHEMA)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_columns_return_in_contract_order(schema):
    frame = pl.DataFrame(schema=schema).with_columns(extra=pl.lit(1))
    shuffled = frame.select(frame.columns[::-1])
    assert validate_frame(shuffled, schema, "a frame").schema == pl.Schema(schema)


def test_integers_in_float_lists_are_refused():
    frame = pl.DataFrame(schema=BENCHMARK_SCHEMA).with_columns(pl.col("x").cast(pl.List(pl.Int64)))
    with pytest.raises(DataError, match=r"x is List\(Int64\)"):
        validate_frame(frame, BENCHMARK_SCHEMA, "benchmark frame")


def test_every_contract_column_has_one_meaning():
    assert {column for schema in SCHEMAS for column in schema} == set(COLUMN_MEANINGS)


@pytest.mark.parametrize(
    ("total", "count", "positions"),
    [
        (10, 4, [0, 3, 6, 9]),
        (7, 3, [0, 3, 6]),
        (4, 3, [0, 2, 3]),
        (5, 1, [0]),
        (3, 3, [0, 1, 2]),
        (2, 6, [0, 1]),
        (0, 6, []),
    ],
)
def test_positions_are_evenly_spaced_from_end_to_end(total, count, positions):
    assert evenly_spaced(total, count) == positions
