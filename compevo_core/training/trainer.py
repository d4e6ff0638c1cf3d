"""A whole run: rounds, choice of one, calibration, second training, sealed model, summary.

N rounds equal k rounds, a kill and a resume, bit for bit on a processor. Under torchrun every
process calls :func:`train` inside ``distributed.process_group``: they share the agents, or the
layers of a backbone that one device cannot hold; the first one writes what belongs to all.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compevo_core.agents.logics import list_seed_logics
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.chat_endpoint import Transport
from compevo_core.lm.encoder import load_encoder
from compevo_core.lm.frozen_linear import require_processes
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.process_memory import peak_memory_gigabytes
from compevo_core.training.artifact import installed_versions, read_model_manifest, write_model
from compevo_core.training.calibration import (
    CalibrationReport,
    ValidationErrors,
    calibrate,
    forecast_corrections,
    measure_validation,
    restart_levels,
)
from compevo_core.training.checkpoint import (
    Checkpoint,
    SharedStages,
    capture_state,
    hash_stage,
    load_newest_checkpoint,
    restore_state,
    save_checkpoint,
)
from compevo_core.training.debate import build_round_trainer
from compevo_core.training.diagnostics import RegretTracker, summarize_regret_growth
from compevo_core.training.eta import TimeLeft, Work, count_work_left, guess_units
from compevo_core.training.model import PopulationModel
from compevo_core.training.round import RoundState
from compevo_core.training.round_record import RoundRecord, RoundResult
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import RunGenerators, RunSchedule, seed_dropout
from compevo_core.training.training_data import (
    TrainingData,
    check_inputs,
    identify_run,
    join_for_refit,
)

OnRound = Callable[[RoundRecord], None]

_REFIT_CALIBRATION = ("blend_AH", "override_A", "best_prior", "rule")
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
            ``run.refit`` also in the second training, which counts from the first round again.
        backbone: a frozen model without adapters; loaded as the configuration says unless given.
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
    if shard_backbone:
        require_processes(config.backbone)
    shards = AgentShards.from_process_group(
        config.population.agents, splits_agents=not shard_backbone
    )
    identity = identify_run(config, train_windows, val_windows, news)
    folder = RunFolder(out)

    # Two trainings in one folder would spoil both; the first process holds it for all.
    with folder.hold() if shards.is_first else contextlib.nullcontext():
        # Broadcast, so that no process looks for old files while the first one removes them.
        if not resume and shards.is_first:
            folder.begin_again()
        start: int = shards.broadcast(folder.read_start() if shards.is_first else None)

        # Before any model is loaded: asking for a finished run again costs nothing.
        if folder.is_finished:
            folder.require_identity(read_model_manifest(folder.path)["identity"], identity)
            return folder.read_metrics()

        size = news.embeddings.shape[1]
        data = TrainingData.prepare(config, train_windows, val_windows, size, fit)
        schedule = RunSchedule.plan(config, data.sampler.rounds_per_epoch)
        setup = RunSetup(config, news, identity, shards, start, schedule, selector, clock)
        loop = TrainingLoop(setup, folder, data, backbone=backbone, stages=stages)
        state = loop.restore_best(loop.run(resume=resume, on_round=on_round))
        chosen_round, best_error = state.round, state.best_error
        report = _calibrate(loop, state)

        if config.run.refit:
            calibration, experience = loop.model.calibration, loop.model.experience
            corrections = forecast_corrections(
                loop.model, loop.executor, state.logics, data.calibration_examples
            )
            del loop  # its backbone has adapters: freed before the next is loaded
            joined = join_for_refit(train_windows, val_windows)
            no_val = WindowSet([], dataset=joined.dataset)
            refit_data = TrainingData.prepare(config, joined, no_val, size, fit)
            # With every choice that the first training made, and as many rounds at its rates.
            loop = TrainingLoop(setup, RunFolder(folder.refit), refit_data, rounds=chosen_round)
            state = loop.run(resume=True, on_round=on_round)
            if report is not None:
                # The forecasts of validation are the last that were made without having seen it.
                loop.model.experience = experience
                for name in _REFIT_CALIBRATION:
                    getattr(loop.model.calibration, name).copy_(getattr(calibration, name))
                train_examples = loop.data.train_examples
                restart_levels(loop.model, loop.executor, train_examples, corrections)

        summary = {
            "chosen_round": chosen_round,
            "refit": config.run.refit,
            "val_mae_scaled": best_error if math.isfinite(best_error) else None,
            "calibration": None if report is None else dataclasses.asdict(report),
            "val_prior_mae_scaled": report.prior_mae if report else None,
            "val_raw_mae_scaled": report.raw_mae if report else None,
            "val_sealed_mae_scaled": report.calibrated_mae if report else None,
        }
        return _seal(folder, loop, state, summary)


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What both trainings of a run have in common."""

    config: RunConfig
    news: NewsPool
    identity: Mapping[str, str]  # hashes of settings and data
    shards: AgentShards
    start: int  # number of the run's start (``RunFolder.begin_again``)
    schedule: RunSchedule
    selector: Transport | None
    clock: Callable[[], float]


