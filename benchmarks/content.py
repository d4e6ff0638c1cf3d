"""How many faults of content are described, and how many sound series are: a sweep of draws.

    python -m benchmarks.content            # faults put into the series of benchmarks.tables
    python -m benchmarks.content ARCHIVE    # into stored series as well

What belongs here: faults put into real series and files, and the shares found, by kind. What does
not: the rules (``compevo_core.data.content``, ``storage.series_store``). ``ARCHIVE`` is a folder of
stored series, searched for ``*__*.parquet``; none of them has a known fault or is a price, whose
spikes are true. The series of ``benchmarks.tables`` but three are taken for sound, too; rules of
files were chosen on tables of the role ``choosing``, rules of spikes, fillers and ends on all.

A spike is *visible* where it is below zero and nothing else is, or where the jumps to it and back
are three times as high as all other jumps, and further above them than any record was above the
record before. Every tenth series has a true value of twice that height. Faults that are not
measured keep their rows.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import typer

from benchmarks.rows import RESULTS, describe_surroundings, read_rows, write_rows
from benchmarks.tables import TASKS
from compevo_core import Forecaster
from compevo_core.data.content import describe_faults
from compevo_core.data.steps import DAY
from compevo_core.errors import DataError
from compevo_core.table.frames import SERIES, put_on_series, read_table
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.own.draft import DraftedDeclaration, Request, draft_declaration
from compevo_pipeline.storage.series_store import SeriesStore

HOUR = timedelta(hours=1)
LONGEST = 4_000  # values of a series
SHARES = (0.005, 0.02, 0.08, 0.2, 0.3)
FAULTY = ("exchange c0", "exchange c4", "ni_load s")
"""Series of the tables with true faults: rates far off for a day, a meter stuck for two days."""
TIMES = (-3.0, 5.0, 20.0)  # a spike is the value
SPARSE = 0.1  # of zeros from which on a large order is as likely as a fault
FEWEST = 120  # values of a series that shows what is usual
ROWS = RESULTS / "content.csv"
NEW = 24  # values that a file has beyond the stored ones
RATIOS = (0.001, 0.1, 0.5, 0.98, 1.02, 2.0, 10.0, 1000.0)


def draw_faults(
    values: np.ndarray[Any, Any], step: timedelta, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the name of each fault that can be put into a series, and the series with it."""
    low, high = values.min(), values.max()
    for filler in (-9999.0, -1.0, 0.0, 999.0):
        for share in SHARES:
            # Within the range of the values nothing distinguishes a filler from a value.
            if not low <= filler <= high:
                filled = np.where(rng.random(len(values)) < share, filler, values)
                yield f"filler {filler:g}", filled
    for times in TIMES if len(values) > 2 * FEWEST else ():
        spike = values.copy()
        spike[rng.integers(100, len(values) - 100)] *= times
        yield "spike", spike
    if step <= HOUR:
        for hours in (6, 12, 24, 48, 120):
            length = int(hours * HOUR / step)
            first = int(rng.integers(100, len(values) - length))
            stuck = values.copy()
            stuck[first : first + length] = stuck[first]
            yield "stuck", stuck
    if low > 0:
        for count in (1, 2, 6, 12, 24):
            yield "zeros at the end", np.append(values[:-count], np.zeros(count))
        yield "a third at the end", np.append(values[:-1], values[-1] / 3)
        last = max(1, DAY // step)
        yield "a tenth of the last day", np.append(values[:-last], values[-last:] / 10)


def sweep_doors(
    rows: pl.DataFrame, step: timedelta, rng: np.random.Generator
) -> Iterator[tuple[str, bool]]:
    """Yield the name of each fault by the door of a table, and whether it is reported.

    The table comes as a DataFrame that is fitted, and as a file that is declared; the DataFrame
    also as newer rows of a sound fit, in another unit or late.
    """
    values = rows["value"].to_numpy()
    starts = rows["start_utc"].dt.replace_time_zone(None)
    forecaster = Forecaster("last-value", horizon=max(1, DAY // step))

    def is_said(call: Callable[[pl.DataFrame], object], values: np.ndarray[Any, Any]) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                said = call(pl.DataFrame({"ds": starts, "y": values}))
            except (UserWarning, DataError):
                return True
        return isinstance(said, DraftedDeclaration) and bool(said.warnings)

    def declare(table: pl.DataFrame) -> DraftedDeclaration:
        raw = RawFile(
            source="own",
            name="table.csv",
            content=table.write_csv().encode(),
            url="",
            fetched_at=datetime.now(UTC),
            mode=Mode.ARCHIVE,
        )
        return draft_declaration(Request(name="table", file=Path(raw.name)), raw, {})

    for name, faulty in [("none", values), *draw_faults(values, step, rng)]:
        yield f"{name}, a DataFrame", is_said(forecaster.fit, faulty)
        yield f"{name}, a file", is_said(declare, faulty)

    forecaster.fit(pl.DataFrame({"ds": starts, "y": values}))
    changed = {f"times {ratio:g}": values * ratio for ratio in RATIOS}
    changed |= {f"late by {lag} steps": np.roll(values, lag) for lag in (1, 2, 6, 12, 24)}
    for name, newer in changed.items():
        yield f"newer rows {name}, a DataFrame", is_said(forecaster.predict, newer)


def sweep_spikes(
    rows: pl.DataFrame, step: timedelta, rng: np.random.Generator
) -> Iterator[tuple[str, bool]]:
    """Yield the name of each spike and of an end that lacks a part, and whether it is described."""
    values = rows["value"].to_numpy()
    places = [(times, int(rng.integers(60, len(values) - 60))) for times in TIMES for _ in range(2)]
    for times, at in [*places, (1 / 3, len(values) - 1)]:
        faulty = values.copy()
        faulty[at] *= times
        if faulty[at] == values[at] or (times < 1 / 2 and times > 0 and values.min() <= 0):
            continue
        name = f"spike {times:g}" if at < len(values) - 1 else "a third at the end"
        is_seen = "visible" if is_visible(values, faulty, at) else "hidden"
        described = describe_faults("", rows.with_columns(value=pl.Series(faulty)), step)
        yield f"{name}, {is_seen}", bool(described)


def is_visible(values: np.ndarray[Any, Any], faulty: np.ndarray[Any, Any], at: int) -> bool:
    """Return whether a person would see the fault among the jumps of the sound series."""
    if faulty[at] < 0 <= values.min():
        return True
    to_and_back = np.diff(faulty)[at - 1 : at + 1]
    is_counted = (values == 0).mean() >= SPARSE
    if is_counted or (len(to_and_back) == 2 and to_and_back.prod() >= 0):
        return False
    others = np.abs(np.diff(np.delete(values, at)))
    records = np.maximum.accumulate(others)[max(9, len(others) // 10 - 1) :]
    ratios = records[1:][records[:-1] > 0] / records[:-1][records[:-1] > 0]
    least = max(3.0, ratios.max(initial=0.0)) * others.max()
    return bool(np.abs(to_and_back).min() > least)


def sweep_files(rows: pl.DataFrame) -> Iterator[tuple[str, bool]]:
    """Yield the name of each fault of a whole file, and whether it waits; last one that grew."""
    rows = rows.drop_nulls("value").tail(LONGEST).with_columns(pl.lit("a").alias(SERIES))
    files = {
        f"file times {ratio:g}": rows.with_columns(pl.col("value") * ratio) for ratio in RATIOS
    }
    for lag in (1, 2, 6, 12, 24):
        late = rows.with_columns(pl.col("value").shift(lag)).drop_nulls()
        files[f"file late by {lag} steps"] = late
    files["none, a file that grew"] = rows
    for name, file in files.items():
        with TemporaryDirectory() as folder:
            store = SeriesStore(Path(folder))
            store.write("own", put_on_series(rows[:-NEW]))
            report = store.write("own", put_on_series(file), replace=True)
            yield name, report.waiting > 0


def main(archive: Path | None = None) -> None:
    """Sweep the faults over all series, and write a row for each kind."""
    rng = np.random.default_rng(0)
    found: dict[str, list[bool]] = defaultdict(list)
    seen: set[str] = set()
    for task in TASKS:
        try:
            table, form = read_table(task.load()[["unique_id", "ds", "y"]], Forecaster())
        except (FileNotFoundError, ModuleNotFoundError) as error:
            print(f"{task.name} is left out: {error}")  # noqa: T201 - a command
            continue
        for (series,), part in table.group_by(SERIES, maintain_order=True):
            said = describe_faults(f"{task.name} {series}", part, form.clock.step)
            print(*said, sep="\n")  # noqa: T201 - a command
            kind = "true" if f"{task.name} {series}" in FAULTY else "none"
            found[f"{kind}, tables {task.role}"].append(bool(said))
            values = part.drop_nulls("value").tail(LONGEST).select("start_utc", "value")
            swept = [*sweep_files(part)]
            # One series is enough to read a table: both doors judge every series by itself.
            if not said and len(values) >= FEWEST and task.name not in seen:
                seen.add(task.name)
                swept += sweep_doors(values, form.clock.step, rng)
            if not said and len(values) >= FEWEST:
                swept += sweep_spikes(values, form.clock.step, rng)
            for name, is_seen in swept:
                found[f"{name}, tables {task.role}"].append(is_seen)

    for path in sorted(archive.rglob("*__*.parquet")) if archive else ():
        rows = pl.read_parquet(path, glob=False).drop_nulls("value").sort("start_utc")
        step = rows["start_utc"].diff().mode().min()
        rows = rows.tail(LONGEST).select("start_utc", "value")
        # Prices jump, years of bitcoin's are one value, and what has few values counts.
        if re.search("RRP|BITINFO", path.name) or len(rows) < 300 or rows["value"].n_unique() < 50:
            continue
        faults = draw_faults(rows["value"].to_numpy(), step, rng)
        for name, values in [("none", rows["value"]), *faults]:
            described = describe_faults("", rows.with_columns(value=pl.Series(values)), step)
            found[name].append(bool(described))
        for name, is_seen in sweep_files(rows):
            found[name].append(is_seen)
    facts = describe_surroundings(())
    measured = [
        {"fault": name, "draws": len(said), "described": float(np.mean(said))} | facts
        for name, said in found.items()
    ]
    kept = [row for row in read_rows(ROWS) if row["fault"] not in found] if ROWS.is_file() else []
    write_rows([*measured, *kept], ROWS, [*measured[0]])


if __name__ == "__main__":
    typer.run(main)
