"""The rounds of a run's agents, from the newest checkpoint on.

What belongs here: playing, validating and recording rounds, their checkpoints, and the best one;
agents without a language model, and their rounds, which search for logics. What does not: a round
with a language model (``training.round``), the turns of a search (``agents.joint_reader``), a whole
run (``training.trainer``).

N rounds equal k rounds, a kill and a resume, bit for bit on a processor.

Shapes: A agents, G logics that an agent draws, D hidden size.
"""

import abc
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.logics import SlotDraws, list_first_logics
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.observation import sample_peers
from compevo_core.agents.retrieval import NewsRetriever, build_retriever
from compevo_core.agents.selection import FitnessSelection
from compevo_core.agents.strategy import ReadingExecutor
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import evenly_spaced
from compevo_core.errors import ConfigError, NonFiniteLoss
from compevo_core.lm.backbone import load_backbone
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.files import write_text
from compevo_core.training import schedule
from compevo_core.training.calibration import measure_validation
from compevo_core.training.checkpoint import (
    Checkpoint,
    capture_state,
    hash_stage,
    keep_stage,
    load_newest_checkpoint,
    restore_state,
    save_checkpoint,
)
from compevo_core.training.diagnostics import RegretTracker
from compevo_core.training.ensemble import AgentEnsemble
from compevo_core.training.model import PopulationModel
from compevo_core.training.round import RoundState, RoundTrainer, describe_start
from compevo_core.training.round_record import RoundRecord, RoundResult
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.training_data import Outcome, RunSetup, TrainingData

_TEXTS = ("empty_logics", "unread_answers", "equal_groups", "answers")
_UPDATES = ("grad_norm", "kl", "gradient_conflict", "gradient_margin", "clip_fraction")
_LOSSES = ("loss", "loss_pred", "loss_tokens", "loss_pg", "loss_div", "loss_prune")
_NO_LANGUAGE_MODEL: dict[str, Any] = dict.fromkeys(_TEXTS + _UPDATES + _LOSSES, 0)
"""What a round measures only of a language model."""


