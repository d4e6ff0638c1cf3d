"""A trained model as a forecaster: the public API for prediction.

What belongs here: loading a run, forecasting windows with what the forecast is made of (agents,
weights, news), and what changes in daily use with every known error: bias corrections, base models,
weights, forecast history. What does not: training; logics and adapters never change after it.

    forecaster = CompEvoForecaster.load("runs/mine", NewsPool.read("news"))
    demand_NH = forecaster.predict(windows.views())
    forecaster.observe(windows)  # in daily use, once their truth is known

Shapes: A agents, N windows, B windows of a micro-batch, H horizon.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.online_selection import Experience, PopulationWeights, mix_forecasts
from compevo_core.baselines import FitBaseline, add_news, fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, evenly_spaced
from compevo_core.data.context import LAST_YEAR
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.quantiles import (
    LEVELS,
    PastErrors,
    estimate_day_quantiles,
    estimate_quantiles,
)
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import (
    WindowView,
    count_minutes,
    find_horizon,
    keep_bounds,
    require_views,
)
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, LeakageError
from compevo_core.forecast.daily_state import (
    DailyState,
    DayForecasts,
    Pending,
    Replay,
    Snapshot,
    Snapshots,
    select_known,
)
from compevo_core.forecast.prediction import Prediction
from compevo_core.runtime.usage import OnStep, Steps
from compevo_core.training import ensemble
from compevo_core.training.prior import PriorSet, make_examples, name_members, name_method
from compevo_core.training.run_folder import RunFolder

if TYPE_CHECKING:
    from compevo_core.lora.backbone import Backbone

_STAND_INS = 8  # fitted series at most whose forecasts are averaged for a new one


class CompEvoForecaster:
    """Forecasts windows with the sealed model of a run; use :meth:`load`.

    Attributes:
        config: the configuration it was trained with.
        logics: (A,) text that each agent chooses and reads news by; none without agents.
        manifest: how the model was made, and the hash of each of its files.
        artifact_hash: sha256 over these hashes, as the trainer sealed it.
        knowledge_cutoff: stated end of the backbone's training data; scores before it may be
            memorised.
        trainable_parameters: how many numbers were trained in rounds.
        takes_new: whether it forecasts series that were not in train, as the mean of what fitted
            ones would forecast from its inputs, in their scale. Off unless set.
    """

    takes_new = False

    def __init__(
        self,
        model: ensemble.Ensemble,
        manifest: Mapping[str, Any] | None = None,
        news: NewsPool | None = None,
    ) -> None:
        """Take a fitted ensemble, which does not change, and its manifest if it was sealed.

        Its base models read ``news``, if given, instead of the news of their fit.
        """
        self.manifest = manifest or {}
        self.config = model.config
        self._model = model
        self.logics = model.logics
        self.artifact_hash = str(self.manifest.get("hash", ""))
        self.knowledge_cutoff = model.knowledge_cutoff
        self.trainable_parameters = model.trainable_parameters

        weighting = PopulationWeights(self.config, model.selection, model.calibration)
        weighting.observe(model.experience)
        self._state = DailyState(model.priors.copy(news), weighting, model.experience)

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        news: NewsPool | None = None,
        *,
        backbone: "Backbone | None" = None,
        fit: FitBaseline = fit_baseline,
    ) -> Self:
        """Load the sealed model of a run after checking every file of it.

        Args:
            run: the run folder.
            news: every article that a window to predict names as a candidate, with embeddings of
                the encoder that the run was trained with; members without agents read none.
            backbone: an already loaded frozen language model without adapters; loaded as the
                configuration says unless given.
            fit: refits base models if the settings say so; ``SharedFits`` keeps its fits.

        Raises:
            CheckpointMismatch: the model is unfinished or was altered.
            ConfigError: the news are no pool, or agents have none.
        """
        if not isinstance(news, NewsPool | None):
            raise ConfigError(f"news is a {type(news).__name__}: give NewsPool.read(folder)")
        run, folder = Path(run), RunFolder(run).model
        manifest = ensemble.read_model_manifest(run)  # first: an altered file must not be loaded
        config = ensemble.read_config(run)
        model = (
            _load_agents(config, run, news, backbone)
            if config.has_agents
            else ensemble.Ensemble.read(config, folder)
        )
        horizon, fit = model.experience.truth_NH.shape[1], add_news(fit, news)
        model.priors = PriorSet.load(config, folder, model.scaler, fit, horizon, news)
        return cls(model, manifest)

    def __repr__(self) -> str:
        members = f"{len(self.logics)} agents" if self.logics else ", ".join(self.members)
        parts = f" of {members}" if members != self.name else ""
        return f"CompEvoForecaster: {self.name}{parts}, artifact {self.artifact_hash[:16]}"

    def reweigh(self, config: RunConfig) -> None:
        """Weigh the trained agents by other settings of the selection, for experiments.

        Forecasts of the agents, fitness and gates stay as training left them. ConfigError if the
        weights follow errors that became known, not the trained fitness.
        """
        if config.selection.online or self.config.selection.online:
            raise ConfigError(
                "weights that change after training cannot be computed again from its fitness: "
                "name a run with selection.online = false"
            )
        self.config = config
        self._model.selection.config = config.selection

    def score_logics(
        self, logics: Sequence[str], candidates: Sequence[Sequence[str]], windows: WindowSet
    ) -> FloatArray:
        """Score logics as a rewriting does, on windows with a known truth that chose none of them.

        Returns the scaled reward (A, C) of each agent's candidates while all play ``logics`` (A,);
        ConfigError if the model has no agents.
        """
        if not isinstance(self._model, ensemble.AgentEnsemble):
            raise ConfigError(f"{self.name} has no agents, and so no logics to be scored")
        priors_NPH = self.priors.forecast(windows.views())
        examples = make_examples(windows, priors_NPH, self._model.scaler)
        return self._model.score_logics(logics, candidates, examples)

    @property
    def name(self) -> str:
        """Name of its method, or of its system of agents."""
        return name_method(self.config)

    @property
    def members(self) -> list[str]:
        """Name of each member (A,): its method, or the number of an agent."""
        return name_members(self.config)

    @property
    def priors(self) -> PriorSet:
        """The base models, with what they learnt of observed days."""
        return self._state.priors

    @property
    def experience(self) -> Experience:
        """What was forecast of validation and of observed days, with their truth."""
        return self._state.experience

    @property
    def past_errors(self) -> PastErrors:
        """Its errors on validation and on observed days, in the series' units."""
        errors = self._state.experience.errors(self._model.scaler)
        # Members without agents learn from validation after they have forecast it.
        is_learnt = self.config.run.refit and not self.config.has_agents
        return dataclasses.replace(errors, is_learnt=is_learnt)

    @property
    def blend(self) -> float | None:
        """Mean share of the agents' corrections that calibration kept; None without agents."""
        return float(self._model.calibration.blend_AH.mean()) if self.logics else None

    @property
    def is_daily(self) -> bool:
        """Whether its forecasts learn from every truth that becomes known."""
        return self.config.selection.online or self.config.forecast.refit_days > 0

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecast windows.

        Args:
            views: N windows of the data set that the run was trained on, as ``windows.views()``.

        Returns:
            the population's forecast (N, H) in the views' unit; column h is the mean over the
            interval that starts h steps after ``origin_utc``.

        Raises:
            DataError: a view's entity was not in the train split, or an article is missing.
            LeakageError: a window begins before the end of one that was observed.
        """
        return self._predict(views).aggregate

    def predict_by_agent(self, views: Sequence[WindowView]) -> Prediction:
        """Forecast windows with parts: each agent's forecast, weights, and chosen news.

        The forecast of a window does not depend on the other windows of a call.
        """
        prediction = self._predict(views)
        quantiles_NQH = estimate_quantiles(self.past_errors, views, prediction.aggregate)
        return dataclasses.replace(prediction, quantiles=quantiles_NQH)

    def _predict(self, views: Sequence[WindowView]) -> Prediction:
        require_views(views)
        self._raise_if_observed(views)
        scaler = self._model.scaler
        new = [i for i, v in enumerate(views) if self.takes_new and v.entity not in scaler.mean]
        known = [i for i in range(len(views)) if i not in new]
        fitted = [views[i] for i in known]
        if not new:
            return self._describe(fitted, self._forecast(fitted), scaler)

        parts = [(known, self._describe(fitted, self._forecast(fitted), scaler))] if known else []
        for i in new:
            own, stand_ins = _stand_in(views[i], scaler)
            forecasts = self._forecast(stand_ins).average()
            parts.append(([i], self._describe([views[i]], forecasts, own)))
        return Prediction.join(parts)

    def follow(self, windows: WindowSet, on_day: Callable[[int], None] | None = None) -> Prediction:
        """Forecast windows in the order of time, each after the truth of earlier ones was observed.

        A rolling backtest of daily use; this object does not change. After each day,
        ``on_day`` is called with the number of windows forecast so far.
        """
        views = windows.views()
        self._raise_if_observed(views)
        parts: list[tuple[list[int], Prediction]] = []

        # Days go by on a copy: the next call starts from the same past.
        before, self._state = self._state, self._state.copy()
        try:
            for today, forecasts in self._forecast_days(windows):
                described = self._describe([views[i] for i in today], forecasts, self._model.scaler)
                parts.append((today, described))
                if on_day is not None:
                    on_day(sum(len(rows) for rows, _ in parts))
            # One pass over all days gives each view what it would have got on its day.
            joined = Prediction.join(parts)
            quantiles_NQH = estimate_quantiles(self.past_errors, views, joined.aggregate)
            return dataclasses.replace(joined, quantiles=quantiles_NQH)
        finally:
            self._state = before

    def select_unobserved(self, windows: WindowSet, until: datetime) -> WindowSet:
        """Return the windows whose errors are known by an instant, and were not observed yet."""
        return select_known(windows, self._state.minute, until)

    def observe(self, windows: WindowSet) -> int:
        """Take note of windows whose truth is known: later forecasts start from their errors.

        For daily use; experiments forecast as at the end of validation. Weights, bias corrections
        and base models of this object are updated as the settings say; the run folder stays as it
        is. Windows of several days are observed in order, each forecast as it would have been.

        Args:
            windows: their target is in the past; steps that are not known yet are NaN.

        Returns:
            the number of windows that were observed; those without any known step are left out.

        Raises:
            DataError: a window begins before or with the last one that was seen, in validation or
                by an earlier call.
        """
        known = [window for window in windows if np.isfinite(window.y).any()]
        if not known:
            return 0

        minutes = count_minutes([window.view for window in known])
        if min(minutes) <= self._state.minute:
            raise DataError(
                f"{known[int(np.argmin(minutes))].view.window_id} is not later than the last "
                "window that was seen; give each window once, and all series of a day together"
            )
        for _ in self._forecast_days(WindowSet(known, dataset=windows.dataset)):
            pass  # only the final state is needed
        return len(known)

    def catch_up(
        self,
        windows: WindowSet,
        until: datetime,
        snapshots: Snapshots,
        found: Snapshot | None,
        on_step: OnStep = lambda _: None,
    ) -> tuple[int, int]:
        """Observe the windows whose errors are known by an instant, and keep the state reached.

        ``windows`` are all since training, ``snapshots`` the states of earlier nights, and
        ``found`` is what they found, None to start from the sealed model; ``on_step`` gets a line
        before each origin, with the time left. Returns the numbers of windows that are known, and
        of those that were forecast for it now.
        """
        after, sealed = self._state.minute, len(self.experience)
        if found is not None:
            replay, first = found.replay, found.step
            pending = snapshots.load(found, self._state)
        else:
            replay = Replay.of(select_known(windows, after, until), self.artifact_hash)
            first, pending = 0, {}

        last = len(replay.steps) - 1
        steps = Steps([len(today) for _, today in replay.steps[first:last]], on_step)
        for step in range(first, last):
            steps.begin("origins since training are learnt from")
            self._play(replay, step, pending)
        if first < last:
            snapshots.save(
                self._state, pending, replay, last, after_minute=after, sealed=sealed, before=found
            )
        self._play(replay, last, pending)
        return len(replay.windows), len(replay.list_forecast(first))

    def _forecast_days(self, windows: WindowSet) -> Iterator[tuple[list[int], "_Forecasts"]]:
        """Forecast windows as their days went by, and observe the truth of those that ended."""
        replay = Replay.of(windows)
        pending: Pending = {}
        for step, (_, today) in enumerate(replay.steps):
            forecasts = self._play(replay, step, pending)
            if forecasts is not None:
                yield today, forecasts

    def _play(self, replay: Replay, step: int, pending: Pending) -> "_Forecasts | None":
        """Observe the windows that ended by a step and forecast the windows of that step."""
        ended, today = replay.steps[step]
        if ended:
            windows = [replay.windows[i] for i in ended]
            # The truth is compared with what was forecast then, not with what would be now.
            rows = [pending.pop(window.view.window_id) for window in windows]
            truth = [self._model.scaler.scale(w.y, w.view.entity) for w in windows]
            agents, mixtures = (np.stack(part) for part in zip(*rows, strict=True))
            self._state.observe(windows, agents, mixtures, np.stack(truth))
        if not today:
            return None

        views = [replay.windows[i].view for i in today]
        forecasts = self._forecast(views)
        parts = zip(forecasts.agents_NAH, forecasts.mixture_NH, strict=True)
        pending |= {
            view.window_id: DayForecasts(*part) for view, part in zip(views, parts, strict=True)
        }
        return forecasts

    def _forecast(self, views: Sequence[WindowView]) -> "_Forecasts":
        """Forecast views from the present state; nothing is kept."""
        state = self._state
        examples = [
            ForecastExample(view, self._model.scaler.scale(priors_PH, view.entity))
            for view, priors_PH in zip(views, state.priors.forecast(views), strict=True)
        ]

        # Corrected in the precision of what forecasts, and exact from here on.
        found = self._model.forecast(examples)
        base_ANH = self._model.base_forecasts(examples)
        blended_ANH = self._model.calibration.blend(found.values_ABH, base_ANH)

        # Each member keeps the bounds, and so does every mixture of them.
        blended_NAH = blended_ANH.astype(np.float64).swapaxes(0, 1)
        agents_NAH = self._model.scaler.keep_bounds(views, blended_NAH)
        # Each view gets the weights of what was known at its own instant.
        own_NA = None if found.weights_BA is None else found.weights_BA.astype(np.float64)
        weights_NAH = state.weighting.weights(views, own_NA)
        return _Forecasts(
            base_NAH=base_ANH.swapaxes(0, 1),
            blended_NAH=blended_NAH,
            agents_NAH=agents_NAH,
            weights_NAH=weights_NAH,
            mixture_NH=mix_forecasts(agents_NAH, weights_NAH),
            news=found.news,
            n_unparsed=found.n_unparsed,
        )

    def _describe(
        self, views: Sequence[WindowView], forecasts: "_Forecasts", scaler: Scaler
    ) -> Prediction:
        """Return forecasts in the views' units with their parts, without quantiles."""
        agents_ANH = _unscale(forecasts.agents_NAH, views, scaler)
        bases_ANH = _unscale(forecasts.base_NAH, views, scaler)
        # Scaling back may have moved a bound by the last bit.
        mixture_NH = _unscale(forecasts.mixture_NH[:, None], views, scaler)[0]
        aggregate_NH = keep_bounds(views, mixture_NH)

        # The base model that validated best represents the population without its agents.
        best = int(self._model.calibration.best_prior)
        return Prediction(
            aggregate=aggregate_NH,
            agents=agents_ANH,
            step_weights=forecasts.weights_NAH,
            quantiles=np.full((len(views), len(LEVELS), find_horizon(views)), np.nan),
            chosen_news=[list(by_window) for by_window in forecasts.news],
            bases=bases_ANH,
            levels=agents_ANH - _unscale(forecasts.blended_NAH, views, scaler),
            prior=bases_ANH[best] if self._state.priors.fitted else None,
            n_unparsed=forecasts.n_unparsed,
        )

    def estimate_day(
        self, views: Sequence[WindowView], forecast_NH: FloatArray, past: PastErrors | None = None
    ) -> dict[str, FloatArray]:
        """Return quantiles (N, Q) of the mean and of the peak of forecasts (N, H) of views.

        From its own past errors unless others are given.
        """
        past = self.past_errors if past is None else past
        quantiles = estimate_day_quantiles(past, views, forecast_NH)
        return {name: keep_bounds(views, values_NQ) for name, values_NQ in quantiles.items()}

    def _raise_if_observed(self, views: Sequence[WindowView]) -> None:
        """Raise LeakageError if windows begin before the end of the observed truth."""
        # Weights and levels moved by a truth must not forecast a time before it.
        known_until = self._state.known_until
        early = [view for view in views if known_until and view.information_until < known_until]
        if early:
            raise LeakageError(
                f"the cutoff of {early[0].window_id} is before {known_until}, up to which "
                "errors were observed; load the model again to forecast the past"
            )


