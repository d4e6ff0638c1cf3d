"""When a run trains what: stages and rates (D.2), batches of days, random generators, time left.

Rounds that rewrite logics take 12 to 25 times as long as the earlier ones, so the estimate of the
time left uses the mean of each kind of work. A kind without any mean is scaled from the others by
its amount of computation, in windows read by one agent through one layer of the backbone.

Every stream of random numbers has its own seed, derived from ``run.seed`` and its name:

    days, epoch           order of the days
    logics, agent         logics that an agent samples (``agents.logic_writer``)
    peers                 peers and reward windows, equal on every process
    dropout, rank, round  dropout masks, different on every process
    news                  which agents see no news of a window, equal on every process
"""

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.runtime.seeding import derive_seed

if TYPE_CHECKING:  # stages are planned where nothing is trained
    import torch

POLICY_MOVES = 5e-3
"""Sum of learning rates after which a policy has learnt what is rewarded: AdamW changes a weight by
about the rate in each update, and a bandit took 7 updates at 1e-3 (decision 04-policy)."""

DIVERSITY_DROWNS = 1e-3
"""Weight of L_div above which its gradient can exceed that from rewards: at 0.1 it was 6 to 100
times as large (decision 04-policy)."""

Stage = Literal["supervised", "evolution"]
SUPERVISED: Stage = "supervised"
EVOLUTION: Stage = "evolution"


@dataclasses.dataclass(frozen=True)
class RunSchedule:
    """The plan of a run, by round (decision 07-stages).

    The supervised stage trains the forecasts under the seed logics; the evolution stage rewrites
    the logics as well. Each has its own warm-up and cosine decay.
    """

    supervised_rounds: int
    evolution_rounds: int
    every: int  # rounds from one rewriting of the logics to the next; 0 = never
    warmup_ratio: float  # share of a stage's rounds in which the rate rises; at least one round

    @classmethod
    def plan(cls, config: RunConfig, train_windows: int) -> Self:
        """Return the schedule of a run on a number of train windows."""
        run = config.run
        rounds_per_epoch = math.ceil(train_windows / run.batch_size)
        return cls(
            supervised_rounds=run.supervised_rounds or run.supervised_epochs * rounds_per_epoch,
            evolution_rounds=run.rounds or run.epochs * rounds_per_epoch,
            every=config.evolution.every,
            warmup_ratio=config.optim.warmup_ratio,
        )

    @property
    def total_rounds(self) -> int:
        """Rounds of both stages."""
        return self.supervised_rounds + self.evolution_rounds

    def stage(self, round_number: int) -> Stage:
        """Return the stage of a round."""
        return SUPERVISED if round_number < self.supervised_rounds else EVOLUTION

    def rewrites(self, round_number: int) -> bool:
        """Whether the agents write new logics in a round (paper: in every round)."""
        position = round_number - self.supervised_rounds
        return position >= 0 and self.every > 0 and position % self.every == 0

    def factor(self, round_number: int) -> float:
        """Return the share of the base rates in a round, by its place in its stage."""
        position, rounds = round_number, self.supervised_rounds
        if self.stage(round_number) == EVOLUTION:
            position, rounds = round_number - self.supervised_rounds, self.evolution_rounds
        return learning_rate_factor(position, rounds, self.warmup_ratio)


def list_cautions(config: RunConfig, schedule: RunSchedule) -> list[str]:
    """Return a warning for each reason why GRPO has little effect under these settings."""
    if not config.grpo.enabled or not schedule.every:
        return []
    cautions = []
    rounds = range(schedule.supervised_rounds, schedule.total_rounds)
    factors = [schedule.factor(number) for number in rounds if schedule.rewrites(number)]
    moved = config.optim.policy_lr * config.grpo.iterations * sum(factors)

    if moved < POLICY_MOVES:
        cautions.append(
            f"optim.policy_lr = {config.optim.policy_lr:g}: GRPO will have almost no effect, as "
            f"{len(factors)} updates move the logic adapters by at most {moved:.1g} and learning "
            f"starts near {POLICY_MOVES:g}"
        )

    if config.objective.lambda_div > DIVERSITY_DROWNS:
        cautions.append(
            f"objective.lambda_div = {config.objective.lambda_div:g}: the diversity term dominates "
            "(at 0.1 its gradient is 6 to 100 times the rewards' gradient); set it to at most "
            f"{DIVERSITY_DROWNS:g}"
        )

    return cautions


def learning_rate_factor(round_number: int, total_rounds: int, warmup_ratio: float) -> float:
    """Return the share of the base learning rate in a round of a stage.

    Unlike transformers' ``get_cosine_schedule_with_warmup``, round 0 has 1 / warm-up of the rate.
    """
    warmup_rounds = max(1, round(warmup_ratio * total_rounds))
    if round_number < warmup_rounds:
        return (round_number + 1) / warmup_rounds

    # Clamped, so that a run beyond its planned rounds has rate zero.
    progress = (round_number - warmup_rounds) / max(1, total_rounds - warmup_rounds)
    return 0.5 * (1.0 + float(np.cos(np.pi * min(progress, 1.0))))


