"""A whole run: training, choice of a round, calibration, second training, sealed model, summary.

Under torchrun every process calls :func:`train` inside ``distributed.process_group``: they share
the agents, or the layers of a backbone that one device cannot hold; the first one writes what
belongs to all. Members without agents have no rounds (``forecast.decoder = "none"``) and are fitted
when the data are prepared; then nothing is imported for rounds.
"""

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compevo_core.agents.logics import name_own_topics
from compevo_core.baselines import FitBaseline, add_news, fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.usage import peak_memory_gigabytes
from compevo_core.training.calibration import CalibrationReport, calibrate
from compevo_core.training.diagnostics import summarize_regret_growth
from compevo_core.training.ensemble import Ensemble, read_model_manifest, write_model
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import RunSchedule, list_cautions
from compevo_core.training.training_data import (
    OnRound,
    Outcome,
    RunSetup,
    TrainingData,
    check_inputs,
    drop_without_target,
    identify_run,
    join_for_refit,
)

if TYPE_CHECKING:
    from compevo_core.lm.model_sources import Transport
    from compevo_core.lora.backbone import Backbone

log = logging.getLogger(__name__)


def train(
    config: RunConfig,
    train_windows: WindowSet,
    val_windows: WindowSet,
    news: NewsPool | None,
    out: str | os.PathLike[str],
    *,
    resume: bool = True,
    on_round: OnRound | None = None,
    backbone: "Backbone | None" = None,
    fit: FitBaseline = fit_baseline,
    stages: Path | None = None,
    shard_backbone: bool = False,
    selector: "Transport | None" = None,
    clock: Callable[[], float] = time.monotonic,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a model, write its run folder and return the summary that ``metrics.json`` holds.

    Args:
        config: the run's settings.
        train_windows: windows of split "train"; only on these are scales, base models and
            population fitted.
        val_windows: windows of split "val"; they choose among rounds and calibrate the choice, and
            with ``run.refit`` the choice is then trained on them as well.
        news: every article that a window names, with embeddings of ``config.news.encoder``; None
            where nothing reads them.
        out: the run folder; with ``resume`` an unfinished run of the same identity is continued,
            and the summary of a finished one is returned at once.
        resume: False starts over: what was trained in ``out`` before is removed.
        on_round: called with the record of each round, only on the first process; with
            ``run.refit`` also in the second training, which counts from the first round again.
        backbone: a frozen model without adapters; loaded as the configuration says unless given.
        fit: fits the base models; ``SharedFits`` fits each once for several runs.
        stages: folder in which runs keep supervised stages, and find those that equal theirs.
        shard_backbone: whether processes split the backbone, which changes only memory, instead of
            the agents.
        selector: sends chat completions to the endpoint that ``evolution.selector`` names.
        clock: seconds, for durations.
        facts: other entries of the manifest and the summary, ready for JSON.

    Raises:
        LeakageError: a window of another split was given.
        DataError: a split that is needed is empty.
        CheckpointMismatch: ``out`` holds a run of other settings or data.
        ConfigError: news of another encoder, or too many or too few processes.
        StoreBusy: another training writes ``out``.
    """
    check_inputs(config, train_windows, val_windows, news)
    news = news if config.encoder else None
    config = name_own_topics(config, train_windows, news)
    if shard_backbone:
        from compevo_core.lm.backbone import require_processes

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

        play: PlayRounds = combine_members
        if config.has_agents:
            schedule = RunSchedule.plan(config, len(drop_without_target(train_windows)))
            if shards.is_first:
                for caution in list_cautions(config, schedule):
                    log.warning(caution)
            assert news is not None  # noqa: S101 - checked with the other inputs
            setup = RunSetup(
                folder=folder,
                news=news,
                identity=identity,
                shards=shards,
                start=start,
                schedule=schedule,
                resume=resume,
                on_round=on_round,
                backbone=backbone,
                stages=stages,
                selector=selector,
                clock=clock,
            )
            play = partial(_play_rounds, setup)

        fitted = fit_ensemble(config, train_windows, val_windows, add_news(fit, news), play)
        if shards.is_first and not config.has_agents:
            folder.remove_training()
            folder.truncate_rounds(0)
        shards.barrier()

        run = {"identity": identity, "start": start, "refit": config.run.refit}
        return _seal(folder, fitted, run, shards, facts or {})


@dataclasses.dataclass(frozen=True)
class EnsembleFit:
    """A fitted ensemble, and how it was fitted."""

    model: Ensemble
    data: TrainingData  # of the last training
    chosen: Outcome
    report: CalibrationReport | None  # None without validation windows


PlayRounds = Callable[[TrainingData, int | None], tuple[Ensemble, Outcome]]
"""Trains agents on data, for a number of rounds if given; returns the agents and how they ended."""


def combine_members(data: TrainingData, rounds: int | None = None) -> tuple[Ensemble, Outcome]:
    """Return members without agents, which have no rounds: they were fitted with the data."""
    return Ensemble(data.config, data.scaler, data.train_windows.horizon), Outcome()


def fit_ensemble(
    config: RunConfig,
    train_windows: WindowSet,
    val_windows: WindowSet,
    fit: FitBaseline = fit_baseline,
    play: PlayRounds = combine_members,
) -> EnsembleFit:
    """Fit an ensemble on train and what combines it on validation; with ``run.refit`` on both."""
    data = TrainingData.prepare(config, train_windows, val_windows, fit)
    model, chosen = play(data, None)
    # Fits use all windows. For the fallback, the windows that judged the rounds are enough: an
    # answer as text takes minutes.
    is_fitted = config.calibration.blend or config.selection.online or not model.logics
    examples = data.calibration_examples if is_fitted else data.val_examples
    report = calibrate(model, examples) if examples else None
    # With the fallback a sealed model is never worse on validation than its base model.
    assert (  # noqa: S101 - by construction
        report is None or not config.has_agents or report.calibrated_mae <= report.prior_mae
    )

    if config.run.refit:
        joined = join_for_refit(train_windows, val_windows)
        scaler, calibration, history = model.scaler, model.calibration, model.experience
        del model  # its backbone has adapters: freed before the next is loaded
        data = TrainingData.prepare(config, joined, joined[:0], fit)
        # With every choice of the first training, for as many rounds at the same rates.
        model, _ = play(data, chosen.round)
        if report is not None:
            # The refitted model has seen validation, so its experience stays the earlier one.
            # Forecasts of agents keep the scale of the first training, which differs little.
            model.experience = history if model.logics else history.rescale(scaler, model.scaler)
            model.calibration = calibration

    model.priors = data.priors
    return EnsembleFit(model, data, chosen, report)


def _play_rounds(
    setup: RunSetup, data: TrainingData, rounds: int | None
) -> tuple[Ensemble, Outcome]:
    """Return agents after their rounds, and how these ended."""
    if rounds is not None:  # the second training shares nothing with the first
        folder = RunFolder(setup.folder.refit)
        setup = dataclasses.replace(setup, folder=folder, resume=True, backbone=None, stages=None)

    # torch takes seconds to import: only where there are rounds to play.
    from compevo_core.training.loop import PopulationLoop, SearchLoop

    is_search = data.config.forecast.decoder == "linear"
    loop = (SearchLoop if is_search else PopulationLoop)(setup, data, rounds)
    outcome = loop.train()
    return loop.model, outcome


def _seal(
    folder: RunFolder,
    fitted: EnsembleFit,
    run: Mapping[str, Any],
    shards: AgentShards,
    other: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the model, then the summary of the rounds and of the choices after them."""
    # After a kill between model and summary, an earlier summary must not pass for this model's.
    if shards.is_first:
        folder.metrics_file.unlink(missing_ok=True)

    model, data, report, chosen = fitted.model, fitted.data, fitted.report, fitted.chosen
    facts = {**other, **run, "chosen_round": chosen.round if model.logics else None}
    artifact_hash = write_model(folder, model, facts, shards)

    if shards.is_first:
        sealed = {
            "chosen_round": chosen.round,
            "val_mae_scaled": chosen.best_error if math.isfinite(chosen.best_error) else None,
            "calibration": None if report is None else dataclasses.asdict(report),
            "val_prior_mae_scaled": report.prior_mae if report else None,
            "val_raw_mae_scaled": report.raw_mae if report else None,
            "val_sealed_mae_scaled": report.calibrated_mae if report else None,
            **run["identity"],
            "refit": run["refit"],
            "artifact_hash": artifact_hash,
            "train_windows": len(data.train_windows),
            "train_windows_without_target": data.n_dropped,
        }
        seed = model.config.run.seed
        rounds = summarize_rounds(folder.read_rounds(), seed) if model.logics else {}
        folder.write_metrics({**other, **rounds, **sealed})
    shards.barrier()  # the others read what the first one writes
    return folder.read_metrics()


def summarize_rounds(records: Sequence[RoundRecord], seed: int) -> dict[str, Any]:
    """Return the summary of the rounds for ``metrics.json``."""
    unread_answers = sum(record.unread_answers for record in records)
    answers = sum(record.answers for record in records)

    # In rounds without rewriting regret is constant, which would bend the curve.
    regrets = [record.regret for record in records if record.evolved]
    return {
        "rounds": records[-1].rounds if records else 0,
        "supervised_rounds": sum(record.stage == "supervised" for record in records),
        "rewriting_rounds": sum(record.evolved for record in records),
        "seconds": records[-1].train_seconds if records else 0.0,
        "peak_memory_gb": peak_memory_gigabytes(),
        "equal_groups": sum(record.equal_groups for record in records),
        "empty_logics": sum(record.empty_logics for record in records),
        "cut_prompts": sum(record.cut_prompts for record in records),
        "regret_exponent": summarize_regret_growth(regrets, seed),
        "parse_failure_rate": unread_answers / max(1, answers),
    }
