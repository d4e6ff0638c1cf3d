"""The training loop: rounds, validation, checkpoints, resume (paper 4, algorithm of a run).

What belongs here: what happens between rounds. What does not: what happens in one
(``training.round``), the data (``training.training_data``), what a checkpoint holds
(``training.train_state``).

N rounds equal k rounds, a kill and a resume, bit for bit on a processor. Under torchrun every
process calls :func:`train` inside ``distributed.process_group``: they share the agents, and the
first one writes what belongs to all.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from compevo_core.agents.logic_grammar import list_seed_logics
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.diagnostics.regret import RegretTracker
from compevo_core.distributed import AgentShards
from compevo_core.errors import CheckpointMismatch
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.artifact import installed_versions, read_model_manifest, write_model
from compevo_core.training.checkpoint import (
    Checkpoint,
    load_newest_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from compevo_core.training.generators import RunGenerators, seed_dropout
from compevo_core.training.model import PopulationModel
from compevo_core.training.round import RoundTrainer
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.round_state import RoundState
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.summary import summarize_run
from compevo_core.training.train_state import RunProgress, capture_state, restore_state
from compevo_core.training.training_data import TrainingData, check_inputs, identify_run
from compevo_core.training.validation import ValidationErrors, measure_validation

_ETA_ROUNDS = 10  # the time left goes by the mean of so many rounds

OnRound = Callable[[RoundRecord], None]


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
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Train a population and write its run folder: records, summary, sealed model.

    Args:
        config: the run's settings.
        train_windows: windows of split "train"; scaler, prior and population are fitted on these
            alone.
        val_windows: windows of split "val"; they choose among rounds, nothing else.
        news: every article that a window names as a candidate, with embeddings of
            ``config.news.encoder``.
        out: the run folder; with ``resume`` an unfinished run of the same identity is continued,
            and the summary of a finished one is returned at once.
        resume: False starts over.
        on_round: called with the record of each round, on the first process alone.
        backbone: an already loaded frozen model without adapters; loaded from the configuration
            unless given.
        clock: seconds, for durations.

    Returns:
        the summary that ``metrics.json`` holds.

    Raises:
        LeakageError: a window of another split was given.
        DataError: a split that is needed is empty.
        CheckpointMismatch: ``out`` holds a run of other settings or data.
        ConfigError: there are more processes than agents, or news of another encoder.
    """
    check_inputs(config, train_windows, val_windows, news)
    shards = AgentShards.from_process_group(config.population.agents)
    identity = identify_run(config, train_windows, val_windows, news)
    folder = RunFolder(out)

    # Before any model is loaded: asking for a finished run again costs nothing.
    if resume and folder.is_finished:
        _check_identity(folder, read_model_manifest(folder.path)["identity"], identity)
        return folder.read_metrics()

    data = TrainingData.prepare(
        config, train_windows, val_windows, news.embeddings.shape[1]
    )
    trainer = Trainer(config, folder, data, news, identity, shards, backbone=backbone, clock=clock)
    return trainer.run(resume=resume, on_round=on_round)


