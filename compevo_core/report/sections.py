"""The parts of the page, each as a titled piece of HTML made from rows, runs and panels.

What belongs here: which tables and plots stand in which part, and the sentence that says how to read them.
What does not: drawing, table contents, the frame of the page (``page``).
Everything that came from outside (news, logics, entity names) is escaped before it enters the page.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from compevo_core.report import forecast_section, result_plots, result_tables, run_section
from compevo_core.report.figures import to_html
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.rows import in_scope, is_synthetic, pooled, scopes
from compevo_core.report.tables import to_html as table_html
from compevo_core.report.verdict import Verdict, verdicts
from compevo_core.report.wording import scope_name

LEAKAGE_SUBSET = "inference-2026"
GLOSSARY = (
    ("MAE", "mean absolute error, in the unit of the series"),
    ("RMSE", "root mean squared error, in the unit of the series; large misses weigh more"),
    (
        "MAPE",
        "mean absolute percentage error; points near zero are left out, and the table says how many",
    ),
    ("WAPE", "sum of absolute errors over the sum of absolute truths"),
    ("MASE", "MAE over the MAE of a naive forecast on the training data; below 1 beats it"),
    (
        "Masked",
        "target values that were missing or nulled for a stated reason; they are not scored",
    ),
    (
        "Fitness",
        "moving average of an agent's rewards; with its gate it decides the agent's weight",
    ),
    (
        "Best-response gap",
        "how far the group's loss would have fallen had this agent alone used its best sampled logic",
    ),
    (
        "Regret",
        "reward an agent gave up against the best of a few fixed logics, picked afterwards; negative is a gain",
    ),
    (
        "LUD",
        "logic update degree: how far a logic moved in meaning, where a judge saw more than other words",
    ),
    (
        "Leaky prompt",
        "row made with news later than the forecast origin, only to reproduce a published setting",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the page: an anchor, a title, and its HTML. ``kind`` groups parts in the contents."""

    anchor: str
    title: str
    body: str


def all_sections(inputs: ReportInputs) -> list[Section]:
    """Every part that has something to show, in reading order."""
    parts = [
        _verdict(inputs),
        _headline(inputs),
        _regions(inputs),
        forecast_parts(inputs),
        *_runs(inputs),
        _ablation(inputs),
        _leakage(inputs),
        _identity(inputs),
        _glossary(),
    ]
    return [part for part in parts if part is not None]


