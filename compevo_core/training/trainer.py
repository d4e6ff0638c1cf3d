"""The training loop: batches, rounds, validation, checkpoints, resume (paper 4, Algorithm of a run).

What belongs here: what happens between rounds. What does not: what happens in one (``rounds``).
The trainer takes a train and a validation set and refuses any other split: it has no path to the test data.
N rounds equal k rounds, a kill and a resume, bit for bit on one processor. Under torchrun every process calls
:func:`train` inside ``shards.process_group``; they share the agents, and the first one writes what is one for all.
"""

import hashlib
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.logic_writer import agent_generators
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.selection import aggregate
from compevo_core.agents.strategy import NewsChooser
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.diagnostics.regret import RegretBook, growth
from compevo_core.distributed import AgentShards
from compevo_core.errors import CheckpointMismatch, ConfigError, DataError, LeakageError
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training import checkpoint
from compevo_core.training import train_state as snapshot
from compevo_core.training.artifact import MODEL, model_manifest, versions, write_model
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import fit_prior, make_tasks, out_of_fold
from compevo_core.training.round import RoundState, RoundTrainer
from compevo_core.training.sampler import DaySampler

ROUNDS_FILE, METRICS_FILE = "rounds.jsonl", "metrics.json"
_RECENT = 10

OnRound = Callable[[dict[str, Any]], None]


