"""The tables of speed and memory in the documentation: ``python -m benchmarks.table``.

What belongs here: rows of ``benchmarks/results`` to Markdown, and writing every table of the
document between its markers. What does not: measuring (``engine``, ``store``, ``gkg``).
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.engine_rows import REPO, RESULTS, Row, read_rows
from compevo_core.report.markdown import replace_between
from compevo_core.report.tables import markdown_table
from compevo_core.runtime.files import write_text

DOCUMENT = REPO / "docs" / "explanation" / "benchmarks.md"
MARKERS = (
    "<!-- speed: made by `make readme` from benchmarks/results/engine.csv -->",
    "<!-- end of speed -->",
)

STORE_MARKERS = (
    "<!-- store: made by `make readme` from benchmarks/results/store.csv -->",
    "<!-- end of store -->",
)
GKG_MARKERS = (
    "<!-- gkg: made by `make readme` from benchmarks/results/gkg.csv -->",
    "<!-- end of gkg -->",
)

STORE_HEADER = ("step", "articles", "seconds", "processor's", "exponent", "peak MB", "disk MB")
GKG_HEADER = ("way", "files", "MB", "articles", "MB/s", "articles/s", "peak MB")

#: Columns of the cases with a reference, float32 beside mixed types.
COMPARED_HEADER = (
    "operation (reference)",
    "agents",
    "float32",
    "reference",
    "ratio",
    "mixed",
    "reference",
    "ratio",
)
#: Columns of the other cases.
HEADER = ("measure", "agents", "type", "seconds", "ratio", "tokens/s", "peak GB", "state GB")

#: What a row measures, in the order of the table; a case without a text is not shown.
TEXTS = {
    "round": "a round",
    "policy": "candidates, group and policy step",
    "inference": "one batch's forecasts",
    "inference-mixed": "one batch's forecasts",
    "round-exponent": "exponent of a round's seconds in the agents",
    "preset-round": "the preset's round without rewriting",
    "preset-rewriting": "the preset's round with rewriting",
    "preset-inference-100": "the preset's forecasts of 100 windows",
    "preset-pass-1975": "the preset's pass over 1,975 windows",
    "gradient": "forecast phase, agent by agent",
    "gradient-difference": "difference of the gradients over their norm",
    "memory": "peak of one round",
    "memory-ratio": "peak with ten agents over peak with one",
    "memory-joint": "peak of a round without rewriting, gradient joint",
    "memory-joint-ratio": "peak less state, most agents over fewest, gradient joint",
    "memory-by-agent": "peak of a round without rewriting, gradient by agent",
    "memory-by-agent-ratio": "peak less state, most agents over fewest, gradient by agent",
    "products-3-rows": "frozen linear layers, 3 rows",
    "products-24-rows": "frozen linear layers, 24 rows",
    "products-768-rows": "frozen linear layers, 768 rows",
    "bfloat16-3-rows": "frozen linear layers, 3 rows",
    "bfloat16-24-rows": "frozen linear layers, 24 rows",
    "bfloat16-768-rows": "frozen linear layers, 768 rows",
    "matmul-2048": "product of 2048 x 2048 matrices, GFLOP/s: the processor's ceiling",
    "backbone-forward": "one prompt of 512 tokens, share of that ceiling",
}


def format_speed_table(rows: Sequence[Row]) -> str:
    """Return the table of cases with a reference, the table of the others, and the machine."""
    order = list(TEXTS)
    shown = [row for row in rows if row["case"] in TEXTS]
    shown.sort(key=lambda row: (order.index(row["case"]), int(row["agents"]), row["dtype"]))

    pairs: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in shown:
        if row["reference"]:
            key = (row["case"], row["reference"], row["agents"])
            pairs.setdefault(key, {})[row["dtype"]] = row
    compared = [_format_pair(by_type) for by_type in pairs.values()]
    others = [_format_cells(row) for row in shown if not row["reference"]]

    tables = (
        markdown_table(COMPARED_HEADER, compared, align="lrrrrrrr"),
        markdown_table(HEADER, others, align="lrlrrrrr"),
        _describe_measurement(rows),
    )
    return "\n\n".join(tables)


def _format_pair(by_type: Mapping[str, Row]) -> tuple[str, ...]:
    first = next(iter(by_type.values()))
    cells = [f"{TEXTS[first['case']]} ({first['reference']})", first["agents"]]
    for dtype in ("float32", "mixed"):
        row = by_type.get(dtype)
        if row is None:
            cells += ["", "", ""]
            continue
        cells += [
            _format_seconds(row["ours_seconds"]),
            _format_seconds(row["reference_seconds"]),
            _format_ratio(row["case"], row["ratio"]),
        ]
    return tuple(cells)


def _format_cells(row: Row) -> tuple[str, ...]:
    case = row["case"]
    seconds = _format_seconds(row["ours_seconds"])
    if row["reference_seconds"]:
        seconds += f" (at best {_format_seconds(row['reference_seconds'])})"

    # In other cases the process did more than the operation.
    measures_memory = case.startswith("memory")
    return (
        TEXTS[case],
        row["agents"],
        row["dtype"],
        seconds,
        _format_ratio(case, row["ratio"]),
        f"{int(row['tokens']) / float(row['ours_seconds']):.0f}" if row["tokens"] else "",
        _format_number(row["peak_memory_gb"], 1) if measures_memory else "",
        _format_number(row["state_gb"], 2) if measures_memory else "",
    )


def _format_ratio(case: str, text: str) -> str:
    if case == "gradient-difference":
        return f"{float(text):.0e}"
    return _format_number(text, 0 if case == "matmul-2048" else 2)


def _describe_measurement(rows: Sequence[Row]) -> str:
    first = rows[0]
    repeats = sorted({int(row["repeats"]) for row in rows})
    return (
        f"Medians of {repeats[0]} to {repeats[-1]} runs on {first['machine']}, "
        f"{first['threads']} threads; torch {first['torch']}, "
        f"transformers {first['transformers']}, peft {first['peft']}, trl {first['trl']}."
    )


def _format_seconds(text: str) -> str:
    return f"{_format_number(text, 2 if float(text) < 1 else 1)} s" if text else ""


def _format_number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}f}" if text else ""


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def format_store(rows: Sequence[Row]) -> str:
    """Return the steps of the store, each by size, and what they were measured on."""
    order = list(dict.fromkeys(row["step"] for row in rows))
    shown = sorted(rows, key=lambda row: (order.index(row["step"]), int(row["articles"])))
    cells = [
        (
            row["step"],
            f"{int(row['articles']):,}",
            _format_short_seconds(row["seconds"]),
            _format_short_seconds(row["cpu_seconds"]),
            f"{float(row['exponent']):.2f}" if row["exponent"] else "",
            row["peak_memory_mb"],
            row["disk_mb"],
        )
        for row in shown
        if row["step"] != "none"
    ]
    table = markdown_table(STORE_HEADER, cells, align="lrrrrrr")
    first = rows[0]
    return (
        f"{table}\n\nOn {first['machine']}, {first['threads']} thread; duckdb {first['duckdb']}, "
        f"polars {first['polars']}, numpy {first['numpy']}."
    )


def format_gkg(rows: Sequence[Row]) -> str:
    """Return the ways of reading GKG files."""
    cells = [
        (
            f"{row['way']} {row['version']}",
            row["files"],
            f"{float(row['unpacked_mb']):.0f}",
            f"{int(row['rows']):,}",
            f"{float(row['mb_per_cpu_second']):.0f}",
            f"{float(row['rows_per_cpu_second']):,.0f}",
            row["peak_memory_mb"],
        )
        for row in rows
    ]
    table = markdown_table(GKG_HEADER, cells, align="lrrrrrr")
    return f"{table}\n\nOn {rows[0]['machine']}; MB unpacked, seconds of the processor."


def _format_short_seconds(text: str) -> str:
    seconds = float(text)
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.3g} s"


app = typer.Typer(add_completion=False)


@app.command()
def main(
    document: Annotated[Path, typer.Argument(help="Markdown file with the markers.")] = DOCUMENT,
) -> None:
    """Write the tables again from the committed rows."""
    text = document.read_text(encoding="utf-8")
    folder = RESULTS.parent
    for table, markers in (
        (format_speed_table(read_rows(RESULTS)), MARKERS),
        (format_store(read_table(folder / "store.csv")), STORE_MARKERS),
        (format_gkg(read_table(folder / "gkg.csv")), GKG_MARKERS),
    ):
        text = replace_between(text, table, *markers, document=str(document))
    write_text(document, text)


if __name__ == "__main__":
    app()