@dataclasses.dataclass(frozen=True)
class _Forecasts:
    """Scaled forecasts of N views: bases, blended, within bounds, and what they are made of."""

    base_NAH: FloatArray
    blended_NAH: FloatArray
    agents_NAH: FloatArray
    weights_NAH: FloatArray
    mixture_NH: FloatArray
    news: Sequence[Sequence[tuple[str, ...]]]  # ids, by agent and view
    n_unparsed: int

    def average(self) -> Self:
        """Return the mean over all views as the forecast of one; parts add up as before."""
        weights_NAH = self.weights_NAH + np.finfo(np.float64).tiny  # none has a sum of zero
        weights_NAH /= weights_NAH.sum(axis=0)
        return dataclasses.replace(
            self,
            base_NAH=self.base_NAH.mean(axis=0, keepdims=True),
            blended_NAH=(weights_NAH * self.blended_NAH).sum(axis=0, keepdims=True),
            agents_NAH=(weights_NAH * self.agents_NAH).sum(axis=0, keepdims=True),
            weights_NAH=self.weights_NAH.mean(axis=0, keepdims=True),
            mixture_NH=self.mixture_NH.mean(axis=0, keepdims=True),
            news=[by_window[:1] for by_window in self.news],
        )


def _stand_in(view: WindowView, scaler: Scaler) -> tuple[Scaler, list[WindowView]]:
    """Return a scaler that knows a new series, and its view in the scale of fitted ones."""
    mean, spread = float(view.x.mean()), float(view.x.std()) or 1.0
    names = sorted(scaler.mean)
    views = []
    for name in (names[i] for i in evenly_spaced(len(names), _STAND_INS)):
        factor = scaler.std[name] / spread
        shift = scaler.mean[name] - factor * mean
        # What else is in the unit of the series.
        by_step = {
            key: factor * values_H + shift if key.startswith(LAST_YEAR) else values_H
            for key, values_H in view.step_covariates.items()
        }
        low, high = (None if bound is None else factor * bound + shift for bound in view.bounds)
        x, past = factor * view.x + shift, factor * view.past + shift
        moved = dataclasses.replace(view, entity=name, x=x, past=past, bounds=(low, high))
        views.append(dataclasses.replace(moved, step_covariates=by_step))
    return Scaler(mean={view.entity: mean}, std={view.entity: spread}), views


def _unscale(scaled_NAH: FloatArray, views: Sequence[WindowView], scaler: Scaler) -> FloatArray:
    """Return forecasts (A, N, H) in the views' unit; each entity has a scale of its own."""
    pairs = zip(views, scaled_NAH, strict=True)
    return np.stack([scaler.unscale(z_AH, view.entity) for view, z_AH in pairs], axis=1)


def _load_agents(
    config: RunConfig, run: Path, news: NewsPool | None, backbone: "Backbone | None"
) -> ensemble.AgentEnsemble:
    from compevo_core.agents.retrieval import build_retriever
    from compevo_core.training.loop import ReadingModel
    from compevo_core.training.model import PopulationModel

    if news is None:
        raise ConfigError("agents read news, and there are none: give NewsPool.read(folder)")
    inputs, retriever = ensemble.read_inputs(run), build_retriever(news, config.news)
    model: ReadingModel | PopulationModel
    if config.forecast.decoder == "linear":
        model = ReadingModel(config, inputs)
    else:
        from compevo_core.lm.backbone import load_backbone

        model = PopulationModel(config, backbone or load_backbone(config.backbone), inputs)
    model.executor = model.build_executor(retriever)
    model.restore(RunFolder(run).model)
    return model