def train(
    config: RunConfig,
    train_windows: WindowSet,
    val_windows: WindowSet,
    news: NewsPool,
    out: Path,
    *,
    resume: bool = True,
    on_round: OnRound | None = None,
    backbone: Backbone | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Trains a population and writes ``out/model`` (sealed), ``out/rounds.jsonl`` and ``out/metrics.json``.

    Args:
        config: the run's settings.
        train_windows: windows of split "train"; scaler, prior and population are fitted on these alone.
        val_windows: windows of split "val"; they choose among rounds, nothing else.
        news: every article any window names as a candidate, with embeddings of ``config.news.encoder``.
        out: run folder; with ``resume`` an unfinished run of the same identity goes on.
        resume: False starts over.
        on_round: called with each round's record, on the first process alone.
        backbone: an already loaded frozen model without adapters; loaded from the configuration if not given.
        clock: seconds, for durations.

    Returns:
        the summary that also stands in ``metrics.json``.

    Raises:
        LeakageError: a window of another split was given.
        CheckpointMismatch: ``out`` holds a run of another configuration or of other data.
        ConfigError: there are more processes than agents.
    """
    _guard(config, train_windows, val_windows, news)
    return _Training(config, train_windows, val_windows, news, out, backbone, clock).run(
        resume, on_round
    )


def _guard(
    config: RunConfig, train_windows: WindowSet, val_windows: WindowSet, news: NewsPool
) -> None:
    for windows, split in ((train_windows, "train"), (val_windows, "val")):
        strangers = {v.split for v in windows.views()} - {split}
        if strangers:
            raise LeakageError(
                f"windows of {sorted(strangers)} were given as {split}; pass split({split!r}) only"
            )
    if not len(train_windows):
        raise DataError(
            "there are no train windows; materialize the windows of this data set first"
        )
    if config.run.validate_every and not len(val_windows):
        raise DataError(
            "there are no validation windows; provide some or set run.validate_every = 0"
        )
    if news.encoder_name != config.news.encoder:
        raise ConfigError(
            f"articles are embedded with {news.encoder_name!r}, the run wants {config.news.encoder!r}; "
            "set news.encoder or embed the articles again"
        )
    if config.population.agents > len(SEED_LOGICS):
        raise ConfigError(
            f"there are {len(SEED_LOGICS)} seed logics for {config.population.agents} agents; "
            "lower population.agents"
        )


class _Training:
    """One run in progress."""

    def __init__(
        self,
        config: RunConfig,
        train_windows: WindowSet,
        val_windows: WindowSet,
        news: NewsPool,
        out: Path,
        backbone: Backbone | None,
        clock: Callable[[], float],
    ) -> None:
        self.config, self.out, self.clock = config, out, clock
        self.shards = AgentShards.from_process_group(config.population.agents)
        self.data_hash = f"{train_windows.hash[:16]}-{val_windows.hash[:16]}"
        articles = "\n".join(sorted(news.articles["article_id"].to_list()))
        self.identity = {
            "config_hash": config.hash,
            "data_hash": self.data_hash,
            "news_hash": hashlib.sha256(articles.encode()).hexdigest()[:16],
        }
        keep = _known_targets(train_windows)
        self.dropped = len(train_windows) - len(keep)
        self.train_windows, self.val_windows = (
            keep,
            _spaced(_known_targets(val_windows), config.run.validation_windows),
        )
        self.sampler = DaySampler(keep, config.run.batch_windows, config.run.seed)
        self.total = config.run.rounds or config.run.epochs * self.sampler.rounds_per_epoch
        self.news, self.backbone = news, backbone

    def run(self, resume: bool, on_round: OnRound | None) -> dict[str, Any]:
        """Trains to the end, or returns at once if this very run is already finished."""
        self.out.mkdir(parents=True, exist_ok=True)
        if resume and (self.out / MODEL / checkpoint.MANIFEST).is_file():
            manifest = model_manifest(self.out)
            self._same(manifest["identity"])
            return self._summary()
        self._build()
        state = self._start(resume)
        durations: list[float] = []
        while state.round < self.total:
            began = self.clock()
            number = state.round
            tasks = [self.train_tasks[i] for i in self.sampler.indices(number)]
            record = self.player.step(state, tasks, self.sampling, self.drawing)
            record |= self._validate(state)
            record["exchanged_bytes"] = self.shards.take_received()
            durations.append(self.clock() - began)
            self.seconds += durations[-1]
            eta = float(np.mean(durations[-_RECENT:])) * (self.total - state.round)
            record |= {
                "epoch": number // self.sampler.rounds_per_epoch,
                "rounds": self.total,
                "seconds": durations[-1],
                "eta_seconds": eta,
                "train_seconds": self.seconds,
            }
            self._append(record)
            if state.round % self.config.run.checkpoint_every == 0 or state.round == self.total:
                self._checkpoint(state, self.out / "checkpoints")
            if on_round and self.shards.is_first:
                on_round(record)
        return self._finish(state)

    def _build(self) -> None:
        config = self.config
        snapshot.seed_dropout(config.run.seed, self.shards.rank, 0)
        backbone = self.backbone or load_backbone(config.backbone)
        scaler = Scaler.fit(self.train_windows)
        self.prior = fit_prior(config.forecast.prior, self.train_windows)
        held_out = out_of_fold(
            config.forecast.prior, self.train_windows, config.forecast.prior_folds
        )
        self.train_tasks = make_tasks(self.train_windows, held_out, scaler)
        val_prior = None if self.prior is None else self.prior.predict(self.val_windows.views())
        self.val_tasks = make_tasks(self.val_windows, val_prior, scaler)
        self.learner = PopulationModel(config, backbone, scaler, self.shards)
        self.executor = self.learner.executor(
            NewsChooser(self.news, load_encoder(config.news.encoder), config.news.top_k)
        )
        self.player = RoundTrainer(self.learner, self.executor, self.total)
        self.sampling = agent_generators(config.run.seed, self.shards.local_agents, backbone.device)
        self.drawing = np.random.default_rng([config.run.seed, 2])
        self.best, self.seconds = float("inf"), 0.0

    def _start(self, resume: bool) -> RoundState:
        found = checkpoint.newest_good(self.out / "checkpoints", self.shards) if resume else None
        if found is None:
            self._keep_rounds([])
            logics = list(SEED_LOGICS[: self.config.population.agents])
            zeros = [0.0] * len(logics)
            return RoundState(
                0,
                logics,
                zeros,
                self.player.writer.encode_texts(logics),
                RegretBook.start(len(logics), self.config.run.fixed_logics),
            )
        saved = found.state
        previous_AD = self._restore(found)
        lines = (
            (self.out / ROUNDS_FILE)
            .read_text(encoding="utf-8")
            .splitlines(keepends=True)[: saved["round"]]
        )
        if len(lines) != saved["round"]:
            raise CheckpointMismatch(
                f"{self.out / ROUNDS_FILE} has {len(lines)} rounds, the checkpoint "
                f"{saved['round']}; restore the file or start over with resume=False"
            )
        self._keep_rounds(lines)
        return RoundState(
            saved["round"],
            saved["logics"],
            saved["rewards"],
            previous_AD,
            RegretBook.restore(saved["regret"]),
        )

    def _keep_rounds(self, lines: list[str]) -> None:
        self.shards.barrier()  # until all have read the file
        if self.shards.is_first:
            (self.out / ROUNDS_FILE).write_text("".join(lines), encoding="utf-8")

    def _same(self, identity: dict[str, Any]) -> None:
        differing = sorted(k for k in self.identity if identity.get(k) != self.identity[k])
        if differing:
            raise CheckpointMismatch(
                f"{self.out} holds a run with another {' and '.join(differing)}; "
                "choose another run folder, or start over with resume=False"
            )

    def _checkpoint(self, state: RoundState, root: Path) -> None:
        agents, shared = snapshot.take(self.player, state.previous_AD, self.sampling)
        checkpoint.save(
            root,
            state.round,
            agents,
            shared,
            {
                "identity": self.identity,
                "round": state.round,
                "logics": state.logics,
                "rewards": state.rewards,
                "regret": state.regret.saved(),
                "drawing": self.drawing.bit_generator.state,
                "best": self.best,
                "seconds": self.seconds,
            },
            self.shards,
        )

    def _restore(self, found: checkpoint.Saved) -> torch.Tensor:
        saved = found.state
        self._same(saved["identity"])
        self.drawing.bit_generator.state = saved["drawing"]
        self.best, self.seconds = saved["best"], saved["seconds"]
        agents = [found.agent(number) for number in self.shards.local_agents]
        return snapshot.put(self.player, self.sampling, agents, found.shared(), saved["round"])

    def _validate(self, state: RoundState) -> dict[str, float | None]:
        """Scaled validation error of the aggregate and of the prior alone; keeps the best state so far."""
        every = self.config.run.validate_every
        if not every or (state.round % every and state.round != self.total):
            return {"val_mae_scaled": None, "val_prior_mae_scaled": None}
        totals: list[float] = []
        prior: list[float] = []
        for start in range(0, len(self.val_tasks), self.config.run.micro_windows):
            part = self.val_tasks[start : start + self.config.run.micro_windows]
            own_ABH, _, _ = self.executor.forecast(self.shards.local(state.logics), part)
            values = self.shards.all_gather(own_ABH, "forecasts")
            mean = aggregate(values, self.learner.selection.weights()).detach().cpu().numpy()
            totals += _errors(mean, part)
            prior += _errors(np.stack([t.base_H for t in part]), part)
        error = float(np.mean(totals))
        if error < self.best:
            self.best = error
            self._checkpoint(state, self.out / "best")
        return {"val_mae_scaled": error, "val_prior_mae_scaled": float(np.mean(prior))}

    def _append(self, record: dict[str, Any]) -> None:
        if not self.shards.is_first:
            return
        with (self.out / ROUNDS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")

    def _finish(self, state: RoundState) -> dict[str, Any]:
        """Goes back to the round that validated best and writes the sealed model."""
        logics, chosen = state.logics, state.round
        found = (
            checkpoint.newest_good(self.out / "best", self.shards)
            if self.config.run.validate_every
            else None
        )
        if found is not None:
            self._restore(found)
            logics, chosen = found.state["logics"], found.state["round"]
        backbone = self.learner.backbone
        facts = {
            "identity": self.identity,
            "versions": versions(),
            "seed": self.config.run.seed,
            "device": str(backbone.device),
            "processes": self.shards.processes,
            "knowledge_cutoff": backbone.knowledge_cutoff,
        }
        digest = write_model(self.out, self.learner, logics, self.prior, facts)
        if self.shards.is_first:
            self._summarise(digest, chosen)
        self.shards.barrier()
        return self._summary()

    def _summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.out / METRICS_FILE).read_text(encoding="utf-8"))
        return summary

    def _summarise(self, digest: str, chosen: int) -> None:
        records = [
            json.loads(line)
            for line in (self.out / ROUNDS_FILE).read_text(encoding="utf-8").splitlines()
        ]
        unread = sum(r["unread_answers"] for r in records)
        summary = {
            **self.identity,
            "artifact_hash": digest,
            "rounds": self.total,
            "chosen_round": chosen,
            "val_mae_scaled": self.best if np.isfinite(self.best) else None,
            "train_windows": len(self.train_windows),
            "train_windows_without_target": self.dropped,
            "seconds": records[-1]["train_seconds"],
            "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            "equal_groups": sum(r["equal_groups"] for r in records),
            "empty_logics": sum(r["empty_logics"] for r in records),
            "regret_exponent": growth([r["regret"] for r in records], self.config.run.seed),
            "parse_failure_rate": unread / max(1, sum(r["answers"] for r in records)),
        }
        (self.out / METRICS_FILE).write_text(
            json.dumps(summary, indent=1, sort_keys=True), encoding="utf-8"
        )


def _known_targets(windows: WindowSet) -> WindowSet:
    return WindowSet([w for w in windows if np.isfinite(w.y).any()], dataset=windows.dataset)


def _spaced(windows: WindowSet, count: int) -> WindowSet:
    """``count`` windows evenly spaced in time, all if ``count`` is 0."""
    if not count or count >= len(windows):
        return windows
    order = sorted(
        range(len(windows)), key=lambda i: (windows[i].view.origin_utc, windows[i].view.entity)
    )
    picks = np.linspace(0, len(order) - 1, count).round().astype(int)
    return WindowSet([windows[order[i]] for i in picks], dataset=windows.dataset)


def _errors(forecast_BH: np.ndarray, tasks: list[ForecastExample]) -> list[float]:
    return [
        float(np.nanmean(np.abs(f - t.truth_H))) for f, t in zip(forecast_BH, tasks, strict=True)
    ]
