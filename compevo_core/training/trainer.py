"""A whole run: rounds, choice of one, calibration, second training, sealed model, summary.

What belongs here: the order of these steps, and what a run that is asked for again does. What does
not: the rounds (``training.loop``), how calibration is fitted (``training.calibration``), the
model's files (``training.artifact``).

Under torchrun every process calls :func:`train` inside ``distributed.process_group``: they share
the agents, or the layers of a backbone that one device cannot hold, and the first one writes what
belongs to all.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.chat_endpoint import Transport
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.distributed import AgentShards
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.sharded_weights import require_processes
from compevo_core.online.experience import Experience
from compevo_core.training.artifact import installed_versions, read_model_manifest, write_model
from compevo_core.training.calibration import CalibrationReport, calibrate, restart_levels
from compevo_core.training.loop import OnRound, TrainingLoop
from compevo_core.training.round_state import RoundState
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import RunSchedule
from compevo_core.training.shared_stages import SharedStages
from compevo_core.training.summary import RunOutcome, summarize_run
from compevo_core.training.training_data import (
    TrainingData,
    check_inputs,
    identify_run,
    join_for_refit,
)

_KEPT_CALIBRATION = ("blend_AH", "override_A", "best_prior", "rule")
"""What a second training takes over from the calibration of the first one."""


def train(
    config: RunConfig,
    train_windows: WindowSet,
    val_windows: WindowSet,
    news: NewsPool,
    out: str | os.PathLike[str],
    *,
    resume: bool = True,
    on_round: OnRound | None = None,
    backbone: Backbone | None = None,
    fit: FitBaseline = fit_baseline,
    stages: SharedStages | None = None,
    shard_backbone: bool = False,
    selector: Transport | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Train a population and write its run folder: records, summary, sealed model.

    Args:
        config: the run's settings.
        train_windows: windows of split "train"; scales, priors and population are fitted on these
            alone.
        val_windows: windows of split "val"; they choose among rounds and calibrate the choice, and
            with ``run.refit`` the choice is then trained on them as well.
        news: every article that a window names, with embeddings of ``config.news.encoder``.
        out: the run folder; with ``resume`` an unfinished run of the same identity is continued,
            and the summary of a finished one is returned at once.
        resume: False starts over: what was trained in ``out`` before is removed.
        on_round: called with the record of each round, on the first process alone; with
            ``run.refit`` with those of the second training too, which count from the first again.
        backbone: a frozen model without adapters; that of the configuration unless given.
        fit: fits the numeric priors; ``SharedFits`` fits each once for several runs.
        stages: trains equal supervised stages once for several runs.
        shard_backbone: whether processes split the backbone (memory, no number) and no agents.
        selector: asks the endpoint that ``evolution.selector`` names, by chat completions.
        clock: seconds, for durations.

    Returns:
        the summary that ``metrics.json`` holds.

    Raises:
        LeakageError: a window of another split was given.
        DataError: a split that is needed is empty.
        CheckpointMismatch: ``out`` holds a run of other settings or data.
        ConfigError: news of another encoder, or too many or too few processes.
        StoreBusy: another training writes ``out``.
    """
    check_inputs(config, train_windows, val_windows, news)
    shards = _share(config, shard_backbone=shard_backbone)
    identity = identify_run(config, train_windows, val_windows, news)
    folder = RunFolder(out)

    with _hold_alone(folder, shards):
        start = _begin(folder, shards, resume=resume)
        # Before any model is loaded: asking for a finished run again costs nothing.
        if folder.is_finished:
            folder.require_identity(read_model_manifest(folder.path)["identity"], identity)
            return folder.read_metrics()

        size = news.embeddings.shape[1]
        data = TrainingData.prepare(config, train_windows, val_windows, size, fit)
        schedule = RunSchedule.plan(config, data.sampler.rounds_per_epoch)
        parts = _RunParts(config, news, identity, shards, start, schedule, fit, selector, clock)
        loop = parts.build_loop(folder, data, backbone=backbone, stages=stages)
        state = loop.restore_best(loop.run(resume=resume, on_round=on_round))
        outcome = RunOutcome(
            chosen_round=state.round,
            best_error=loop.progress.best_error,
            calibration=_calibrate(loop, state),
            is_refit=config.run.refit,
        )

        if config.run.refit:
            kept = _copy_calibration(loop)
            del loop  # its backbone has adapters: freed before the next is loaded
            joined = join_for_refit(train_windows, val_windows)
            loop, state = _train_again(parts, folder, joined, outcome, kept, data, on_round)

        return _seal(folder, loop, state, outcome)


def _hold_alone(folder: RunFolder, shards: AgentShards) -> contextlib.AbstractContextManager[None]:
    """Hold the folder, as two trainings in one would spoil both; the first process does for all."""
    return folder.hold() if shards.is_first else contextlib.nullcontext()


def _begin(folder: RunFolder, shards: AgentShards, *, resume: bool) -> int:
    """Start over if asked to; return the number of the start."""
    # Broadcast, so that no process looks for old files while the first one removes them.
    if not resume and shards.is_first:
        folder.begin_again()
    start: int = shards.broadcast(folder.read_start() if shards.is_first else None)
    return start


def _share(config: RunConfig, *, shard_backbone: bool) -> AgentShards:
    """Return which agents this process has; all of them where processes split the backbone."""
    if shard_backbone:
        require_processes(config.backbone)
    return AgentShards.from_process_group(
        config.population.agents, splits_agents=not shard_backbone
    )


