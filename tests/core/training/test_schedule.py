"""Stages, rewriting rounds and rates, all from the number of the round."""

import pytest

from compevo_core.training.schedule import RunSchedule, learning_rate_factor
from tests.support.population import tiny


def test_a_plan_counts_supervised_epochs_and_then_rounds_or_epochs() -> None:
    plan = RunSchedule.plan(tiny(run__supervised_epochs=2, run__rounds=5), 7)
    assert (plan.supervised_rounds, plan.evolution_rounds, plan.total_rounds) == (14, 5, 19)
    plan = RunSchedule.plan(tiny(run__rounds=0, run__epochs=3), 7)
    assert (plan.supervised_rounds, plan.evolution_rounds) == (0, 21)


@pytest.mark.parametrize(
    ("every", "rewriting"), [(0, []), (1, [3, 4, 5, 6, 7]), (2, [3, 5, 7]), (9, [3])]
)
def test_logics_are_rewritten_every_nth_round_of_the_second_stage(
    every: int, rewriting: list[int]
) -> None:
    plan = RunSchedule(3, 5, every, warmup_ratio=0.0)
    assert [n for n in range(8) if plan.rewrites(n)] == rewriting
    assert [plan.stage(n) for n in range(8)] == ["supervised"] * 3 + ["evolution"] * 5


def test_each_stage_warms_up_and_decays_on_its_own() -> None:
    plan = RunSchedule(10, 20, 1, warmup_ratio=0.2)
    first = [learning_rate_factor(n, 10, 0.2) for n in range(10)]
    second = [learning_rate_factor(n, 20, 0.2) for n in range(20)]
    assert [plan.factor(n) for n in range(30)] == [*first, *second]
    assert plan.factor(9) < 0.2 < plan.factor(10) < plan.factor(13) == 1.0


def test_a_supervised_stage_is_as_long_as_it_is_said_to_be() -> None:
    plan = RunSchedule.plan(tiny(run__supervised_epochs=2, run__supervised_rounds=5), 7)
    assert plan.supervised_rounds == 5
