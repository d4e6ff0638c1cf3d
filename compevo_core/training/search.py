"""The training of agents that read only by ridges: a search for logics, without a language model.

What belongs here: the rounds of the search, their checkpoints, the model and what forecasts by it.
What does not: the turns of a round (``training.turns``), rounds with a language model
(``training.loop``).

A round is one rewriting: each agent draws G logics by chance, and plays the best of its record. N
rounds equal k rounds, a kill and a resume.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compevo_core.agents.decoders import BatchForecasts, ForecastExample, mix_bases
from compevo_core.agents.joint_reader import JointReader
from compevo_core.agents.linear_reader import LinearReader, SealedReadings
from compevo_core.agents.logics import LogicRecords, SlotDraws
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.observation import sample_peers
from compevo_core.agents.retrieval import NewsRetriever, build_retriever
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import MemberConfig
from compevo_core.data.arrays import FloatArray, to_array
from compevo_core.errors import ConfigError
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.calibration import measure_validation
from compevo_core.training.checkpoint import (
    STATE_VERSION,
    Checkpoint,
    TrainState,
    load_newest_checkpoint,
    save_checkpoint,
)
from compevo_core.training.diagnostics import weight_entropy
from compevo_core.training.ensemble import AgentEnsemble, add_prefix
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import EVOLUTION, RunGenerators, RunSchedule
from compevo_core.training.training_data import OnRound, Outcome, RunSetup, TrainingData
from compevo_core.training.turns import (
    Record,
    build_reader,
    list_first_logics,
    score_readings,
)


class ReadingExecutor:
    """Forecasts each window by each agent's base and reading."""

    def __init__(
        self,
        mix_AP: FloatArray,
        members: Sequence[MemberConfig],
        retriever: NewsRetriever,
        reader: LinearReader,
    ) -> None:
        self.reader = reader
        self._mix_AP = mix_AP
        self._members = members
        self._retriever = retriever

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return bases with readings as the agents' forecasts."""
        values_ABH = mix_bases(self._mix_AP, examples)
        views = [example.view for example in examples]
        news = [
            self._retriever.retrieve_for(member, logic, views)
            for member, logic in zip(self._members, logics, strict=True)
        ]
        for agent, (logic, by_window) in enumerate(zip(logics, news, strict=True)):
            fit = self.reader.find(agent, logic)
            for b, (example, ids) in enumerate(zip(examples, by_window, strict=True)):
                if ids:
                    reading_H = fit.read(example.view, self._retriever.resolve(ids))
                    values_ABH[agent, b] += reading_H
        return BatchForecasts(values_ABH, np.zeros(len(logics)), news=news)


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
        self.linear = SealedReadings(
            dict(enumerate(config.population.list_members())),
            inputs.article_size,
            inputs.horizon,
            is_joint=config.news.fit == "joint",
        )

    def build_executor(
        self, retriever: NewsRetriever, reader: LinearReader | None = None
    ) -> ReadingExecutor:
        """Return what forecasts by a reader, the sealed one unless given."""
        members = self.config.population.list_members()
        return ReadingExecutor(self.mix_AP, members, retriever, reader or self.linear)

    def agent_tensors(self) -> dict[str, Any]:
        """Return what an agent has of its own by stored name."""
        # Views of the same memory: what is written into them is in the model.
        linear = {name: to_array(of) for name, of in self.linear.state_dict().items()}
        return super().agent_tensors() | add_prefix("linear", linear)

    def shared_tensors(self) -> dict[str, Any]:
        """Return gates, fitness and what calibration shares, by stored name."""
        return {name: to_array(of) for name, of in super().shared_tensors().items()}


@dataclasses.dataclass
class _SearchState:
    """State of a search between two rounds, except the model's fitness."""

    logics: list[str]
    round: int = 0
    records: LogicRecords = dataclasses.field(default_factory=LogicRecords)
    best_error: float = math.inf
    seconds: float = 0.0


