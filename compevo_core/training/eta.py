"""How long the rest of a training takes: by kind of work, as rounds have unlike costs.

A run ends with its most expensive rounds: those that rewrite logics take 12 to 25 times as long as
those before. So each kind of work goes by its own mean, and one that has not been seen by how much
it computes beside the seen ones, in windows read by one agent through one layer of the backbone.
"""

from collections import Counter, deque
from collections.abc import Mapping
from enum import StrEnum
from statistics import fmean

from compevo_core.config.run import RunConfig
from compevo_core.training.schedule import RunSchedule

# Measured with the preset "default" on two processor cores, in units of reading one window. They
# only serve until the kind has been seen once.
_LEARNING = 6.0  # forecast of a window with its backward pass, and the second reading
_WRITTEN_TOKEN = 0.2  # by one agent, through one layer
_ANSWER_TOKENS = 200  # 48 numbers as text
_POLICY_UPDATE = 11.0  # one logic scored by policy and reference, with the backward pass


class Work(StrEnum):
    """What a run spends its time on."""

    TRAINING = "training"
    """a round that only trains the forecasts"""
    REWRITING = "rewriting"
    """a round that rewrites the logics as well"""
    VALIDATION = "validation"
    """one measurement of the validation windows"""
    CALIBRATION = "calibration"
    """what is fitted on validation after the last round"""


_REMEMBERED = {Work.TRAINING: 60, Work.REWRITING: 4, Work.VALIDATION: 4}
"""Newest pieces that count: the machine's speed changes, and rounds that rewrite get shorter."""


def count_work_left(
    schedule: RunSchedule,
    done: int,
    rounds: int,
    *,
    validate_every: int = 0,
    calibrates: bool = False,
    refits: bool = False,
) -> Counter[Work]:
    """Count what is left of a run of ``rounds`` rounds after ``done`` of them.

    Each of ``validate_every`` rounds is followed by a validation, and so is the last; 0 = never.
    With ``refits`` a second training of as many rounds follows.
    """
    numbers = [*range(done, rounds), *(range(rounds) if refits else ())]
    rewriting = sum(schedule.rewrites(number) for number in numbers)
    ends = range(done + 1, rounds + 1) if validate_every else ()
    return Counter(
        {
            Work.TRAINING: len(numbers) - rewriting,
            Work.REWRITING: rewriting,
            Work.VALIDATION: sum(end % validate_every == 0 or end == rounds for end in ends),
            Work.CALIBRATION: int(calibrates),
        }
    )


def guess_units(config: RunConfig, layers: int, calibration_windows: int) -> dict[Work, float]:
    """Return how much a piece of each kind computes, in windows read through one layer."""
    run, grpo = config.run, config.grpo
    agents = config.population.agents
    read = config.forecast.layers or layers
    # Without gradient: an answer as text is written token by token.
    is_text = config.forecast.decoder == "text"
    forecast = read * (1.0 + (_WRITTEN_TOKEN * _ANSWER_TOKENS if is_text else 0.0))

    scored = grpo.reward_windows or run.batch_size
    written = layers * _WRITTEN_TOKEN * config.evolution.max_new_tokens
    policy = layers * _POLICY_UPDATE * grpo.iterations if grpo.enabled else 0.0
    training = run.batch_size * (forecast + read * (_LEARNING - 1.0))
    rewriting = (grpo.group_size + 1) * scored * forecast + grpo.group_size * (written + policy)
    return {
        Work.TRAINING: agents * training,
        Work.REWRITING: agents * (training + rewriting),
        Work.VALIDATION: agents * forecast * run.validation_windows,
        Work.CALIBRATION: agents * forecast * calibration_windows,
    }


class TimeLeft:
    """Seconds that the rest of a run takes, from the ``units`` of :func:`guess_units`."""

    def __init__(self, units: Mapping[Work, float]) -> None:
        self._units = units
        # Of this process's life: time before an interruption says nothing of this machine.
        self._seconds: dict[Work, deque[float]] = {}

    def add(self, work: Work, seconds: float) -> None:
        """Remember how long a piece of work took."""
        self._seconds.setdefault(work, deque(maxlen=_REMEMBERED[work])).append(seconds)

    def estimate(self, left: Mapping[Work, int]) -> float:
        """Return the seconds that so many pieces take, after at least one has been seen."""
        means = [fmean(seconds) for seconds in self._seconds.values()]
        speed = sum(means) / sum(self._units[work] for work in self._seconds)

        total = 0.0
        for work, count in left.items():
            # The guess counts as one piece: the first rewriting rounds are the slowest.
            seen = [self._units[work] * speed, *self._seconds.get(work, ())]
            total += count * fmean(seen)
        return total