@dataclasses.dataclass(frozen=True)
class _RunParts:
    """What both trainings of a run have in common."""

    config: RunConfig
    news: NewsPool
    identity: Mapping[str, str]
    shards: AgentShards
    start: int
    schedule: RunSchedule
    fit: FitBaseline
    selector: Transport | None
    clock: Callable[[], float]

    def build_loop(
        self,
        folder: RunFolder,
        data: TrainingData,
        *,
        rounds: int | None = None,
        backbone: Backbone | None = None,
        stages: SharedStages | None = None,
    ) -> TrainingLoop:
        """Return a training with an untrained population."""
        return TrainingLoop(
            self.config,
            folder,
            data,
            self.news,
            self.identity,
            self.shards,
            start=self.start,
            schedule=self.schedule,
            rounds=rounds,
            backbone=backbone,
            stages=stages,
            selector=self.selector,
            clock=self.clock,
        )

    def build_refit(self, folder: RunFolder, joined: WindowSet, rounds: int) -> TrainingLoop:
        """Return the training on train and validation, of so many rounds at the same rates."""
        nothing = WindowSet([], dataset=joined.dataset)
        size = self.news.embeddings.shape[1]
        data = TrainingData.prepare(self.config, joined, nothing, size, self.fit)
        return self.build_loop(RunFolder(folder.refit), data, rounds=rounds)


def _train_again(
    parts: _RunParts,
    folder: RunFolder,
    joined: WindowSet,
    outcome: RunOutcome,
    kept: "_Kept",
    first: TrainingData,
    on_round: OnRound | None,
) -> tuple[TrainingLoop, RoundState]:
    """Train on train and validation with every choice that the first training made."""
    loop = parts.build_refit(folder, joined, outcome.chosen_round)
    state = loop.run(resume=True, on_round=on_round)
    if outcome.calibration is not None:
        _restore_calibration(loop, state, kept, first)
    return loop, state


def _calibrate(loop: TrainingLoop, state: RoundState) -> CalibrationReport | None:
    """Calibrate the chosen round on the validation windows; None without any."""
    data = loop.data
    settings = loop.config.calibration
    # Fits take all the evidence there is. The guard alone judges as the rounds were judged: an
    # answer as text takes minutes.
    is_online = loop.config.selection.online
    is_fitted = settings.blend or settings.known_errors != "none" or is_online
    examples = data.calibration_examples if is_fitted else data.val_examples
    if not examples:
        return None

    # The last train windows, as many as validation has: older errors hardly count.
    by_time = sorted(data.train_examples, key=lambda example: example.view.origin_utc)
    report = calibrate(
        loop.model,
        loop.executor,
        state.logics,
        examples,
        loop.config,
        history=by_time[-len(examples) :],
    )

    # The guard of calibration sees to it: what is sealed is never worse than what it corrects.
    assert report.calibrated_mae <= report.prior_mae  # noqa: S101 - by construction
    return report


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What a second training takes over from the first one.

    Attributes:
        tensors: choices of its calibration, by name.
        experience: its forecasts of validation, the last that were made without having seen it.
    """

    tensors: Mapping[str, Tensor]
    experience: Experience


def _copy_calibration(loop: TrainingLoop) -> _Kept:
    tensors = loop.model.calibration.state_dict()
    kept = {name: tensors[name].clone() for name in _KEPT_CALIBRATION}
    return _Kept(kept, loop.model.experience)


def _restore_calibration(
    loop: TrainingLoop, state: RoundState, kept: _Kept, first: TrainingData
) -> None:
    """Give the second training the choices of the first one's calibration.

    The levels are estimated anew, on the same windows: the first one's are the errors of priors
    that had not seen validation.
    """
    loop.model.experience = kept.experience
    for name, value in kept.tensors.items():
        getattr(loop.model.calibration, name).copy_(value)

    measured = {example.view.window_id for example in first.calibration_examples}
    examples = [e for e in loop.data.train_examples if e.view.window_id in measured]
    restart_levels(loop.model, loop.executor, state.logics, examples)


def _seal(
    folder: RunFolder, loop: TrainingLoop, state: RoundState, outcome: RunOutcome
) -> dict[str, Any]:
    """Write the model and the summary."""
    # A summary counts beside a model: an earlier one must not pass for that of this model, where a
    # kill between the two lets the next start seal again.
    if loop.shards.is_first:
        folder.metrics_file.unlink(missing_ok=True)
    facts = _describe(loop, is_refit=outcome.is_refit)
    artifact_hash = write_model(folder, loop.model, state.logics, loop.data.priors, facts)

    if loop.shards.is_first:
        summary = summarize_run(
            folder.read_rounds(),
            outcome,
            identity=loop.identity,
            artifact_hash=artifact_hash,
            train_windows=len(loop.data.train_windows),
            dropped_windows=loop.data.n_dropped,
            seed=loop.config.run.seed,
        )
        folder.write_metrics(summary)
    loop.shards.barrier()  # the others read what the first one writes
    return folder.read_metrics()


def _describe(loop: TrainingLoop, *, is_refit: bool) -> dict[str, Any]:
    """Return what the model's manifest says of how it was made."""
    backbone = loop.model.backbone
    return {
        "identity": dict(loop.identity),
        "start": loop.start,
        "refit": is_refit,
        "versions": installed_versions(),
        "seed": loop.config.run.seed,
        "device": str(backbone.device),
        "processes": loop.shards.processes,
        "knowledge_cutoff": backbone.knowledge_cutoff,
    }
