"""What combines forecasts after training: shares and weights, from every known error.

What belongs here: past forecasts with their truth, the sealed calibration (decision
08-calibration), the rules of weights that keep learning, and which errors change which weights
(decision 16-daily-use). What does not: fitting the calibration (``training.calibration``), errors
that base models know (``baselines.known_errors``), the weights that training learns
(``agents.selection``), when a truth becomes known (``data.view``).

The first past forecasts belong to the validation windows of training, each made when only earlier
days were known; every observed day adds some. Weights and quantiles (``data.quantiles``) follow.

There are weights for each series, each time of issue (midnight or another hour) and each part of
the day. ``boa`` uses the slope of the mixture's absolute error instead of the experts' losses, so
that its regret bound holds against every fixed mixture. The paper's rule continues the fitness from
the end of training (Eq. 3 to 5).

Shapes: A experts (agents), B or N windows, P parts of a day, H horizon, h steps of a part.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from compevo_core.agents.decoders import EqualFitness
from compevo_core.baselines.known_errors import NOT_STARTED
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, IntArray, split_evenly, to_array
from compevo_core.data.quantiles import PastErrors, find_scale, measure_spread
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, WindowView, count_minutes, find_horizon

if TYPE_CHECKING:
    from compevo_core.agents.selection import FitnessSelection


@dataclasses.dataclass(frozen=True)
class Experience:
    """Forecasts of N windows and their truth, scaled by the train split; instants in minutes."""

    entities: tuple[str, ...]
    entity_N: IntArray
    origin_N: IntArray
    until_N: IntArray  # latest instant that its view knew of
    end_N: IntArray  # end of the target
    unknown_N: IntArray  # steps before the origin not yet measured when it was forecast
    agents_NAH: FloatArray  # calibrated
    mixture_NH: FloatArray  # the population's forecast
    truth_NH: FloatArray  # NaN where missing
    scale_NH: FloatArray  # expected size of the errors as the publisher states it, or NaN
    spread_N: FloatArray  # standard deviation of the view's inputs, in the series' unit

    @classmethod
    def start(cls, entities: Sequence[str], agents: int, horizon: int) -> Self:
        """Return no experience."""
        nothing_NH = np.empty((0, horizon))
        nothing = cls.of(entities, [], np.empty((0, agents, horizon)), nothing_NH, nothing_NH)
        return dataclasses.replace(nothing, scale_NH=nothing_NH)

    @classmethod
    def of(
        cls,
        entities: Sequence[str],
        views: Sequence[WindowView],
        agents_NAH: FloatArray,
        mixture_NH: FloatArray,
        truth_NH: FloatArray,
    ) -> Self:
        """Return the experience of some windows of a run's series, in the order given."""
        number = {entity: i for i, entity in enumerate(entities)}
        return cls(
            tuple(entities),
            entity_N=np.array([number[view.entity] for view in views], dtype=np.int64),
            origin_N=count_minutes(views),
            until_N=count_minutes(views, "information_until"),
            end_N=count_minutes(views, "end_utc"),
            unknown_N=np.array([view.unknown_steps for view in views], dtype=np.int64),
            agents_NAH=agents_NAH,
            mixture_NH=mixture_NH,
            truth_NH=truth_NH,
            scale_NH=find_scale(views),
            spread_N=measure_spread(views),
        )

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.entity_N)

    @property
    def minute(self) -> int:
        """Origin of the last window, in minutes since 1970."""
        return int(self.origin_N.max()) if len(self) else NOT_STARTED

    def join(self, *later: Self) -> Self:
        """Return this experience followed by later ones of the same series."""
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in [self, *later]])
            for name in _ARRAYS
        }
        return dataclasses.replace(self, **joined)

    def select_from(self, first: int) -> Self:
        """Return the windows from a position on."""
        rows: dict[str, Any] = {name: getattr(self, name)[first:] for name in _ARRAYS}
        return dataclasses.replace(self, **rows)

    def rescale(self, before: Scaler, after: Scaler) -> Self:
        """Return the experience in another scale; the forecasts stay what they were."""
        entities = [self.entities[i] for i in self.entity_N]
        shift = np.array([(before.mean[e] - after.mean[e]) / after.std[e] for e in entities])
        factor = np.array([before.std[e] / after.std[e] for e in entities])
        shift_N1, factor_N1 = shift.reshape(-1, 1), factor.reshape(-1, 1)
        return dataclasses.replace(
            self,
            agents_NAH=self.agents_NAH * factor_N1[..., None] + shift_N1[..., None],
            mixture_NH=self.mixture_NH * factor_N1 + shift_N1,
            truth_NH=self.truth_NH * factor_N1 + shift_N1,
        )

    def errors(self, scaler: Scaler) -> PastErrors:
        """Return the population's errors in the series' units, from which quantiles follow."""
        names = [self.entities[i] for i in self.entity_N]
        std_N1 = np.array([scaler.std[name] for name in names]).reshape(-1, 1)
        mean_N1 = np.array([scaler.mean[name] for name in names]).reshape(-1, 1)
        return PastErrors(
            entities=tuple(names),
            until_N=self.until_N,
            end_N=self.end_N,
            unknown_N=self.unknown_N,
            error_NH=(self.truth_NH - self.mixture_NH) * std_N1,
            forecast_NH=self.mixture_NH * std_N1 + mean_N1,
            scale_NH=self.scale_NH,
            spread_N=self.spread_N,
        )

    def save(self, file: Path) -> None:
        """Write the arrays; the run itself stores the names of the series."""
        save_file({name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}, file)

    @classmethod
    def load(cls, entities: Sequence[str], file: Path) -> Self:
        """Read what :meth:`save` wrote."""
        return cls(tuple(entities), **load_file(file))