class TrainingLoop(abc.ABC):
    """The first ``rounds`` of a schedule, or all; without validation examples none is validated."""

    model: AgentEnsemble
    generators: schedule.RunGenerators
    optimizer: torch.optim.Optimizer | None = None
    checkpoint_every: int

    def __init__(
        self,
        setup: RunSetup,
        data: TrainingData,
        rounds: int | None,
        plan: schedule.RunSchedule,
        layers: int,
    ) -> None:
        self.setup = setup
        self.folder = setup.folder
        self.shards = setup.shards
        self.data = data
        self.config = config = data.config
        self.schedule = plan
        self.rounds = plan.total_rounds if rounds is None else rounds
        self.validate_every = config.run.validate_every if data.val_examples else 0
        article_size = setup.news.embeddings.shape[1]
        self.inputs = NumericInputs.fit(data.train_windows, data.held_out_NPH, article_size)
        self.retriever = build_retriever(setup.news, config.news)
        self.time_left = schedule.TimeLeft(
            schedule.guess_units(config, layers, len(data.calibration_examples))
        )
        self._stage: RunFolder | None = None
        if setup.stages is not None and plan.supervised_rounds:
            self._stage = RunFolder(setup.stages / hash_stage(config, setup.identity))

    @abc.abstractmethod
    def play(self, state: RoundState) -> RoundResult:
        """Play one round, and move ``state`` to the next."""

    def start_agents(self, logics: Sequence[str]) -> Tensor:
        """Get the agents ready for the first round; return the states of their logics, (A, D)."""
        return torch.zeros(len(logics), 0)  # none where nothing reads a logic

    def train(self) -> Outcome:
        """Play all rounds, from the newest checkpoint if the run resumes; return to the best."""
        state = self._resume() if self.setup.resume else None
        state = state or self._begin()

        clock, on_round = self.setup.clock, self.setup.on_round
        while state.round < self.rounds:
            started = clock()
            try:
                result = self.play(state)
            except NonFiniteLoss as error:
                raise NonFiniteLoss(f"round {state.round}: {error}") from error
            stepped = clock()
            validation = self._validate(state)
            record = self._complete_record(state, result, validation, started, stepped)

            # The record first: extra records are dropped and written again, but a checkpoint with
            # more rounds than records would stop the run.
            if self.shards.is_first:
                self.folder.append_round(record)
            self._keep(state)
            if on_round and self.shards.is_first:
                on_round(record)

        # The round that validated best; without validation the last one (07-stages).
        if self.validate_every:
            best = load_newest_checkpoint(self.folder.best, self.shards, self.setup.start)
            state = state if best is None else self._restore(best)
        self.model.settle(state.logics)
        reader = self.model.executor.linear_reader
        if self.model.linear is not None and reader is not None:
            self.model.linear.store(reader, self.shards.local(state.logics))
        return Outcome(state.round, state.best_error)

    def _clear(self) -> None:
        """Remove what another training has left, as its later rounds would pass for newer ones."""
        if self.shards.is_first:
            self.folder.remove_training()
            self.folder.truncate_rounds(0)
        self.shards.barrier()

    def _begin(self) -> RoundState:
        """Return the state before the first round: every agent plays its seed logic."""
        self._clear()

        agents = self.config.population.agents
        logics = list_first_logics(self.config)
        state = RoundState(
            round=0,
            logics=logics,
            rewards=[0.0] * agents,
            previous_AD=self.start_agents(logics),
            regret=RegretTracker.start(agents, self.config.run.fixed_logics),
        )

        # Untrained agents are a candidate too: with a head they forecast like their base models,
        # which a training may only make worse.
        self._validate(state)
        return state

    def _resume(self) -> RoundState | None:
        """Return the state of the newest intact checkpoint; None if there is none."""
        root, start = self.folder.checkpoints, self.setup.start
        # After a power cut the last record may be missing: an older checkpoint repeats its round.
        recorded = self.folder.count_rounds()
        saved = load_newest_checkpoint(root, self.shards, start, most_rounds=recorded)
        saved = saved or load_newest_checkpoint(root, self.shards, start)
        if saved is None:
            return None

        state = self._restore(saved)
        # On every process, as all must stop if records are missing; none may write before all have
        # read.
        self.folder.require_rounds(state.round)
        self.shards.barrier()
        if self.shards.is_first:
            self.folder.truncate_rounds(state.round)
        return state

    def _complete_record(
        self,
        state: RoundState,
        result: RoundResult,
        validation: tuple[float, float] | None,
        started: float,
        stepped: float,
    ) -> RoundRecord:
        """Return what the round measured, and where the run is after it."""
        # After the validation, so that its forecasts are counted in this round.
        exchanged_bytes = self.shards.take_received()
        ended = self.setup.clock()
        self.time_left.add(
            schedule.Work.REWRITING if result.evolved else schedule.Work.TRAINING, stepped - started
        )
        if validation:
            self.time_left.add(schedule.Work.VALIDATION, ended - stepped)
        state.train_seconds += ended - started

        # The second training has no validation windows, and is not calibrated.
        has_choice = bool(self.data.val_examples)
        left = schedule.count_work_left(
            self.schedule,
            result.round + 1,
            self.rounds,
            validate_every=self.validate_every,
            calibrates=has_choice,
            refits=has_choice and self.config.run.refit,
        )
        error, prior_error = validation or (None, None)
        return RoundRecord(
            **result.model_dump(),
            val_mae_scaled=error,
            val_prior_mae_scaled=prior_error,
            exchanged_bytes=exchanged_bytes,
            epoch=result.round // self.data.sampler.rounds_per_epoch,
            rounds=self.rounds,
            seconds=ended - started,
            eta_seconds=self.time_left.estimate(left),
            train_seconds=state.train_seconds,
        )

    def _validate(self, state: RoundState) -> tuple[float, float] | None:
        """Measure the validation errors if that is due, and save the state of the lowest."""
        is_last = state.round == self.rounds
        if not self.validate_every or (state.round % self.validate_every and not is_last):
            return None

        self.model.settle(state.logics)
        errors = measure_validation(self.model, self.data.val_examples)
        # Strictly lower: of equal rounds the first wins, and a resumed run chooses the same.
        if errors[0] < state.best_error:
            state.best_error = errors[0]
            self._save_checkpoint(state, self.folder.best)
        return errors

    def _keep(self, state: RoundState) -> None:
        """Save a checkpoint after the rounds that have one, and a stage that other runs share."""
        stage = self._stage if state.round == self.schedule.supervised_rounds else None
        if stage or state.round % self.checkpoint_every == 0 or state.round == self.rounds:
            self._save_checkpoint(state, self.folder.checkpoints)
        if stage and self.shards.is_first:
            keep_stage(self.folder, stage)

    def _save_checkpoint(self, state: RoundState, root: Path) -> None:
        captured = capture_state(self.model, self.optimizer, state, self.generators)
        captured.values["identity"] = dict(self.setup.identity)
        save_checkpoint(root, state.round, captured, self.shards, start=self.setup.start)

    def _restore(self, saved: Checkpoint) -> RoundState:
        self.folder.require_identity(saved.state["identity"], self.setup.identity)
        return restore_state(saved, self.model, self.optimizer, self.generators)