class TrainingLoop:
    """The first ``rounds`` of a run's schedule, all unless given, written into ``folder``.

    Without validation examples it never validates.
    """

    def __init__(
        self,
        setup: RunSetup,
        folder: RunFolder,
        data: TrainingData,
        *,
        rounds: int | None = None,
        backbone: Backbone | None = None,
        stages: SharedStages | None = None,
    ) -> None:
        config, schedule, shards = setup.config, setup.schedule, setup.shards
        self.setup = setup
        self.config = config
        self.folder = folder
        self.data = data
        self.shards = shards
        self.rounds = schedule.total_rounds if rounds is None else rounds
        self.stages = stages if schedule.supervised_rounds else None
        self._validate_every = config.run.validate_every if data.val_examples else 0
        self._stage = hash_stage(config, setup.identity)

        # Seeded before anything is built: loading a model may sample from torch's generator too.
        seed_dropout(config.run.seed, shards.dropout_stream, 0)
        backbone = backbone or load_backbone(config.backbone, shard=not shards.splits_agents)
        self.model = PopulationModel(config, backbone, data.inputs, shards)
        encoder = load_encoder(config.news.encoder)
        retriever = NewsRetriever(
            setup.news, encoder, config.news.top_k, selects=config.news.selects
        )
        self.executor = self.model.executor(retriever, data.train_examples)
        self.round_trainer = build_round_trainer(
            self.model, self.executor, schedule, setup.selector, data.train_examples
        )
        self.generators = RunGenerators.from_seed(
            config.run.seed, shards.local_agents, backbone.device
        )
        layers = backbone.model.config.num_hidden_layers
        self.time_left = TimeLeft(guess_units(config, layers, len(data.calibration_examples)))

    def run(self, *, resume: bool, on_round: OnRound | None = None) -> RoundState:
        """Train to the end, from the newest checkpoint with ``resume``; return the last state."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        state = self._resume() if resume else None
        if state is None:
            state = self._begin_after_stage() or self._begin()

        clock = self.setup.clock
        while state.round < self.rounds:
            started = clock()
            batch = self.data.batch(state.round)
            result = self.round_trainer.step(state, batch, self.generators)
            stepped = clock()
            validation = self._validate(state)
            record = self._complete_record(state, result, validation, started, stepped)

            # The record first: a checkpoint of more rounds than there are records stops the run,
            # records of more rounds than the checkpoint are dropped and written again.
            if self.shards.is_first:
                self.folder.append_round(record)
            is_due = state.round % self.config.run.checkpoint_every == 0
            ends_stage = (
                self.stages is not None and state.round == self.setup.schedule.supervised_rounds
            )
            if is_due or ends_stage or state.round == self.rounds:
                self._save_checkpoint(state, self.folder.checkpoints)
            if self.stages is not None and ends_stage and self.shards.is_first:
                self.stages.add(self._stage, self.folder)
            if on_round and self.shards.is_first:
                on_round(record)

        return state

    def restore_best(self, last: RoundState) -> RoundState:
        """Return to the round that validated best; to the last one without any (07-stages)."""
        if not self._validate_every:
            return last

        best = load_newest_checkpoint(self.folder.best, self.shards, self.setup.start)
        return last if best is None else self._restore(best)

    def _begin_after_stage(self) -> RoundState | None:
        """Return the state at the end of the supervised stage if another run has trained it."""
        if self.stages is None or not (shared := self.stages.find(self._stage, self.shards)):
            return None
        end, best = shared

        # Saved as this run's own: from here on nothing in its folder is of another run.
        self._clear()
        if best is not None:
            state = restore_state(best, self.round_trainer, self.generators)
            self._save_checkpoint(state, self.folder.best)
        state = restore_state(end, self.round_trainer, self.generators)
        if self.shards.is_first:
            self.stages.copy_rounds(self._stage, self.folder)
        self.shards.barrier()
        self._save_checkpoint(state, self.folder.checkpoints)
        return state

    def _clear(self) -> None:
        """Remove what another training has left: it may be of later rounds, and pass for newer."""
        if self.shards.is_first:
            self.folder.remove_training()
            self.folder.truncate_rounds(0)
        self.shards.barrier()

    def _begin(self) -> RoundState:
        """Return the state before the first round: every agent plays its seed logic."""
        self._clear()

        agents = self.config.population.agents
        evolution = self.config.evolution
        logics = list(evolution.start or list_seed_logics(evolution.form)[:agents])
        self.executor.centre_readout(self.shards.local(logics), self.data.readout_examples())
        state = RoundState(
            round=0,
            logics=logics,
            rewards=[0.0] * agents,
            previous_AD=self.round_trainer.encode_logics(logics),
            regret=RegretTracker.start(agents, self.config.run.fixed_logics),
        )

        # Untrained agents are a candidate too: with a head they forecast their priors, and a
        # training that only makes that worse must not be chosen.
        self._validate(state)
        return state

    def _resume(self) -> RoundState | None:
        """Return the state of the newest intact checkpoint; None if there is none."""
        root, start = self.folder.checkpoints, self.setup.start
        # A power cut may have taken the last record: an older checkpoint plays its round again.
        recorded = self.folder.count_rounds()
        saved = load_newest_checkpoint(root, self.shards, start, most_rounds=recorded)
        saved = saved or load_newest_checkpoint(root, self.shards, start)
        if saved is None:
            return None

        state = self._restore(saved)
        # On every process, as all of them must stop where records are missing; but none may write
        # before all have read.
        self.folder.require_rounds(state.round)
        self.shards.barrier()
        if self.shards.is_first:
            self.folder.truncate_rounds(state.round)
        return state

    def _complete_record(
        self,
        state: RoundState,
        result: RoundResult,
        validation: ValidationErrors | None,
        started: float,
        stepped: float,
    ) -> RoundRecord:
        """Return what the round measured, and where the run is after it."""
        # After the validation, so that its forecasts are counted in the round that measured it.
        exchanged_bytes = self.shards.take_received()
        ended = self.setup.clock()
        self.time_left.add(Work.REWRITING if result.evolved else Work.TRAINING, stepped - started)
        if validation:
            self.time_left.add(Work.VALIDATION, ended - stepped)
        state.train_seconds += ended - started

        # Without validation windows this is the second training: nothing is calibrated after it.
        has_choice = bool(self.data.val_examples)
        left = count_work_left(
            self.setup.schedule,
            result.round + 1,
            self.rounds,
            validate_every=self._validate_every,
            calibrates=has_choice,
            refits=has_choice and self.config.run.refit,
        )
        return RoundRecord(
            **result.model_dump(),
            val_mae_scaled=validation.aggregate if validation else None,
            val_prior_mae_scaled=validation.prior if validation else None,
            exchanged_bytes=exchanged_bytes,
            epoch=result.round // self.data.sampler.rounds_per_epoch,
            rounds=self.rounds,
            seconds=ended - started,
            eta_seconds=self.time_left.estimate(left),
            train_seconds=state.train_seconds,
        )

    def _validate(self, state: RoundState) -> ValidationErrors | None:
        """Measure the validation error if that is due, and save the state if it is the lowest."""
        is_last = state.round == self.rounds
        if not self._validate_every or (state.round % self._validate_every and not is_last):
            return None

        errors = measure_validation(self.model, self.executor, state.logics, self.data.val_examples)
        # Strictly lower: of equal rounds the first wins, and a resumed run chooses the same.
        if errors.aggregate < state.best_error:
            state.best_error = errors.aggregate
            self._save_checkpoint(state, self.folder.best)
        return errors

    def _save_checkpoint(self, state: RoundState, root: Path) -> None:
        captured = capture_state(self.round_trainer, state, self.generators)
        captured.values["identity"] = dict(self.setup.identity)
        save_checkpoint(root, state.round, captured, self.shards, start=self.setup.start)

    def _restore(self, saved: Checkpoint) -> RoundState:
        self.folder.require_identity(saved.state["identity"], self.setup.identity)
        return restore_state(saved, self.round_trainer, self.generators)


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


def _seal(
    folder: RunFolder, loop: TrainingLoop, state: RoundState, choices: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the model, and the summary of the rounds beside what was chosen after them."""
    # A summary counts beside a model: where a kill between the two lets the next start seal again,
    # an earlier summary must not pass for the one of this model.
    if loop.shards.is_first:
        folder.metrics_file.unlink(missing_ok=True)

    backbone = loop.model.backbone
    facts = {
        "identity": dict(loop.setup.identity),
        "start": loop.setup.start,
        "refit": loop.config.run.refit,
        "versions": installed_versions(),
        "seed": loop.config.run.seed,
        "device": str(backbone.device),
        "processes": loop.shards.processes,
        "knowledge_cutoff": backbone.knowledge_cutoff,
    }
    if loop.model.linear is not None and loop.executor.linear_reader is not None:
        loop.model.linear.store(loop.executor.linear_reader, loop.shards.local(state.logics))
    artifact_hash = write_model(folder, loop.model, state.logics, loop.data.priors, facts)

    if loop.shards.is_first:
        sealed = {
            **loop.setup.identity,
            "artifact_hash": artifact_hash,
            "train_windows": len(loop.data.train_windows),
            "train_windows_without_target": loop.data.n_dropped,
        }
        rounds = summarize_rounds(folder.read_rounds(), loop.config.run.seed)
        folder.write_metrics({**rounds, **choices, **sealed})
    loop.shards.barrier()  # the others read what the first one writes
    return folder.read_metrics()


def summarize_rounds(records: Sequence[RoundRecord], seed: int) -> dict[str, Any]:
    """Return what ``metrics.json`` says of the rounds."""
    # Over the whole run: a rate by round would weigh rounds of few answers as much as others.
    unread_answers = sum(record.unread_answers for record in records)
    answers = sum(record.answers for record in records)

    # Rounds without rewriting score no logics: their regret is constant, and would bend the curve.
    regrets = [record.regret for record in records if record.evolved]
    return {
        "rounds": records[-1].rounds,
        "supervised_rounds": sum(record.stage == "supervised" for record in records),
        "rewriting_rounds": sum(record.evolved for record in records),
        "seconds": records[-1].train_seconds,
        "peak_memory_gb": peak_memory_gigabytes(),
        "equal_groups": sum(record.equal_groups for record in records),
        "empty_logics": sum(record.empty_logics for record in records),
        "cut_prompts": sum(record.cut_prompts for record in records),
        "regret_exponent": summarize_regret_growth(regrets, seed),
        "parse_failure_rate": unread_answers / max(1, answers),
    }