def paragraph(text: str) -> str:
    """Escaped text as a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def _verdict(inputs: ReportInputs) -> Section:
    found = verdicts(inputs)
    if not found:
        return Section(
            anchor="verdict",
            title="What came out",
            body=paragraph("No scored forecast of CompEvo is among the rows."),
        )
    return Section(anchor="verdict", title="What came out", body="".join(map(_verdict_html, found)))


def _verdict_html(verdict: Verdict) -> str:
    marks = {"better": "better", "equal": "equal", "worse": "worse"}
    items = "".join(
        f'<li class="{one.outcome}"><span class="mark">{marks[one.outcome]}</span>{html.escape(one.sentence)}</li>'
        for one in verdict.comparisons
    )
    return (
        f'<article class="verdict"><h3>{html.escape(verdict.scope)}</h3>{paragraph(verdict.summary)}'
        f"<ul>{items}</ul></article>"
    )


def _headline(inputs: ReportInputs) -> Section | None:
    body = [
        paragraph(
            "Errors in the unit of the series, on the original truth. Best of each column in bold, CompEvo shaded."
        )
    ]
    for dataset, subset in _test_scopes(inputs):
        body.append(table_html(result_tables.headline(inputs.rows, dataset, subset)))
        body.append(_method_bars(inputs.rows, dataset, subset))
    if inputs.paired:
        body.append(table_html(result_tables.paired(inputs.paired)))
    return Section(anchor="results", title="Results", body="".join(body)) if len(body) > 1 else None


def _method_bars(rows: pl.DataFrame, dataset: str, subset: str) -> str:
    chosen = in_scope(pooled(rows), dataset, subset)
    name = scope_name(dataset, subset, synthetic=is_synthetic(chosen))
    if chosen.get_column("mae").drop_nulls().len() < 2:
        return ""
    return to_html(
        result_plots.methods(rows, dataset, subset),
        caption=f"{name}: pooled MAE by method",
        alt=f"Bar chart of the pooled MAE by method for {name}; the table above holds the numbers.",
    )


def _test_scopes(inputs: ReportInputs) -> list[tuple[str, str]]:
    return [(d, s) for d, s in scopes(pooled(inputs.rows)) if not s.startswith(LEAKAGE_SUBSET)]


def _regions(inputs: ReportInputs) -> Section | None:
    body = "".join(_region_tables(inputs.rows, _test_scopes(inputs)))
    return Section(anchor="regions", title="By region", body=body) if body else None


def _region_tables(rows: pl.DataFrame, where: Iterable[tuple[str, str]]) -> Iterable[str]:
    for dataset, subset in where:
        for metric, label in (("mae", "MAE"), ("mape_pct", "MAPE %")):
            table = result_tables.by_entity(rows, dataset, subset, metric, label)
            if table is not None:
                yield table_html(table)


def forecast_parts(inputs: ReportInputs) -> Section | None:
    """Forecast against truth for the windows that evaluation chose."""
    panels = [panel for run in inputs.runs for panel in run.panels]
    if not panels:
        return None
    intro = paragraph(
        "Chosen windows: the day before, what happened, and what each method said. Beside each, the news the agents "
        "read for it; every article was available before the forecast was made."
    )
    return Section(
        anchor="forecasts",
        title="Forecasts against what happened",
        body=intro + "".join(forecast_section.panel_html(panel) for panel in panels),
    )


def _runs(inputs: ReportInputs) -> list[Section]:
    return [
        Section(
            anchor=f"{anchor}-{index}",
            title=f"{title}{f': {run.name}' if len(inputs.runs) > 1 else ''}",
            body=body,
        )
        for index, run in enumerate(inputs.runs)
        for anchor, title, body in run_section.parts(run)
    ]


def _ablation(inputs: ReportInputs) -> Section | None:
    rows = pooled(inputs.rows, ablation=True)
    if rows.is_empty():
        return None
    body = [
        paragraph(
            "Each variant changes one part and trains under the same, smaller budget. "
            "A difference from a single seed proves nothing."
        )
    ]
    for dataset in rows.get_column("dataset").unique(maintain_order=True):
        body.append(table_html(result_tables.ablation(inputs.rows, dataset)))
        body.append(
            to_html(
                result_plots.ablation(inputs.rows, dataset),
                caption=f"{dataset.capitalize()}: pooled MAE by variant",
                alt=f"Bar chart of pooled MAE by ablation variant on {dataset}; the table above holds the numbers.",
            )
        )
    return Section(anchor="ablation", title="Ablation", body="".join(body))


def _leakage(inputs: ReportInputs) -> Section | None:
    where = [(d, s) for d, s in scopes(pooled(inputs.rows)) if s.startswith(LEAKAGE_SUBSET)]
    if not where and not inputs.checks:
        return None
    body = [
        paragraph(
            "The trained population, without any update, on windows later than everything it was trained on."
        )
    ]
    body += [
        table_html(result_tables.headline(inputs.rows, dataset, subset))
        for dataset, subset in where
    ]
    body += _region_tables(inputs.rows, where)
    if inputs.checks:
        failed = sum(not passed for _, passed, _ in inputs.checks)
        body.append(
            paragraph(f"{len(inputs.checks) - failed} of {len(inputs.checks)} checks passed.")
        )
        body.append(table_html(result_tables.checks(inputs.checks)))
    return Section(anchor="leakage", title="Leakage check", body="".join(body))


def _identity(inputs: ReportInputs) -> Section | None:
    if inputs.rows.is_empty():
        return None
    unread = (
        paragraph(
            f"Files in the results folder that this page does not show: {', '.join(inputs.unread)}."
        )
        if inputs.unread
        else ""
    )
    table = table_html(result_tables.identity(inputs.rows))
    return Section(
        anchor="identity",
        title="Where the numbers come from",
        body=f"<details><summary>Identity of every row</summary>{table}</details>{unread}",
    )


def _glossary() -> Section:
    items = "".join(
        f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>" for term, text in GLOSSARY
    )
    return Section(anchor="terms", title="How to read this", body=f"<dl>{items}</dl>")
