"""The table of speed in README.md, made from ``benchmarks/results/engine.csv``: ``python -m benchmarks.table``.

What belongs here: rows to Markdown, between two markers. What does not: measuring (``engine``, ``cases``).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine import REPO, RESULTS, Row, read
from compevo_core.report.markdown import with_table

MARKERS = (
    "<!-- speed: made by `make readme` from benchmarks/results/engine.csv -->",
    "<!-- end of speed -->",
)
HEADER = (
    "| what; the other way | agents | type | ours | the other way | ratio | peak GB |",
    "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
)
#: What a row measures, in the order of the table; a case with no text is not shown there.
TEXTS = {
    "round": "a round; PEFT, one adapter at a time",
    "policy": "candidates, group and policy step; TRL's trainer, agent by agent",
    "inference": "one day's forecasts; independent agents, one by one",
    "round-exponent": "growth of a round's seconds with the agents: exponent",
    "memory": "peak of one round",
    "memory-ratio": "peak with ten agents over peak with one",
    "products-3-rows": "all frozen layers, 3 rows; torch's own product",
    "products-24-rows": "all frozen layers, 24 rows; torch's own product",
    "products-768-rows": "all frozen layers, 768 rows; torch's own product",
    "matmul-2048": "the ceiling: product of 2048 x 2048, GFLOP/s",
    "backbone-forward": "one prompt of 512 tokens: share of the ceiling",
}


def speed_markdown(rows: Sequence[Row]) -> str:
    """The table and, under it, what it was measured on."""
    order = list(TEXTS)
    shown = sorted(
        (row for row in rows if row["case"] in TEXTS),
        key=lambda row: (order.index(row["case"]), int(row["agents"]), row["dtype"]),
    )
    lines = [
        f"| {TEXTS[row['case']]} | {row['agents']} | {row['dtype']} | {_seconds(row['ours_seconds'])} | "
        f"{_seconds(row['reference_seconds'])} | {_ratio(row)} | {_peak(row)} |"
        for row in shown
    ]
    first = rows[0]
    repeats = sorted({int(row["repeats"]) for row in rows})
    about = (
        f"Medians of {repeats[0]} to {repeats[-1]} runs on {first['machine']}, {first['threads']} threads; torch "
        f"{first['torch']}, transformers {first['transformers']}, peft {first['peft']}, trl {first['trl']}."
    )
    return "\n".join([*HEADER, *lines, "", about])


def _seconds(text: str) -> str:
    return f"{_number(text, 2 if text and float(text) < 1 else 1)} s" if text else ""


def _ratio(row: Row) -> str:
    return _number(row["ratio"], 0 if row["case"] == "matmul-2048" else 2)


def _peak(row: Row) -> str:
    """Of the cases whose process does nothing else."""
    return _number(row["peak_memory_gb"], 1) if row["case"] == "memory" else ""


def _number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}f}" if text else ""


def main(arguments: Sequence[str]) -> int:
    """Writes the README again."""
    readme = Path(arguments[0]) if arguments else REPO / "README.md"
    text = with_table(readme.read_text(encoding="utf-8"), speed_markdown(read(RESULTS)), MARKERS)
    readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
