"""The tables of speed and memory in the documentation: ``python -m benchmarks.table``.

What belongs here: rows of ``benchmarks/results/engine.csv`` to Markdown, and writing every table of
the document between its markers. What does not: measuring (``engine``, ``cases``), the tables of
other files (``store_table``).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.engine_rows import REPO, RESULTS, Row, read_rows
from benchmarks.store_table import (
    FRAMES_MARKERS,
    GKG_MARKERS,
    STORE_MARKERS,
    format_frames,
    format_gkg,
    format_store,
    read_table,
)
from compevo_core.data.files import write_text
from compevo_core.report.markdown import replace_between
from compevo_core.report.tables import markdown_table

DOCUMENT = REPO / "docs" / "explanation" / "benchmarks.md"
MARKERS = (
    "<!-- speed: made by `make readme` from benchmarks/results/engine.csv -->",
    "<!-- end of speed -->",
)

HEADER = (
    "operation (reference)",
    "agents",
    "type",
    "ours",
    "reference",
    "ratio",
    "tokens/s",
    "peak GB",
    "state GB",
)
ALIGN = "lrlrrrrrr"

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
    """Return the table and, under it, what it was measured on."""
    order = list(TEXTS)
    shown = [row for row in rows if row["case"] in TEXTS]
    shown.sort(key=lambda row: (order.index(row["case"]), int(row["agents"]), row["dtype"]))

    table = markdown_table(HEADER, [_format_cells(row) for row in shown], align=ALIGN)
    return f"{table}\n\n{_describe_measurement(rows)}"


def _format_cells(row: Row) -> tuple[str, ...]:
    case = row["case"]
    reference = row["reference"]
    # In other cases the process did more than the operation.
    measures_memory = case.startswith("memory")
    return (
        f"{TEXTS[case]} ({reference})" if reference else TEXTS[case],
        row["agents"],
        row["dtype"],
        _format_seconds(row["ours_seconds"]),
        _format_seconds(row["reference_seconds"]),
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
        (format_frames(read_table(folder / "frames.csv")), FRAMES_MARKERS),
        (format_gkg(read_table(folder / "gkg.csv")), GKG_MARKERS),
    ):
        text = replace_between(text, table, *markers, document=str(document))
    write_text(document, text)


if __name__ == "__main__":
    app()
