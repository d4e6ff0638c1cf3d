"""Stages and rates, batches of days, generators: all of it follows from seed and round."""

import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from compevo_core.config.run import RunConfig
from compevo_core.training.schedule import (
    DaySampler,
    RunGenerators,
    RunSchedule,
    TimeLeft,
    Work,
    count_work_left,
    guess_units,
    learning_rate_factor,
    list_cautions,
    seed_dropout,
)
from tests.support.population import tiny, windows


def test_a_plan_counts_supervised_epochs_first():
    size = {"run__batch_size": 4}  # of 26 windows in 7 batches
    plan = RunSchedule.plan(tiny(**size, run__supervised_epochs=2, run__rounds=5), 26)
    assert (plan.supervised_rounds, plan.evolution_rounds, plan.total_rounds) == (14, 5, 19)
    plan = RunSchedule.plan(tiny(**size, run__rounds=0, run__epochs=3), 26)
    assert (plan.supervised_rounds, plan.evolution_rounds) == (0, 21)
    plan = RunSchedule.plan(tiny(**size, run__supervised_epochs=2, run__supervised_rounds=5), 26)
    assert plan.supervised_rounds == 5


@pytest.mark.parametrize(
    ("every", "rewriting"), [(0, []), (1, [3, 4, 5, 6, 7]), (2, [3, 5, 7]), (9, [3])]
)
def test_logics_are_rewritten_every_nth_round(every, rewriting):
    plan = RunSchedule(3, 5, every, warmup_ratio=0.0)
    assert [n for n in range(8) if plan.rewrites(n)] == rewriting
    assert [plan.stage(n) for n in range(8)] == ["supervised"] * 3 + ["evolution"] * 5


def test_each_stage_warms_up_and_decays():
    plan = RunSchedule(10, 20, 1, warmup_ratio=0.2)
    first = [learning_rate_factor(n, 10, 0.2) for n in range(10)]
    second = [learning_rate_factor(n, 20, 0.2) for n in range(20)]
    assert [plan.factor(n) for n in range(30)] == [*first, *second]
    assert plan.factor(9) < 0.2 < plan.factor(10) < plan.factor(13) == 1.0


@pytest.mark.parametrize(
    ("policy_lr", "lambda_div", "enabled", "settings"),
    [
        (1e-6, 0.1, True, ["optim.policy_lr", "objective.lambda_div"]),  # as printed
        (1e-2, 0.1, True, ["objective.lambda_div"]),
        (1e-2, 1e-3, True, []),
        (1e-6, 0.0, True, ["optim.policy_lr"]),
        (1e-2, 0.0, True, []),
        (1e-6, 0.1, False, []),
    ],
)
def test_a_policy_that_cannot_learn_is_told(policy_lr, lambda_div, enabled, settings):
    weights = {"objective__lambda_div": lambda_div, "grpo__enabled": enabled}
    config = tiny(optim__policy_lr=policy_lr, **weights)

    cautions = list_cautions(config, RunSchedule(10, 1_500, 1, warmup_ratio=0.03))

    assert [text.split(" = ")[0] for text in cautions] == settings
    assert not list_cautions(config, RunSchedule(10, 1_500, 0, warmup_ratio=0.03))


