"""Chronological splits, their embargo, subsets and folds."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compevo_core.data.build import build_windows
from compevo_core.data.datasets import DATASETS, ELECTRICITY
from compevo_core.data.splits import (
    DaySubset,
    Span,
    assign_folds,
    build_folds,
    resolve_spans,
    split_chronologically,
)
from compevo_core.data.window import HORIZON, LOOKBACK
from compevo_core.errors import ConfigError, DataError
from tests.support.window_samples import (
    DAY,
    HALF_HOUR,
    from_nem,
    make_electricity_series,
    make_spec,
)

FIRST = datetime(2019, 1, 1, tzinfo=UTC)
NEM = timedelta(hours=10)


def make_span(split: str, first: date, last: date) -> Span:
    return Span(split=split, series_pattern="", first_day=first, last_day=last)


@given(st.integers(min_value=700, max_value=4000))
def test_fractions_leave_one_horizon_between_splits_and_lose_no_other_step(n):
    limits = split_chronologically(FIRST, n, DAY, (0.7, 0.1, 0.2)).spans
    assert limits["train"][0] == FIRST + LOOKBACK * DAY
    assert limits["val"][0] - limits["train"][1] == HORIZON * DAY
    assert limits["test"][0] - limits["val"][1] == HORIZON * DAY
    assert limits["test"][1] == FIRST + n * DAY


def test_a_series_too_short_for_three_splits_is_refused():
    with pytest.raises(DataError, match="each needs 48"):
        split_chronologically(FIRST, 400, DAY, (0.7, 0.1, 0.2))


def test_a_window_across_a_boundary_belongs_to_no_split():
    plan = split_chronologically(FIRST, 1000, DAY, (0.7, 0.1, 0.2))
    end = plan.spans["train"][1]
    assert plan.find_split(end - HORIZON * DAY, end) == "train"
    assert plan.find_split(end - (HORIZON - 1) * DAY, end + DAY) is None


def test_a_later_split_starts_one_horizon_after_the_earlier_one_ends():
    train, val = (
        make_span("train", date(2019, 1, 1), date(2019, 12, 31)),
        make_span("val", date(2020, 1, 1), date(2020, 12, 31)),
    )
    limits = resolve_spans([val, train], HALF_HOUR, NEM)
    assert limits[train] == (from_nem(2019, 1, 1), from_nem(2020, 1, 1))
    assert limits[val] == (from_nem(2020, 1, 2), from_nem(2021, 1, 1))


def test_overlapping_spans_are_refused():
    with pytest.raises(DataError, match="split test starts 2019-06-01, inside train"):
        resolve_spans(
            [
                make_span("train", date(2019, 1, 1), date(2019, 12, 31)),
                make_span("test", date(2019, 6, 1), date(2020, 1, 1)),
            ],
            HALF_HOUR,
            NEM,
        )


def test_the_2026_subset_is_every_other_day_twenty_times():
    subset = DaySubset(name="s", first_day=date(2026, 2, 19), every=2, count=20)
    days = [date(2026, 2, 1) + i * DAY for i in range(80)]
    days_in_subset = [day for day in days if subset.contains(day)]
    assert (len(days_in_subset), days_in_subset[0], days_in_subset[-1]) == (
        20,
        date(2026, 2, 19),
        date(2026, 3, 29),
    )


def test_folds_expand_in_time_with_an_embargo_and_never_reach_validation_or_test():
    windows = build_windows(ELECTRICITY, make_electricity_series())
    pairs = build_folds(windows)
    assert len(pairs) == 5
    sizes = [len(train) for train, _ in pairs]
    assert sizes == sorted(sizes)
    for train, validation in pairs:
        last = max(w.view.end_utc for w in train)
        assert min(w.view.origin_utc for w in validation) - last >= HORIZON * HALF_HOUR
        assert {w.view.split for w in [*train, *validation]} == {"train"}


def test_every_train_origin_has_one_fold_and_the_first_part_is_only_trained_on():
    origins = [FIRST + i * DAY for i in range(60)]
    numbers = assign_folds(origins[::-1])
    assert [numbers[o] for o in origins] == sorted(numbers.values())
    assert set(numbers.values()) == {-1, 0, 1, 2, 3, 4}
    assert assign_folds([]) == {}


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_declared_data_set_is_consistent(name):
    assert DATASETS[name].name == name
    assert DATASETS[name].mape_threshold > 0


def test_fractions_that_do_not_add_up_are_refused():
    with pytest.raises(ConfigError, match="add up to 1"):
        make_spec(fractions=(0.7, 0.2, 0.2))