_ARRAYS = [field.name for field in dataclasses.fields(Experience) if field.name != "entities"]


class ErrorCalibration:
    """The calibration of an ensemble; changes no forecast until it is fitted.

    ``blend_AH`` is the share of its correction that each agent keeps, in [0, 1]. ``override_A`` are
    weights that replace the selected ones (zero if unused), ``best_prior`` is the agent whose base
    validated best; all agents share these two.
    """

    def __init__(self, agents: int, entities: Sequence[str], horizon: int = DEFAULT_STEPS) -> None:
        self.entities = tuple(entities)
        # In single precision, like the model.
        self.blend_AH = np.ones((agents, horizon), dtype=np.float32)
        self.override_A = np.zeros(agents, dtype=np.float32)
        self.best_prior = np.array(0)

    def shared_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that all agents share, by name."""
        return {"best_prior": self.best_prior, "override_A": self.override_A}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name; writing into them changes the calibration."""
        return {"blend_AH": self.blend_AH, **self.shared_state()}

    def blend(self, values_ABH: FloatArray, base_ABH: FloatArray) -> FloatArray:
        """Return each agent's base with its shrunk correction."""
        blend_A1H = self.blend_AH[:, None]
        blended = base_ABH + blend_A1H * (values_ABH - base_ABH)
        # A full correction is the agent's own forecast to the last bit, none is its base.
        return np.where(blend_A1H == 1.0, values_ABH, blended)

    def weigh(self, weights_BA: FloatArray) -> FloatArray:
        """Return the weights (B, A) of all agents, from selection or fallback."""
        if not self.override_A.any():
            return weights_BA
        return np.broadcast_to(self.override_A.astype(weights_BA.dtype), weights_BA.shape)


class EqualState:
    """The first weights, equal unless members state their own; errors never change them."""

    def __init__(self, first: Sequence[float]) -> None:
        self._first_A = np.array(first)

    def weights(self) -> FloatArray:
        """Return the weights (A,), which sum to 1."""
        return self._first_A

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Learn nothing from forecasts of experts and mixture for h known steps."""


class BoaState:
    """Bernstein online aggregation, a learning rate for each expert (Wintenberger 2017).

    An expert of first weight 0.4 counts as four of ten that forecast alike.
    """

    def __init__(self, first: Sequence[float]) -> None:
        self._first_A = np.array(first)
        self._range = 0.0  # largest excess loss so far, which sets the unit of the errors
        self._squares_A = np.zeros(len(first))
        self._gain_A = np.zeros(len(first))  # sum of r - rate * r^2, each with the rate of its time

    def weights(self) -> FloatArray:
        """Return weights proportional to first weight * rate * exp(rate * gain)."""
        rate_A = self._rates()
        with np.errstate(divide="ignore"):  # a first weight of zero stays zero
            score_A = rate_A * self._gain_A + np.log(rate_A * self._first_A)
        weight_A = np.exp(score_A - score_A.max())
        return np.asarray(weight_A / weight_A.sum())

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Add the excess losses of the mixture over each expert."""
        excess_A = find_excess(experts_Ah, mixture_h, truth_h)
        self._range = max(self._range, float(np.abs(excess_A).max()))
        self._gain_A = self._gain_A + excess_A - self._rates() * excess_A**2
        self._squares_A = self._squares_A + excess_A**2

    def _rates(self) -> FloatArray:
        if self._range == 0.0:
            return np.ones_like(self._gain_A)
        log_experts = math.log(max(2.0, count_alike(self._first_A)))
        second_order_A = np.sqrt(log_experts / (self._range**2 + self._squares_A))
        return np.minimum(1.0 / (2.0 * self._range), second_order_A)


