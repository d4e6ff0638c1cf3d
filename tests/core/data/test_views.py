"""Views without a truth: what a forecaster may see at any origin, and nothing that came later."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.build import build_views, build_windows
from compevo_core.data.context import StepValues, find_oldest_needed, index_daily
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.schemas import COVARIATE_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_core.data.view import Window, replay_days
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.leakage import find_unavailable_step_covariates
from tests.support.window_samples import (
    DAY,
    HALF_HOUR,
    from_nem,
    make_articles,
    make_covariates,
    make_daily_values,
    make_operational_spec,
    make_published,
    make_series,
    make_window,
)

FIRST = from_nem(2025, 6, 1)
DAYS = 12
ORIGIN = FIRST + 8 * DAY
ISSUE_TIME = ORIGIN - timedelta(hours=7)
UNKNOWN = 14
SERIES_ID = "AEMO/OPERATIONAL_DEMAND/NSW1"
SERIES = make_series(make_daily_values(DAYS, seed=3), first=FIRST, series_id=SERIES_ID)
SPEC = make_operational_spec(date(2025, 6, 2), date(2025, 6, 12), news_of_country=False)


def make_steps(name, first, issued, value):
    """Values by step of a day that rise by one, all issued at one time."""
    rows = [("NSW1", name, first + i * HALF_HOUR, value + i, issued, "a") for i in range(48)]
    return pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA, orient="row")


def make_step_covariates(first, n_days):
    """A forecast of solar power for each day, issued at 17:00 the day before."""
    issued, days = first - timedelta(hours=7), [(n * DAY, 48.0 * n) for n in range(n_days)]
    return pl.concat(make_steps("solar_mw", first + at, issued + at, value) for at, value in days)


FRAMES = {
    "covariates": make_covariates([date(2025, 6, 1) + i * DAY for i in range(DAYS)]),
    # Of many sites and stories: what crowds others out is in no view of a day to come.
    "articles": make_articles([FIRST + i * timedelta(hours=5) for i in range(55)]).with_columns(
        domain=pl.format("paper-{}.example", pl.int_range(55)),
        title=pl.format("story{0} of{0} town{0} told{0}", pl.int_range(55)),
    ),
    "published": make_published(FIRST, DAYS),
    "step_covariates": make_step_covariates(FIRST, DAYS),
}


def build(series=SERIES, origin=ORIGIN, until=None, **frames):
    return build_views(SPEC, series, **FRAMES | frames, origin_utc=origin, information_until=until)


def content(view):
    """Everything that a view holds, as the hash of a set sees it, but for the split."""
    plain = replace(view, split="test", fold=-1, subsets=())
    return WindowSet([Window(view=plain, y=np.zeros(48))], dataset=view.dataset).hash


def poison(after):
    """Every frame with other values where nobody could know them yet."""
    late, ends_late = pl.col("available_at") > after, pl.col("start_utc") + HALF_HOUR > after
    value, name = pl.col("value"), pl.col("article_id")
    other, others = (pl.when(is_late).then(-1e6).otherwise(value) for is_late in (late, ends_late))
    valued = {kind: frame for kind, frame in FRAMES.items() if "value" in frame.columns}
    changed = {kind: frame.with_columns(value=other) for kind, frame in valued.items()}
    renamed = pl.when(late).then(name + "x").otherwise(name)
    changed["articles"] = FRAMES["articles"].with_columns(article_id=renamed)
    return {"series": SERIES.with_columns(value=others), **changed}


@pytest.mark.parametrize("until", [ORIGIN, ISSUE_TIME])
def test_what_nobody_could_know_yet_changes_no_view(until):
    (clean,) = build(until=until).views
    (poisoned,) = build(until=until, **poison(until)).views
    assert content(poisoned) == content(clean)
    assert clean.information_until == until

    # The probe works: what was known an hour earlier alone is another view.
    (earlier,) = build(until=until, **poison(until - timedelta(hours=1))).views
    assert content(earlier) != content(clean)


@pytest.mark.parametrize(("until", "unknown"), [(ORIGIN, 0), (ISSUE_TIME, UNKNOWN)])
def test_the_past_of_a_view_is_measured(until, unknown):
    (view,) = build(until=until).views
    past = view.step_covariates
    values_DH = SERIES["value"].to_numpy().reshape(DAYS, 48)

    known_7H = values_DH[7].copy()
    known_7H[48 - unknown :] = np.nan
    np.testing.assert_array_equal(past["past_lag1"], known_7H)
    np.testing.assert_array_equal(past["past_lag7"], values_DH[1])
    # The series is younger than a fortnight: the mean is over the days that there are.
    days_DH = np.concatenate([values_DH[:7], known_7H[None]])
    np.testing.assert_allclose(past["past_mean14"], np.nanmean(days_DH, axis=0))
    np.testing.assert_allclose(past["solar_mw_mean14"], past["solar_mw"] - 48 * 4.5)


@pytest.mark.parametrize("until", [ORIGIN, ISSUE_TIME])
def test_windows_with_a_truth_hold_the_very_views(until):
    windows = build_windows(SPEC, SERIES, **FRAMES)
    (view,) = build(until=until).views
    (window,) = [w for w in windows if w.view.window_id == view.window_id]
    assert content(window.view) == content(view)
    assert (view.split, window.view.split) == ("inference", "train")
    assert window.y[0] == SERIES["value"][8 * 48]


def test_at_issue_time_the_unmeasured_is_repeated():
    (view,) = build(until=ISSUE_TIME).views
    values = SERIES["value"].to_numpy()
    known = 8 * 48 - UNKNOWN
    assert view.x[: 48 - UNKNOWN].tolist() == values[known - 48 + UNKNOWN : known].tolist()
    assert view.x[48 - UNKNOWN :].tolist() == values[known - 48 : known - 48 + UNKNOWN].tolist()
    assert (view.unknown_steps, view.n_filled) == (UNKNOWN, 0)

    # What is published then is in no earlier view.
    assert view.published is not None
    (earlier,) = build(until=ISSUE_TIME - HALF_HOUR).views
    assert earlier.published is None and np.isnan(earlier.step_covariates["solar_mw"]).all()


def test_known_publication_errors_end_with_the_truth():
    truth = SERIES["value"].to_numpy().reshape(DAYS, 48)
    error = truth - (900.0 + np.arange(48))
    (midnight,), (five,) = build().views, build(until=ISSUE_TIME).views

    found = midnight.step_covariates
    assert np.allclose(found["published_error_lag1"], error[7])
    assert np.allclose(found["published_error_lag2"], error[6])
    assert np.allclose(found["published_error_mean7"], error[1:8].mean(axis=0))
    assert np.allclose(found["published_error_mean28"], error[:8].mean(axis=0))
    assert found["published_q0.1"].tolist() == [1.0] * 48
    assert found["solar_mw"].tolist() == [48.0 * 8 + i for i in range(48)]
    assert found["solar_mw_lag1"].tolist() == [48.0 * 7 + i for i in range(48)]

    known = 48 - UNKNOWN
    last = five.step_covariates["published_error_lag1"]
    assert np.allclose(last[:known], error[7, :known]) and np.isnan(last[known:]).all()
    mean = five.step_covariates["published_error_mean7"]
    assert np.allclose(mean[known:], error[1:7, known:].mean(axis=0))


def test_forecast_weather_is_the_newest_issued():
    day_before, issue_day = ISSUE_TIME - DAY, ISSUE_TIME - HALF_HOUR
    issues = {day_before: 10.0, issue_day: 20.0, ISSUE_TIME + timedelta(hours=1): 30.0}
    issued = [make_steps("temperature_c", ORIGIN, *issue) for issue in issues.items()]
    weather = pl.concat([FRAMES["step_covariates"], *issued])

    (midnight,) = build(step_covariates=weather).views
    (five,) = build(until=ISSUE_TIME, step_covariates=weather).views
    (early,) = build(until=issue_day - HALF_HOUR, step_covariates=weather).views
    first = [view.step_covariates["temperature_c"][0] for view in (midnight, five, early)]
    assert first == [30.0, 20.0, 10.0]


def test_newly_kept_weather_changes_no_earlier_window():
    before = build_windows(SPEC, SERIES, **FRAMES)
    new = make_steps("temperature_c", ORIGIN, ISSUE_TIME, 20.0)
    frames = FRAMES | {"step_covariates": pl.concat([FRAMES["step_covariates"], new])}
    after = build_windows(SPEC, SERIES, **frames)

    pairs = zip(before.views(), after.views(), strict=True)
    changed = {view.origin_utc for old, view in pairs if content(old) != content(view)}
    assert changed == {ORIGIN, ORIGIN + DAY}  # the day itself, and the day whose yesterday it is


def test_an_entity_that_ends_early_is_left_out():
    short = SERIES.filter(pl.col("start_utc") < ISSUE_TIME)
    built = build(series=short)
    reason = built.left_out.pop("NSW1")

    assert (built.views, built.left_out) == ((), {})
    for fact in (f"{short['start_utc'][0]:%Y-%m-%d %H:%M}", "2025-06-08 07:00 UTC", "48 steps"):
        assert fact in " ".join(reason)
    assert len(build(series=short, until=ISSUE_TIME).views) == 1


def test_instants_off_the_grid_are_refused():
    with pytest.raises(DataError, match="0:30:00 grid"):
        build(origin=ORIGIN + timedelta(minutes=10))
    for until in (ORIGIN - timedelta(minutes=10), ORIGIN + HALF_HOUR):
        with pytest.raises(DataError, match="a whole number"):
            build(until=until)


def test_late_covariates_by_step_are_found():
    solar = FRAMES["step_covariates"]
    views = [*build().views, *build(until=ISSUE_TIME).views]
    assert find_unavailable_step_covariates(views, solar) == []

    # The same values, issued half an hour after the view of 17:00 was made.
    late = solar.with_columns(available_at=pl.col("available_at") + HALF_HOUR)
    found = find_unavailable_step_covariates(views, late)
    assert [violation.where for violation in found] == [views[1].window_id]
    assert found[0].detail.startswith("solar_mw = ")

    # Yesterday's value under its lag, and a value that is in no row at all.
    value = pl.when(pl.col("start_utc") < ORIGIN).then(-1.0).otherwise("value")
    altered = solar.with_columns(value=value)
    names = {v.detail.split(" = ")[0] for v in find_unavailable_step_covariates(views, altered)}
    assert names == {"solar_mw_lag1"}


def test_earlier_errors_use_the_forecast_then_known():
    (clean,) = build().views
    morning = pl.col("available_at") + timedelta(hours=12)
    revised = FRAMES["published"].with_columns(value=pl.lit(1.0), available_at=morning)
    # Every forecast comes out once more at five in the morning of its own day.
    both = pl.concat([FRAMES["published"], revised.filter(pl.col("start_utc") < ORIGIN)])
    (view,) = build(published=both).views
    for name in ("published_error_lag1", "published_error_mean7"):
        assert np.array_equal(view.step_covariates[name], clean.step_covariates[name])


@pytest.mark.parametrize("known", [timedelta(), timedelta(hours=7)])
def test_old_step_values_change_no_view(known):
    days = 34
    origin = FIRST + (days - 2) * DAY
    makers = {"published": make_published, "step_covariates": make_step_covariates}
    frames = {name: make(FIRST, days) for name, make in makers.items()}
    needed = pl.col("start_utc") >= find_oldest_needed(origin, HALF_HOUR)
    cut = {name: frame.filter(needed) for name, frame in frames.items()}
    series = make_series(make_daily_values(days, seed=5), first=FIRST, series_id=SERIES_ID)

    (whole,) = build(series, origin, origin - known, **frames).views
    (view,) = build(series, origin, origin - known, **cut).views

    assert cut["published"].height < frames["published"].height
    assert content(view) == content(whole)


def test_a_later_measure_changes_no_earlier_view():
    name, first = "AEMO/TOTALDEMAND/NSW1", FIRST + 300 * DAY
    later = make_series(make_daily_values(5), first=first, series_id=name)
    for frame in (SERIES, pl.concat([SERIES, later])):
        (view,) = build_views(ELECTRICITY, frame, origin_utc=ORIGIN).views
        assert view.series_id == "AEMO/OPERATIONAL_DEMAND/NSW1"


def _views(*days, unknown=0):
    windows = (make_window(day, window_id=f"d{day}-{unknown}") for day in days)
    return [window.change_view(unknown_steps=unknown).view for window in windows]


def _replay(views):
    events = []
    *days, (left, _) = replay_days(views)
    for ended, today in days:
        if ended:
            events.append(("observe", [views[i].window_id for i in ended]))
        events.append(("forecast", [views[i].window_id for i in today]))
    return events, [views[i].window_id for i in left]


@pytest.mark.parametrize(
    ("days", "unknown", "expected", "left"),
    [
        # At midnight a day is observed before the next is forecast; at 17:00 it is not over yet.
        ((3, 1, 2), 0, "forecast d1, observe d1, forecast d2, observe d2, forecast d3", ["d3"]),
        ((1, 2, 3), 14, "forecast d1, forecast d2, observe d1, forecast d3", ["d2", "d3"]),
    ],
)
def test_a_day_is_observed_once_over(days, unknown, expected, left):
    events, rest = _replay(_views(*days, unknown=unknown))

    named = [event.split() for event in expected.split(", ")]
    assert events == [(kind, [f"{name}-{unknown}"]) for kind, name in named]
    assert rest == [f"{name}-{unknown}" for name in left]


def test_both_views_of_a_day_become_known_together():
    events, _ = _replay([*_views(1, 2), *_views(1, 2, unknown=14)])
    assert ("observe", ["d1-14", "d1-0"]) in events
    # Day 2 is forecast at 17:00 of day 1, before day 1 is known, and again at midnight, after.
    assert events.index(("forecast", ["d2-14"])) < events.index(("observe", ["d1-14", "d1-0"]))


MARCH = from_nem(2019, 3, 2)
HOUR = timedelta(hours=1)


def test_a_revision_replaces_in_any_row_order():
    day = from_nem(2019, 3, 1, 12).date()
    issues = [(290.0, 9), (291.0, 2), (292.0, -1)]  # the last one comes after the origin
    facts = [(value, MARCH - hours * HOUR, "archive:x") for value, hours in issues]
    rows = [("NSW1", "max_temp_k", day, *fact) for fact in facts]
    for order in (rows, rows[::-1]):
        index = index_daily(pl.DataFrame(order, schema=COVARIATE_SCHEMA, orient="row"))
        midnight = from_nem(2019, 3, 1, 10)
        assert index.find("NSW1", "max_temp_k", midnight, MARCH).tolist() == [291.0]


def test_two_step_values_need_a_revision():
    row = ("NSW1", "solar_mw", MARCH, 1.0, MARCH - HOUR, "archive:x")
    revised = ("NSW1", "solar_mw", MARCH, 2.0, MARCH - HOUR / 2, "archive:x")

    def find(*rows):
        frame = pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA, orient="row")
        return StepValues(frame, HALF_HOUR).find("NSW1", "solar_mw", MARCH, MARCH)

    found = find(revised, row)
    assert found[0] == 2.0 and np.isnan(found[1:]).all()
    with pytest.raises(DataError, match="two values for"):
        find(row, row)
