"""The tables and the figure of speed and memory in the documentation, made when the site is built.

What belongs here: rows of ``benchmarks/results`` to Markdown, each between its markers. What does
not: measuring.
"""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes

from benchmarks.fev_tasks import OURS, summarise
from benchmarks.rows import LIBRARIES, RESULTS, Row, read_rows
from compevo_core.paper.report.figures import Plot
from compevo_core.paper.report.markdown import replace_between
from compevo_core.paper.report.paper_tables import EFFICIENCY, find_published
from compevo_core.report.charts import ACCENT, INK, MUTED
from compevo_core.report.tables import Table, method_name, tabulate

Columns = Mapping[str, Callable[[Row], str]]
"""How each column of a table shows a row, by its title."""

#: What a row measures, in the order of the table; a case without a text is not shown.
TEXTS = {
    "round": "a round",
    "inference": "one batch's forecasts",
    "inference-mixed": "one batch's forecasts",
    "backward": "one batch's forecasts and their gradient",
    "sampling": "logics with slots",
    "token": "a token of all groups, share of the limit",
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
}


def _format(text: str, spec: str = ".3g") -> str:
    return f"{float(text):{spec}}" if text else ""


def _format_seconds(text: str) -> str:
    if not text:
        return ""
    return f"{1000 * float(text):.3g} ms" if float(text) < 0.1 else f"{float(text):.3g} s"


CASE_COLUMNS: Columns = {
    "operation (reference)": lambda row: (
        TEXTS[row["case"]] + (f" ({row['reference']})" if row["reference"] else "")
    ),
    "backbone": lambda row: row["backbone"].removesuffix("-random"),
    "agents": lambda row: row["agents"],
    "type": lambda row: row["dtype"],
    "ours": lambda row: _format_seconds(row["ours_seconds"]),
    "reference": lambda row: _format_seconds(row["reference_seconds"]),
    "ratio": lambda row: _format(row["ratio"]),
    "limit": lambda row: _format(row["limit"]),
    "tokens/s": lambda row: (
        f"{int(row['tokens']) / float(row['ours_seconds']):.0f}" if row["tokens"] else ""
    ),
    "peak GB": lambda row: _format(row["peak_memory_gb"]),
    "state GB": lambda row: _format(row["state_gb"]),
}


def _format_cases(rows: Sequence[Row], *titles: str) -> str:
    order = list(TEXTS)
    shown = [row for row in rows if row["case"] in TEXTS]
    shown.sort(key=lambda row: (order.index(row["case"]), int(row["agents"]), row["dtype"]))
    columns = {title: CASE_COLUMNS[title] for title in ("operation (reference)", *titles)}
    return tabulate(shown, columns).to_markdown()


def _list_versions(row: Row, *libraries: str) -> str:
    return ", ".join(f"{name} {row[name]}" for name in libraries)


def format_engine(rows: Sequence[Row]) -> str:
    """Return tables of the cases with a reference, of memory and of the others; the machine."""
    compared = [row for row in rows if row["reference"]]
    # In other cases the process did more than the operation: its peak says little.
    memory = [row for row in rows if row["state_gb"]]
    others = [row for row in rows if not row["reference"] and not row["state_gb"]]
    first = rows[0]
    repeats = sorted({int(row["repeats"]) for row in rows})
    return (
        f"{_format_cases(compared, 'agents', 'type', 'ours', 'reference', 'ratio', 'limit')}\n\n"
        f"{_format_cases(memory, 'agents', 'type', 'ours', 'peak GB', 'state GB')}\n\n"
        f"{_format_cases(others, 'agents', 'type', 'ours', 'ratio', 'tokens/s')}\n\n"
        f"Medians of {repeats[0]} to {repeats[-1]} runs on {first['machine']}, "
        f"{first['threads']} thread, processor seconds; "
        f"{_list_versions(first, *LIBRARIES)}."
    )


def draw_compared(rows: Sequence[Row]) -> str:
    """Return the figure of ours and the limit, in shares of PEFT's time, as a Markdown image."""
    rows = [row for row in rows if row["limit"] and row["dtype"] == "mixed"]
    # From the top down, and without PEFT's mixed batch, which is another reference.
    rows = [row for row in reversed(rows) if row["case"] != "inference-mixed"]
    ours = [1 / float(row["ratio"]) for row in rows]
    limits = [1 / float(row["limit"]) for row in rows]

    def fill(axis: Axes) -> None:
        places = range(len(rows))
        axis.barh(places, ours, color=ACCENT, height=0.6, label="ours")
        axis.barh(places, limits, color=INK, height=0.25, label="limit: frozen products")
        axis.axvline(1.0, color=MUTED, linestyle="--", label="PEFT")
        axis.set_yticks(places, [f"{row['case']}, {row['agents']}" for row in rows])
        axis.set_xlabel("processor time of a case with so many agents, PEFT = 1")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=3)

    shares = "; ".join(
        f"{row['case']} with {row['agents']}: ours {our:.2f}, limit {limit:.2f}"
        for row, our, limit in zip(rows, ours, limits, strict=True)
    )
    alt = f"Processor time as a share of PEFT's, case with number of agents. {shares}"
    return f"![{alt}]({Plot(fill, alt, (7.2, 3.6)).source})"


