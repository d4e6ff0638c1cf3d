"""Which method forecasts a data set: its candidates, their errors on validation, and the choice.

What belongs here: the methods that can be issued, as settings of an ensemble without agents;
scoring them on validation as they would have been used; the simplest within one standard
error of the best. What does not: training the choice (``training.trainer``), scores on test
(``evaluation.baseline_scores``). Test windows have no way in.

Shapes: N windows of validation, A members, H horizon.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compevo_core.baselines import PRIORS, FitBaseline, SharedFits, find_cost, is_applicable
from compevo_core.baselines.gbm import Blend
from compevo_core.baselines.known_errors import count_minutes
from compevo_core.baselines.zero_shot import PREFIX, find_at_hand, is_zero_shot
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import nearest_windows
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.comparison import compare_means
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.runtime.usage import OnStep, Steps
from compevo_core.training.prior import MIXTURE

if TYPE_CHECKING:
    from compevo_core.agents.experience import Experience

AUTO = "auto"
POPULATION = "compevo"

REFIT_DAYS = 91  # days after which an issued method learns anew from all that has become known

_ORDER = (
    *("last-value", "persistence", "weekly", "seasonal-mean", "published", "theta", "ets"),
    *("calendar-ridge", "published-error-ridge", "own-weather-ridge", "gbm"),
    *("published-error-gbm", "own-weather-gbm", "blend", MIXTURE, POPULATION),
)
"""Methods, the simplest first: nothing fitted, a line, trees, several, agents that read."""

_SLOW = {"theta": 100, "ets": 250}
"""Most windows that a method is scored on, where a forecast takes twenty or ten milliseconds."""

_MOST_ZERO_SHOT = 250  # the same of a pretrained model

_TREES = ("gbm", "blend", "published-error-gbm", "own-weather-gbm")
_MOST_TREE_STEPS = 40_000
"""Target steps that trees are fitted on at most, the nearest days: seconds in place of minutes."""
_FEWEST_TREE_DAYS = 182  # of fewer days trees would not know a season: they are not candidates then


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodScore:
    """A candidate on the N windows of validation: errors in the series' unit."""

    name: str
    mae: float
    excess: float  # mean error above the best candidate's
    standard_error: float  # of that excess, by blocks of days


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodChoice:
    """What was chosen, and the numbers that it was chosen by."""

    method: str
    scores: tuple[MethodScore, ...]  # the best first
    windows: int
    days: int  # of validation, from the first target day to the last
    unit: str
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # candidates, and why

    @property
    def sentence(self) -> str:
        """The choice in one line, with its numbers."""
        best = self.scores[0]
        chosen = next(score for score in self.scores if score.name == self.method)
        reason = "the lowest"
        if chosen is not best:
            reason = (
                f"the simplest within one standard error ({chosen.standard_error:.3g}) of the "
                f"lowest, {best.name} {best.mae:.4g}"
            )
        others = [s for s in self.scores if s.name not in (chosen.name, best.name)]
        listed = "".join(f"; {score.name} {score.mae:.4g}" for score in others)
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return (
            f"{AUTO}: {self.method}, MAE {chosen.mae:.4g} {self.unit} on {days} of validation, "
            f"{reason}{listed}"
        )

    @property
    def members(self) -> list[str]:
        """The candidates that a mixture consists of."""
        names = [score.name for score in self.scores]
        return sorted((name for name in names if name not in (MIXTURE, POPULATION)), key=_place)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a manifest."""
        return dataclasses.asdict(self) | {"sentence": self.sentence}


def configure_method(
    name: str, members: Sequence[str] = (), *, train: WindowSet | None = None, seed: int = 0
) -> RunConfig:
    """Return the settings of a method that needs no language model.

    ``name`` is one of :data:`PRIORS`, ``zero-shot:`` and a model, or ``mixture`` of ``members``; of
    many windows of ``train``, trees take the nearest days. ConfigError for no such method, or a
    mixture of fewer than two.
    """
    names = list(members) if name == MIXTURE else [name]
    for each in names:
        if each not in PRIORS and not is_zero_shot(each):
            known = ", ".join([*PRIORS, f"{PREFIX}MODEL", MIXTURE, POPULATION, AUTO])
            raise ConfigError(f"no method {each!r}; known: {known}")
    if name == MIXTURE and len(names) < 2:
        raise ConfigError("a mixture needs two methods or more: name one of them instead")

    models = {each.removeprefix(PREFIX) for each in names if is_zero_shot(each)}
    if len(models) > 1:
        raise ConfigError(f"a mixture takes one pretrained model, not {', '.join(sorted(models))}")
    weights = {"selection.online": True, "selection.rule": "boa", "selection.scope": "series"}
    return RunConfig().with_overrides(
        {
            "forecast.decoder": "none",
            "forecast.zero_shot_model": next(iter(models), ""),
            "forecast.refit_days": REFIT_DAYS,
            "population.agents": len(names),
            "population.members": [
                {
                    "prior": "zero-shot" if is_zero_shot(each) else each,
                    "calibration_days": _limit_days(each, train),
                }
                for each in names
            ],
            "run.refit": True,
            "run.seed": seed,
            "run.micro_batch_size": 512,
            **(weights if len(names) > 1 else {}),
        }
    )


def choose_method(
    train: WindowSet,
    val: WindowSet,
    *,
    names: Sequence[str] = (),
    population: Path | None = None,
    fit: FitBaseline | None = None,
    on_step: OnStep = lambda _: None,
) -> MethodChoice:
    """Score the candidates on validation and choose the simplest of the good ones.

    Each candidate is fitted on train and forecasts validation as it went by; the mixture weighs
    them by the days that were over. The method that is issued learns anew from all that is known.

    The candidates are ``names``: all of :data:`PRIORS` that can forecast these windows unless
    given, and a pretrained model whose weights are in the local cache. ``population``, the run
    folder of one with a language model that was trained on the same windows, is a candidate too.
    ``fit`` fits by name, in memory unless given; ``on_step`` gets a line before each step that
    takes time. DataError if there is no validation window, or no method can forecast them.
    """
    # torch takes seconds to import, and names of methods are read where nothing is trained.
    from compevo_core.training.artifact import read_experience, read_scaler
    from compevo_core.training.trainer import validate_members

    known = WindowSet([w for w in val if np.isfinite(w.y).any()], dataset=val.dataset)
    if not len(known):
        raise DataError(
            f"{train.dataset} has no validation window to choose a method on; lengthen validation, "
            "or name a method"
        )
    fit = fit or SharedFits()
    left_out: dict[str, str] = {}
    candidates = []
    for name in names or _list_applicable(train, known, left_out):
        if _is_too_slow(name, train):
            left_out[name] = f"is slow on {len(train):,} windows; name it to use it"
        else:
            candidates.append(name)

    steps = Steps([*map(find_cost, candidates), len(candidates)], on_step)
    fitted = _fit_candidates(candidates, train, fit, steps, left_out)
    steps.begin(f"forecasting {len(known):,} windows of validation with {len(fitted)} methods")
    mixed = MIXTURE if len(fitted) > 1 else fitted[0]
    experience, scaler = validate_members(
        # Fits stay as they were on train: to fit all of them anew would take most of the time.
        configure_method(mixed, fitted, train=train).with_overrides({"forecast.refit_days": 0}),
        train,
        known,
        fit,
    )
    errors = dict(zip(fitted, _measure(experience, scaler, known), strict=True))
    if len(fitted) > 1:
        errors[MIXTURE] = _measure_mixture(experience, scaler, known)
    if population is not None:
        lived = read_experience(population)
        errors[POPULATION] = _measure_mixture(lived, read_scaler(population), known)

    days = [view.calendar.target_date for view in known.views()]
    scores = rank_methods(errors, known)
    return MethodChoice(
        method=choose_simplest(scores),
        scores=scores,
        windows=len(known),
        days=(max(days) - min(days)).days + 1,
        unit=known[0].view.unit,
        left_out=left_out,
    )


def _fit_candidates(
    names: Sequence[str], train: WindowSet, fit: FitBaseline, steps: Steps, left_out: dict[str, str]
) -> list[str]:
    """Fit candidates on train; return those that could be, and say why of the others."""
    fitted = []
    for name in names:
        steps.begin(f"fitting {name} on {len(train):,} windows")
        try:
            # As the prior will be asked for, so that it is found again.
            fit(name, nearest_windows(train, None, None, _limit_days(name, train)))
        except (DataError, ConfigError) as error:
            left_out[name] = str(error)
            continue
        fitted.append(name)
    if not fitted:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise DataError(f"no method can forecast {train.dataset}: {reasons}")
    return fitted


def rank_methods(errors: Mapping[str, FloatArray], windows: WindowSet) -> tuple[MethodScore, ...]:
    """Return the scores of methods from their errors (N,) on the same windows, the best first."""
    means = {name: float(errors_N.mean()) for name, errors_N in errors.items()}
    best = min(sorted(means, key=_place), key=lambda name: means[name])
    scores = []
    for name in sorted(means, key=lambda name: (means[name], _place(name))):
        excess, standard_error = compare_means(errors[name], errors[best], windows.views())
        scores.append(
            MethodScore(name=name, mae=means[name], excess=excess, standard_error=standard_error)
        )
    return tuple(scores)


def choose_simplest(scores: Sequence[MethodScore]) -> str:
    """Return the simplest method whose excess is at most one standard error of it."""
    near = [score.name for score in scores if score.excess <= score.standard_error]
    return min(near, key=_place)


def _limit_days(name: str, train: WindowSet | None) -> int:
    """Return the nearest days that a method is fitted on; 0 for all of them."""
    if name not in _TREES or train is None or not len(train):
        return 0
    days = _MOST_TREE_STEPS // (train.horizon * len(train.entities))
    return 0 if len(train) <= days * len(train.entities) else max(days, 1)


def _is_too_slow(name: str, train: WindowSet) -> bool:
    """Whether the nearest days that a method would be fitted on are too few to be worth it."""
    days = _limit_days(name, train)
    origins = sorted({view.origin_utc for view in train.views()})
    apart = (origins[-1] - origins[0]) / max(1, len(origins) - 1)
    return days > 0 and days * apart < timedelta(days=_FEWEST_TREE_DAYS)


def _place(name: str) -> int:
    # A method that is not listed is fitted, and no mixture.
    return _ORDER.index(name) if name in _ORDER else _ORDER.index(Blend.name)


def _list_applicable(train: WindowSet, val: WindowSet, left_out: dict[str, str]) -> list[str]:
    names = []
    at_hand = find_at_hand()
    known = [*PRIORS, f"{PREFIX}{at_hand}"] if at_hand else [*PRIORS]
    for name in sorted(known, key=_place):
        most = _SLOW.get(name, _MOST_ZERO_SHOT if is_zero_shot(name) else len(val))
        if len(val) > most:
            left_out[name] = f"is slow for {len(val):,} windows"
        elif is_applicable(name, train) and is_applicable(name, val, train):
            names.append(name)
    return names


def _measure(experience: "Experience", scaler: Scaler, windows: WindowSet) -> list[FloatArray]:
    """Return each member's errors (N,) on windows, in their order and unit."""
    rows = _find_rows(experience, windows)
    by_member = experience.agents_NAH[rows].swapaxes(0, 1)
    return [_unscaled_errors(values_NH, scaler, windows) for values_NH in by_member]


