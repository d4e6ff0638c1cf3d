"""The contract of every forecaster, and what the baselines share.

What belongs here: the protocols, the check of the split, the frame of a fitted baseline, series
joined from windows again, what a method says about itself in its rows, the file that names the
baseline of a folder. What does not: any model. Nothing is saved as pickle.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from pydantic import TypeAdapter

from compevo_core.data.arrays import BoolArray, FloatArray, IntArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import FITTABLE_SPLITS
from compevo_core.data.steps import count_steps, shift
from compevo_core.data.view import (
    Window,
    WindowView,
    find_horizon,
    keep_bounds,
    require_views,
    stack_rows,
)
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, DataError, LeakageError
from compevo_core.runtime.files import write_bytes, write_json
from compevo_core.runtime.usage import count_cores, find_blas

BASELINE_FILE = "baseline.json"

Columns = dict[str, FloatArray]  # by name


@runtime_checkable
class ViewForecaster(Protocol):
    """Anything that forecasts the horizon of every view in its unit; it cannot see a truth."""

    @property
    def name(self) -> str:
        """The method name in result rows."""

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit, in the order of the views."""


class Baseline(ABC):
    """A forecaster that is fitted on a train split and saved in a folder, without pickle.

    :func:`compevo_core.baselines.register` makes a method of its class: the settings, commands,
    reports and the choice on validation then know it.
    """

    name: str  # in rows, settings and commands
    title: ClassVar[str]  # in reports
    cost: ClassVar[float] = 1.0  # about how long a fit takes relative to a ridge
    draws: ClassVar[bool] = False  # whether a fit samples random numbers
    # Nearest target steps of train that it is fitted on where a choice must be quick; 0: all
    most_steps: ClassVar[int] = 0
    is_scored: ClassVar[bool] = True  # whether every evaluation of a data set fits it
    is_candidate: ClassVar[bool] = True  # whether the choice on validation tries it

    @classmethod
    def is_applicable(cls, windows: WindowSet, train: WindowSet | None = None) -> bool:
        """Return whether it can forecast every window, fitted on ``train`` if that is given."""
        return all(map(cls._can_forecast, windows.views()))

    @staticmethod
    def _can_forecast(view: WindowView) -> bool:
        """Return whether a view holds what the method needs."""
        return True

    @classmethod
    @abstractmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on train (or validation) windows; LeakageError for any other split."""

    @abstractmethod
    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit, in the order of the views."""

    def save(self, folder: Path) -> None:
        """Write all that :meth:`load` needs; ``baseline.json`` last."""
        facts, files = self._to_files()
        for name, content in files.items():
            write_bytes(folder / name, content)
        write_baseline_file(folder, self.name, **facts)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote; CheckpointMismatch if it is incomplete or another's."""
        return cls._from_files(read_baseline_file(folder, cls.name), folder)

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what was fitted: facts, ready for JSON, and files by name."""
        return {}, {}

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        """Return what :meth:`_to_files` described; its files are in the folder."""
        return cls()


class FitBaseline(Protocol):
    """Fits a baseline by name: :func:`compevo_core.baselines.fit_baseline` or a shared one."""

    def __call__(self, name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        """Return the baseline, fitted on train windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFacts:
    """Facts about a fitted method for its result rows; a default means that there is none."""

    # Weights that the fit changed; None where they were not counted
    trainable_parameters: int | None = None
    learning_rate: float | None = None  # what the fit used; None without one
    backbone: str = ""  # name or path of the pretrained model
    # End of its training data. Starts with YYYY, YYYY-MM or YYYY-MM-DD; "none ..." for random
    # weights; any other text counts as unknown
    knowledge_cutoff: str = ""
    device: str = "cpu"  # where it forecasts
    config_hash: str = ""  # hash of the configuration
    seedless_hash: str = ""  # the same without the seed, which trainings under several seeds share
    artifact_hash: str = ""  # hash of the sealed model
    # Articles that it reads of a window's candidates; None where it reads none. Where a window has
    # no more candidates than that, no logic had a choice
    news_top_k: int | None = None
    # Duration of a training that can be resumed: its updates, without the priors that several
    # trainings share; None: the fit is timed from outside
    train_seconds: float | None = None
    # Peak memory of that training, in GB of 10^9 bytes; None: the process is measured from outside
    peak_memory_gb: float | None = None
    # Round of agents that validation chose; 0 are untrained agents. None without rounds, or unknown
    chosen_round: int | None = None
    blend: float | None = None  # share of the agents' corrections that calibration kept, a mean