def format_gpu(rows: Sequence[Row]) -> str:
    """Return the cases that were timed on a GPU, by backbone."""
    first = rows[0]
    return (
        f"{_format_cases(rows, 'backbone', 'agents', 'ours', 'reference', 'ratio', 'peak GB')}\n\n"
        f"Medians of one to three runs on an {first['machine']}, all in {first['dtype']}, seconds "
        f"on the clock; {_list_versions(first, 'torch', 'transformers', 'peft')}."
    )


def format_fev(rows: Sequence[Row]) -> str:
    """Return ours and the best published model of each task, and how many models ours surpasses."""
    cells = []
    for task in dict.fromkeys(row["task"] for row in rows):
        models = {row["model"]: row for row in rows if row["task"] == task}
        ours = models.pop(OURS)
        line = [task]
        for name in ("mase", "sql"):
            best = min(models.values(), key=lambda row: float(row[name]))
            line += [f"{ours[name]} (rank {ours[f'{name}_rank']})"]
            line += [f"{best[name]} ({best['model']})"]
        cells.append(line)
    header = ("task", "MASE", "best MASE", "SQL", "best SQL")
    return f"{Table(header=header, rows=cells).to_markdown()}\n\n{summarise(rows)}."


def format_store(rows: Sequence[Row]) -> str:
    """Return the steps of the store, each by size, and what they were measured on."""
    order = list(dict.fromkeys(row["step"] for row in rows))
    shown = [row for row in rows if row["step"] != "none"]
    shown.sort(key=lambda row: (order.index(row["step"]), int(row["articles"])))
    columns: Columns = {
        "step": lambda row: row["step"],
        "articles": lambda row: f"{int(row['articles']):,}",
        "seconds": lambda row: _format_seconds(row["seconds"]),
        "processor's": lambda row: _format_seconds(row["cpu_seconds"]),
        "exponent": lambda row: _format(row["exponent"], ".2f"),
        "peak MB": lambda row: row["peak_memory_mb"],
        "disk MB": lambda row: row["disk_mb"],
    }
    return (
        f"{tabulate(shown, columns).to_markdown()}\n\nOn {rows[0]['machine']}, "
        f"{rows[0]['threads']} thread; {_list_versions(rows[0], 'duckdb', 'polars', 'numpy')}."
    )


def format_systems(rows: Sequence[Row]) -> str:
    """Return the costs of the systems of agents, with the paper's figures and ratios."""
    cells = []
    for column, published, title, digits in (
        ("epoch_hours", "train_hours_per_epoch", "hours an epoch", 2),
        ("step_seconds", "seconds_per_step", "seconds a step of forecasts", 2),
        ("peak_memory_gb", "peak_memory_gb", "peak memory, GB", 1),
    ):
        own = [float(row[column]) for row in rows]
        subjects = [(EFFICIENCY, "electricity", row["system"], published) for row in rows]
        papers = [find_published(*subject).value for subject in subjects]
        for name, figures in ((title, own), (f"{title}, the paper", papers)):
            shown = (f"{each:.{digits}f} ({each / figures[0]:.1f})" for each in figures)
            cells.append((name, *shown))

    header = ("figure (ratio to the first)", *(method_name(row["system"]) for row in rows))
    first = rows[0]
    return (
        f"{Table(header=header, rows=cells).to_markdown()}\n\n"
        f"Medians of {first['rounds']} rounds and steps on an {first['machine']}, "
        f"{first['agents']} agents, {first['dtype']}; "
        f"{_list_versions(first, 'torch', 'transformers')}."
    )


PAGE = "explanation/benchmarks.md"
#: The file of rows of each figure and table on that page, and how they are shown.
SHOWN = {
    "figure": ("engine", draw_compared),
    "engine": ("engine", format_engine),
    "gpu": ("gpu", format_gpu),
    "systems": ("systems", format_systems),
    "store": ("store", format_store),
    "fev": ("fev_tasks", format_fev),
}


def fill_tables(text: str, page: str) -> str:
    """Return a page with its figure and tables, made from the committed rows."""
    if page != PAGE:
        return text
    for name, (file, show) in SHOWN.items():
        start = f"<!-- {name}: filled in from benchmarks/results/{file}.csv by the site -->"
        shown = show(read_rows(RESULTS / f"{file}.csv"))
        text = replace_between(text, shown, start, f"<!-- end of {name} -->", document=page)
    return text
