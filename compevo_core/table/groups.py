"""``compevo_core.GroupedForecaster``: many series, fitted and forecast by groups on workers.

    grouped = GroupedForecaster(Forecaster(horizon=28), "fits", size=100, engine="dask")
    forecast = grouped.fit(sales).predict()

What belongs here: groups of series, their folders, workers. What does not: the fit of a group
(``table.forecaster``).

A worker reads the rows of one group from Parquet files and puts its fit, in one step, into a folder
named by the hash of these rows and of the parameters. So a group that a lost worker had begun is
fitted by another, and one that is there is not fitted again. ``groups.json`` names the fits of a
table when all are there.
"""

import dataclasses
import json
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import polars as pl

from compevo_core.errors import CompEvoError, ConfigError, DataError, import_package, list_some
from compevo_core.runtime.files import (
    fill_folder_atomically,
    hash_file,
    hash_text,
    read_json,
    translate_storage_errors,
    write_json,
)
from compevo_core.runtime.usage import OnStep, Steps
from compevo_core.table.cells import read_names
from compevo_core.table.forecaster import Forecaster, require_count
from compevo_core.table.frames import Frame, to_polars

_MANIFEST, _FITS, _FORECAST = "groups.json", "fits", "forecast.parquet"
_SHARED = "shared"  # folder of the tables that name no series
_GROUP = "compevo:group"
_POLL_SECONDS = 0.5  # between two looks at what workers have done
_LOCK = threading.Lock()  # memory and warnings are a process's: its threads take turns


