"""``compevo_core.Forecaster``: fit a table, get a table.

    from compevo_core import Forecaster

    forecaster = Forecaster(horizon=28).fit(sales)  # unique_id, ds, y
    forecast = forecaster.predict()  # unique_id, ds, mean, q0.025 to q0.975

What belongs here: the object, its parameters, and what is kept of a fit. What does not: reading and
writing tables (``table.frames``), the choice of a method (``evaluation.method_choice``), forecasts.
"""

import dataclasses
import html
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import polars as pl

from compevo_core.baselines import (
    FitBaseline,
    SharedFits,
    add_news,
    fit_baseline,
    register_estimator,
)
from compevo_core.baselines.news_ridge import reads_news
from compevo_core.config.run import RunConfig
from compevo_core.data import build
from compevo_core.data.content import describe_faults
from compevo_core.data.datasets import ALL_SERIES, RECONCILIATIONS, WLS, DatasetSpec
from compevo_core.data.quantiles import LEVELS, describe_missing
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.data.steps import count_steps, name_step, shift
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, import_package, list_some
from compevo_core.evaluation.method_choice import (
    AUTO,
    POPULATION,
    MethodChoice,
    choose_method,
    configure_method,
    describe_static,
)
from compevo_core.evaluation.news_audit import NewsAudit, audit_news
from compevo_core.forecast.explain import BAND_80, describe_outside
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.prediction import Prediction, centre_sparse, reconcile_origins
from compevo_core.runtime.usage import OnStep, Steps
from compevo_core.table.covariates import read_news, require_ahead
from compevo_core.table.fitted import (
    RUN,
    Fitted,
    Known,
    gather_news,
    make_folder,
    read_ahead,
    read_files,
    read_held_out,
)
from compevo_core.table.frames import (
    COLUMN,
    PREFIX,
    SERIES,
    START,
    VALUE,
    Frame,
    TableForm,
    add_totals,
    find_current_ends,
    find_distance,
    find_words,
    join_rows,
    keep_values,
    plan_windows,
    read_table,
    select_later,
    to_polars,
)
from compevo_core.table.stamps import Clock, DateOffset
from compevo_core.training.ensemble import Ensemble
from compevo_core.training.prior import MIXTURE
from compevo_core.training.trainer import fit_ensemble, train
from compevo_core.training.training_data import join_for_refit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 100_000  # steps or windows; dates end in the year 9999
_BANDS = ((0.1, 0.9, 0.3), (0.025, 0.975, 0.15))  # quantiles and opacity of a plot's bands


