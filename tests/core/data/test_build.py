"""Windows of made-up frames: splits, gaps, covariates, publications, candidates, benchmark."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from pydantic import TypeAdapter, ValidationError

from compevo_core.data.build import (
    SHIFTED_SUBSET,
    SUBSET,
    build_windows,
    find_next_origin,
    select_entities,
    select_live,
)
from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_core.data.datasets import DATASETS, ELECTRICITY, DatasetSpec, DaySubset, ZonedSpec
from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.data.window import measure_news_choice, share_with_choice
from compevo_core.errors import DataError
from compevo_core.evaluation import leakage
from tests.support.window_samples import (
    DAY,
    HALF_HOUR,
    from_nem,
    make_articles,
    make_benchmark,
    make_covariates,
    make_electricity_series,
    make_published,
    make_series,
    make_set,
    make_window,
)


def test_a_misspelled_field_of_a_declaration_is_an_error():
    place = {"timezone": "UTC", "contry": "AU"}
    grid = {"variable": "mw", "step": "P1D", "stride_steps": 1, "series": []}
    with pytest.raises(ValidationError, match="contry"):
        TypeAdapter(DatasetSpec).validate_python({"name": "a", **grid, "default_place": place})


def make_train_series(n_days=4):
    return make_series([float(i) for i in range(48 * n_days)], first=from_nem(2019, 1, 1))


def build(n_days=3, **frames):
    """Windows of so many train days, with the frames given."""
    return build_windows(ELECTRICITY, make_train_series(n_days), **frames)


def make_rates(n=900, *, series_id="N2F/AUD"):
    values = [round(0.7 + 0.01 * np.sin(i / 9), 4) for i in range(n)]
    first, names = datetime(2019, 1, 1, tzinfo=UTC), {"variable": "rate_usd_per_aud"}
    return make_series(values, first=first, step=DAY, series_id=series_id, **names)


def test_an_electricity_window_is_two_market_days():
    windows = build(4)
    assert [w.view.origin_utc for w in windows] == [from_nem(2019, 1, d) for d in (2, 3, 4)]
    assert windows[0].view.x.tolist() == [float(i) for i in range(48)]
    assert windows[0].y.tolist() == [float(i) for i in range(48, 96)]
    assert windows[0].view.calendar.target_date == date(2019, 1, 2)

    # Named subsets count the market's days too.
    third = DaySubset(name="third", first_day=date(2019, 1, 3), every=1, count=1)
    spans = tuple(replace(span, subsets=(third,)) for span in ELECTRICITY.spans)
    (named,) = build_windows(replace(ELECTRICITY, spans=spans), make_train_series()).subset("third")
    assert named.view.origin_utc == from_nem(2019, 1, 3)


def test_windows_do_not_depend_on_row_order():
    days = [date(2019, 11, 1) + i * DAY for i in range(60)]
    articles = make_articles([from_nem(2019, 11, d) for d in range(1, 20)])
    frames = make_electricity_series(), make_covariates(days), articles
    shuffled = [frame.sample(fraction=1.0, shuffle=True, seed=3) for frame in frames]
    hashes = {build_windows(ELECTRICITY, *given).hash for given in (frames, shuffled)}
    assert len(hashes) == 1


def test_dropped_origins_are_counted_by_reason():
    since = pl.col("start_utc") - from_nem(2019, 1, 2)
    is_lost = since.is_between(timedelta(0), 2 * DAY, closed="left")
    windows = build_windows(ELECTRICITY, make_train_series(5).filter(~is_lost))

    assert [w.view.origin_utc for w in windows] == [from_nem(2019, 1, 5)]
    reasons = {"input gap longer than the fill limit": 2, "no observed target": 1}
    assert windows.manifest["dropped_origins"] == reasons


def test_a_series_begun_after_train_has_no_windows():
    rates = make_rates()
    late = make_rates(series_id="N2F/NZD").filter(pl.col("start_utc") >= rates["start_utc"][700])
    spec = replace(DATASETS["exchange"], series=((r"^N2F/(AUD|NZD)$", ""),))
    both = build_windows(spec, pl.concat([rates, late]))
    assert both.entities == ("AUD",)
    assert both.manifest["dropped_origins"]["of a series without a train window"] > 0
    learnt, others = select_entities(spec, pl.concat([rates, late]), {"AUD"})
    assert (learnt["series_id"].unique().to_list(), others) == (["N2F/AUD"], ["NZD"])

    # Its last window ends a horizon before those of the other.
    ended = make_rates(852, series_id="N2F/NZD")
    live, why = select_live(spec, pl.concat([rates, ended]))
    assert live.equals(rates)
    assert why.startswith("no forecast of NZD (ended 2021-05")
    almost = pl.concat([rates, make_rates(853, series_id="N2F/NZD")])
    assert select_live(spec, almost) == (almost, "")


def test_a_gap_is_filled_and_zero_stays():
    series = make_train_series(4).with_columns(pl.col("value").replace(60.0, 0.0))

    windows = build_windows(ELECTRICITY, series.filter(pl.col("value") != 52.0))

    assert np.flatnonzero(np.isnan(windows[0].y)).tolist() == [4]
    assert windows[0].y[12] == 0.0
    assert windows[1].view.x[4] == 51.0
    assert windows[1].view.n_filled == 1
    assert (windows.manifest["n_masked_targets"], windows.manifest["n_filled_inputs"]) == (1, 1)


def test_covariates_need_their_lag_and_the_origin():
    frame = make_covariates([date(2018, 12, 30) + i * DAY for i in range(8)])
    windows = build(4, covariates=frame)
    known = windows[0].view.covariates
    assert set(known) == {"afternoon_temp_k_lag1", "afternoon_temp_k_lag2", "max_temp_k_lag2"}
    assert known["afternoon_temp_k_lag1"] == 292.0
    assert leakage.find_unavailable_covariates(windows.views(), frame) == []

    # What comes out at the origin is not known yet.
    out = pl.lit(from_nem(2019, 1, 2)).dt.cast_time_unit("us")
    late = make_covariates([date(2019, 1, 1)]).with_columns(available_at=out)
    without = build(covariates=late)
    assert without[0].view.covariates == {}
    assert without.manifest["n_without_covariates"] == 1


def test_the_published_median_needs_a_whole_day():
    frame = make_published(from_nem(2019, 1, 1), 3)
    windows = build(4, published=frame)
    assert windows[0].view.published.tolist() == [900.0 + i for i in range(48)]
    assert windows[2].view.published is None
    assert leakage.find_unavailable_published(windows.views(), frame) == []
    late = frame.with_columns(available_at=pl.col("start_utc"))
    partial = frame.filter(pl.col("start_utc") != from_nem(2019, 1, 2, 5))
    for lacking in (late, partial):
        assert build(4, published=lacking)[0].view.published is None


def test_candidates_end_before_the_origin():
    frame = make_articles([from_nem(2019, 1, 1, 20), from_nem(2019, 1, 2), from_nem(2019, 1, 2, 9)])
    honest = build(articles=frame)[0].view
    assert (honest.candidate_ids, honest.leaky) == (("a0",), False)
    relaxed = build(articles=frame, news_cutoff="horizon-end")[0].view
    assert (relaxed.candidate_ids, relaxed.leaky) == (("a2", "a1", "a0"), True)
    assert len(leakage.find_unavailable_articles([relaxed], frame)) == 2


def test_electricity_reads_australian_news_and_looks_back():
    origin = from_nem(2019, 1, 2)
    frame = make_articles([origin - timedelta(days=d) for d in (1, 2, 3, 20, 30)]).with_columns(
        language=pl.Series(["English", "Greek", "English", "English", "English"]),
        country=pl.Series(["Australia", "Australia", "Greece", "Australia", "Australia"]),
    )
    view = build(articles=frame)[0].view
    assert (view.origin_utc, view.candidate_ids) == (origin, ("a0", "a3"))


# Days since the market's change to readings of five minutes are marked.
@pytest.mark.parametrize(
    ("day", "subsets"),
    [(date(2021, 9, 30), (SUBSET,)), (date(2021, 10, 1), (SUBSET, SHIFTED_SUBSET))],
)
def test_benchmark_records_become_a_test_subset(day, subsets):
    (record,) = build(benchmark=make_benchmark(day)).subset(SUBSET)

    assert record.view.origin_utc == from_nem(day.year, day.month, day.day) - HALF_HOUR
    assert (record.view.split, record.view.series_id) == ("test", "N2F/TOTALDEMAND/NSW1")
    assert (record.view.x[0], record.y[47]) == (100.0, 247.0)
    assert (record.view.calendar.target_date, record.view.subsets) == (day, subsets)


@pytest.mark.parametrize(("day", "length"), [(date(2019, 3, 4), 48), (date(2021, 3, 4), 47)])
def test_misplaced_or_short_benchmark_records_are_refused(day, length):
    with pytest.raises(DataError, match="benchmark record 0"):
        build(benchmark=make_benchmark(day, length=length))


def test_the_benchmark_rate_is_preferred():
    both = pl.concat([make_rates(), make_rates(series_id="ECB/AUD")])
    windows = build_windows(DATASETS["exchange"], both)
    assert {w.view.series_id for w in windows} == {"N2F/AUD"}
    assert windows.manifest["unused_series"] == ["ECB/AUD"]
    only = build_windows(DATASETS["exchange"], make_rates(series_id="ECB/AUD"))
    assert {w.view.entity for w in only} == {"AUD"}


def test_interpolated_rates_are_masked_in_targets():
    is_weekend = pl.col("start_utc").dt.weekday() > 5
    frame = make_rates().with_columns(value=pl.col("value") + 1.2345e-6 * is_weekend)
    first = build_windows(DATASETS["exchange"], frame)[0]

    steps = range(-DEFAULT_STEPS, DEFAULT_STEPS)
    days = [(first.view.origin_utc + step * DAY).weekday() for step in steps]
    saturday = days.index(5, 1)
    assert np.isnan(first.y).tolist() == [day >= 5 for day in days[DEFAULT_STEPS:]]
    assert first.view.n_filled == 14
    assert first.view.x[saturday] == first.view.x[saturday - 1]


def test_missing_series_are_reported_with_what_came():
    with pytest.raises(DataError, match=r"bitcoin: no series.*price_usd.*AEMO/HISTDEMAND/NSW1"):
        build_windows(DATASETS["bitcoin"], make_train_series())


def make_sensor(name, first, end):
    hour = timedelta(hours=1)
    values = [0.01 * (i % 24) for i in range((end - first) // hour)]
    series_id = f"PEMS862/{name}"
    return make_series(values, first=first, step=hour, series_id=series_id, variable="occupancy")


def test_hourly_windows_follow_one_split_in_time():
    end = datetime(2015, 12, 1, tzinfo=UTC)
    early = make_sensor("early", datetime(2015, 1, 1, 8, tzinfo=UTC), end)
    late = make_sensor("late", datetime(2015, 6, 1, tzinfo=UTC), end)
    windows = build_windows(DATASETS["traffic"], pl.concat([early, late]))

    first, second = windows.entity("early").views()[:2]
    assert second.origin_utc - first.origin_utc == DAY
    assert first.end_utc - first.origin_utc == 2 * DAY
    assert {(w.view.entity, w.view.split) for w in windows} >= {("late", "train"), ("late", "test")}
    last_train = max(view.end_utc for view in windows.split("train").views())
    assert last_train < min(view.origin_utc for view in windows.split("test").views())
    assert leakage.find_overlapping_targets(windows) == []


@pytest.mark.parametrize("steps", [24, 12])
def test_days_begin_at_local_midnight_in_both_seasons(steps):
    # Clocks skip an hour on 29 March 2026, and show one twice on 25 October.
    fields = {name: getattr(DATASETS["traffic"], name) for name in DatasetSpec.__slots__}
    changes = {"align_to_market_day": True, "stride_steps": steps, "horizon_steps": steps}
    spec = ZonedSpec(**fields | changes, market_zone="Europe/Paris")
    series = make_sensor("a", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
    origins = [view.origin_utc for view in build_windows(spec, series).views()]

    local = [at.astimezone(ZoneInfo("Europe/Paris")) for at in origins]
    assert {at.hour for at in local} == {*range(0, 24, steps)}
    apart = {(after - before).total_seconds() / 3600 for before, after in pairwise(origins)}
    assert {steps - 1, steps, steps + 1} <= apart
    known = series.filter(pl.col("start_utc") < datetime(2026, 7, 1, 22, tzinfo=UTC))
    assert find_next_origin(spec, known) == datetime(2026, 7, 1, 22, tzinfo=UTC)


def test_a_choice_needs_more_candidates_than_reads():
    counts = (0, 1, 2, 6)
    windows = [make_window(i, candidate_ids=tuple("abcdef"[:n])) for i, n in enumerate(counts)]
    held_out = make_window(9, split="test")
    views = make_set([*windows, held_out]).views()
    names = ("windows", "mean_candidates", "more_than_1", "more_than_3", "more_than_5")

    assert measure_news_choice(views) == {
        "train": dict(zip(names, (4, 2.25, 0.5, 0.25, 0.25), strict=True)),
        "test": dict(zip(names, (1, 0.0, 0.0, 0.0, 0.0), strict=True)),
    }
    assert (share_with_choice(counts, 6), share_with_choice([], 1)) == (0.0, 0.0)


def test_the_manifest_says_what_windows_hold():
    articles = make_articles([from_nem(2019, 11, 2, hour) for hour in range(4)])

    windows = build_windows(ELECTRICITY, make_electricity_series(), articles=articles)
    manifest = windows.manifest

    assert manifest["coverage"]["train"] == {"NSW1": {"2019": 59, "2020": 19}, "SA1": {"2019": 59}}
    assert manifest["coverage"]["inference"] == {"NSW1": {"2026": 40}, "SA1": {}}
    assert manifest["holidays_version"] == HOLIDAYS_VERSION
    assert manifest["news_choice"] == measure_news_choice(windows.views())
    assert 0 < manifest["news_choice"]["train"]["more_than_3"] < 1