def find_excess(experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> FloatArray:
    """Return the excess loss of a mixture over each expert (A,), linearised at the mixture.

    The slope of the absolute error is sign(mixture - truth), by which an expert on the other side
    of the truth gains.
    """
    slope_h = np.sign(mixture_h - truth_h)
    return np.asarray((slope_h * (mixture_h - experts_Ah)).mean(axis=1))


def count_alike(first: Sequence[float] | FloatArray) -> float:
    """Return the number of equal experts that experts with these first weights count as."""
    return float(1.0 / min(weight for weight in first if weight > 0))


class PaperState:
    """Fitness of A agents; the gates are not trained."""

    def __init__(
        self, trained: "FitnessSelection | EqualFitness", entity: str, config: RunConfig
    ) -> None:
        self._fitness_1A = to_array(trained.fitness([entity]))[:1].astype(np.float64)
        self._gates_A = to_array(trained.gates_A).astype(np.float64)
        self._config = config.selection

    def weights(self) -> FloatArray:
        """Return softmax(g * M / tau) (Eq. 5)."""
        # The arithmetic of the rounds; its import takes seconds, and no other rule needs it.
        import torch

        from compevo_core.agents.selection import weigh_fitness

        tensors = torch.from_numpy(self._fitness_1A), torch.from_numpy(self._gates_A)
        return np.asarray(weigh_fitness(*tensors, self._config)[0].numpy())

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Set M <- beta M + (1 - beta) R (Eq. 4) with the rewards of a day."""
        import torch

        from compevo_core.agents.selection import reward

        forecasts_A1h, truth_1h = torch.from_numpy(experts_Ah)[:, None], torch.from_numpy(truth_h)
        reward_A = reward(forecasts_A1h, truth_1h[None]).numpy()
        beta = self._config.ema
        self._fitness_1A = beta * self._fitness_1A + (1.0 - beta) * reward_A


RuleState = EqualState | BoaState | PaperState
"""What a rule knows of A experts: their weights (A,), which sum to 1, and past errors."""

_Scope = tuple[str, int, int]  # series, unknown steps, part of the day


@dataclasses.dataclass(eq=False)
class PopulationWeights:
    """Weighs the agents by the guard, by errors known since training, or as training did."""

    config: RunConfig
    trained: "FitnessSelection | EqualFitness"
    calibration: ErrorCalibration
    _states: dict[_Scope, RuleState] = dataclasses.field(default_factory=dict, init=False)

    def weights(self, views: Sequence[WindowView], own_NA: FloatArray | None = None) -> FloatArray:
        """Return the weights (N, A, H) of each agent at each step, with a sum of 1.

        Weights that come with the forecasts replace the weights from training.
        """
        if self.config.selection.online and not self.calibration.override_A.any():
            spans = split_evenly(find_horizon(views), self.config.selection.parts)
            lengths = [span.stop - span.start for span in spans]
            scopes = ((view.entity, view.unknown_steps) for view in views)
            by_part = [[self._state(*of, p).weights() for p in range(len(spans))] for of in scopes]
            return np.repeat(np.stack(by_part).swapaxes(1, 2), lengths, axis=2)

        if own_NA is None:
            own_NA = to_array(self.trained.weights([view.entity for view in views]))
        weights_NA = self.calibration.weigh(own_NA).astype(np.float64)
        return np.repeat(weights_NA[:, :, None], find_horizon(views), axis=2)

    def observe(self, experience: Experience) -> None:
        """Learn from forecasts whose truth is known now, in the order of time; NaN adds nothing."""
        if not self.config.selection.online:
            return

        spans = split_evenly(experience.truth_NH.shape[1], self.config.selection.parts)
        forecasts = experience.agents_NAH, experience.mixture_NH, experience.truth_NH
        for n, (agents_AH, mixture_H, truth_H) in enumerate(zip(*forecasts, strict=True)):
            scope = experience.entities[experience.entity_N[n]], int(experience.unknown_N[n])
            for part, span in enumerate(spans):
                measured = span.start + np.flatnonzero(np.isfinite(truth_H[span]))
                if measured.size:
                    state = self._state(*scope, part)
                    state.observe(agents_AH[:, measured], mixture_H[measured], truth_H[measured])

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return all numbers that the rules remember, by scope and name."""
        return {
            "/".join((entity, str(unknown), str(part), name)): np.asarray(value)
            for (entity, unknown, part), state in self._states.items()
            for name, value in vars(state).items()
            if isinstance(value, float | np.ndarray)
        }

    def set_arrays(self, arrays: Mapping[str, FloatArray]) -> None:
        """Remember what :meth:`to_arrays` returned."""
        for key, value in arrays.items():
            entity, unknown, part, name = key.rsplit("/", 3)
            state = self._state(entity, int(unknown), int(part))
            is_array = isinstance(getattr(state, name), np.ndarray)
            setattr(state, name, value if is_array else float(value))

    def _state(self, entity: str, unknown_steps: int, part: int) -> RuleState:
        by_series = self.config.selection.scope == "series"
        scope = (entity if by_series else "", unknown_steps, part)
        if scope not in self._states:
            name = entity or self.calibration.entities[0]
            first = self.config.population.first_weights
            if self.config.news.fit == "joint":
                # Readings were fitted to add up under the final weights of training.
                first = to_array(self.trained.weights([name]))[0].astype(np.float64).tolist()
            rule = self.config.selection.rule
            if rule == "paper":  # begins where training ended
                self._states[scope] = PaperState(self.trained, name, self.config)
            else:
                self._states[scope] = BoaState(first) if rule == "boa" else EqualState(first)
        return self._states[scope]


def mix_forecasts(agents_NAH: FloatArray, weights_NAH: FloatArray) -> FloatArray:
    """Return the population's forecast (N, H), the weighted sum of the agents' (Eq. 6)."""
    return np.asarray((agents_NAH * weights_NAH).sum(axis=1))