class SearchTraining:
    """The rewritings of a run's schedule, written into ``folder``."""

    def __init__(
        self,
        setup: RunSetup,
        folder: RunFolder,
        data: TrainingData,
        *,
        rounds: int | None = None,
        **_of_language_models: object,
    ) -> None:
        config = setup.config
        self.setup, self.folder, self.data, self.config = setup, folder, data, config
        schedule = RunSchedule.plan(config, data.sampler.rounds_per_epoch)
        planned = sum(map(schedule.rewrites, range(schedule.total_rounds)))
        self.rounds = planned if rounds is None else rounds
        self.model = ReadingModel(config, data.fit_inputs(setup.news), setup.shards)
        self._retriever = build_retriever(setup.news, config.news)
        self._reader = build_reader(config, data.train_examples, self._retriever)
        self._played: JointReader | None = None
        if config.news.fit == "joint":
            self._played = JointReader(self._reader, self.model.selection)
        self.model.executor = self.model.build_executor(
            self._retriever, self._played or self._reader
        )

        self._draws = SlotDraws(config, sorted(self.model.scaler.mean))
        agents = range(config.population.agents)
        self._generators = RunGenerators.from_seed(config.run.seed, agents, torch.device("cpu"))
        self._validate_every = config.run.validate_every if data.val_examples else 0

    def train(self, *, resume: bool, on_round: OnRound | None = None) -> Outcome:
        """Play all rounds, from the newest checkpoint with ``resume``; return to the best one."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        state = self._resume() if resume else None
        if state is None:
            self.folder.remove_training()
            self.folder.truncate_rounds(0)
            # Every agent plays its seed logic first.
            state = _SearchState(list_first_logics(self.config))
            self._validate(state)
        while state.round < self.rounds:
            record = self._play(state)
            # The record first: records of more rounds than the checkpoint are written again.
            self.folder.append_round(record)
            self._save(state, self.folder.checkpoints)
            if on_round:
                on_round(record)

        if self._validate_every:
            best = load_newest_checkpoint(self.folder.best, self.setup.shards, self.setup.start)
            state = self._restore(best) if best else state
        self._settle(state.logics)
        self.model.linear.store(self._played or self._reader, state.logics)
        return Outcome(state.round, state.best_error)

    def _settle(self, logics: Sequence[str]) -> None:
        self.model.logics = list(logics)
        if self._played is not None:
            self._played.settle(logics)

    def _play(self, state: _SearchState) -> RoundRecord:
        """Play one round, and move ``state`` to the next."""
        started = self.setup.clock()
        record = self._describe_start(state)
        rng, grpo = self._generators.numpy_rng, self.config.grpo
        members = self.config.population.list_members()
        peers = sample_peers(len(members), self.config.population.exposed_peers, rng)
        groups = [
            []
            if members[agent].reads == "everything"
            else self._draws.draw(grpo.group_size, state.logics, agent, peers[agent], generator)
            for agent, generator in enumerate(self._generators.agents)
        ]

        turns = score_readings(
            self.config,
            self.data.train_examples,
            self._retriever,
            self.model.selection,
            state.logics,
            groups,
            state.records,
            rng,
        )
        record |= turns.describe(grpo.group_size) | {"group_logics": groups}

        state.logics, state.records = turns.logics, turns.records
        turns.pay(self.model.selection)
        state.round += 1

        validation = self._validate(state)
        seconds = self.setup.clock() - started
        state.seconds += seconds
        return RoundRecord(
            **record,
            val_mae_scaled=validation[0] if validation else None,
            val_prior_mae_scaled=validation[1] if validation else None,
            epoch=0,
            rounds=self.rounds,
            seconds=seconds,
            eta_seconds=(self.rounds - state.round) * state.seconds / state.round,
            train_seconds=state.seconds,
        )

    def _describe_start(self, state: _SearchState) -> Record:
        """Return the first part of a record; what only a language model has is zero or empty."""
        selection = self.model.selection
        weights_A = to_array(selection.population_weights())
        zeros = ("empty_logics", "unread_answers", "equal_groups", "answers", "grad_norm", "kl")
        conflict = ("gradient_conflict", "gradient_margin", "clip_fraction")
        losses = ("loss", "loss_pred", "loss_tokens", "loss_pg", "loss_div", "loss_prune")
        return {
            **dict.fromkeys((*zeros, *conflict, *losses), 0),
            "round": state.round,
            "stage": EVOLUTION,
            "logics": list(state.logics),
            "weights": weights_A.tolist(),
            "weight_entropy": weight_entropy(weights_A),
            "fitness": to_array(selection.population_fitness()).tolist(),
            "gates": to_array(selection.gates_A).tolist(),
            "interaction": np.eye(len(weights_A)).tolist(),
            "candidates": [],
            "unique_news": [],
        }

    def _validate(self, state: _SearchState) -> tuple[float, float] | None:
        """Measure the validation error if that is due, and save the state if it is the lowest."""
        is_last = state.round == self.rounds
        if not self._validate_every or (state.round % self._validate_every and not is_last):
            return None
        self._settle(state.logics)
        found = measure_validation(self.model, self.data.val_examples)
        # Strictly lower: of equal rounds the first wins, and a resumed run chooses the same.
        if found.aggregate < state.best_error:
            state.best_error = found.aggregate
            self._save(state, self.folder.best)
        return found.aggregate, found.prior

    def _save(self, state: _SearchState, root: Path) -> None:
        generators = self._generators
        values = {
            "version": STATE_VERSION,
            **{k: v for k, v in vars(state).items() if k != "records"},
            "records": state.records.to_json(),
            "drawing": generators.numpy_rng.bit_generator.state,
            "identity": dict(self.setup.identity),
        }
        sampling = {
            agent: {"sampling": generator.get_state()}
            for agent, generator in enumerate(generators.agents)
        }
        captured = TrainState(sampling, dict(self.model.selection.state_dict()), values)
        save_checkpoint(root, state.round, captured, self.setup.shards, start=self.setup.start)

    def _resume(self) -> _SearchState | None:
        """Return the state of the newest intact checkpoint that has its records; None without."""
        saved = load_newest_checkpoint(
            self.folder.checkpoints,
            self.setup.shards,
            self.setup.start,
            most_rounds=self.folder.count_rounds(),
        )
        if saved is None:
            return None
        state = self._restore(saved)
        self.folder.truncate_rounds(state.round)
        return state

    def _restore(self, saved: Checkpoint) -> _SearchState:
        values = dict(saved.state)
        self.folder.require_identity(values.pop("identity"), self.setup.identity)
        self.model.selection.load_state_dict(saved.read_shared())
        self._generators.numpy_rng.bit_generator.state = values.pop("drawing")
        for agent, generator in enumerate(self._generators.agents):
            generator.set_state(saved.read_agent(agent)["sampling"].clone())
        del values["version"]
        return _SearchState(**values | {"records": LogicRecords.from_json(values["records"])})