def test_every_window_comes_once_an_epoch():
    sampler = DaySampler(windows("train", 7), 4, seed=3)
    assert sampler.rounds_per_epoch == 4
    epochs = [[i for r in range(4) for i in sampler.indices(4 * n + r)] for n in range(3)]
    assert all(sorted(drawn) == list(range(14)) for drawn in epochs)
    # In another order each time, but with the two windows of a day together.
    assert len({tuple(drawn) for drawn in epochs}) == 3
    assert all(a // 2 == b // 2 for drawn in epochs for a, b in np.reshape(drawn, (-1, 2)))

    # A round does not depend on what was asked for before.
    again, other = (DaySampler(windows("train", 7), 4, seed=seed) for seed in (3, 2))
    backwards = [again.indices(number) for number in reversed(range(12))]
    assert backwards[::-1] == [sampler.indices(number) for number in range(12)]
    assert [other.indices(number) for number in range(12)] != backwards[::-1]


def draw_dropout(seed, rank, round_number):
    seed_dropout(seed, rank, round_number)
    return torch.rand(4).tolist()


def test_repeated_rounds_drop_the_same_units():
    assert draw_dropout(0, 1, 5) == draw_dropout(0, 1, 5)
    others = [draw_dropout(1, 1, 5), draw_dropout(0, 0, 5), draw_dropout(0, 1, 6)]
    assert draw_dropout(0, 1, 5) not in others


def test_agents_keep_their_streams_in_any_process():
    def draws(agents):
        streams = RunGenerators.from_seed(7, agents, torch.device("cpu")).agents
        return [torch.rand(4, generator=generator).tolist() for generator in streams]

    together = draws(range(3))
    assert len({tuple(stream) for stream in together}) == 3
    assert draws(range(1, 3)) == together[1:]


RECORDED = json.loads((Path(__file__).parents[2] / "support" / "round_seconds.json").read_text())
SCHEDULE = RunSchedule(supervised_rounds=316, evolution_rounds=12, every=1, warmup_ratio=0.03)
ROUNDS, VALIDATE_EVERY, LAYERS, CALIBRATED = 328, 40, 30, 464


def split(seconds):
    """The pieces of work of each round: a recording has the sum of training and validation."""
    validated = [n for n in range(ROUNDS) if (n + 1) % VALIDATE_EVERY == 0 or n + 1 == ROUNDS]
    kinds = [Work.REWRITING if SCHEDULE.rewrites(n) else Work.TRAINING for n in range(ROUNDS)]
    plain = [n for n in range(ROUNDS) if n not in validated]
    usual = {kind: fmean(seconds[n] for n in plain if kinds[n] == kind) for kind in set(kinds)}
    for number, kind in enumerate(kinds):
        if number not in validated:
            yield [(kind, seconds[number])]
            continue
        step = min(seconds[number], usual[kind])
        yield [(kind, step), (Work.VALIDATION, seconds[number] - step)]


def replay(name):
    """Share of the time gone, seconds left and seconds estimated, after each round."""
    seconds = RECORDED[name]["round_seconds"]
    total = sum(seconds) + RECORDED[name]["calibration_seconds"]
    agents = 1 if name == "one-agent" else 3
    sections = {"population": {"agents": agents}, "forecast": {"layers": 4}}
    sections |= {"grpo": {"group_size": 4}, "run": {"batch_size": 8, "validation_windows": 120}}
    config = RunConfig.from_mapping(sections)
    time_left = TimeLeft(guess_units(config, LAYERS, CALIBRATED))
    gone = 0.0
    for number, pieces in enumerate(split(seconds)):
        for work, duration in pieces:
            time_left.add(work, duration)
            gone += duration
        done = (SCHEDULE, number + 1, ROUNDS)
        left = count_work_left(*done, validate_every=VALIDATE_EVERY, calibrates=True)
        yield gone / total, total - gone, time_left.estimate(left)


@pytest.mark.parametrize("name", RECORDED)
def test_the_time_left_is_right_midway(name):
    seen = [(left, estimate) for share, left, estimate in replay(name) if 0.5 <= share <= 0.95]
    factors = [max(left / estimate, estimate / left) for left, estimate in seen]
    assert len(seen) > 20 and max(factors) < 1.5


def test_paid_rewritings_are_guessed_within_a_half():
    # Measured with two cores: 1.07 s a round, and 26.3 s with a rewriting.
    units = guess_units(RunConfig.preset("full"), LAYERS, CALIBRATED)
    assert units[Work.REWRITING] / units[Work.TRAINING] == pytest.approx(26.3 / 1.07, rel=0.5)


def test_a_validation_of_all_windows_is_guessed_like_the_calibration():
    config = RunConfig.preset("full")
    for count, share in ((0, 1.0), (2 * CALIBRATED, 1.0), (CALIBRATED // 2, 0.5)):
        changed = config.with_overrides({"run.validation_windows": count})
        units = guess_units(changed, LAYERS, CALIBRATED)
        assert units[Work.VALIDATION] == pytest.approx(share * units[Work.CALIBRATION], rel=0.01)


def test_what_is_left_counts_all_later_work():
    left = count_work_left(SCHEDULE, 300, ROUNDS, validate_every=40, calibrates=True, refits=True)
    parts = (left[work] for work in (Work.TRAINING, Work.REWRITING, Work.VALIDATION))
    assert (*parts, left[Work.CALIBRATION]) == (16 + 316, 12 + 12, 2, 1)
    assert left.keys() == set(Work)
    assert count_work_left(SCHEDULE, ROUNDS, ROUNDS).total() == 0