@dataclasses.dataclass
class GroupedForecaster:
    """Fits and forecasts groups of series, with the numbers of a :class:`Forecaster` for each.

    Args:
        forecaster: what each group is fitted by; its ``totals`` cannot cross groups.
        folder: where fits are kept, for workers on other machines by the same path. Another process
            predicts from it by the same arguments.
        by: column whose last value of a series names its group; blocks of names unless given.
        size: series of a block. A worker process holds one group at a time, in all its threads.
        engine: what ``fugue`` knows: ``dask``, ``ray``, ``spark``, or a client or session of one;
            None does one group after the other in this process.
    """

    forecaster: Forecaster
    folder: str | Path
    _: dataclasses.KW_ONLY
    by: str = ""
    size: int = 100
    engine: Any = None

    def fit(self, df: Frame, **options: Any) -> Self:  # noqa: ANN401 - of Forecaster.fit
        """Fit each group on its rows; arguments as in :meth:`Forecaster.fit`.

        What the folder holds of an interrupted call, or of equal rows and parameters, is not fitted
        again. Fits of other rows go when all groups are fitted.

        Raises:
            DataError: a table cannot be read, a series has no group, or groups cannot be fitted:
                they are named with their series when the others are fitted.
            ConfigError: a parameter cannot be.
        """
        if self.forecaster.totals:
            raise ConfigError("totals cross groups: add the forecasts up, or fit one Forecaster")
        require_count("size", self.size)
        self._call("fit", {}, df, options)
        return self

    def predict(self, df: Frame = None, **options: Any) -> Frame:  # noqa: ANN401 - of Forecaster
        """Forecast all groups; arguments as in :meth:`Forecaster.predict`, and ``on_step``.

        Returns:
            the tables of all groups as one; null where a group has no such column.

        Raises:
            DataError: nothing is fitted, a series has no group (a new one has by its value of
                ``by`` only), or groups cannot be forecast.
        """
        return self._call("predict", self._read_manifest(), df, options)

    def backtest(self, df: Frame = None, **options: Any) -> Frame:  # noqa: ANN401 - of Forecaster
        """Test all groups as :meth:`Forecaster.backtest`; returns, raises as :meth:`predict`."""
        return self._call("backtest", self._read_manifest() if df is None else {}, df, options)

    @property
    def _root(self) -> Path:
        return Path(self.folder).expanduser().resolve()

    def _read_manifest(self) -> dict[str, Any]:
        return read_json(self._root / _MANIFEST, "fit groups in this folder first")

    def _call(
        self, call: str, known: Mapping[str, Any], df: Frame, options: dict[str, Any]
    ) -> Frame:
        """Have workers do a call for each group; keep the fits, or return the forecasts."""
        on_step = options.pop("on_step", lambda _: None)
        given = {"df": df} | {name: options.pop(name, None) for name in ("future", "news")}
        tables = {n: to_polars(t, self.forecaster.time) for n, t in given.items() if t is not None}
        kind = known.get("kind") or tables["df"][0]
        fits, groups = dict(known.get("fits", {})), known.get("groups", {})
        forecaster, kept = dataclasses.replace(self.forecaster), self._root / _FITS
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="work-", dir=self._root) as place:
            for name, (_, frame) in tables.items():
                groups = self._write_rows(frame, Path(place), f"{name}.parquet", groups)
            jobs = []
            for group in dict.fromkeys(groups.values()):
                folders = [Path(place, name) for name in (hash_text(group), _SHARED)]
                rows = sorted(path for folder in folders for path in folder.glob("*"))
                fit, made = fits.get(group, ""), Path(place, f"made-{hash_text(group)}")
                if call == "fit":
                    read = [path.stem + hash_file(path) for path in rows]
                    fits[group] = hash_text(repr(forecaster) + "".join(read))
                    made = kept / fits[group]
                paths = {"fit": str(kept / fit) if fit else "", "made": str(made)}
                jobs.append({"group": group, "rows": json.dumps([*map(str, rows)]), **paths})

            params = {"forecaster": forecaster, "call": call, "options": options}
            _report(_distribute(jobs, params, self.engine, on_step), groups, call)
            if call != "fit":
                frames = [pl.read_parquet(Path(job["made"], _FORECAST)) for job in jobs]
                forecast = pl.concat(frames, how="diagonal_relaxed")
                return forecast.to_pandas() if kind == "pandas" else forecast

        write_json(self._root / _MANIFEST, {"kind": kind, "groups": groups, "fits": fits})
        for path in kept.iterdir():  # of other rows, or begun by a lost worker
            if path.name not in fits.values():
                shutil.rmtree(path)
        return None

    def _write_rows(
        self, frame: pl.DataFrame, place: Path, name: str, known: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Write the rows of each group for its worker; return the group of each series.

        ``known`` has the groups of earlier tables. DataError if a series has none.
        """
        column = self.forecaster.series
        parts = {_SHARED: frame}
        if column in frame.columns:
            names = read_names(frame[column]).fill_null("")  # said by the group's Forecaster
            known = self._assign(frame, names, known)
            frame = frame.drop({self.by} - {column, *self.forecaster.static}, strict=False)
            frame = frame.with_columns(names.replace_strict(known).alias(_GROUP))
            split = frame.partition_by(_GROUP, include_key=False, as_dict=True)
            parts = {hash_text(str(group)): part for (group,), part in split.items()}
        if not known:
            raise DataError(f"no column {column!r} names series: name it by Forecaster(series=...)")
        for folder, part in parts.items():
            (place / folder).mkdir(exist_ok=True)
            part.write_parquet(place / folder / name)
        return known

    def _assign(
        self, frame: pl.DataFrame, names: pl.Series, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the group of each series, of a table and of known ones."""
        ordered = names.unique().sort()
        found: dict[str, Any] = {}
        if self.by and self.by in frame.columns:
            pairs = pl.DataFrame({"name": names, "group": read_names(frame[self.by])})
            found = dict(pairs.unique("name", keep="last", maintain_order=True).iter_rows())
        elif not self.by and not known:
            found = {name: str(i // self.size + 1) for i, name in enumerate(ordered)}
        found |= known
        allowed = {*(known or found).values()} - {None}
        if lost := [name for name in ordered if found.get(name) not in allowed]:
            raise DataError(
                f"series {list_some(lost)} are in no group that was fitted: give them one of these "
                f"by the column {self.by!r}, or fit again with them"
            )
        return dict(sorted(found.items()))


def _distribute(
    jobs: list[dict[str, str]],
    params: Mapping[str, Any],
    engine: Any,  # noqa: ANN401 - of fugue
    on_step: OnStep,
) -> list[dict[str, Any]]:
    """Have workers do the jobs that are not done; return warnings and errors of groups."""
    jobs = [job for job in jobs if not Path(job["made"]).exists()]
    is_over = threading.Event()
    arguments = (is_over, [Path(job["made"]) for job in jobs], on_step)
    follower = threading.Thread(target=_report_progress, args=arguments, daemon=True)
    follower.start()
    try:
        if engine is None or not jobs:
            return _run_groups(jobs, **params)
        messages = import_package("fugue.api").transform(
            pl.DataFrame(jobs).to_pandas(),
            _run_groups,
            schema="group:str,is_error:bool,text:str",
            params=params,
            partition={"num": len(jobs)},
            engine=engine,
            as_local=True,
        )
        return pl.from_pandas(messages).to_dicts()
    finally:
        is_over.set()
        follower.join()


def _report_progress(is_over: threading.Event, made: Sequence[Path], on_step: OnStep) -> None:
    """Say how many groups are done, and how long the others take, until it is over."""
    steps = Steps([1] * len(made), on_step)
    for done in range(len(made)):
        while sum(path.exists() for path in made) < done:
            if is_over.wait(_POLL_SECONDS):
                return
        steps.begin("groups")


def _run_groups(
    jobs: list[dict[str, Any]],
    forecaster: Any,  # noqa: ANN401 - fugue takes no other class
    call: str,
    options: Any,  # noqa: ANN401
) -> list[dict[str, Any]]:
    """Do a call for groups in a worker; return the warnings and the error of each group."""

    def write(rows: str, fit: str, part: Path) -> None:
        tables = {Path(path).stem: pl.read_parquet(path) for path in json.loads(rows)}
        forecaster._configure()  # makes a method of an estimator
        fitted = Forecaster.load(fit) if fit else forecaster
        made = getattr(fitted, call)(**tables, **options)
        if call == "fit":
            made.save(part)
        else:
            made.write_parquet(part / _FORECAST)

    messages = []
    for job in jobs:
        made = Path(job["made"])
        with _LOCK, warnings.catch_warnings(record=True) as caught:
            try:
                # A worker that was lost later may have made it.
                with translate_storage_errors():
                    if not made.exists():
                        fill_folder_atomically(made, partial(write, job["rows"], job["fit"]))
            except CompEvoError as error:
                messages.append({"group": job["group"], "is_error": True, "text": str(error)})
            except Exception as error:
                error.add_note(f"in group {job['group']}")
                raise
        for text in dict.fromkeys(str(warning.message) for warning in caught):
            messages.append({"group": job["group"], "is_error": False, "text": text})
    return messages


def _report(rows: Sequence[Mapping[str, Any]], groups: Mapping[str, str], call: str) -> None:
    """Warn of what groups warned of; DataError if some failed, with their series."""
    groups_of: dict[tuple[bool, str], list[str]] = {}
    for row in rows:
        groups_of.setdefault((row["is_error"], row["text"]), []).append(row["group"])
    failed = []
    for (is_error, text), some in groups_of.items():
        series = [name for name, group in groups.items() if group in some]
        sentence = f"group {list_some(some)} (series {list_some(series)}): {text}"
        if is_error:
            failed.append(sentence)
        else:
            warnings.warn(sentence, stacklevel=4)
    if failed:
        raise DataError(
            f"{call} failed in {'; '.join(failed)}. Correct these series or leave them out, and "
            f"{call} again: what was fitted is kept"
        )
