"""The engine against ordinary ways of doing the same, in one run: ``python -m benchmarks.engine``.

What belongs here: running the cases, each in a process of its own, the rows derived from others and
the table. What does not: the measuring itself (``cases``); what each case measures and compares is
in ``docs/explanation/benchmarks.md``.

A ratio is reference over ours, in processor seconds (on a GPU in wall-clock seconds): above 1, ours
is faster. Its limit is the ratio if all but the products with frozen weights, which both ways need,
took no time. Rows whose ratio is another number are described in ``table.TEXTS``.

``dtype`` is our own type (``backbone.dtype``); references by other libraries have the same types,
see ``cases``. A row replaces the one of the same case, agents, backbone and dtype; the others stay.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cases import CASES
from benchmarks.rows import (
    LIBRARIES,
    Row,
    describe_surroundings,
    measure_in_process,
    read_rows,
    write_rows,
)
from benchmarks.rows import RESULTS as FOLDER
from benchmarks.world import Case
from compevo_pipeline.config.settings import child_environment

RESULTS = FOLDER / "engine.csv"
_WHAT = ("case", "agents", "backbone", "dtype", "reference")
_SECONDS = ("ours_seconds", "reference_seconds", "ratio", "limit")
_SIZES = ("tokens", "peak_memory_gb", "state_gb")
_HOW = ("repeats", "threads", "machine", *LIBRARIES, "commit")
COLUMNS = (*_WHAT, *_SECONDS, *_SIZES, *_HOW)


def run(
    cases: Iterable[str],
    agents: Iterable[int],
    repeats: int,
    out: Path,
    *,
    quick: bool = False,
    threads: int = 0,
    **choice: Any,  # noqa: ANN401 - of a case
) -> list[Row]:
    """Measure cases, write the table after each of them, and return its rows.

    Without ``agents`` each case has its own numbers of them; ``choice`` holds further fields of
    :class:`benchmarks.world.Case`. The rest is as on the command line.
    """
    surroundings = describe_surroundings()
    chosen = tuple(agents)
    rows = read_rows(out) if out.is_file() else []

    for name in cases:
        for count in chosen or CASES[name][1]:
            case = Case(name=name, agents=count, repeats=repeats, quick=quick, **choice)
            for row in measure_in_process(
                "benchmarks.cases",
                json.dumps(dataclasses.asdict(case)),
                environment=child_environment(threads),
            ):
                # A GPU is the machine of its rows.
                surroundings |= {"machine": row.get("machine", surroundings["machine"])}
                rows = merge_rows(rows, [row | surroundings])

        rows = merge_rows(rows, list(derive_rows(rows, surroundings)))
        write_rows(rows, out, COLUMNS)
    return rows


def merge_rows(rows: list[Row], new: list[Row]) -> list[Row]:
    """Return ``rows`` with each row of ``new`` replacing the row of its key, sorted by key."""

    def key(row: Row) -> tuple[str, str, int, str]:
        return str(row["backbone"]), str(row["case"]), int(row["agents"]), str(row["dtype"])

    table = {key(row): row for row in rows} | {key(row): row for row in new}
    return [table[each] for each in sorted(table)]


def derive_rows(rows: list[Row], surroundings: Row) -> Iterator[Row]:
    """Derive, from sorted rows, how time and memory grow with the agents, by backbone and type."""
    derivations = (
        ("round", "round-exponent", fit_exponent),
        ("memory-joint", "memory-joint-ratio", _divide_peaks),
        ("memory-by-agent", "memory-by-agent-ratio", _divide_peaks),
    )
    # Rows of another machine may be in the same table.
    rows = [row for row in rows if row["machine"] == surroundings["machine"]]

    for kind in sorted({(row["backbone"], row["dtype"]) for row in rows}):
        for case, name, derive in derivations:
            measured = [
                row for row in rows if (row["backbone"], row["dtype"], row["case"]) == (*kind, case)
            ]
            if len(measured) > 1:
                shared = ("agents", "backbone", "dtype", "repeats", "threads")
                row = surroundings | {column: measured[-1][column] for column in shared}
                yield row | {"case": name, "ratio": derive(measured)}


def fit_exponent(rows: list[Row]) -> float:
    """Return the slope of log seconds over log agents by least squares."""
    agents = [math.log(int(row["agents"])) for row in rows]
    seconds = [math.log(float(row["ours_seconds"])) for row in rows]
    return statistics.linear_regression(agents, seconds).slope


def _divide_peaks(rows: list[Row]) -> float:
    fewest, *_, most = (float(row["peak_memory_gb"]) - float(row["state_gb"]) for row in rows)
    return most / fewest


app = typer.Typer(add_completion=False)


@app.command()
def main(
    cases: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    agents: Annotated[
        list[int] | None,
        typer.Option(help="This number of agents (may be given more than once)."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each case; medians are written.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of torch; 0 is its own choice.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="The tiny random backbone; needs --out.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The table.")] = None,
    preset: Annotated[str, typer.Option(help="Preset of the runs.")] = "default",
    types: Annotated[list[str] | None, typer.Option("--type", help="backbone.dtype.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="SETTING=VALUE.")] = None,
) -> None:
    """Measure the engine against ordinary ways of doing the same."""
    if unknown := sorted(set(cases or ()) - CASES.keys()):
        raise typer.BadParameter(f"no case {', '.join(unknown)}; known: {', '.join(CASES)}")
    if quick and out is None:
        raise typer.BadParameter(
            "--quick times nothing real: name a table with --out, so that the committed one stays "
            "as it is"
        )

    run(
        cases or CASES,
        agents or (),
        repeats,
        out or RESULTS,
        quick=quick,
        threads=threads,
        preset=preset,
        types=types or (),
        settings=dict(setting.split("=", 1) for setting in settings or ()),
    )


if __name__ == "__main__":
    app()
