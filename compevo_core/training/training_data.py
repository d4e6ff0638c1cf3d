"""The inputs of a training: windows, base models, examples, and their identity.

Training has no path to the test data; decision 07-stages lists what validation may decide.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.baselines import FitBaseline, fit_baseline
from compevo_core.baselines.known_errors import follow_levels
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, evenly_spaced
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import assign_split
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, LeakageError
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.prior import PriorSet, make_examples
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import DaySampler, RunSchedule

if TYPE_CHECKING:
    from compevo_core.lm.model_sources import Transport
    from compevo_core.lora.backbone import Backbone

OnRound = Callable[[RoundRecord], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What the rounds of a run are given besides its data; see ``training.trainer.train``."""

    folder: RunFolder
    news: NewsPool
    identity: Mapping[str, str]  # hashes of settings and data
    shards: AgentShards
    start: int  # number of the run's start (``RunFolder.begin_again``)
    schedule: RunSchedule
    resume: bool
    on_round: OnRound | None
    backbone: "Backbone | None"
    stages: Path | None
    selector: "Transport | None"
    clock: Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the rounds of a training ended with, if it had any."""

    round: int = 0
    best_error: float = math.inf  # lowest validation error of a round, scaled


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Everything that a run knows of its data."""

    config: RunConfig
    train_windows: WindowSet  # with at least one known target
    n_dropped: int  # train windows without any
    scaler: Scaler  # fitted on the train windows
    priors: PriorSet  # fitted on train; their errors are known up to the end of validation
    # Out-of-fold forecasts (N, P, H) of train by the base models; of no windows if not needed
    held_out_NPH: FloatArray
    train_examples: list[ForecastExample]  # the windows of these forecasts
    calibration_examples: list[ForecastExample]  # validation windows with a known target

    @classmethod
    def prepare(
        cls,
        config: RunConfig,
        train_windows: WindowSet,
        val_windows: WindowSet,
        fit: FitBaseline = fit_baseline,
    ) -> Self:
        """Fit scales and base models on the train split and make all examples."""
        # Before anything is fitted, as such windows have no loss; the summary has their number.
        known = drop_without_target(train_windows)
        known_val = drop_without_target(val_windows)
        scaler = Scaler.fit(known)
        priors = PriorSet.fit(config, known, scaler, fit)

        # Base models know their errors up to the day before in training, and up to the end of
        # validation in use. Errors on train are out of fold, as in sample they would be too small.
        past, held_out_NPH = known[:0], np.empty((0, len(priors.fitted), known.horizon))
        # Agents learn from these windows, and levels begin with them.
        levels = priors.levels
        if config.has_agents or levels is not None:
            past, held_out_NPH = known, priors.forecast_train(known, config.forecast.prior_folds)
        followed_NPH = held_out_NPH
        if levels is not None:
            followed_NPH = follow_levels(levels.rule, scaler, past, held_out_NPH)
            # Windows whose truth was known when validation began.
            first = min((view.origin_utc for view in known_val.views()), default=None)
            rows = [i for i, w in enumerate(past) if first is None or w.view.end_utc <= first]
            levels.observe([past[i] for i in rows], held_out_NPH[rows])

        # Validation windows are forecast like the test split; their errors become known afterwards.
        if priors.memory is None:
            val_NPH = priors.forecast(known_val.views())
            priors.observe(known_val)
        else:
            # Base models that are refitted in use are refitted here, too.
            val_NPH = priors.follow(known_val)

        return cls(
            config=config,
            train_windows=known,
            n_dropped=len(train_windows) - len(known),
            scaler=scaler,
            priors=priors,
            held_out_NPH=followed_NPH,
            train_examples=make_examples(past, followed_NPH, scaler),
            calibration_examples=make_examples(known_val, val_NPH, scaler),
        )

    @cached_property
    def val_examples(self) -> list[ForecastExample]:
        """The validation windows that a run measures between rounds."""
        examples, count = self.calibration_examples, self.config.run.validation_windows
        if not count or count >= len(examples):
            return examples
        # Evenly spaced, so that a few windows cover all seasons of the split.
        by_time = sorted(examples, key=lambda each: (each.view.origin_utc, each.view.entity))
        return [by_time[i] for i in evenly_spaced(len(examples), count)]

    @cached_property
    def sampler(self) -> DaySampler:
        """Which train examples a round sees."""
        return DaySampler(self.train_windows, self.config.run.batch_size, self.config.run.seed)


def check_inputs(
    config: RunConfig, train_windows: WindowSet, val_windows: WindowSet, news: NewsPool | None
) -> None:
    """Check what a run is given, before any work starts.

    LeakageError if a window belongs to another split; DataError if a split that is needed is empty;
    ConfigError for no news or another encoder of them where agents read, or too many
    agents.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"the configuration is a {type(config).__name__}: give a RunConfig, for example "
            "RunConfig.preset('default').with_overrides({'run.rounds': 2})"
        )
    for windows, split in ((train_windows, "train"), (val_windows, "val")):
        if others := {view.split for view in windows.views()} - {split}:
            raise LeakageError(
                f"windows of {sorted(others)} were given as {split}; pass split({split!r}) only"
            )

    if not len(train_windows):
        raise DataError("no train windows; materialize the windows of this data set first")
    if config.run.validate_every and not len(val_windows):
        raise DataError("no validation windows; provide some or set run.validate_every = 0")

    encoder = "" if news is None else news.encoder_name
    if config.encoder and encoder != config.encoder:
        raise ConfigError(
            f"the articles are embedded with {encoder!r}, the run is set to "
            f"{config.encoder!r}; set news.encoder or embed the articles again"
        )
    choosing = [m for m in config.population.list_members() if m.reads == "chosen"]
    if config.has_agents and len(choosing) > len(SEED_LOGICS):
        raise ConfigError(
            f"there are {len(SEED_LOGICS)} seed logics for {len(choosing)} agents that choose; "
            "lower population.agents"
        )


def identify_run(
    config: RunConfig, train_windows: WindowSet, val_windows: WindowSet, news: NewsPool | None
) -> dict[str, str]:
    """Return hashes of settings, windows and the articles that these name: a run's identity."""
    n = 16  # characters of a sha256, enough to tell data sets apart
    hashes = {
        "config_hash": config.hash,
        "data_hash": f"{train_windows.hash[:n]}-{val_windows.hash[:n]}",
    }
    if news is not None:
        views = chain(train_windows.views(), val_windows.views())
        named = {name for view in views for name in view.candidate_ids}
        hashes["news_hash"] = news.hash_articles(named)[:n]
    return hashes


def join_for_refit(train_windows: WindowSet, val_windows: WindowSet) -> WindowSet:
    """Return both splits as one train split, for a last training after every choice is made."""
    return assign_split(
        WindowSet([*train_windows, *val_windows], dataset=train_windows.dataset), "train"
    )


def drop_without_target(windows: WindowSet) -> WindowSet:
    """Return the windows with at least one known target."""
    known = [window for window in windows if np.isfinite(window.y).any()]
    return WindowSet(known, dataset=windows.dataset)
