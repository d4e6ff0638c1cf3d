"""Which method forecasts a data set: its candidates, their errors on validation, and the choice.

What belongs here: the methods that can be issued, as settings of an ensemble without agents;
scoring them on validation as they would have been used; mixing the good ones, or choosing the best.
What does not: training the choice (``training.trainer``), scores on test
(``evaluation.baseline_scores``). Test windows are never read.

Errors are divided by the error of repeating the last season in train, series by series, so that
each series of a table counts alike (as MASE: Hyndman and Koehler, "Another look at measures of
forecast accuracy", International Journal of Forecasting, 2006).

Shapes: N windows of validation, A members, H horizon.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter

from compevo_core import baselines
from compevo_core.agents.online_selection import Experience
from compevo_core.baselines.features import list_own_covariates
from compevo_core.baselines.gbm import Blend, BoostedTrees, LaggedTrees
from compevo_core.baselines.naive import Persistence
from compevo_core.baselines.news_ridge import SUFFIX, NewsRidge
from compevo_core.baselines.zero_shot import PREFIX, find_at_hand, is_zero_shot
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, evenly_spaced, mean_known
from compevo_core.data.context import OWN
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import nearest_windows
from compevo_core.data.view import count_minutes
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.comparison import compare_means
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.news_audit import NewsErrors
from compevo_core.runtime.usage import OnStep, Steps
from compevo_core.training.prior import MIXTURE, name_method

AUTO = "auto"
POPULATION = "compevo"

_WORST = 1.02  # error of the choice over the lowest, at most
_CLOSE = 1.2  # error of a member of the mixture, over the lowest of one method, at most
_MOST_WINDOWS = 500  # of validation that candidates are scored on, evenly spaced in time
# Windows of validation up to which a pretrained model is a candidate: it takes 0.1 s for each
_MOST_ZERO_SHOT = 100
_FEWEST_TREE_DAYS = 182  # with fewer days trees would not know a season, and are no candidates


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodScore:
    """A candidate on the N windows of validation."""

    name: str
    mae: float  # in the series' unit, all series together
    error: float  # mean over windows, as a share of the error of repeating the last season
    excess: float  # of that error above the best candidate's
    standard_error: float  # of that excess, by blocks of days


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewsCheck(NewsErrors):
    """The errors of a method on validation with and without news."""

    method: str  # the best without news
    helps: bool  # more than by chance, and more than another day's

    @property
    def sentence(self) -> str:
        """The errors in one line, and the conclusion."""
        return f"{self.numbers}: {'they are used' if self.helps else 'they are not used'}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodChoice:
    """What was chosen, and the numbers behind the choice."""

    method: str
    scores: tuple[MethodScore, ...]  # the best first
    windows: int
    days: int  # of validation, from the first target day to the last
    unit: str
    members: tuple[str, ...] = ()  # the methods that a mixture consists of, the simplest first
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # candidates, and why
    news: NewsCheck | None = None  # if there is news

    @property
    def sentence(self) -> str:
        """The choice in one line, with its numbers."""
        chosen = next(score for score in self.scores if score.name == self.method)
        parts = f" of {', '.join(self.members)}" if self.method == MIXTURE else ""
        ranked = [chosen, *(score for score in self.scores if score is not chosen)]
        listed = ", ".join(f"{score.name} {score.error:.3g}" for score in ranked)
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return (
            f"{AUTO}: {self.method}{parts}, MAE {chosen.mae:.4g} {self.unit} on {days} of "
            f"validation; errors relative to repeating the last season: {listed}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a manifest."""
        return dataclasses.asdict(self) | {"sentence": self.sentence}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` returned."""
        return TypeAdapter(cls).validate_python(raw)


def configure_method(
    name: str, members: Sequence[str] = (), *, train: WindowSet | None = None, seed: int = 0
) -> RunConfig:
    """Return the settings of a method that needs no language model.

    ``name`` is one of :data:`PRIORS`, one that reads news, ``zero-shot:`` and a model, or
    ``mixture`` of ``members``; of many windows of ``train``, trees take the nearest days.
    ConfigError for no such method, or a mixture of fewer than two.
    """
    names = list(members) if name == MIXTURE else [name]
    for each in names:
        if not is_zero_shot(each) and not baselines.has_method(each):
            others = [f"{PREFIX}MODEL", MIXTURE, POPULATION, AUTO]
            choices = ", ".join([*baselines.PRIORS, *baselines.list_news_readers(), *others])
            raise ConfigError(f"no method {each!r}; known: {choices}")
    if name == MIXTURE and len(names) < 2:
        raise ConfigError("a mixture needs two methods or more: name one of them instead")

    models = {each.removeprefix(PREFIX) for each in names if is_zero_shot(each)}
    if len(models) > 1:
        raise ConfigError(f"a mixture takes one pretrained model, not {', '.join(sorted(models))}")
    refit_days = 91  # after which it is fitted again on all that has become known
    if train is not None and len(train):
        learnt = train[-1].view.end_utc - train[0].view.origin_utc
        refit_days = max(1, learnt.days // 4)  # when its data has grown by a quarter
    weights = {"online": True, "rule": "boa", "scope": "series"}
    priors = ["zero-shot" if is_zero_shot(each) else each for each in names]
    days = [_limit_days(each, train) for each in names]
    chosen = [{"prior": p, "calibration_days": d} for p, d in zip(priors, days, strict=True)]
    model = next(iter(models), "")
    return RunConfig.from_mapping(
        {
            "forecast": {"decoder": "none", "zero_shot_model": model, "refit_days": refit_days},
            "population": {"agents": len(names), "members": chosen},
            "run": {"refit": True, "seed": seed, "micro_batch_size": 512},
            "selection": weights if len(names) > 1 else {},
        }
    )


def choose_method(
    train: WindowSet,
    val: WindowSet,
    *,
    names: Sequence[str] = (),
    population: Path | None = None,
    news: NewsPool | None = None,
    fit: baselines.FitBaseline | None = None,
    on_step: OnStep = lambda _: None,
) -> MethodChoice:
    """Score the candidates on validation and choose the mixture of the good ones, or the best.

    Each candidate is fitted on train and forecasts validation day by day. The mixture consists of
    those with close errors, or of the best two, and weighs them, series by series, by the days that
    are over. The issued method is fitted again on all that is known.

    The candidates are ``names``: all of :data:`PRIORS` that can forecast these windows unless
    given, and a pretrained model whose weights are in the local cache. A ``population`` with a
    language model, a run folder trained on the same windows, is a candidate, too. With ``news``,
    the articles of all windows, the best candidate that can read news is also corrected by it; this
    is a candidate if it errs less than without news, and than with another day's. ``fit`` fits by
    name, in memory unless given; ``on_step`` gets a line before each step that takes time.
    DataError if there is no validation window, or no method can forecast them.
    """
    # torch takes seconds to import, and names of methods are read even if nothing is trained.
    from compevo_core.training.ensemble import read_experience, read_scaler
    from compevo_core.training.trainer import fit_ensemble

    known = WindowSet([w for w in val if np.isfinite(w.y).any()], dataset=val.dataset)
    if not len(known):
        raise DataError(
            f"{train.dataset} has no validation window to choose a method on; lengthen validation, "
            "or name a method"
        )
    days = [view.calendar.target_date for view in known.views()]
    # Of many windows those of evenly spaced origins.
    origins = sorted({view.origin_utc for view in known.views()})
    wanted = max(1, _MOST_WINDOWS * len(origins) // len(known))
    chosen = {origins[i] for i in evenly_spaced(len(origins), wanted)}
    known = known.with_windows(w for w in known if w.view.origin_utc in chosen)
    fit = baselines.add_news(fit or baselines.SharedFits(), news)
    candidates, left_out = _list_candidates(train, known, names)

    steps = Steps([*map(baselines.find_cost, candidates), len(candidates)], on_step)
    fitted = {}
    for name in candidates:
        steps.begin(f"fitting {name} on {len(train):,} windows")
        try:
            # With the key of the later prior, so that the fit is found again.
            fitted[name] = fit(name, nearest_windows(train, None, None, _limit_days(name, train)))
        except (DataError, ConfigError) as error:
            left_out[name] = str(error)
    if not fitted:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise DataError(f"no method can forecast {train.dataset}: {reasons}")

    steps.begin(f"forecasting {len(known):,} windows of validation with {len(fitted)} methods")
    errors = {
        name: measure_window_errors(known.truth(), forecaster.predict(known.views()))
        for name, forecaster in fitted.items()
    }
    scale_N = _measure_scales(train, known)
    check = None
    if news is not None and any(view.candidate_ids for view in train.views()):
        names_with_news = [s.name + SUFFIX for s in rank_methods(errors, known, scale_N)]
        readers = [name for name in names_with_news if name in baselines.list_news_readers()]
        for reader in readers[:1]:
            try:
                check, with_news_N = _check_news(reader, train, known, scale_N, fit)
                errors |= {reader: with_news_N} if check.helps else {}
            except DataError as error:  # too short to leave a part of it out
                left_out[reader] = str(error)
    ranked = rank_methods(errors, known, scale_N)
    # Of two with equal errors, as weekly and persistence of days, the one ranked first stays.
    unlike = {errors[score.name].tobytes(): score for score in reversed(ranked)}
    ranked = tuple(score for score in ranked if score in unlike.values())
    close = [score for score in ranked if score.error <= _CLOSE * ranked[0].error]
    mixed = close if len(close) > 1 else ranked[:2]
    members = sorted((score.name for score in mixed), key=_place)
    if len(members) > 1:
        # Fits stay as they were on train: fitting all of them again would take most of the time.
        config = configure_method(MIXTURE, members, train=train).with_overrides(
            {"forecast.refit_days": 0, "run.refit": False}
        )
        mixture = fit_ensemble(config, train, known, fit).model
        errors[MIXTURE] = _measure_mixture(mixture.experience, mixture.scaler, known)
    if population is not None:
        lived = read_experience(population)
        errors[POPULATION] = _measure_mixture(lived, read_scaler(population), known)

    scores = rank_methods(errors, known, scale_N)
    return MethodChoice(
        method=choose_best(scores),
        scores=scores,
        windows=len(known),
        days=(max(days) - min(days)).days + 1,
        unit=known[0].view.unit,
        members=tuple(members),
        left_out=left_out,
        news=check,
    )


def _list_candidates(
    train: WindowSet, known: WindowSet, names: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the names of the methods to score, and why others are left out.

    Without ``names`` all methods that can forecast these windows are considered.
    """
    if names:
        return list(names), {}
    possible = [name for name, baseline in baselines.PRIORS.items() if baseline.is_candidate]
    if len(known) <= _MOST_ZERO_SHOT and (at_hand := find_at_hand()):
        possible.append(f"{PREFIX}{at_hand}")
    if not any(view.covariates for view in train.views()):
        # Without weather by day lagged trees err less, and take a tenth of the time.
        possible = [name for name in possible if name not in (BoostedTrees.name, Blend.name)]
    names = [
        name
        for name in sorted(possible, key=_place)
        if baselines.is_applicable(name, train) and baselines.is_applicable(name, known, train)
    ]

    origins = sorted({view.origin_utc for view in train.views()})
    apart = (origins[-1] - origins[0]) / max(1, len(origins) - 1)
    # The nearest days that a method would be fitted on may be too few to be worth it.
    nearest = {name: _limit_days(name, train) for name in names}
    left_out = {
        name: f"is slow on {len(train):,} windows; name it to use it"
        for name, days in nearest.items()
        if days and days * apart < timedelta(days=_FEWEST_TREE_DAYS)
    }
    return [name for name in names if name not in left_out], left_out


def describe_static(config: RunConfig, train: WindowSet) -> str:
    """Return a sentence if no member reads the static values of series; "" otherwise.

    Only trees and estimators on lags are fitted on all series together, and can use such values.
    """
    members = [baselines.PRIORS.get(name) for name in config.priors]
    if any(member is not None and issubclass(member, LaggedTrees) for member in members):
        return ""
    static = []
    for name in list_own_covariates(train):
        values = [(v.entity, v.step_covariates.get(name, [np.nan])) for v in train.views()]
        known = {(entity, x) for entity, x_H in values for x in x_H if np.isfinite(x)}
        if len({entity for entity, _ in known}) == len(known) > 1:
            static.append(name.removeprefix(OWN).partition("=")[0])
    if not static:
        return ""
    return (
        f"{name_method(config)} learns each series by itself and reads no static values "
        f"({', '.join(dict.fromkeys(static))}); {LaggedTrees.name} does"
    )


def _check_news(
    reader: str, train: WindowSet, known: WindowSet, scale_N: FloatArray, fit: baselines.FitBaseline
) -> tuple[NewsCheck, FloatArray]:
    """Fit a method that reads news; return whether it helps on validation, and its errors (N,)."""
    fitted = fit(reader, train)
    assert isinstance(fitted, NewsRidge)  # noqa: S101 - by its name
    views = known.views()
    # Another day's news is from half a validation split away.
    origins = sorted({view.origin_utc for view in views})
    lent = {at: origins[i - len(origins) // 2] for i, at in enumerate(origins)}
    view_of = {(view.entity, view.origin_utc): view for view in views}
    lenders = [view_of.get((view.entity, lent[view.origin_utc]), view) for view in views]
    forecasts = fitted.predict(views), fitted.base.predict(views), fitted.predict(views, lenders)
    own_N, none_N, swapped_N = (measure_window_errors(known.truth(), of_NH) for of_NH in forecasts)
    counts_N = np.isfinite(scale_N)
    counted = [view for view, counts in zip(views, counts_N, strict=True) if counts]
    share_N, *others = ((of_N / scale_N)[counts_N] for of_N in (own_N, none_N, swapped_N))
    gains = [compare_means(share_N, other_N, counted) for other_N in others]
    check = NewsCheck(
        method=fitted.base.name,
        articles=len({name for view in (*train.views(), *views) for name in view.candidate_ids}),
        own=float(own_N.mean()),
        none=float(none_N.mean()),
        swapped=float(swapped_N.mean()),
        helps=all(difference < -error for difference, error in gains),
    )
    return check, own_N


def _measure_scales(train: WindowSet, windows: WindowSet) -> FloatArray:
    """Return the error of repeating the last season of each window's series in train (N,).

    NaN for a series without any; one value for all if there is no other.
    """
    errors_NH = np.abs(train.truth() - Persistence.fit(train).predict(train.views()))
    entity_N = np.array([view.entity for view in train.views()])
    scales = {
        name: mean_known(errors_NH[entity_N == name].ravel(), axis=0) for name in train.entities
    }
    scale_N = np.array([scales[view.entity] for view in windows.views()])
    scale_N[~(scale_N > 0)] = np.nan
    return scale_N if np.isfinite(scale_N).any() else np.ones(len(scale_N))


def rank_methods(
    errors: Mapping[str, FloatArray], windows: WindowSet, scale_N: FloatArray
) -> tuple[MethodScore, ...]:
    """Return the scores of methods from their errors (N,) on the same windows, the best first.

    Windows without a scale, NaN in ``scale_N`` (N,), count only in the MAE.
    """
    counts_N = np.isfinite(scale_N)
    views = [view for view, counts in zip(windows.views(), counts_N, strict=True) if counts]
    shares = {name: (errors_N / scale_N)[counts_N] for name, errors_N in errors.items()}
    ranked = sorted(errors, key=lambda name: (float(shares[name].mean()), _place(name)))
    scores = []
    for name in ranked:
        excess, standard_error = compare_means(shares[name], shares[ranked[0]], views)
        scores.append(
            MethodScore(
                name=name,
                mae=float(errors[name].mean()),
                error=float(shares[name].mean()),
                excess=excess,
                standard_error=standard_error,
            )
        )
    return tuple(scores)


def choose_best(scores: Sequence[MethodScore]) -> str:
    """Return the mixture unless the best is better by more than 2 % and one standard error.

    Otherwise return the simplest method that is worse by neither.
    """
    near = [score for score in scores if score.error <= _WORST * scores[0].error]
    close = [score for score in scores if score.excess <= score.standard_error]
    if any(score.name == MIXTURE for score in (*near, *close)):
        return MIXTURE
    return min((score.name for score in near if score in close), key=_place)


def _limit_days(name: str, train: WindowSet | None) -> int:
    """Return the nearest days that a method is fitted on; 0 for all of them."""
    most = baselines.PRIORS[name].most_steps if name in baselines.PRIORS else 0
    if not most or train is None or not len(train):
        return 0
    days = most // (train.horizon * len(train.entities))
    return 0 if len(train) <= days * len(train.entities) else max(days, 1)


def _place(name: str) -> int:
    # The simplest first; pretrained models and readers of news share the place of the last.
    order = [*baselines.PRIORS, MIXTURE, POPULATION]
    return order.index(name) if name in order else len(baselines.PRIORS) - 1


def _measure_mixture(experience: Experience, scaler: Scaler, windows: WindowSet) -> FloatArray:
    """Return the errors (N,) of the mixture in the windows' unit.

    DataError if it has not forecast one of them.
    """
    entities = [experience.entities[entity] for entity in experience.entity_N]
    facts = (experience.origin_N.tolist(), experience.unknown_N.tolist())
    row_of = {key: row for row, key in enumerate(zip(entities, *facts, strict=True))}
    forecasts, missing = [], []
    for view, minute in zip(windows.views(), count_minutes(windows.views()), strict=True):
        row = row_of.get((view.entity, minute, view.unknown_steps))
        if row is None:
            missing.append(view.entity)
        else:
            forecasts.append(scaler.unscale(experience.mixture_NH[row], view.entity))
    if missing:
        raise DataError(
            f"{len(missing)} of {len(windows)} validation windows were not forecast, the first of "
            f"{missing[0]}: train the population again on today's windows"
        )
    return measure_window_errors(windows.truth(), np.stack(forecasts))