class DaySampler:
    """Batches of window indices: days are shuffled, windows of one origin stay together."""

    def __init__(self, windows: WindowSet, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.rounds_per_epoch = math.ceil(len(windows) / batch_size)  # the last may be shorter

        # Regions of one day share its news.
        days: dict[datetime, list[int]] = {}
        for index, view in enumerate(windows.views()):
            days.setdefault(view.origin_utc, []).append(index)
        self._days = [days[origin] for origin in sorted(days, key=str)]

    def indices(self, round_number: int) -> list[int]:
        """Return the window indices of a round, counted from 0 over all epochs."""
        # The order depends only on seed and epoch, so a resumed run sees the same batches.
        epoch, position = divmod(round_number, self.rounds_per_epoch)
        rng = np.random.default_rng(derive_seed(self.seed, "days", epoch))
        order = [index for day in rng.permutation(len(self._days)) for index in self._days[day]]
        return order[position * self.batch_size : (position + 1) * self.batch_size]


@dataclasses.dataclass(frozen=True)
class RunGenerators:
    """The generators that a round samples from; numpy's have the same state on every process."""

    agents: "Sequence[torch.Generator]"  # one for each local agent, for sampling logics
    numpy_rng: np.random.Generator  # peers and reward windows
    news_rng: np.random.Generator  # news dropout

    @classmethod
    def from_seed(cls, seed: int, local_agents: Sequence[int], device: "torch.device") -> Self:
        """Return the generators of a fresh run."""
        import torch

        agents = [
            torch.Generator(device=device).manual_seed(derive_seed(seed, "logics", agent))
            for agent in local_agents
        ]
        return cls(
            agents,
            np.random.default_rng(derive_seed(seed, "peers")),
            np.random.default_rng(derive_seed(seed, "news")),
        )


def seed_dropout(seed: int, rank: int, round_number: int) -> None:
    """Seed torch's global generators, which sample LoRA dropout, differently on every process."""
    import torch

    torch.manual_seed(derive_seed(seed, "dropout", rank, round_number))


# Measured with the preset "default" on two processor cores, in units of reading one window. They
# matter most before the kind has been seen.
_LEARNING = 6.0  # forecast of a window with its backward pass, and the second reading
_WRITTEN_TOKEN = 0.2  # by one agent, through one layer
_ANSWER_TOKENS = 200  # 48 numbers as text
_POLICY_UPDATE = 11.0  # one logic scored by policy and reference, with the backward pass
_READ_BY_RIDGE = 0.1  # by one logic, independent of layers


class Work(StrEnum):
    """What a run spends its time on."""

    TRAINING = "training"  # a round that only trains the forecasts
    REWRITING = "rewriting"  # a round that rewrites the logics as well
    VALIDATION = "validation"  # one measurement of the validation windows
    CALIBRATION = "calibration"  # what is fitted on validation after the last round


_REMEMBERED = {Work.TRAINING: 60, Work.REWRITING: 4, Work.VALIDATION: 4}
"""Newest pieces that count, as machines change their speed and rewriting rounds get shorter."""


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

    Every ``validate_every`` rounds, unless 0, and after the last one there is a validation.
    """
    numbers = list(range(done, rounds))
    if refits:
        numbers += range(rounds)
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
    # An answer as text is written token by token, without gradient.
    is_text = config.forecast.decoder == "text"
    forecast = read * (1.0 + (_WRITTEN_TOKEN * _ANSWER_TOKENS if is_text else 0.0))

    scored = grpo.reward_windows or run.batch_size
    score = _READ_BY_RIDGE if config.pays_for_readings else forecast
    written = layers * _WRITTEN_TOKEN * config.evolution.max_new_tokens
    written *= 1.0 - config.evolution.flat_share
    policy = layers * _POLICY_UPDATE * grpo.iterations if grpo.enabled else 0.0
    training = run.batch_size * (forecast + read * (_LEARNING - 1.0))
    validated = min(run.validation_windows or calibration_windows, calibration_windows)
    rewriting = (grpo.group_size + 1) * scored * score + grpo.group_size * (written + policy)
    return {
        Work.TRAINING: agents * training,
        Work.REWRITING: agents * (training + rewriting),
        Work.VALIDATION: agents * forecast * validated,
        Work.CALIBRATION: agents * forecast * calibration_windows,
    }


class TimeLeft:
    """Seconds that the rest of a run takes, from the ``units`` of :func:`guess_units`."""

    def __init__(self, units: Mapping[Work, float]) -> None:
        self._units = units
        # Only of this process: an earlier one may have run on another machine.
        self._seconds: dict[Work, deque[float]] = {}

    def add(self, work: Work, seconds: float) -> None:
        """Record how long a piece of work took."""
        self._seconds.setdefault(work, deque(maxlen=_REMEMBERED[work])).append(seconds)

    def estimate(self, left: Mapping[Work, int]) -> float:
        """Return the seconds for the numbers of pieces left, after at least one has been seen."""
        means = [fmean(seconds) for seconds in self._seconds.values()]
        speed = sum(means) / sum(self._units[work] for work in self._seconds)

        total = 0.0
        for work, count in left.items():
            # The guess counts as one piece: the first rewriting rounds are the slowest.
            seen = [self._units[work] * speed, *self._seconds.get(work, ())]
            total += count * fmean(seen)
        return total
