"""Skill over the last days, against references that were scored on the same days."""

import polars as pl
import pytest

from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.skill import BEST_MEMBER, measure_skill
from tests.support.scored_samples import make_rows


def pick(skill: pl.DataFrame, **wanted: object) -> dict[str, object]:
    part = skill
    for column, value in wanted.items():
        part = part.filter(pl.col(column) == value)
    (row,) = part.iter_rows(named=True)
    return row


def test_skill_is_of_the_last_days_and_says_how_many_there_are() -> None:
    rows = make_rows({"compevo": [100.0] * 3 + [50.0] * 7, "persistence": [100.0] * 10})
    skill = measure_skill(rows)
    week = pick(skill, reference="persistence", span_days=7, entity="NSW1")
    assert (week["n_days"], week["skill"]) == (7, pytest.approx(0.5))
    month = pick(skill, reference="persistence", span_days=28, entity=POOLED)
    assert (month["n_days"], month["skill"]) == (10, pytest.approx(0.35))


def test_a_day_that_one_of_the_two_lacks_counts_for_neither() -> None:
    rows = make_rows({"compevo": [50.0] * 10, "published": [100.0] * 9})
    row = pick(measure_skill(rows), reference="published", span_days=7, entity="NSW1")
    # The tenth day is the last one, and has no published forecast.
    assert (row["n_days"], row["mae"]) == (6, 50.0)


def test_series_are_pooled_by_points_and_forecasts_that_know_more_stand_apart() -> None:
    methods = {"compevo": [10.0] * 7, "persistence": [20.0] * 7}
    other = make_rows({"compevo": [90.0] * 7, "persistence": [100.0] * 7}, entity="SA1")
    midnight = make_rows(methods, known_to="midnight")
    skill = measure_skill(pl.concat([make_rows(methods), other, midnight]))
    pooled = pick(skill, known_to="issue-time", entity=POOLED, span_days=7, reference="persistence")
    assert (pooled["n_days"], pooled["skill"]) == (7, pytest.approx(1 - 50 / 60))
    assert pick(skill, known_to="midnight", entity=POOLED, span_days=7)["skill"] == 0.5


def test_the_best_member_is_the_one_with_the_smallest_error_on_all_of_the_days() -> None:
    rows = make_rows(
        {
            "compevo": [90.0] * 7,
            "compevo-agent-0": [120.0] * 7,
            "compevo-agent-1": [100.0] * 7,
            "compevo-agent-2": [10.0] * 3,  # joined for three days alone
        }
    )
    row = pick(measure_skill(rows), reference=BEST_MEMBER, span_days=7, entity="NSW1")
    assert (row["reference_mae"], row["n_days"]) == (100.0, 7)


def test_nothing_scored_is_no_skill() -> None:
    assert measure_skill(make_rows({})).is_empty()