def _measure_mixture(experience: "Experience", scaler: Scaler, windows: WindowSet) -> FloatArray:
    rows = _find_rows(experience, windows)
    return _unscaled_errors(experience.mixture_NH[rows], scaler, windows)


def _unscaled_errors(values_NH: FloatArray, scaler: Scaler, windows: WindowSet) -> FloatArray:
    views = windows.views()
    in_unit = [scaler.unscale(v, view.entity) for v, view in zip(values_NH, views, strict=True)]
    return measure_window_errors(windows.truth(), np.stack(in_unit))


def _find_rows(experience: "Experience", windows: WindowSet) -> list[int]:
    """Return the row of each window in an experience; DataError if one is missing."""
    keys = zip(experience.entity_N, experience.origin_N, experience.unknown_N, strict=True)
    row_of = {
        (experience.entities[entity], int(origin), int(unknown)): row
        for row, (entity, origin, unknown) in enumerate(keys)
    }
    views = windows.views()
    wanted = [
        (view.entity, minute, view.unknown_steps)
        for view, minute in zip(views, count_minutes(views), strict=True)
    ]

    missing = [key for key in wanted if key not in row_of]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(wanted)} validation windows were not forecast, the first of "
            f"{missing[0][0]}: train the population again on today's windows"
        )
    return [row_of[key] for key in wanted]
