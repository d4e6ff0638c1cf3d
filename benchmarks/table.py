"""The tables of speed and memory in the documentation, filled in when the site is built.

What belongs here: rows of ``benchmarks/results`` to Markdown, and each table between its markers.
What does not: measuring.
"""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.rows import RESULTS, Row, read_rows
from compevo_core.paper.report.markdown import replace_between
from compevo_core.paper.report.published import EFFICIENCY, find_published
from compevo_core.report.tables import markdown_table, method_name

Columns = Mapping[str, Callable[[Row], str]]
"""How each column of a table shows a row, by its title."""

#: Our types, in the order of the columns of the cases with a reference.
DTYPES = ("float32", "mixed")
#: Columns of the other cases.
HEADER = ("measure", "agents", "type", "seconds", "ratio", "tokens/s", "peak GB", "state GB")

#: Figure of a system's row, the paper's name of it, how it is called, and its digits.
SYSTEM_FIGURES = (
    ("epoch_hours", "train_hours_per_epoch", "hours an epoch", 2),
    ("step_seconds", "seconds_per_step", "seconds a step of forecasts", 2),
    ("peak_memory_gb", "peak_memory_gb", "peak memory, GB", 1),
)

#: What a row measures, in the order of the table; a case without a text is not shown.
TEXTS = {
    "round": "a round",
    "inference": "one batch's forecasts",
    "inference-mixed": "one batch's forecasts",
    "backward": "one batch's forecasts and their gradient",
    "round-exponent": "exponent of a round's seconds in the agents",
    "preset-round": "the preset's round without rewriting",
    "preset-rewriting": "the preset's round with rewriting",
    "gradient": "forecast phase, agent by agent",
    "gradient-difference": "difference of the gradients over their norm",
    "memory-joint": "peak of a round without rewriting, gradient joint",
    "memory-joint-ratio": "peak less state, most agents over fewest, gradient joint",
    "memory-by-agent": "peak of a round without rewriting, gradient by agent",
    "memory-by-agent-ratio": "peak less state, most agents over fewest, gradient by agent",
    **{f"products-{n}-rows": f"frozen linear layers, {n} rows" for n in (3, 24, 768)},
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
    # A processor without bfloat16 has no rows of mixed types.
    dtypes = [dtype for dtype in DTYPES if any(dtype in by_type for by_type in pairs.values())]
    compared = [_format_pair(by_type, dtypes) for by_type in pairs.values()]
    columns = [title for dtype in dtypes for title in (dtype, "reference", "ratio")]
    header = ("operation (reference)", "agents", *columns)
    others = [_format_cells(row) for row in shown if not row["reference"]]

    first = rows[0]
    repeats = sorted({int(row["repeats"]) for row in rows})
    return (
        f"{markdown_table(header, compared, align='l' + 'r' * (len(header) - 1))}\n\n"
        f"{markdown_table(HEADER, others, align='lrlrrrrr')}\n\n"
        f"Medians of {repeats[0]} to {repeats[-1]} runs on {first['machine']}, "
        f"{first['threads']} thread, processor seconds; torch {first['torch']}, "
        f"transformers {first['transformers']}, peft {first['peft']}, trl {first['trl']}."
    )


def format_gpu(rows: Sequence[Row]) -> str:
    """Return the cases that were timed on a GPU, by backbone."""
    columns: Columns = {
        "operation (reference)": lambda row: (
            TEXTS[row["case"]] + (f" ({row['reference']})" if row["reference"] else "")
        ),
        "backbone": lambda row: row["backbone"].removesuffix("-random"),
        "agents": lambda row: row["agents"],
        "ours": lambda row: _format_seconds(row["ours_seconds"], 3),
        "reference": lambda row: _format_seconds(row["reference_seconds"], 3),
        "ratio": lambda row: _format_ratio(row["case"], row["ratio"]),
        "GB": lambda row: _format_number(row["peak_memory_gb"], 1),
    }
    shown = sorted(rows, key=lambda row: list(TEXTS).index(row["case"]))
    first = rows[0]
    return (
        f"{_format_rows(shown, columns, align='llrrrrr')}\n\n"
        f"Medians of one to three runs on an {first['machine']}, all in {first['dtype']}, seconds "
        f"on the clock; torch {first['torch']}, transformers {first['transformers']}, peft "
        f"{first['peft']}."
    )


def _format_rows(rows: Sequence[Row], columns: Columns, align: str = "lrrrrrr") -> str:
    cells = [tuple(show(row) for show in columns.values()) for row in rows]
    return markdown_table(tuple(columns), cells, align=align)


def _format_pair(by_type: Mapping[str, Row], dtypes: Sequence[str]) -> tuple[str, ...]:
    first = next(iter(by_type.values()))
    cells = [f"{TEXTS[first['case']]} ({first['reference']})", first["agents"]]
    for dtype in dtypes:
        row = by_type.get(dtype, {})
        cells.append(_format_seconds(row.get("ours_seconds", "")))
        cells.append(_format_seconds(row.get("reference_seconds", "")))
        cells.append(_format_ratio(first["case"], row.get("ratio", "")))
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
    if case == "gradient-difference" and text:
        return f"{float(text):.0e}"
    return _format_number(text, 0 if case == "matmul-2048" else 2)


def _format_seconds(text: str, digits: int = 2) -> str:
    return f"{_format_number(text, digits if float(text) < 1 else 1)} s" if text else ""


def _format_number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}f}" if text else ""