@dataclasses.dataclass(repr=False, eq=False)
class Forecaster:
    """Forecasts a table of one or many series.

    Args:
        method: ``auto`` takes the mixture of those that are good on validation, or the best where
            it is clearly better; or a name, such as ``calendar-ridge``, ``lagged-gbm``, ``mixture``
            or ``zero-shot:FOLDER``; ``compevo`` trains agents that read news, in minutes. An
            estimator with ``fit`` and ``predict`` as scikit-learn's forecasts from lags.
        horizon: steps of a forecast; 48 of hours and days, a day of finer, a quarter of coarser
            steps unless given. Times of the week at which the table never has a value, such as
            weekends, are steps too, but left out of what is returned.
        lookback: last steps that a forecast reads; a week more than the horizon, eight weeks of
            days, a year more of weeks unless given.
        freq: step: ``15min``, ``1h``, ``1d``, ``1w``, ``1mo``, ``3mo``, ``12mo``, or pandas' name
            of one; the usual distance of stamps unless given.
        series: column that names the series.
        time: column of stamps, each the start of its interval, or the last day of its months.
        value: column of values.
        ahead: columns that are known ahead, such as a temperature forecast or a plan; the steps of
            a forecast need them too, see :meth:`predict`.
        known_at: column of the time at which a row's ``ahead`` was known; without it they were all
            known from the start, as a calendar is. Measured values were not.
        past: columns that were measured, known when their day is over.
        static: columns with one value for each series, such as a size or a kind; trees on lags read
            them. Of all these columns, one of words is read as categories, and a category that was
            not in the fit is none of them.
        totals: series to add by the name of their sum, such as ``{"north": ["a", "b"]}``, ``["*"]``
            for all; forecasts of sums and parts add up.
        reconciliation: how they are made to: ``wls`` by the width of bands, ``mint`` by the
            covariance of errors, ``ols`` all alike, ``bottom-up`` by the parts only.
        text: column of words that are known at their stamp, read as ``news`` of :meth:`fit`.
        preset: settings of the agents: ``default``, ``own-news``, ``demo`` or a file of them.
        country: of public holidays, such as ``FR``.
        low: no value is below this; 0 where none of the table is, unless given.
        high: no value is above this.
        seed: of what a fit draws.
    """

    method: Any = AUTO
    horizon: int | None = None
    lookback: int | None = None
    freq: str | timedelta | DateOffset | None = None
    _: dataclasses.KW_ONLY
    series: str = "unique_id"
    time: str = "ds"
    value: str = "y"
    ahead: Sequence[str] = ()
    known_at: str = ""
    past: Sequence[str] = ()
    static: Sequence[str] = ()
    totals: Mapping[str, Sequence[str]] | None = None
    reconciliation: str = WLS
    text: str = ""
    preset: str = "default"
    country: str = ""
    low: float | None = None
    high: float | None = None
    seed: int = 0

    _fit: Fitted | None = dataclasses.field(default=None, init=False)

    @classmethod
    def _list_params(cls) -> dict[str, Any]:
        return {field.name: field.default for field in dataclasses.fields(cls) if field.init}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in self._list_params()}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401 - of the constructor
        """Change parameters; what was fitted stays until the next fit.

        Raises:
            ConfigError: there is no such parameter.
        """
        known = self._list_params()
        if unknown := sorted(set(params) - set(known)):
            raise ConfigError(f"no parameter {', '.join(unknown)}; there are {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        df: Frame,
        *,
        future: Frame = None,
        news: Frame = None,
        on_step: OnStep = lambda _: None,
    ) -> Self:
        """Fit on a table; see the class for its columns.

        Args:
            df: the table. Rows without a value, after those with one, may hold columns known ahead.
            future: the columns known ahead as a table of their own, which may hold several rows of
                a stamp, each known at another time (``known_at``), as weather forecasts are.
            news: a table of stamps and words (column ``title``, or as ``text`` says), each known at
                its stamp. ``auto`` reads them where that helps on validation.
            on_step: gets a line before each step that takes time, with the time left, as ``print``.

        Raises:
            DataError: the table cannot be read, or is too short.
            ConfigError: there is no such method, or it reads no news.
        """
        known = self._know(df, future, news)
        form = known.form
        single = (form.series, form.time, form.value, form.known_at, self.text)
        read = {*single, *form.ahead, *form.past, *form.static}
        if ignored := [name for name in to_polars(df, form.time)[1].columns if name not in read]:
            warnings.warn(
                f"columns that are not read: {', '.join(map(repr, ignored))}; name them by ahead, "
                "past, static or text, or leave them out",
                stacklevel=2,
            )
        columns = [COLUMN + name for name in form.ahead]
        steps = known.rows.group_by(SERIES, START).agg(pl.col(VALUE, *columns).count())
        steps = steps.filter(pl.col(VALUE) > 0)
        for name in columns:
            if lacking := steps.filter(pl.col(name) == 0).height:
                warnings.warn(
                    f"{name.removeprefix(COLUMN)!r} is empty at {lacking:,} of {steps.height:,} "
                    "steps that have a value, and a method may leave such a column out: fill it",
                    stacklevel=2,
                )
        return self._fit_known(known, on_step)

    def _know(self, df: Frame, future: Frame, news: Frame) -> Known:
        """Return what a table, columns known ahead, and news say."""
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            if field.type is str and not isinstance(given, str | None):
                raise ConfigError(f"{field.name} = {given!r}: give a text")
            is_list = isinstance(given, Iterable) and not isinstance(given, str)
            if field.type == Sequence[str] and not is_list:
                raise ConfigError(f"{field.name} = {given!r}: give a list of columns, [{given!r}]")
        totals = self._list_totals()
        if future is None:
            rows, form = read_table(df, self, self.freq)
        elif not (self.ahead and self.known_at):
            raise ConfigError(
                "future in a fit needs Forecaster(ahead=[...], known_at=...): the columns, and the "
                "one of the time at which each row was known"
            )
        else:
            plain = dataclasses.replace(self, ahead=(), known_at="")
            rows, form = read_table(df, plain, self.freq)
            words = form.words + find_words(to_polars(future, self.time)[1], self.ahead)
            form = dataclasses.replace(
                form, ahead=tuple(self.ahead), known_at=self.known_at, words=words, ahead_apart=True
            )
            added = read_ahead(future, rows, form, self.series)
            first = rows.group_by(SERIES).agg(first=pl.col(START).min())
            added = added.join(first, on=SERIES).filter(pl.col(START) >= pl.col("first"))
            rows = join_rows(rows, added.drop("first"), form.clock.step)

        if own := totals.keys() & {*rows[SERIES]}:
            raise DataError(f"the total {min(own)!r} is a series of its own; rename it")
        if totals:
            rows, form = add_totals(rows, totals), dataclasses.replace(form, label="str")
        return Known(rows=rows, form=form, articles=self._read_news(df, news, form.clock))

    def _read_news(self, df: Frame, news: Frame, clock: Clock) -> pl.DataFrame:
        """Return the articles of a table's own words and of separate news."""
        may_read = self._method in (AUTO, MIXTURE, POPULATION) or reads_news(self._method)
        if not may_read and (news is not None or self.text):
            raise ConfigError(
                f"the method {self.method!r} reads no news: leave out news and text, or give "
                f"Forecaster({AUTO!r}), which reads them where that helps"
            )
        frames = [pl.DataFrame(schema=ARTICLE_SCHEMA)]
        if self.text and df is not None:
            frames.append(read_news(df, clock, time=self.time, text=self.text))
        if news is not None:
            frames.append(read_news(news, clock, time=self.time, text=self.text or "title"))
        return pl.concat(frames).unique("article_id", maintain_order=True)

    def _fit_known(self, known: Known, on_step: OnStep) -> Self:
        for name, number in (("horizon", self.horizon), ("lookback", self.lookback)):
            require_count(name, 1 if number is None else number)
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None and not (isinstance(bound, Real) and bound == bound):
                raise ConfigError(f"{name} = {bound!r}: give a number")
        # Refuses an unknown name before anything is cut.
        config = self._configure()

        spec = self._plan(known)
        faults: list[str] = []
        for (name,), part in keep_values(known.rows).group_by(SERIES, maintain_order=True):
            faults += describe_faults(f"series {name}", part, spec.step)
        if faults:
            warnings.warn(list_some(faults, "; "), stacklevel=3)
        windows = build.build_windows(spec, **known.list_frames(spec))
        train_windows, val_windows = windows.split("train"), windows.split("val")
        if not len(train_windows) or not len(val_windows):
            reasons = windows.manifest["dropped_origins"]
            raise DataError(
                f"no window of {'validation' if len(train_windows) else 'train'} can be cut ("
                + ", ".join(f"{count} {reason}" for reason, count in reasons.items())
                + "): give more rows, or a shorter lookback or horizon"
            )

        fit: FitBaseline = fit_baseline
        choice: MethodChoice | None = None
        facts: dict[str, Any] = {"method": self._method}
        default = RunConfig().encoder if known.articles.height else ""
        encoder = default if config is None else config.encoder
        news = gather_news(known.articles, windows.views(), encoder)
        if config is None:
            if find_spec("lightgbm") is None:
                warnings.warn(
                    "trees are no candidates without lightgbm: pip install 'compevo[table]'",
                    stacklevel=3,
                )
            fit = SharedFits()  # what was tried is not fitted again
            choice = choose_method(train_windows, val_windows, news=news, fit=fit, on_step=on_step)
            method = choice.method if self._method == AUTO else MIXTURE
            facts = {"method": method, "choice": choice.to_json()}
            config = configure_method(method, choice.members, train=train_windows, seed=self._seed)
        if unread := describe_static(config, train_windows):
            warnings.warn(unread, stacklevel=3)

        on_step(f"fitting {facts['method']} on all {len(windows):,} windows")
        folder = make_folder(self)
        files: Mapping[str, bytes] = {}
        model: Ensemble | None = None
        if config.has_agents:
            train(config, train_windows, val_windows, news, folder / RUN, fit=fit, facts=facts)
            files = read_files(folder / RUN, folder)
        else:
            model = fit_ensemble(config, train_windows, val_windows, add_news(fit, news)).model
            model.priors.fit_baseline = fit_baseline  # what was tried is not kept
        self._fit = Fitted(
            folder=folder,
            model=model,
            files=files,
            rows=known.rows,
            form=known.form,
            spec=spec,
            facts=facts,
            articles=known.articles,
        )
        if choice is not None and choice.news is not None:
            on_step(choice.news.sentence)
        return self

    def _configure(self) -> RunConfig | None:
        """Return the settings of a training; None where validation chooses them."""
        if self._method in (AUTO, MIXTURE):
            return None
        if self._method == POPULATION:
            import_package("torch")
            return RunConfig.preset(self.preset).with_overrides({"run.seed": self._seed})
        return configure_method(self._method, seed=self._seed)

    def _plan(self, known: Known) -> DatasetSpec:
        low, high = (None if bound is None else float(bound) for bound in (self.low, self.high))
        spec = plan_windows(
            known.rows,
            known.form.clock.step,
            known.form.clock.place_zone,
            horizon=self.horizon and int(self.horizon),
            lookback=self.lookback and int(self.lookback),
            country=self.country,
            bounds=(low, high),
        )
        if self.reconciliation not in RECONCILIATIONS:
            raise ConfigError(
                f"reconciliation = {self.reconciliation!r}: give {', '.join(RECONCILIATIONS)}"
            )
        return dataclasses.replace(spec, totals=self._list_totals())

    def _list_totals(self) -> dict[str, tuple[str, ...]]:
        """Return the parts of each total, named as series are once they are read."""
        given = self.totals or {}
        lists = [*given.values()] if isinstance(given, Mapping) else [""]
        if any(isinstance(parts, str) and parts != ALL_SERIES for parts in lists):
            raise ConfigError(f"totals = {given!r}: give lists of series, as {{'all': ['*']}}")
        return {str(total): tuple(map(str, parts)) for total, parts in given.items()}

    @property
    def _seed(self) -> int:
        # Settings know no numbers of numpy.
        return int(self.seed) if isinstance(self.seed, Integral) else self.seed

    @property
    def _method(self) -> str:
        """The name of the method; an estimator becomes one by its printed form."""
        if isinstance(self.method, str):
            return self.method
        if isinstance(self.method, type):
            raise ConfigError(f"method is the class {self.method.__name__}: give an object of it")
        if not (hasattr(self.method, "fit") and hasattr(self.method, "predict")):
            raise ConfigError(
                f"method = {self.method!r}: give one name or estimator; backtest(methods=[...]) "
                "compares several"
            )
        return register_estimator(self.method)

    @property
    def _fitted(self) -> Fitted:
        if self._fit is None:
            raise DataError("nothing is fitted yet; call fit(df) first, or Forecaster.load(folder)")
        return self._fit

    @property
    def method_(self) -> str:
        """The method that was fitted."""
        return str(self._fitted.facts["method"])

    @property
    def choice_(self) -> MethodChoice | None:
        """Errors of all candidates on validation; None where a method was named."""
        raw = self._fitted.facts.get("choice")
        return None if raw is None else MethodChoice.from_json(raw)

    def predict(
        self,
        df: Frame = None,
        *,
        horizon: int | None = None,
        future: Frame = None,
        news: Frame = None,
        level: Sequence[float] | float | None = None,
    ) -> Frame:
        """Forecast the steps after the last value that all series have.

        Args:
            df: newer rows, or the whole table again; they are learnt from as days go by, and newer
                values of a stamp count. Without it, what follows the table of the fit.
            horizon: fewer steps than were fitted.
            future: the columns known ahead, for each step of the forecast, with their stamps; the
                same for all series where it names none.
            news: newer words, as in :meth:`fit`.
            level: bands in percent up to 95, such as ``[80, 90]``; columns are then named as
                Nixtla's: the method, ``<method>-lo-80`` and ``<method>-hi-80``.

        Returns:
            a table of the kind that was fitted: series, stamps, ``mean``, and a column for each
            quantile, such as ``q0.1``; null where there are too few errors for one. Of a series
            most of whose values are one, as of sparse sales, ``mean`` adds up to what is expected.

        Raises:
            DataError: nothing is fitted, the rows end at another time of day, or a step lacks what
                is known ahead.
            ConfigError: a longer horizon than was fitted, or another band than there is.
        """
        fit = self._fitted
        steps = fit.spec.horizon_steps if horizon is None else horizon
        require_count("horizon", steps)
        if steps > fit.spec.horizon_steps:
            raise ConfigError(
                f"horizon = {steps}: {fit.spec.horizon_steps} steps were fitted; fit again with "
                f"Forecaster(horizon={steps})"
            )
        fit = self._extend(df, future, news)
        population, views, prediction = self._forecast(fit, steps)
        is_banded_N = np.isfinite(prediction.quantiles).all(axis=(1, 2))
        if not is_banded_N.all():
            known, without = len(population.past_errors), int((~is_banded_N).sum())
            warnings.warn(describe_missing(without, known), stacklevel=2)
        entities = [view.entity for view in views]
        points = dict(zip(entities, prediction.aggregate[:, :steps], strict=True))
        low_NH, high_NH = (prediction.quantiles[:, LEVELS.index(at), :steps] for at in BAND_80)
        bands = dict(zip(entities, zip(low_NH, high_NH, strict=True), strict=True))
        for sentence in describe_outside(points, bands):
            warnings.warn(sentence, stacklevel=2)
        names, starts = _list_steps(views, steps)
        columns = _tabulate(prediction, steps, level, self.method_)
        return self._name_series(fit.form, level).write(names, starts, **columns)

    def fitted_values(self) -> Frame:
        """Return how the fit forecast its own validation: held out, by what train taught.

        The columns are series, stamps, ``cutoff`` (a window's first stamp), the value, ``mean``.
        """
        fit = self._fitted
        rows = read_held_out(fit.experience, fit.scaler, fit.spec.step)
        names, starts, cutoffs = (rows[name].to_list() for name in (SERIES, START, "cutoff"))
        return fit.form.write_scored(names, starts, cutoffs, rows[VALUE], {"mean": rows["mean"]})

    def update(self, df: Frame, *, future: Frame = None, news: Frame = None) -> Self:
        """Add newer rows to what is known, without a fit; arguments as in :meth:`predict`.

        Weights and bands learn from the windows that are over, as they do in ``predict(df)``.
        """
        self._fit = self._extend(df, future, news)
        return self

    def explain(self, df: Frame = None, *, future: Frame = None, news: Frame = None) -> Frame:
        """Return what each member of the method adds to the forecast.

        The columns are series, stamps, ``member``, its ``weight`` and ``forecast``; the forecast of
        a step is the sum of weight times forecast.
        """
        fit = self._extend(df, future, news)
        population, views, prediction = self._forecast(fit, fit.spec.horizon_steps)
        names, starts = _list_steps(views, fit.spec.horizon_steps)
        members = population.logics or population.members
        return fit.form.write(
            names * len(members),
            starts * len(members),
            member=[member for member in members for _ in starts],
            weight=prediction.step_weights.swapaxes(0, 1).ravel(),
            forecast=prediction.agents.ravel(),
        )

    def backtest(
        self,
        df: Frame = None,
        *,
        windows: int = 4,
        step: int | None = None,
        methods: Any = (),  # noqa: ANN401 - names and estimators, or one
        future: Frame = None,
        news: Frame = None,
        level: Sequence[float] | float | None = None,
        on_step: OnStep = lambda _: None,
    ) -> Frame:
        """Forecast the last windows of a table as they would have been forecast.

        A method is chosen and fitted on what is before all of them; each window is forecast after
        the truth of the ones before was learnt, as far as it was known by then.

        Args:
            df: the table; the fitted one unless given.
            windows: how many.
            step: steps from one window to the next; a horizon unless given.
            methods: names or estimators to compare on the same windows, each fitted by itself.
            future: as in :meth:`fit`; a window reads what was known when it begins.
            news: as in :meth:`fit`.
            level: bands in percent, as in :meth:`predict`.
            on_step: as in :meth:`fit`.

        Returns:
            a table: series, stamps, ``cutoff`` (the first stamp of the window), the value, ``mean``
            and quantiles; with ``methods`` a column for each in place of these; with ``level`` the
            columns that ``utilsforecast.evaluation`` reads.

        Raises:
            DataError: the table is too short for so many windows.
            ConfigError: a number is below 1, or ``step`` is not one at which forecasts begin.
        """
        for name, number in (("windows", windows), ("step", 1 if step is None else step)):
            require_count(name, number)
        if isinstance(methods, str) or hasattr(methods, "fit"):
            methods = [methods]
        known = self._take(df, future, news)
        form, spec = known.form, self._plan(known)
        # Windows begin when forecasts may, and share no step unless asked to.
        every = round(find_distance(spec) / spec.step)
        apart = step or math.ceil(spec.horizon_steps / every) * every
        if apart % every:
            raise ConfigError(f"step = {step}: forecasts begin every {every} steps; give {every}")
        # A table may end before a weekend that its last windows reach over.
        ends = find_current_ends(known.rows, form, spec.horizon_steps)
        closed = {SERIES: list(ends), START: [shift(end, -1, spec.step) for end in ends.values()]}
        last = pl.DataFrame(closed).join(known.rows, on=[SERIES, START], how="anti")
        known = dataclasses.replace(known, rows=join_rows(known.rows, last, spec.step))
        first, horizon = cast(datetime, known.rows[START].min()), spec.horizon_steps
        room = count_steps(first, min(ends.values()), spec.step)
        grid = [shift(first, number, spec.step) for number in range(room)]
        is_open = form.is_open(grid).to_numpy()
        begins = [at for at in range(room - horizon, 0, -every) if is_open[at : at + horizon].any()]
        origins = [grid[at] for at in begins if not (begins[0] - at) % apart][:windows]
        if len(origins) < windows:
            raise DataError(f"the table has room for {len(origins)} windows: test no more")

        columns: dict[str, pl.Series] = {}
        for method in methods or [self.method]:
            twin = dataclasses.replace(
                self, method=method, horizon=spec.horizon_steps, freq=name_step(spec.step)
            )
            scored, prediction = twin._test(known, origins, on_step)
            name = twin._method if methods else twin.method_
            made = _tabulate(prediction, spec.horizon_steps, level, name)
            columns |= {name: made["mean"]} if methods and level is None else made

        names, starts = _list_steps(scored.views(), spec.horizon_steps)
        cutoffs = [view.origin_utc for view in scored.views() for _ in range(spec.horizon_steps)]
        truth = pl.Series(scored.truth().ravel()).fill_nan(None)
        return self._name_series(form, level).write_scored(names, starts, cutoffs, truth, columns)

    def _take(self, df: Frame, future: Frame, news: Frame) -> Known:
        """Return what a table says, or the fitted one and more news."""
        if df is not None:
            return self._know(df, future, news)
        fit = self._fitted
        return fit.add_news(self._read_news(None, news, fit.form.clock))

    def audit(self, news: Frame = None, df: Frame = None) -> NewsAudit:
        """Return whether news tells of a table's values, by a test with its power.

        Args:
            news: as in :meth:`fit`.
            df: the table; the fitted one with its news unless given.

        Returns:
            ``verdict`` in words, ``effect`` (the change of the mean absolute error by the news),
            the errors ``own``, ``none`` and ``swapped`` (with another day's news), and ``power``,
            the smallest planted effect that would have been seen.

        Raises:
            DataError: there is no news, or the table is too short to tell.
        """
        known = self._take(df, None, news)
        spec = self._plan(known)
        cut = build.build_windows(spec, **known.list_frames(spec))
        windows = join_for_refit(cut.split("train"), cut.split("val"))
        pool = gather_news(known.articles, windows.views(), RunConfig().encoder)
        if not pool:
            raise DataError("no window has news: give stamps and titles before the table's end")
        return audit_news(windows, pool)

    def _test(
        self, known: Known, origins: Sequence[datetime], on_step: OnStep
    ) -> tuple[WindowSet, Prediction]:
        """Fit on what is before the first origin; return the windows from all, and forecasts."""
        cutoff = min(origins)
        before = dataclasses.replace(known, rows=known.rows.filter(pl.col(START) < cutoff))
        try:
            fit = self._fit_known(before, on_step)._fitted
        except DataError as error:
            raise DataError(f"before {len(origins)} window(s), {error}; or test fewer") from error

        learnt = fit.scaler.mean
        if new := sorted(set(known.rows[SERIES]) - learnt.keys()):
            warnings.warn(
                f"no forecast of {list_some(new)}: no whole window was fitted", stacklevel=4
            )
        frames = known.list_frames(fit.spec)
        frames["series"] = _select(frames["series"], learnt)
        scored = build.build_windows(select_later(fit.spec, cutoff), **frames, origins=origins)
        for reason, count in scored.manifest["dropped_origins"].items():
            warnings.warn(f"{count} window(s) left out: {reason}", stacklevel=4)
        if not scored:
            raise DataError(f"no series has a whole window from {known.form.clock.say(cutoff)} on")
        steps = Steps([1] * len({view.origin_utc for view in scored.views()}), on_step)
        steps.begin("windows forecast")
        # Said after each window but the last, as the next one begins.
        population = fit.load_population(scored.views())
        prediction = population.follow(
            scored, lambda done: None if done == len(scored) else steps.begin("windows forecast")
        )
        return scored, self._reconcile(prediction, scored.views(), population)

    def _name_series(self, form: TableForm, level: Sequence[float] | float | None) -> TableForm:
        """Return the form of an output: Nixtla's columns name the series, also where it is one."""
        return (
            form if level is None else dataclasses.replace(form, series=form.series or self.series)
        )

    def plot(
        self,
        series: str | None = None,
        df: Frame = None,
        *,
        future: Frame = None,
        news: Frame = None,
    ) -> "Figure":
        """Draw the forecast of a series, the first unless named, with its bands and its past."""
        figure: Figure = import_package("matplotlib.figure").Figure(
            figsize=(9, 4), layout="constrained"
        )
        fit = self._extend(df, future, news)
        _, views, prediction = self._forecast(fit, fit.spec.horizon_steps)
        names = [view.entity for view in views]
        name = names[0] if series is None else str(series)
        if name not in names:
            raise DataError(f"no series {name!r}; there are {', '.join(names)}")
        row = names.index(name)
        _, starts = _list_steps([views[row]], fit.spec.horizon_steps)
        begin = shift(fit.end, -4 * fit.spec.horizon_steps, fit.spec.step)  # four horizons before
        shown = fit.rows.filter(pl.col(SERIES) == name, pl.col(START) >= begin)
        axes = figure.add_subplot()
        axes.plot(fit.form.clock.read_local(shown[START].to_list()), shown[VALUE], color="#666666")
        is_open = fit.form.is_open(starts).to_numpy()
        stamps = fit.form.clock.read_local(starts).filter(is_open)
        axes.plot(stamps, prediction.aggregate[row, is_open], color="#1f5fa8", label=self.method_)
        for low, high, opacity in _BANDS:
            levels = [LEVELS.index(level) for level in (low, high)]
            bounds = prediction.quantiles[row, levels][:, is_open]
            axes.fill_between(stamps, *bounds, color="#1f5fa8", alpha=opacity, linewidth=0)
        axes.set_title(f"{name}: {self.method_}, bands of 80 and 95 %")
        axes.set_ylabel(fit.form.value)
        return figure

    def _extend(self, df: Frame, future: Frame = None, news: Frame = None) -> Fitted:
        """Return the fit with newer rows; DataError if they cannot follow the fitted ones."""
        fit = self._fitted
        if news is not None or (self.text and df is not None):
            fit = fit.add_news(self._read_news(df, news, fit.form.clock))
        if df is not None:
            fit = fit.add_rows(df, self.series)
        return fit if future is None else fit.add_future(future, self.series)

    def _forecast(
        self, fit: Fitted, steps: int
    ) -> tuple[CompEvoForecaster, tuple[WindowView, ...], Prediction]:
        frames = fit.list_frames(fit.spec)
        series, learnt = frames["series"], fit.scaler.mean
        # Without newer rows there is none, and to look for it takes as long as the views.
        later: WindowSet | None = None
        if fit.end > fit.spec.from_market(fit.spec.spans[-1].first_day):
            frames["series"] = _select(series, learnt)
            later = build.build_windows(select_later(fit.spec), **frames)
        views: list[WindowView] = []
        ended = sorted(set(fit.rows[SERIES]) - fit.ends.keys())
        left_out = dict.fromkeys(ended, ("no value in the last horizon of the table", ""))
        for origin, names in fit.origins.items():
            frames["series"] = _select(series, names)
            built = build.build_views(fit.spec, **frames, origin_utc=origin, repeats=True)
            for note in build.describe_repeated(built):
                warnings.warn(note, stacklevel=3)
            if fit.form.ahead:
                require_ahead(built.views, fit.form, steps, origin, fit.spec)
            views += built.views
            left_out |= built.left_out
        reasons = build.describe_left_out(left_out)
        if not views:
            why = "; ".join(reasons)
            raise DataError(f"no series can be forecast ({why}): give the missing rows")
        for reason in reasons:
            warnings.warn(f"no forecast of {reason}", stacklevel=3)
        if new := [view.entity for view in views if view.entity not in learnt]:
            warnings.warn(build.describe_new(new), stacklevel=3)

        population = fit.load_population([*(later.views() if later else ()), *views])
        if later is not None:
            population.observe(population.select_unobserved(later, fit.end))
        population.takes_new = True
        prediction = population.predict_by_agent(views)
        return population, tuple(views), self._reconcile(prediction, views, population)

    def _reconcile(
        self, prediction: Prediction, views: Sequence[WindowView], population: CompEvoForecaster
    ) -> Prediction:
        totals, past = self._list_totals(), population.past_errors
        moved = reconcile_origins(prediction, views, totals, past, self.reconciliation)
        return centre_sparse(moved, views, totals)

    def save(self, folder: str | Path) -> Path:
        """Write everything into a folder, without pickle; return it.

        Raises:
            DataError: nothing is fitted, or the folder holds something else.
        """
        params = self.get_params() | {"method": self._method}
        return self._fitted.write(Path(folder).expanduser(), params)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what :meth:`save` wrote; DataError if the folder holds nothing of the kind."""
        loaded = cls()
        loaded._fit, params = Fitted.read(Path(folder).expanduser(), make_folder(loaded))
        return loaded.set_params(**params)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied: of a fit the files, as not every model can be."""
        return self.__dict__ | {"_fit": self._fit and self._fit.seal()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set what was pickled or copied; the run gets a folder of this object's own."""
        self.__dict__.update(state)
        if self._fit is not None:
            self._fit = self._fit.seal(make_folder(self))

    def __repr__(self) -> str:
        """Return the parameters that differ from the defaults, and what is fitted."""
        given = [
            f"{name}={getattr(self, name)!r}"
            for name, default in self._list_params().items()
            if getattr(self, name) != default
        ]
        said = f"Forecaster({', '.join(given)})"
        if self._fit is None:
            return said
        fit, count = self._fit, self._fit.rows[SERIES].n_unique()
        return (
            f"{said}: {self.method_} for {count} series, {fit.spec.horizon_steps} steps of "
            f"{name_step(fit.spec.step)} after {fit.form.clock.say(fit.end)}"
        )

    def _repr_html_(self) -> str:
        """Return what :func:`repr` says, and the errors of all candidates as a table."""
        said = f"<p>{html.escape(repr(self))}</p>"
        choice = None if self._fit is None else self.choice_
        if choice is None:
            return said
        scores = pl.DataFrame(choice.scores).select(
            pl.col("name", "mae", "error", "excess", "standard_error")
        )
        last = ("of repeating the last season", "above the best", "standard error")
        scores.columns = ["method", f"MAE, {choice.unit}", *last]
        with pl.Config(tbl_rows=-1):
            return said + scores._repr_html_()


def require_count(name: str, number: object) -> None:
    """Raise ConfigError where a number is not one of steps or windows."""
    if not isinstance(number, Integral) or not 1 <= int(number) <= _MOST:
        raise ConfigError(f"{name} = {number!r}: give a whole number from 1 to {_MOST:,}")


def _select(series: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return the rows of some series."""
    return series.filter(pl.col("series_id").is_in([PREFIX + name for name in names]))


def _tabulate(
    prediction: Prediction, steps: int, level: Sequence[float] | float | None, method: str
) -> dict[str, pl.Series]:
    """Return the columns of a forecast, window by window; null where there is no quantile.

    ConfigError if there is no such level.
    """
    names = {f"q{quantile:g}": quantile for quantile in LEVELS}
    if level is not None:
        percents: list[Any] = [level]
        if isinstance(level, Iterable) and not isinstance(level, str):
            percents = list(level)
        widest = 100 * (1 - 2 * LEVELS[0])
        if wrong := [p for p in percents if not isinstance(p, Real) or not 1 <= float(p) <= widest]:
            raise ConfigError(f"level = {wrong}: give numbers from 1 to {widest:g}, in percent")
        sides = {"lo": -1, "hi": 1}
        names = {
            f"{method}-{side}-{percent:g}": 0.5 + sign * percent / 200
            for percent in percents
            for side, sign in sides.items()
        }

    columns = {"mean" if level is None else method: prediction.aggregate}
    for name, quantile in names.items():
        # On the straight line between the two that are known.
        place = float(np.interp(round(quantile, 6), LEVELS, range(len(LEVELS))))
        below, above = (prediction.quantiles[:, int(end(place))] for end in (np.floor, np.ceil))
        share = place % 1
        columns[name] = (1 - share) * below + share * above if share else below
    return {name: pl.Series(of[:, :steps].ravel()).fill_nan(None) for name, of in columns.items()}


def _list_steps(views: Sequence[WindowView], steps: int) -> tuple[list[str], list[datetime]]:
    """Return series and start of every step of some views, view by view."""
    names = [view.entity for view in views for _ in range(steps)]
    starts = [shift(view.origin_utc, i, view.step) for view in views for i in range(steps)]
    return names, starts