def count_answers(forecaster: ViewForecaster) -> tuple[int, int]:
    """Return how many answers were unreadable so far and how many there were.

    Both are 0 for a method whose model does not answer in text.
    """
    if not hasattr(forecaster, "count_answers"):
        return 0, 0
    counts: tuple[int, int] = forecaster.count_answers()
    return counts


def raise_if_held_out(windows: WindowSet, method: str) -> None:
    """Raise LeakageError for windows that no method may see, DataError if there is none."""
    if not len(windows):
        raise DataError(f"{method} was given no windows to fit on; build the train split first")

    held_out = [w.view for w in windows if w.view.split not in FITTABLE_SPLITS]
    if held_out:
        raise LeakageError(
            f"{method} was given {len(held_out)} window(s) of split {held_out[0].split!r}, first "
            f"{held_out[0].window_id}; fit on WindowSet.split('train')"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpace(ABC):
    """Scales and names fixed on the train split: what a model is fitted to, and on which windows.

    A route is a group of views that know the same kinds of values; it has a model of its own.
    """

    scaler: Scaler
    entities: tuple[str, ...]

    @classmethod
    def covers(cls, windows: WindowSet, train: WindowSet | None = None) -> bool:
        """Return whether views hold what a model needs, and ``train`` all that they ask of it."""
        return True

    @property
    @abstractmethod
    def routes(self) -> tuple[int, ...]:
        """The routes that have a model."""

    @abstractmethod
    def find_route(self, view: WindowView) -> int:
        """Return the route of a view; DataError if it has none."""

    @abstractmethod
    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the forecasts (N, H) whose error a model learns, in each view's unit."""

    @abstractmethod
    def build_features(self, views: Sequence[WindowView], route: int) -> FloatArray:
        """Return the columns (N, F) of a linear map."""

    @abstractmethod
    def build_columns(self, views: Sequence[WindowView], route: int) -> Columns:
        """Return the columns of trees: (N, H), or (N, 1) where all steps of a window share it."""

    def select_train(self, train: WindowSet, route: int) -> Sequence[Window]:
        """Return the train windows that the model of a route is fitted on: here all of them."""
        return train

    def scale_targets(self, windows: Sequence[Window]) -> FloatArray:
        """Return what a model is fitted to (N, H) in scaled units, NaN where masked."""
        views = [window.view for window in windows]
        truth_NH = stack_rows([window.y for window in windows])
        return (truth_NH - self.stack_references(views)) / self.scaler.stack_spreads(views)

    def encode_entities(self, views: Sequence[WindowView]) -> IntArray:
        """Return the position of each view's entity; scaling raises for an unknown one before."""
        codes = {entity: code for code, entity in enumerate(self.entities)}
        return np.array([codes[view.entity] for view in views], dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values that :meth:`from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return TypeAdapter(cls).validate_python(raw)


SpaceT = TypeVar("SpaceT", bound=TrainSpace)
ModelT = TypeVar("ModelT")


class RoutedBaseline(Baseline, Generic[SpaceT, ModelT]):
    """A baseline with a model for every route of its space."""

    _space_class: ClassVar[type[Any]]

    def __init__(self, space: SpaceT, models: Mapping[int, ModelT]) -> None:
        self._space = space
        self._models = dict(models)

    @classmethod
    def is_applicable(cls, windows: WindowSet, train: WindowSet | None = None) -> bool:
        """Return whether the space covers the windows."""
        return bool(cls._space_class.covers(windows, train))

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit the model of every route on the unmasked targets of train windows."""
        raise_if_held_out(train, cls.name)
        space = cls._space_class.fit(train)
        fit_model = partial(cls(space, {})._fit_model, seed=seed)

        # LightGBM releases the GIL. BLAS is limited here, as limits in threads end out of order.
        chosen = [space.select_train(train, route) for route in space.routes]
        with find_blas().limit(limits=1), ThreadPoolExecutor(count_cores()) as threads:
            models = threads.map(fit_model, chosen, space.routes)
            return cls(space, dict(zip(space.routes, models, strict=True)))

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H); DataError if a view lacks what train has."""
        require_views(views)
        output_NH = np.zeros((len(views), find_horizon(views)))
        route_N = np.array([self._space.find_route(view) for view in views])
        for route in self._space.routes:
            positions = np.flatnonzero(route_N == route).tolist()
            if positions:
                output_NH[positions] = self._apply([views[i] for i in positions], route)
        change_NH = self._space.scaler.stack_spreads(views) * output_NH
        return keep_bounds(views, self._space.stack_references(views) + change_NH)

    @abstractmethod
    def _fit_model(self, windows: Sequence[Window], route: int, seed: int) -> ModelT: ...

    @abstractmethod
    def _apply(self, views: Sequence[WindowView], route: int) -> FloatArray:
        """Return the outputs (N, H) of the model of a route."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """All values of a series from a first step on, each as the newest window has it."""

    start_utc: datetime
    values_T: FloatArray  # gaps are filled from the past
    is_target_T: BoolArray  # whether a step was measured, as the target of a window
    covariates: dict[str, FloatArray]  # of the targets, (T,) by name, NaN where unknown

    @classmethod
    def from_windows(cls, windows: Sequence[Window], names: Sequence[str] = ()) -> Self:
        """Join the windows of one series, in order of time, with the covariates of these names."""
        first, last = windows[0].view, windows[-1].view
        start = shift(first.origin_utc, -first.lookback, first.step)
        steps = count_steps(start, last.origin_utc, first.step) + last.horizon
        values_T = np.full(steps, np.nan)
        is_target_T = np.zeros(steps, dtype=bool)
        covariates = {name: np.full(steps, np.nan) for name in names}
        for window in windows:
            view = window.view
            at = count_steps(start, view.origin_utc, view.step)
            targets = slice(at, at + view.horizon)
            is_known_H = np.isfinite(window.y)
            values_T[targets] = np.where(is_known_H, window.y, values_T[targets])
            is_target_T[targets] |= is_known_H
            # Inputs that had not been measured are other days' values.
            measured = view.lookback - view.unknown_steps
            inputs = values_T[at - view.lookback : at - view.unknown_steps]
            inputs[:] = np.where(np.isfinite(inputs), inputs, view.x[:measured])
            for name in names:
                if name in view.step_covariates:
                    covariates[name][targets] = view.step_covariates[name]
        # A gap is carried over from the last value before it; the first value is known.
        place_T = np.where(np.isfinite(values_T), np.arange(steps), 0)
        values_T = values_T[np.maximum.accumulate(place_T)]
        return cls(
            start_utc=start, values_T=values_T, is_target_T=is_target_T, covariates=covariates
        )


def repeat_last_season(view: WindowView) -> FloatArray:
    """Return the last season of the input, repeated over the horizon (H,)."""
    return np.resize(view.x[-view.seasons.reference :], view.horizon)


def stack_published(views: Sequence[WindowView]) -> FloatArray:
    """Return the published medians (N, H); DataError if a view has none."""
    raise_if_lacking(views, is_published, "published forecast")
    return stack_rows([view.published for view in views if view.published is not None])


def is_published(view: WindowView) -> bool:
    """Return whether a view has a published forecast."""
    return view.published is not None


def raise_if_lacking(
    views: Sequence[WindowView], has: Callable[[WindowView], bool], what: str
) -> None:
    """Raise DataError if a view does not have what a forecast is made of."""
    without = [view for view in views if not has(view)]
    if without:
        raise DataError(
            f"{len(without)} of {len(views)} windows have no {what}, first {without[0].window_id}; "
            "forecast only windows that have one"
        )


def write_baseline_file(folder: Path, name: str, **facts: object) -> None:
    """Write which baseline a folder holds; call it last, since it marks the folder complete."""
    write_json(folder / BASELINE_FILE, {"baseline": name, **facts})


def read_baseline_file(folder: Path, name: str | None = None) -> dict[str, Any]:
    """Return the facts of a saved baseline; CheckpointMismatch if it is incomplete or another's."""
    if not (folder / BASELINE_FILE).exists():
        raise CheckpointMismatch(
            f"no complete baseline in {folder} ({BASELINE_FILE} is missing); fit and save it again"
        )

    facts: dict[str, Any] = json.loads((folder / BASELINE_FILE).read_text(encoding="utf-8"))
    # Two baselines can share file names; loading one as the other would fail much later.
    if name is not None and facts["baseline"] != name:
        raise CheckpointMismatch(
            f"{folder} holds {facts['baseline']!r}, not {name!r}; load it under its own name"
        )
    return facts
