"""How many faults of content are described, and how many sound series are: a sweep of draws.

    python -m benchmarks.content ARCHIVE

What belongs here: faults put into real series and files, and the shares found, by kind. What does
not: the rules (``compevo_core.data.content``, ``storage.series_store``). ``ARCHIVE`` is a folder of
stored series, searched for ``*__*.parquet``; none of them has a known fault or is a price, whose
spikes are true. The series of ``benchmarks.tables`` are taken for sound, too.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import typer

from benchmarks.rows import RESULTS, describe_surroundings, write_rows
from benchmarks.tables import TASKS
from compevo_core import Forecaster
from compevo_core.data.content import describe_faults
from compevo_core.table.frames import SERIES, put_on_series, read_table
from compevo_pipeline.storage.series_store import SeriesStore

HOUR = timedelta(hours=1)
LONGEST = 4_000  # values of a series
FILLERS = (-9999.0, -1.0, 0.0, 999.0)
SHARES = (0.005, 0.02, 0.08, 0.2, 0.3)
RATIOS = (0.001, 0.1, 0.5, 0.98, 1.02, 2.0, 10.0, 1000.0)


def draw_faults(
    values: np.ndarray[Any, Any], step: timedelta, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the name of each fault that can be put into a series, and the series with it."""
    low, high = values.min(), values.max()
    for filler in FILLERS:
        for share in SHARES:
            # Within the range of the values nothing tells a filler from a value.
            if not low <= filler <= high:
                yield (
                    f"filler {filler:g}",
                    np.where(rng.random(len(values)) < share, filler, values),
                )
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


def draw_files(rows: pl.DataFrame, step: timedelta) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the name of each fault of a whole file, and the file with it; last one that grew."""
    for ratio in RATIOS:
        yield f"file times {ratio:g}", rows.with_columns(pl.col("value") * ratio)
    for lag in (1, 2, 6, 12, 24):
        yield f"file late by {lag} steps", rows.with_columns(pl.col("start_utc") + lag * step)
    day = rows.tail(48).with_columns(pl.col("start_utc") + 48 * step)
    yield "none, a file that grew", pl.concat([rows, day])


def look_at_tables(found: dict[str, list[bool]]) -> None:
    """Add whether each series of the tables is described as faulty; none is known to be."""
    for task in TASKS:
        try:
            rows, form = read_table(task.load()[["unique_id", "ds", "y"]], Forecaster())
        except (FileNotFoundError, ModuleNotFoundError) as error:
            print(f"{task.name} is left out: {error}")  # noqa: T201 - a command
            continue
        for (name,), part in rows.group_by(SERIES, maintain_order=True):
            said = describe_faults(f"{task.name}, {name}", part, form.clock.step)
            for line in said:
                print(line)  # noqa: T201 - a command
            found["none, tables"].append(bool(said))


def main(archive: Path) -> None:
    """Sweep the faults over all series of an archive, and write a row for each kind."""
    rng = np.random.default_rng(0)
    found: dict[str, list[bool]] = defaultdict(list)
    look_at_tables(found)
    for path in sorted(archive.rglob("*__*.parquet")):
        rows = pl.read_parquet(path, glob=False).drop_nulls("value").sort("start_utc")
        step = rows["start_utc"].diff().mode().min()
        values = rows.tail(LONGEST)["value"].to_numpy()
        # Prices jump, and what has few values counts.
        if "RRP" in path.name or len(values) < 300 or len(np.unique(values)) < 50:
            continue
        starts = pl.Series(
            [datetime(2024, 1, 1, tzinfo=UTC) + i * step for i in range(len(values))]
        )
        for name, faulty in [("none", values), *draw_faults(values, step, rng)]:
            series = pl.DataFrame({"start_utc": starts, "value": faulty})
            found[name].append(bool(describe_faults("", series, step)))
        stored = pl.DataFrame({SERIES: "a", "start_utc": starts, "value": values})
        for name, file in draw_files(stored, step):
            with TemporaryDirectory() as folder:
                store = SeriesStore(Path(folder))
                store.write("own", put_on_series(stored))
                report = store.write("own", put_on_series(file), replace=True)
                found[name].append(report.waiting > 0)
    rows = [
        {"fault": name, "draws": len(said), "described": float(np.mean(said))}
        for name, said in found.items()
    ]
    facts = describe_surroundings(())
    write_rows([row | facts for row in rows], RESULTS / "content.csv", [*rows[0], *facts])


if __name__ == "__main__":
    typer.run(main)