class Trainer:
    """The loop of one run.

    Args:
        config: the run's settings.
        folder: where the run is written.
        data: what it trains and validates on.
        news: the articles.
        identity: hashes of settings and data, from :func:`identify_run`.
        shards: which agents this process holds.
        backbone: loaded from the configuration unless given.
        clock: seconds, for durations.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        data: TrainingData,
        news: NewsPool,
        identity: Mapping[str, str],
        shards: AgentShards,
        *,
        backbone: Backbone | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.folder = folder
        self.data = data
        self.identity = identity
        self.shards = shards
        self.clock = clock
        self.total_rounds = data.count_rounds(config)
        self.progress = RunProgress()

        # Seeded before anything is built: loading a model may draw from torch's generator too.
        seed_dropout(config.run.seed, shards.rank, 0)
        backbone = backbone or load_backbone(config.backbone)
        self.model = PopulationModel(config, backbone, data.inputs, shards)
        encoder = load_encoder(config.news.encoder)
        self.executor = self.model.executor(NewsRetriever(news, encoder, config.news.top_k))
        self.round_trainer = RoundTrainer(self.model, self.executor, self.total_rounds)
        self.generators = RunGenerators.from_seed(
            config.run.seed, shards.local_agents, backbone.device
        )

    def run(self, *, resume: bool, on_round: OnRound | None = None) -> dict[str, Any]:
        """Train to the end and return the summary."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        state = self._resume() if resume else None
        if state is None:
            state = self._start()

        # Of this process's life: time spent before an interruption says nothing on this machine.
        durations: deque[float] = deque(maxlen=_ETA_ROUNDS)
        while state.round < self.total_rounds:
            record = self._run_round(state, durations)

            # The record first: a checkpoint of more rounds than there are records is refused,
            # records of more rounds than the checkpoint are dropped and written again.
            if self.shards.is_first:
                self.folder.append_round(record)
            is_due = state.round % self.config.run.checkpoint_every == 0
            if is_due or state.round == self.total_rounds:
                self._save_checkpoint(state, self.folder.checkpoints)
            if on_round and self.shards.is_first:
                on_round(record)

        return self._finish(state)

    def _start(self) -> RoundState:
        """Return the state before the first round: every agent plays its seed logic."""
        self._truncate_rounds(0)

        # Checkpoints of an earlier run in this folder may be of later rounds than those to come:
        # they would pass for the newest ones.
        remove_checkpoints(self.folder.checkpoints, self.shards)
        remove_checkpoints(self.folder.best, self.shards)

        agents = self.config.population.agents
        logics = list(list_seed_logics(self.config.evolution.form)[:agents])
        self.executor.centre_readout(self.shards.local(logics), self.data.readout_examples())
        return RoundState(
            round=0,
            logics=logics,
            rewards=[0.0] * agents,
            previous_AD=self.round_trainer.writer.encode_logics(logics),
            regret=RegretTracker.start(agents, self.config.run.fixed_logics),
        )

    def _resume(self) -> RoundState | None:
        """Return the state of the newest intact checkpoint; None if there is none."""
        saved = load_newest_checkpoint(self.folder.checkpoints, self.shards)
        if saved is None:
            return None

        state = self._restore(saved)
        self._truncate_rounds(state.round)
        return state

    def _run_round(self, state: RoundState, durations: deque[float]) -> RoundRecord:
        """Run one round and validate where one is due; return the complete record."""
        started = self.clock()
        number = state.round
        result = self.round_trainer.step(state, self.data.batch(number), self.generators)
        validation = self._validate(state)
        # After the validation, so that its forecasts are counted in the round that measured it.
        exchanged_bytes = self.shards.take_received()

        durations.append(self.clock() - started)
        self.progress.train_seconds += durations[-1]
        eta_seconds = fmean(durations) * (self.total_rounds - state.round)

        return RoundRecord(
            **result.model_dump(),
            val_mae_scaled=validation.aggregate if validation else None,
            val_prior_mae_scaled=validation.prior if validation else None,
            exchanged_bytes=exchanged_bytes,
            epoch=number // self.data.sampler.rounds_per_epoch,
            rounds=self.total_rounds,
            seconds=durations[-1],
            eta_seconds=eta_seconds,
            train_seconds=self.progress.train_seconds,
        )

    def _validate(self, state: RoundState) -> ValidationErrors | None:
        """Measure the validation error if that is due, and save the state if it is the lowest."""
        every = self.config.run.validate_every
        is_last = state.round == self.total_rounds
        if not every or (state.round % every and not is_last):
            return None

        errors = measure_validation(self.model, self.executor, state.logics, self.data.val_examples)
        # Strictly lower: of equal rounds the first is kept, and a resumed run chooses the same.
        if errors.aggregate < self.progress.best_error:
            self.progress.best_error = errors.aggregate
            self._save_checkpoint(state, self.folder.best)
        return errors

    def _save_checkpoint(self, state: RoundState, root: Path) -> None:
        captured = capture_state(self.round_trainer, state, self.generators, self.progress)
        values = {"identity": dict(self.identity), **captured.values}
        save_checkpoint(root, state.round, captured.agents, captured.shared, values, self.shards)

    def _restore(self, saved: Checkpoint) -> RoundState:
        _check_identity(self.folder, saved.state["identity"], self.identity)
        return restore_state(saved, self.round_trainer, self.generators, self.progress)

    def _truncate_rounds(self, count: int) -> None:
        # On every process, as all of them must stop where records are missing; but none may write
        # before all have read.
        self.folder.require_rounds(count)
        self.shards.barrier()
        if self.shards.is_first:
            self.folder.truncate_rounds(count)

    def _finish(self, state: RoundState) -> dict[str, Any]:
        """Return to the round that validated best, seal its model and write the summary."""
        saved = None
        if self.config.run.validate_every:
            saved = load_newest_checkpoint(self.folder.best, self.shards)
        chosen = state if saved is None else self._restore(saved)  # decision 14

        artifact_hash = write_model(
            self.folder, self.model, chosen.logics, self.data.priors, self._describe_run()
        )
        if self.shards.is_first:
            self._write_summary(artifact_hash, chosen.round)
        self.shards.barrier()  # the others read what the first one writes
        return self.folder.read_metrics()

    def _describe_run(self) -> dict[str, Any]:
        """Return what the model's manifest says of how it was made."""
        backbone = self.model.backbone
        return {
            "identity": dict(self.identity),
            "versions": installed_versions(),
            "seed": self.config.run.seed,
            "device": str(backbone.device),
            "processes": self.shards.processes,
            "knowledge_cutoff": backbone.knowledge_cutoff,
        }

    def _write_summary(self, artifact_hash: str, chosen_round: int) -> None:
        summary = summarize_run(
            self.folder.read_rounds(),
            identity=self.identity,
            artifact_hash=artifact_hash,
            chosen_round=chosen_round,
            best_error=self.progress.best_error,
            train_windows=len(self.data.train_windows),
            dropped_windows=self.data.n_dropped,
            seed=self.config.run.seed,
        )
        self.folder.write_metrics(summary)


def _check_identity(
    folder: RunFolder, saved: Mapping[str, Any], expected: Mapping[str, str]
) -> None:
    differing = sorted(name for name in expected if saved.get(name) != expected[name])
    if differing:
        raise CheckpointMismatch(
            f"{folder.path} holds a run with another {' and '.join(differing)}; choose another run "
            "folder, or start over with resume=False"
        )
