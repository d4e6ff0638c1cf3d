"""Own data on any grid: windows, forecasts of the baselines, a population, what is known ahead."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.features import FeatureSpace
from compevo_core.baselines.known_errors import ErrorLevels, LevelRule
from compevo_core.data import steps
from compevo_core.data.build import build_windows, find_next_origin
from compevo_core.data.context import HOLIDAY, LAST_YEAR
from compevo_core.data.quantiles import PastErrors, estimate_quantiles
from compevo_core.data.scaling import Scaler
from compevo_core.data.series import find_shown_season
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation import leakage
from compevo_core.evaluation.result_rows import forecast_windows
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.training.trainer import train
from compevo_pipeline.sources.own.declaration import PlaceKeys, make_spec
from compevo_pipeline.sources.own.frames import parse_ahead
from tests.support.own_tables import declare, parse_rows, wrap
from tests.support.population import news_pool, tiny

MONDAY = datetime(2022, 1, 3)  # noqa: DTZ001 - stamps of the table have no zone
MONTHS = [date(2000 + i // 12, i % 12 + 1, 1) for i in range(240)]
FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone
HOUR = timedelta(hours=1)
DAYS = 150


def make_windows(step, rows, *, start=MONDAY, **grid):
    declaration, frame = make_table(step, rows, start=start, **grid)
    return build_windows(make_spec(declaration), frame)


def make_table(step, rows, *, start=MONDAY, **grid):
    """Return a made-up count with a day, a week and a year in it; never below zero."""
    length = steps.read_step(step)
    days = np.arange(rows) * (length / timedelta(days=1))
    rng = np.random.default_rng(0)
    waves = sum(np.sin(2 * np.pi * days / period) for period in (1, 7, 365.25))
    values = np.maximum(0, 30 + 20 * waves + rng.normal(size=rows))
    lines = [f"{start + i * length},{value:.2f}" for i, value in enumerate(values)]
    declaration = declare({"grid": {"step": step, **grid}, "evaluation": {"low": 0.0}})
    return declaration, parse_rows(lines, declaration)


@pytest.mark.parametrize(
    ("step", "rows", "grid", "lookback", "horizon", "stride"),
    [
        ("15min", 96 * 70, {}, 7 * 96, 96, timedelta(days=1)),
        ("5min", 288 * 20, {"horizon": 12}, 7 * 288, 12, timedelta(hours=1)),
        ("1h", 24 * 120, {"horizon": 30}, 14 * 24, 30, timedelta(days=1)),
        ("1d", 700, {"horizon": 28}, 56, 28, timedelta(days=1)),
        ("1w", 420, {}, 104, 13, timedelta(days=7)),
    ],
)
def test_a_table_of_any_step_is_forecast(step, rows, grid, lookback, horizon, stride):
    windows = make_windows(step, rows, **grid)
    assert (windows.lookback, windows.horizon) == (lookback, horizon)
    test = windows.split("test")
    assert test[1].view.origin_utc - test[0].view.origin_utc == stride
    last_train, first_val = windows.split("train")[-1].view, windows.split("val")[0].view
    assert first_val.origin_utc - last_train.end_utc >= horizon * first_val.step

    errors = {}
    for name in ("persistence", "calendar-ridge"):
        forecast_NH = forecast_windows(fit_baseline(name, windows.split("train")), test)
        assert forecast_NH.min() >= 0  # the bound of the declaration
        errors[name] = np.nanmean(np.abs(forecast_NH - test.truth()))
    # Of weeks a year makes nearly all, and persistence repeats it.
    assert errors["calendar-ridge"] < errors["persistence"] * (1.05 if step == "1w" else 0.6)


def test_scored_forecasts_keep_the_bounds_of_their_series():
    class Below:
        name = "below"

        def predict(self, views):
            return np.full((len(views), 28), -1.0)

    windows = make_windows("1d", 400, horizon=28)
    assert (forecast_windows(Below(), windows) == 0).all()
    quantiles_NQH = estimate_quantiles(
        PastErrors.from_windows(windows[:60], np.full((60, 28), 50.0)),
        windows.views()[100:],
        np.zeros((len(windows) - 100, 28)),
    )
    assert quantiles_NQH.min() == 0


def test_no_window_is_forecast_as_none():
    empty = np.empty((0, 28))
    assert len(PastErrors.from_windows([], empty)) == 0
    assert estimate_quantiles(PastErrors.from_windows([], empty), [], empty).shape[::2] == (0, 28)
    scaler = Scaler(mean={"a": 0.0}, std={"a": 1.0})
    ErrorLevels(LevelRule("mean"), scaler, 2, 28).observe([], np.empty((0, 2, 48)))


def test_season_columns_lie_at_their_step():
    (window, *_) = make_windows("1h", 24 * 120, horizon=30)
    view = window.view
    space = FeatureSpace.fit([window])
    found = space.summarize_seasons([view])
    scaled = space.scaler.scale(view.x, view.entity)
    assert np.allclose(found["last_week"][0], scaled[-168:][:30])
    assert np.allclose(found["season_mean"][0], scaled.reshape(14, 24).mean(axis=0))
    assert space.scale_recent([view]).shape == (1, 48)


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["head", "text"])
def test_a_population_forecasts_odd_steps(tmp_path, decoder):
    windows = make_windows("1d", 260, lookback=21, horizon=10)
    chosen = windows.with_windows([*windows.split("train")[:12], *windows.split("val")[:4]])
    config = tiny(
        forecast__decoder=decoder,
        forecast__prior="persistence",
        run__rounds=1,
        selection__online=True,
        selection__rule="boa",
        selection__parts=4,
    )
    train(config, chosen.split("train"), chosen.split("val"), news_pool(), tmp_path / "run")

    forecaster = CompEvoForecaster.load(tmp_path / "run", news_pool())
    test = windows.split("test")[:3]
    found = forecaster.predict_by_agent(test.views())
    assert found.aggregate.shape == (3, 10)
    assert found.agents.shape[2] == found.quantiles.shape[2] == 10
    # Weights of four parts of ten steps: three, three, two, two.
    changes = np.flatnonzero(np.diff(found.step_weights[0], axis=1).any(axis=0)) + 1
    assert set(changes) <= {3, 6, 8}


@pytest.mark.parametrize(
    ("text", "message"), [("1m", "5min"), ("13mo", "13mo"), ("7h", "day"), ("36h", "36h")]
)
def test_a_step_of_no_grid_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        steps.read_step(text)


def test_a_step_has_a_usual_horizon():
    usual = {"5min": (288, 2016), "30min": (48, 672), "1h": (48, 336)}
    usual |= {"1d": (48, 77), "1w": (13, 104)}
    for step, sizes in usual.items():
        length = steps.read_step(step)
        horizon = steps.choose_horizon(length)
        assert steps.name_step(length) == step
        assert (horizon, steps.choose_lookback(length, horizon)) == sizes

    # Ten days of hours ahead begin two weeks back: the last one would not reach all of them.
    assert steps.choose_lookback(timedelta(hours=1), 240) == 3 * 168


def test_origins_are_at_equal_times():
    five, hour = timedelta(minutes=5), timedelta(hours=1)

    assert steps.choose_stride(five, 12, 288 * 30, 1) == 12  # a horizon of an hour: every hour
    assert steps.choose_stride(five, 10, 288 * 30, 1) == 12  # no 50 minutes: they divide no day
    assert steps.choose_stride(five, 12, 288 * 365, 1) == 36  # a year of them: every 3 hours
    assert steps.choose_stride(hour, 24, 24 * 365 * 50, 1) == 24
    # Many years of many series: some days apart, with a year of windows and 30 of validation left.
    assert steps.choose_stride(hour, 48, 24 * 3650, 50, 24 * 730) == 4 * 24
    assert steps.choose_stride(hour, 48, 24 * 3650, 50, 24 * 100) == 3 * 24
    assert steps.choose_stride(hour, 48, 24 * 3650, 95, 24 * 730) == 6 * 24  # not 7: one weekday
    assert steps.choose_stride(hour, 48, 24 * 365, 1000, 24 * 73) == 2 * 24
    assert steps.choose_stride(timedelta(days=1), 48, 600, 20, 120) == 4
    assert steps.choose_stride(timedelta(days=1), 48, 1096, 20, 220) == 8  # not 7: all of a weekday
    # With many series, four origins of validation (183 steps, 127 of them apart); with very many
    # fewer; always one.
    assert steps.choose_stride(timedelta(days=1), 28, 1000, 1000, 183) == 31
    assert steps.choose_stride(timedelta(days=1), 28, 1000, 5000, 183) == 100
    assert steps.choose_stride(timedelta(days=1), 28, 1000, 50_000, 183) == 127


def test_gaps_of_a_series_are_bridged():
    day = timedelta(days=1)
    assert steps.choose_bridge(day, 0.05, 9, 2, 77) is None
    assert steps.choose_bridge(day, 0.06, 2, 2, 77) == (2, 19)  # never less than the usual quarter
    assert steps.choose_bridge(day, 0.29, 4, 2, 77) == (4, 34)
    assert steps.choose_bridge(day, 0.9, 30, 0, 77) == (6, 51)
    assert steps.choose_bridge(day / 24, 0.6, 14, 14, 336) == (14, 224)  # closed at night
    assert steps.choose_bridge(day / 24, 0.6, 200, 62, 336) == (93, 224)  # an office, a long break
    assert steps.choose_bridge(day / 48, 0.73, 131, 131, 672) == (131, 539)  # a stock exchange


def test_a_newest_origin_lies_within_the_day():
    declaration, frame = make_table("5min", 288 * 10 + 200, horizon=12, lookback=288)
    # 200 steps of the last day: 16 whole hours.
    assert find_next_origin(make_spec(declaration), frame) == datetime(2022, 1, 13, 16, tzinfo=UTC)
    daily, frame = make_table("5min", 288 * 10 + 200, horizon=288)
    assert find_next_origin(make_spec(daily), frame) == datetime(2022, 1, 13, tzinfo=UTC)


def make_months(days, step="1mo", **keys):
    """Cut windows of a made-up count by month; ``days`` are the stamps."""
    values = [100 + 10 * stamp.month + stamp.year - 2000 for stamp in days]
    lines = [f"{stamp},{value}" for stamp, value in zip(days, values, strict=True)]
    splits = {"splits": {"fractions": [0.6, 0.2, 0.2]}}
    declaration = declare(splits, step=step, time_zone="Europe/Paris", **keys)
    return build_windows(make_spec(declaration), parse_rows(lines, declaration))


def test_months_are_steps_of_the_calendar():
    windows = make_months(MONTHS)
    assert (windows.lookback, windows.horizon) == (24, 12)

    # Each origin is midnight in Paris without daylight saving, of the first day of a month.
    local = [view.origin_utc + timedelta(hours=1) for view in windows.views()]
    assert {(at.day, at.hour) for at in local} == {(1, 0)}
    assert [at.month for at in local[:3]] == [1, 2, 3]
    view = windows[0].view
    assert view.end_utc == datetime(2002, 12, 31, 23, tzinfo=UTC)
    np.testing.assert_array_equal(view.x[:12], 100 + 10 * np.arange(1, 13))
    assert leakage.find_overlapping_targets(windows) == []

    # The values rise by one a year: the same months of the last two years are 1.5 lower.
    test = windows.split("test")
    forecast_NH = fit_baseline("seasonal-mean", windows.split("train")).predict(test.views())
    np.testing.assert_allclose(test.truth() - forecast_NH, 1.5)


def test_stamps_of_month_ends_are_months():
    def list_origins(days, *options, **keys):
        return [view.origin_utc for view in make_months(days, *options, **keys).views()]

    lasts = [after - timedelta(days=1) for after in MONTHS[1:]]
    starts = list_origins(MONTHS[:-1])
    assert list_origins(lasts) == list_origins(lasts, stamps="end") == starts
    assert list_origins(MONTHS[1:], stamps="end") == starts
    with pytest.raises(DataError, match=r"'2000-02-01'.* 3mo"):
        make_months(MONTHS, "3mo")

    quarters = make_months(MONTHS[::3], "3mo")
    assert (quarters.lookback, quarters.horizon) == (8, 4)
    ends = [*lasts[2::3], date(2019, 12, 31)]
    assert list_origins(ends, "3mo") == list_origins(MONTHS[::3], "3mo")


def test_last_year_and_holidays_are_covariates():
    declaration, frame = make_table("1d", 1000, horizon=10, lookback=28)
    place = PlaceKeys(time_zone="Europe/Paris", country="FR")
    spec = make_spec(declaration.model_copy(update={"place": place}))
    windows = build_windows(spec, frame)
    truth = {window.view.origin_utc: window.y for window in windows}

    late = next(w.view for w in windows if w.view.origin_utc == datetime(2023, 7, 10, tzinfo=UTC))
    year, week = timedelta(days=364), timedelta(days=7)
    np.testing.assert_array_equal(late.step_covariates[LAST_YEAR], truth[late.origin_utc - year])
    before = truth[late.origin_utc - year - week]
    np.testing.assert_array_equal(late.step_covariates[f"{LAST_YEAR}_lag1"], before)
    assert LAST_YEAR not in windows[0].view.step_covariates
    # 14 July, also for a forecast whose first day is the 10th.
    np.testing.assert_array_equal(np.flatnonzero(late.step_covariates[HOLIDAY]), [4])
    assert not late.calendar.target_holiday

    declaration, frame = make_table("1w", 420)
    weeks = build_windows(make_spec(declaration.model_copy(update={"place": place})), frame)
    christmas = next(w.view for w in weeks if (w.view.origin_utc).date() == date(2025, 12, 22))
    np.testing.assert_array_equal(christmas.step_covariates[HOLIDAY][:3], [1, 1, 0])


def test_a_shown_season_replaces_the_grids():
    rng = np.random.default_rng(1)
    cycle_of_ten = np.tile([5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6], 160) + rng.normal(0, 0.5, 1600)
    assert find_shown_season([cycle_of_ten], 24) == 10
    # Weekends differ, so that changes repeat better after a week than after the grid's day.
    by_day = np.tile([1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.1], 10).repeat(24)
    weeks = by_day * np.sin(2 * np.pi * np.arange(1680) / 24)
    assert find_shown_season([weeks], 24) == 24
    assert find_shown_season([weeks], 100) == 168
    assert find_shown_season([rng.normal(size=1600).cumsum()], 24) == 24
    assert find_shown_season([np.full(50, np.nan)], 7) == 7
    # A day that hardly shows in noise, and a neighbour or a multiple of it that does by chance.
    day = 20 * np.sin(2 * np.pi * np.arange(2880) / 24)
    assert {find_shown_season([day + rng.normal(0, 6, 2880)], 24) for _ in range(30)} == {24}
    # One series is too short to show long seasons, others are not.
    assert find_shown_season([cycle_of_ten, cycle_of_ten[:15]], 24) == 10
    # A smooth day of quarters of an hour, whose top noise moves by some steps.
    weekend = np.arange(9000) // 96 % 7 >= 5
    smooth = (100 - 30 * weekend) * np.sin(np.arange(9000) * 2 * np.pi / 96)
    for _ in range(5):
        noise = rng.normal(0, 4, 9000).cumsum() / 4
        assert find_shown_season([smooth + 30 * weekend + noise], 96) == 96

    declaration, _ = make_table("1h", 400, season_steps=10, horizon=12, lookback=48)
    spec = make_spec(declaration)
    stamps = [MONDAY + timedelta(hours=i) for i in range(1600)]
    lines = [f"{s},{v:.3f}" for s, v in zip(stamps, cycle_of_ten, strict=True)]
    frame = parse_rows(lines, declaration)
    view = build_windows(spec, frame)[0].view
    assert (view.seasons.reference, view.seasons.shortest) == (10, 10)
    persisted = fit_baseline("persistence", build_windows(spec, frame).split("train"))
    np.testing.assert_array_equal(persisted.predict([view])[0], np.resize(view.x[-10:], 12))


def declare_ahead(**ahead):
    weather = {"file": "weather.csv", "time": "stamp", "values": ["temperature"], **ahead}
    grid = {"step": "1h", "horizon": 24, "lookback": 168}
    return declare({"grid": grid, "ahead": weather})


def make_temperature():
    by_day = np.cumsum(np.random.default_rng(1).normal(size=DAYS)) * 2
    return 10 + np.repeat(by_day, 24) + 5 * np.sin(2 * np.pi * np.arange(24 * DAYS) / 24)


def write_ahead(*, late_error=0.0):
    """Write each hour's forecast as issued at noon of the day before, and a correction at noon."""
    rows = ["stamp,temperature,known_at"]
    for i, value in enumerate(make_temperature()):
        stamp = FIRST + i * HOUR
        midnight = stamp.replace(hour=0)
        rows.append(f"{stamp},{value:.3f},{midnight - 12 * HOUR}")
        rows.append(f"{stamp},{value + late_error:.3f},{midnight + 12 * HOUR}")
    return "\n".join(rows) + "\n"