class PopulationLoop(TrainingLoop):
    """The rounds of a population with a language model."""

    def __init__(self, setup: RunSetup, data: TrainingData, rounds: int | None) -> None:
        config, shards, plan = data.config, setup.shards, setup.schedule
        # Before anything is built, as loading a model may sample from torch's generator too.
        schedule.seed_dropout(config.run.seed, shards.dropout_stream, 0)
        shard = not shards.splits_agents
        backbone = setup.backbone or load_backbone(config.backbone, shard=shard)
        super().__init__(setup, data, rounds, plan, backbone.model.config.num_hidden_layers)
        self.checkpoint_every = config.run.checkpoint_every
        model = PopulationModel(config, backbone, self.inputs, shards)
        self.executor = model.build_executor(self.retriever, data.train_examples)
        self.model = model
        self.round_trainer = RoundTrainer(
            model, self.executor, plan, model.writer(setup.selector), data.train_examples
        )
        self.optimizer = self.round_trainer.update.optimizer
        self.generators = schedule.RunGenerators.from_seed(
            config.run.seed, shards.local_agents, backbone.device
        )

    def play(self, state: RoundState) -> RoundResult:
        """Play one round, and move ``state`` to the next."""
        indices = self.data.sampler.indices(state.round)
        batch = [self.data.train_examples[i] for i in indices]
        return self.round_trainer.step(state, batch, self.generators)

    def start_agents(self, logics: Sequence[str]) -> Tensor:
        """Fix the statistics of the head's read-out; return the states of the logics, (A, D)."""
        examples = self.data.train_examples
        # Enough for a mean over states that are almost equal.
        spaced = [examples[i] for i in evenly_spaced(len(examples), 32)]
        self.executor.centre_readout(self.shards.local(logics), spaced)
        writer = self.round_trainer.writer
        return super().start_agents(logics) if writer is None else writer.encode_logics(logics)

    def _begin(self) -> RoundState:
        """Return the state at the end of the supervised stage if another run has trained it."""
        stage = self._stage
        end = None if stage is None else load_newest_checkpoint(stage.checkpoints, self.shards)
        if stage is None or end is None:
            return super()._begin()

        # Saved as this run's own: from now on its folder has nothing of another run.
        self._clear()
        if self.shards.is_first:
            write_text(self.folder.rounds_file, stage.rounds_file.read_text(encoding="utf-8"))
        best = load_newest_checkpoint(stage.best, self.shards)
        for saved, root in [(best, self.folder.best), (end, self.folder.checkpoints)]:
            if saved is not None:
                state = restore_state(saved, self.model, self.optimizer, self.generators)
                self._save_checkpoint(state, root)
        return state


class ReadingModel(AgentEnsemble):
    """Agents that read by ridges: their fitness and the fits of the logics that they play."""

    def __init__(
        self, config: RunConfig, inputs: NumericInputs, shards: AgentShards | None = None
    ) -> None:
        super().__init__(config, inputs, shards)
        if self.shards.processes > 1:
            raise ConfigError(
                "agents without a language model are trained in one process, in which a search "
                "takes seconds: start it without torchrun"
            )
        selection = FitnessSelection.for_run(config, sorted(self.scaler.mean))
        self.selection = selection.requires_grad_(False)

    def build_executor(
        self, retriever: NewsRetriever, train_examples: Sequence[ForecastExample] = ()
    ) -> ReadingExecutor:
        """Return what forecasts by fits on train examples, or by those that were sealed."""
        reader = self.find_reader(train_examples, retriever)
        agents = range(self.config.population.agents)
        return ReadingExecutor(self.config, agents, self.mix_AP, retriever, reader)


class SearchLoop(TrainingLoop):
    """The rounds of agents that read only by ridges: the rewritings of a run's schedule.

    In each, every agent draws G logics by chance, and plays the best of its record.
    """

    model: ReadingModel
    checkpoint_every = 1

    def __init__(self, setup: RunSetup, data: TrainingData, rounds: int | None) -> None:
        config, whole = data.config, setup.schedule
        rewritings = sum(map(whole.rewrites, range(whole.total_rounds)))
        plan = dataclasses.replace(whole, supervised_rounds=0, evolution_rounds=rewritings, every=1)
        super().__init__(setup, data, rounds, plan, layers=1)
        self.model = ReadingModel(config, self.inputs, setup.shards)
        self.model.executor = self.model.build_executor(self.retriever, data.train_examples)
        self._draws = SlotDraws(config, sorted(self.model.scaler.mean))
        agents = range(config.population.agents)
        self.generators = schedule.RunGenerators.from_seed(
            config.run.seed, agents, torch.device("cpu")
        )

    def play(self, state: RoundState) -> RoundResult:
        """Let each agent draw logics and choose; what only a language model has is 0 or empty."""
        selection, grpo = self.model.selection, self.config.grpo
        start = describe_start(state, selection)
        rng = self.generators.numpy_rng
        members = self.config.population.list_members()
        peers = sample_peers(len(members), self.config.population.exposed_peers, rng)
        groups = [
            []
            if members[agent].reads == "everything"
            else self._draws.draw(
                grpo.group_size,
                state.logics[agent],
                [state.logics[peer] for peer in peers[agent]],
                generator,
            )
            for agent, generator in enumerate(self.generators.agents)
        ]
        news = self.model.read_news(self.data.train_examples, self.retriever)
        turns = news.score(state.logics, groups, state.records, rng)
        turns.pay(selection)
        state.logics, state.records = turns.logics, turns.records
        state.round += 1

        return RoundResult(
            **_NO_LANGUAGE_MODEL,
            **start,
            **turns.describe(grpo.group_size),
            stage=schedule.EVOLUTION,
            interaction=np.eye(len(members)).tolist(),
            group_logics=groups,
            candidates=[],
            unique_news=[],
        )