def format_store(rows: Sequence[Row]) -> str:
    """Return the steps of the store, each by size, and what they were measured on."""
    order = list(dict.fromkeys(row["step"] for row in rows))
    shown = sorted(rows, key=lambda row: (order.index(row["step"]), int(row["articles"])))
    columns: Columns = {
        "step": lambda row: row["step"],
        "articles": lambda row: f"{int(row['articles']):,}",
        "seconds": lambda row: _format_short_seconds(row["seconds"]),
        "processor's": lambda row: _format_short_seconds(row["cpu_seconds"]),
        "exponent": lambda row: _format_number(row["exponent"], 2),
        "peak MB": lambda row: row["peak_memory_mb"],
        "disk MB": lambda row: row["disk_mb"],
    }
    table = _format_rows([row for row in shown if row["step"] != "none"], columns)
    first = rows[0]
    return (
        f"{table}\n\nOn {first['machine']}, {first['threads']} thread; duckdb {first['duckdb']}, "
        f"polars {first['polars']}, numpy {first['numpy']}."
    )


def _format_short_seconds(text: str) -> str:
    seconds = float(text)
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.3g} s"


def format_systems(rows: Sequence[Row]) -> str:
    """Return the costs of the systems of agents, with the paper's figures and ratios."""
    cells = []
    for column, published, title, digits in SYSTEM_FIGURES:
        own = [float(row[column]) for row in rows]
        papers = [read_paper(row["system"], published) for row in rows]
        for name, figures in ((title, own), (f"{title}, the paper", papers)):
            shown = (f"{each:.{digits}f} ({each / figures[0]:.1f})" for each in figures)
            cells.append((name, *shown))

    header = ("figure (ratio to the first)", *(method_name(row["system"]) for row in rows))
    first = rows[0]
    return (
        f"{markdown_table(header, cells, align='lrrr')}\n\n"
        f"Medians of {first['rounds']} rounds and steps on an {first['machine']}, "
        f"{first['agents']} agents, {first['dtype']}; torch {first['torch']}, transformers "
        f"{first['transformers']}."
    )


def read_paper(system: str, metric: str) -> float:
    """Return the paper's figure of a system's costs."""
    figure = find_published(EFFICIENCY, "electricity", system, metric)
    if figure is None:
        raise LookupError(f"the paper prints no {metric} of {system}")
    return figure.value


#: How the rows of each table are shown, and the page of the documentation where.
TABLES = {
    "engine": (format_speed_table, "explanation/benchmarks.md"),
    "gpu": (format_gpu, "explanation/benchmarks.md"),
    "systems": (format_systems, "explanation/benchmarks.md"),
    "store": (format_store, "explanation/benchmarks.md"),
}


def fill_tables(text: str, page: str) -> str:
    """Return a page with its tables, made from the committed rows."""
    for name, (format_rows, home) in TABLES.items():
        if home == page:
            start = f"<!-- {name}: filled in from benchmarks/results/{name}.csv by the site -->"
            table = format_rows(read_rows(RESULTS / f"{name}.csv"))
            text = replace_between(text, table, start, f"<!-- end of {name} -->", document=page)
    return text