def make_hours(ahead, **keys):
    """Cut windows of a constant load with the temperatures of a text."""
    declaration = declare_ahead(**(keys or {"known_at": "known_at"}))
    rows = [f"{FIRST + i * HOUR},{500 + i % 24}" for i in range(24 * DAYS)]
    series, raw = parse_rows(rows, declaration), wrap(ahead, "weather.csv")
    frame = parse_ahead(raw, declaration, declaration.ahead, ["load_mw"])
    return build_windows(make_spec(declaration), series, step_covariates=frame), frame


def test_later_values_change_no_forecast():
    windows, frame = make_hours(write_ahead())
    poisoned, poisoned_frame = make_hours(write_ahead(late_error=50.0))
    late = poisoned_frame.filter(pl.col("available_at").dt.hour() == 12)
    assert not late.equals(frame.filter(pl.col("available_at").dt.hour() == 12))

    views = windows.views()
    for view, other in zip(views, poisoned.views(), strict=True):
        seen = [each.step_covariates["own_temperature"] for each in (view, other)]
        assert np.array_equal(*seen)
    assert leakage.find_unavailable_step_covariates(views, frame) == []
    day = round((views[0].origin_utc.replace(tzinfo=None) - FIRST) / HOUR)
    expected = make_temperature()[day : day + 24]
    np.testing.assert_allclose(views[0].step_covariates["own_temperature"], expected, atol=1e-3)

    # The same rows, all known a day later: nothing that the views hold was known.
    later = frame.with_columns(pl.col("available_at").dt.offset_by("1d"))
    assert leakage.find_unavailable_step_covariates(views[:1], later)[0].kind == "late covariate"


def test_measured_values_have_no_way_in():
    text = "stamp,temperature\n" + "".join(
        f"{FIRST + i * HOUR},{value:.3f}\n" for i, value in enumerate(make_temperature())
    )
    windows, _ = make_hours(text, known="start")

    assert all("own_temperature" in view.step_covariates for view in windows.views())
    with pytest.raises(ConfigError, match="known_at"):
        declare_ahead()
    with pytest.raises(DataError, match="row 3"):
        make_hours("stamp,temperature\n2024-01-01 00:00,1\n2024-01-01 00:00,2\n", known="start")
    with pytest.raises(DataError, match="row 2"):
        make_hours("stamp,temperature\n2024-01-01 00:30,1\n2024-01-01 01:30,2\n", known="start")
