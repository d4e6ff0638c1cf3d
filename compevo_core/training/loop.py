"""The training loop: rounds, validation, checkpoints, resume (paper 4, algorithm of a run).

What belongs here: what happens between rounds. What does not: what happens in one
(``training.round``), in which stage it is (``training.schedule``), the data
(``training.training_data``), what a checkpoint holds (``training.train_state``), what follows the
last round (``training.trainer``).

N rounds equal k rounds, a kill and a resume, bit for bit on a processor.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from compevo_core.agents.logic_grammar import list_seed_logics
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.chat_endpoint import Transport
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.diagnostics.regret import RegretTracker
from compevo_core.distributed import AgentShards
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from compevo_core.training.debate import build_round_trainer
from compevo_core.training.eta import TimeLeft, Work, count_work_left, guess_units
from compevo_core.training.generators import RunGenerators, seed_dropout
from compevo_core.training.model import PopulationModel
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.round_state import RoundState
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import RunSchedule
from compevo_core.training.shared_stages import SharedStages, hash_stage
from compevo_core.training.train_state import RunProgress, capture_state, restore_state
from compevo_core.training.training_data import TrainingData
from compevo_core.training.validation import ValidationErrors, measure_validation

OnRound = Callable[[RoundRecord], None]


class TrainingLoop:
    """The rounds of one training.

    Args:
        config: the run's settings.
        folder: where it is written.
        data: what it trains and validates on; without validation examples it never validates.
        news: the articles.
        identity: hashes of settings and data.
        shards: which agents this process holds.
        start: number of the run's start (``RunFolder.begin_again``).
        schedule: stages and rates.
        rounds: how many rounds of the schedule to train; all unless given.
        backbone: a frozen model without adapters; loaded from the configuration unless given.
        stages: supervised stages of other runs; a run without a checkpoint goes on from its own.
        selector: asks the endpoint that ``evolution.selector`` names.
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
        start: int,
        schedule: RunSchedule,
        rounds: int | None = None,
        backbone: Backbone | None = None,
        stages: SharedStages | None = None,
        selector: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.folder = folder
        self.data = data
        self.identity = identity
        self.shards = shards
        self.start = start
        self.schedule = schedule
        self.rounds = schedule.total_rounds if rounds is None else rounds
        self.stages = stages if schedule.supervised_rounds else None
        self.clock = clock
        self.progress = RunProgress()
        self._validate_every = config.run.validate_every if data.val_examples else 0

        # Seeded before anything is built: loading a model may draw from torch's generator too.
        seed_dropout(config.run.seed, shards.dropout_stream, 0)
        backbone = backbone or load_backbone(config.backbone, shard=not shards.splits_agents)
        self.model = PopulationModel(config, backbone, data.inputs, shards)
        encoder = load_encoder(config.news.encoder)
        self.executor = self.model.executor(NewsRetriever(news, encoder, config.news.top_k))
        self.round_trainer = build_round_trainer(self.model, self.executor, schedule, selector)
        self.generators = RunGenerators.from_seed(
            config.run.seed, shards.local_agents, backbone.device
        )
        layers = backbone.model.config.num_hidden_layers
        self.time_left = TimeLeft(guess_units(config, layers, len(data.calibration_examples)))

    def run(self, *, resume: bool, on_round: OnRound | None = None) -> RoundState:
        """Train to the end; return the state after the last round.

        Args:
            resume: whether to go on from the newest checkpoint, if there is one.
            on_round: called with the record of each round, on the first process alone.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        state = self._resume() if resume else None
        if state is None:
            state = self._begin_after_stage() or self._begin()

        while state.round < self.rounds:
            record = self._run_round(state)

            # The record first: a checkpoint of more rounds than there are records is refused,
            # records of more rounds than the checkpoint are dropped and written again.
            if self.shards.is_first:
                self.folder.append_round(record)
            is_due = state.round % self.config.run.checkpoint_every == 0
            ends_stage = self.stages is not None and state.round == self.schedule.supervised_rounds
            if is_due or ends_stage or state.round == self.rounds:
                self._save_checkpoint(state, self.folder.checkpoints)
            if self.stages is not None and ends_stage and self.shards.is_first:
                self.stages.keep(self._stage, self.folder)
            if on_round and self.shards.is_first:
                on_round(record)

        return state

    def restore_best(self, last: RoundState) -> RoundState:
        """Return to the round that validated best (decision 14); to the last one without any."""
        if not self._validate_every:
            return last

        best = load_newest_checkpoint(self.folder.best, self.shards, self.start)
        return last if best is None else self._restore(best)

    @property
    def _stage(self) -> str:
        """What runs with the same supervised stage have in common."""
        return hash_stage(self.config, self.identity)

    def _begin_after_stage(self) -> RoundState | None:
        """Return the state at the end of the supervised stage if another run has trained it."""
        found = self.stages.find(self._stage, self.shards) if self.stages else None
        if found is None or self.stages is None:
            return None
        end, best = found

        # Saved as this run's own: from here on nothing in its folder is of another run.
        self._clear()
        if best is not None:
            state = restore_state(best, self.round_trainer, self.generators, self.progress)
            self._save_checkpoint(state, self.folder.best)
        state = restore_state(end, self.round_trainer, self.generators, self.progress)
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
        logics = list(list_seed_logics(self.config.evolution.form)[:agents])
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
        root, recorded = self.folder.checkpoints, self.folder.count_rounds()
        # A power cut may have taken the last record: an older checkpoint plays its round again.
        saved = load_newest_checkpoint(root, self.shards, self.start, most_rounds=recorded)
        saved = saved or load_newest_checkpoint(root, self.shards, self.start)
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

    def _run_round(self, state: RoundState) -> RoundRecord:
        """Run one round and validate where one is due; return the complete record."""
        started = self.clock()
        number = state.round
        result = self.round_trainer.step(state, self.data.batch(number), self.generators)
        stepped = self.clock()
        validation = self._validate(state)
        # After the validation, so that its forecasts are counted in the round that measured it.
        exchanged_bytes = self.shards.take_received()

        ended = self.clock()
        self.time_left.add(Work.REWRITING if result.evolved else Work.TRAINING, stepped - started)
        if validation:
            self.time_left.add(Work.VALIDATION, ended - stepped)
        self.progress.train_seconds += ended - started

        return RoundRecord(
            **result.model_dump(),
            val_mae_scaled=validation.aggregate if validation else None,
            val_prior_mae_scaled=validation.prior if validation else None,
            exchanged_bytes=exchanged_bytes,
            epoch=number // self.data.sampler.rounds_per_epoch,
            rounds=self.rounds,
            seconds=ended - started,
            eta_seconds=self.time_left.estimate(self._count_work_left(state.round)),
            train_seconds=self.progress.train_seconds,
        )

    def _count_work_left(self, done: int) -> Mapping[Work, int]:
        # Without validation windows this is the second training: nothing is calibrated after it.
        has_choice = bool(self.data.val_examples)
        return count_work_left(
            self.schedule,
            done,
            self.rounds,
            validate_every=self._validate_every,
            calibrates=has_choice,
            refits=has_choice and self.config.run.refit,
        )

    def _validate(self, state: RoundState) -> ValidationErrors | None:
        """Measure the validation error if that is due, and save the state if it is the lowest."""
        is_last = state.round == self.rounds
        if not self._validate_every or (state.round % self._validate_every and not is_last):
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
        save_checkpoint(
            root,
            state.round,
            captured.agents,
            captured.shared,
            values,
            self.shards,
            start=self.start,
        )

    def _restore(self, saved: Checkpoint) -> RoundState:
        self.folder.require_identity(saved.state["identity"], self.identity)
        return restore_state(saved, self.round_trainer, self.generators, self.progress)
