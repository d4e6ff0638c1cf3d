"""Time left: within a factor of 1.5 from the middle on, on the clocks of six real trainings.

``round_seconds.json`` holds the seconds of each round with the preset ``default`` on two cores, and
of the calibration at the end. Round 316 is the first that rewrites logics; every 40th round and the
last were validated.
"""

import json
from pathlib import Path
from statistics import fmean

import pytest

from compevo_core.config.run import RunConfig
from compevo_core.training.schedule import RunSchedule, TimeLeft, Work, count_work_left, guess_units

RECORDED = json.loads((Path(__file__).parents[2] / "support" / "round_seconds.json").read_text())
SCHEDULE = RunSchedule(supervised_rounds=316, evolution_rounds=12, every=1, warmup_ratio=0.03)
ROUNDS, VALIDATE_EVERY, LAYERS, CALIBRATED = 328, 40, 30, 464


def config_of(name):
    return RunConfig.from_mapping(
        {
            "population": {"agents": 1 if name == "one-agent" else 3},
            "forecast": {"layers": 4},
            "grpo": {"group_size": 4},
            "run": {"batch_size": 8, "validation_windows": 120},
        }
    )


def split(seconds):
    """The pieces of work of each round: a recording has the sum of training and validation."""
    validated = [n for n in range(ROUNDS) if (n + 1) % VALIDATE_EVERY == 0 or n + 1 == ROUNDS]
    kinds = [Work.REWRITING if SCHEDULE.rewrites(n) else Work.TRAINING for n in range(ROUNDS)]
    usual = {
        kind: fmean(seconds[n] for n in range(ROUNDS) if kinds[n] == kind and n not in validated)
        for kind in set(kinds)
    }
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
    time_left = TimeLeft(guess_units(config_of(name), LAYERS, CALIBRATED))
    gone = 0.0
    for number, pieces in enumerate(split(seconds)):
        for work, duration in pieces:
            time_left.add(work, duration)
            gone += duration
        left = count_work_left(
            SCHEDULE, number + 1, ROUNDS, validate_every=VALIDATE_EVERY, calibrates=True
        )
        yield gone / total, total - gone, time_left.estimate(left)


@pytest.mark.parametrize("name", RECORDED)
def test_from_the_middle_on_the_time_left_is_right_within_a_factor_of_one_and_a_half(name):
    seen = [(left, estimate) for share, left, estimate in replay(name) if 0.5 <= share <= 0.95]
    assert len(seen) > 20
    factors = [max(left / estimate, estimate / left) for left, estimate in seen]
    assert max(factors) < 1.5


def test_what_is_left_counts_validations_calibration_and_the_second_training():
    left = count_work_left(SCHEDULE, 300, ROUNDS, validate_every=40, calibrates=True, refits=True)
    assert left == {
        Work.TRAINING: 16 + 316,
        Work.REWRITING: 12 + 12,
        Work.VALIDATION: 2,
        Work.CALIBRATION: 1,
    }
    assert count_work_left(SCHEDULE, ROUNDS, ROUNDS).total() == 0
