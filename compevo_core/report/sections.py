"""The sections of the page: which tables and plots stand in each, as plain data.

What belongs here: choosing and ordering what a section shows, and dropping a section that has
nothing to show. What does not: markup and the sentences that introduce a section (``templates``),
the contents of tables and plots, the sections of one run (``report.run_sections``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from compevo_core.report.audit_tables import audit_table, judge_news, list_audits
from compevo_core.report.figures import Picture, Plot, make_picture
from compevo_core.report.forecast_pictures import show_panel
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.mechanism.view import list_groups
from compevo_core.report.paper.curves import show_curves
from compevo_core.report.paper.tables import PAPER_TABLES, build_paper_tables
from compevo_core.report.provenance_tables import (
    check_table,
    identity_table,
    is_of_variant,
    paired_table,
)
from compevo_core.report.quantile_tables import reliability_picture, sureness_table
from compevo_core.report.result_plots import plot_ablation, plot_methods
from compevo_core.report.result_tables import (
    agent_table,
    headline_table,
    region_table,
)
from compevo_core.report.rows import is_synthetic, list_scopes, select_pooled, select_scope
from compevo_core.report.run_sections import build_run_parts
from compevo_core.report.summaries import summarize_results
from compevo_core.report.tables import Table
from compevo_core.report.tomorrow import show_day
from compevo_core.report.variant_tables import list_variant_tables
from compevo_core.report.wording import scope_name

#: Subsets later than all training data: they stand in the leakage section, not among the results.
LEAKAGE_SUBSET = "inference-"
# Absolute and relative: demand differs several-fold between regions.
REGION_METRICS = (("mae", "MAE"), ("mape_pct", "MAPE %"))

Scope = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of the page.

    Attributes:
        anchor: its id in the page.
        title: its heading.
        template: the template that shows it.
        view: what the template shows, under the name ``view``.
    """

    anchor: str
    title: str
    template: str
    view: Mapping[str, object] = field(default_factory=dict)


def build_sections(inputs: ReportInputs) -> list[Section]:
    """Return every section that has something to show, in reading order."""
    sections = [
        _tomorrow_section(inputs),
        _summary_section(inputs),
        _results_section(inputs),
        _quantiles_section(inputs),
        _regions_section(inputs),
        _forecasts_section(inputs),
        *_run_sections(inputs),
        _mechanism_section(inputs),
        _ablation_section(inputs),
        _paper_section(inputs),
        _audit_section(inputs),
        _leakage_section(inputs),
        _identity_section(inputs),
        Section(anchor="terms", title="Glossary", template="glossary.html"),
    ]
    return [section for section in sections if section is not None]


def _tomorrow_section(inputs: ReportInputs) -> Section:
    # Always there, and first: where no forecast was issued yet it says how to issue one.
    return Section(
        anchor="tomorrow",
        title="Tomorrow",
        template="tomorrow.html",
        view={"days": [show_day(day) for day in inputs.days]},
    )


def _summary_section(inputs: ReportInputs) -> Section:
    # Always there: that nothing was scored is also something to say.
    return Section(
        anchor="summary",
        title="Summary",
        template="summary.html",
        view={"summaries": summarize_results(inputs)},
    )


def _results_section(inputs: ReportInputs) -> Section | None:
    scopes = [
        {
            "table": headline_table(inputs.rows, dataset, subset),
            "bars": _show_methods(inputs.rows, dataset, subset),
            "agents": agent_table(inputs.rows, dataset, subset),
        }
        for dataset, subset in _test_scopes(inputs)
    ]
    tests = [test for test in inputs.paired if not is_of_variant(test)]
    paired = paired_table(tests) if tests else None
    if not scopes and paired is None:
        return None

    return Section(
        anchor="results",
        title="Results",
        template="results.html",
        view={"scopes": scopes, "paired": paired},
    )


def _quantiles_section(inputs: ReportInputs) -> Section | None:
    """Show how good quantiles are, wherever a method has them."""
    scopes = [
        {
            "table": sureness_table(inputs.rows, dataset, subset),
            "reliability": reliability_picture(inputs.rows, dataset, subset),
        }
        for dataset, subset in _test_scopes(inputs)
    ]
    shown = [scope for scope in scopes if scope["table"] is not None]
    if not shown:
        return None

    return Section(
        anchor="how-sure", title="How sure", template="quantiles.html", view={"scopes": shown}
    )


def _regions_section(inputs: ReportInputs) -> Section | None:
    tables = _region_tables(inputs.rows, _test_scopes(inputs))
    if not tables:
        return None

    return Section(
        anchor="regions",
        title="Results by region",
        template="regions.html",
        view={"tables": tables},
    )


def _forecasts_section(inputs: ReportInputs) -> Section | None:
    """Show the forecasts of the windows that evaluation chose."""
    if not inputs.panels:
        return None

    return Section(
        anchor="forecasts",
        title="Forecasts and actual values",
        template="forecasts.html",
        view={"panels": [show_panel(panel) for panel in inputs.panels]},
    )


def _run_sections(inputs: ReportInputs) -> list[Section]:
    # With one run its name says nothing; the index keeps the anchors apart.
    has_several = len(inputs.runs) > 1
    return [
        Section(
            anchor=f"{part.anchor}-{index}",
            title=f"{part.title}: {run.name}" if has_several else part.title,
            template=part.template,
            view=part.view,
        )
        for index, run in enumerate(inputs.runs)
        for part in build_run_parts(run)
    ]


def _mechanism_section(inputs: ReportInputs) -> Section | None:
    """Show how systems of agents learn, wherever their runs left traces."""
    groups = list_groups(inputs)
    if not groups:
        return None
    return Section(
        anchor="mechanism", title="Mechanism", template="mechanism.html", view={"groups": groups}
    )


def _ablation_section(inputs: ReportInputs) -> Section | None:
    rows = select_pooled(inputs.rows, ablation=True)
    if rows.is_empty():
        return None

    datasets = rows.get_column("dataset").unique(maintain_order=True).to_list()
    return Section(
        anchor="ablation",
        title="Ablation and controls",
        template="ablation.html",
        view={
            "datasets": [
                {
                    "tables": list_variant_tables(inputs, dataset),
                    "bars": _show_ablation(inputs.rows, dataset),
                }
                for dataset in datasets
            ]
        },
    )


def _paper_section(inputs: ReportInputs) -> Section | None:
    """Show the paper's tables with own rows beside them."""
    if inputs.rows.is_empty():
        return None

    groups = [
        {"title": title, "tables": build_paper_tables(name, inputs)}
        for name, (title, _) in PAPER_TABLES.items()
    ]
    return Section(
        anchor="paper",
        title="Beside the paper",
        template="paper.html",
        view={"groups": groups, "curves": show_curves(inputs)},
    )


def _audit_section(inputs: ReportInputs) -> Section | None:
    """Say whether the articles help, wherever that was audited."""
    # The verdict stands before its table: it is what is asked.
    audits = [
        {"verdict": judge_news(rows), "table": audit_table(rows)}
        for rows in list_audits(inputs.audit)
    ]
    if not audits:
        return None
    return Section(
        anchor="news", title="Does news help?", template="audit.html", view={"audits": audits}
    )


def _leakage_section(inputs: ReportInputs) -> Section | None:
    scopes = [scope for scope in list_scopes(select_pooled(inputs.rows)) if _is_leakage(scope)]
    if not scopes and not inputs.checks:
        return None

    tables = [headline_table(inputs.rows, dataset, subset) for dataset, subset in scopes]
    return Section(
        anchor="leakage",
        title="Leakage check",
        template="leakage.html",
        view={
            "tables": tables + _region_tables(inputs.rows, scopes),
            "checks": check_table(inputs.checks) if inputs.checks else None,
            "passed": sum(check.passed for check in inputs.checks),
            "total": len(inputs.checks),
        },
    )


def _identity_section(inputs: ReportInputs) -> Section | None:
    if inputs.rows.is_empty():
        return None

    return Section(
        anchor="identity",
        title="Where the numbers come from",
        template="identity.html",
        view={"table": identity_table(inputs.rows), "unread": inputs.unread},
    )


def _test_scopes(inputs: ReportInputs) -> list[Scope]:
    return [scope for scope in list_scopes(select_pooled(inputs.rows)) if not _is_leakage(scope)]


def _is_leakage(scope: Scope) -> bool:
    return scope[1].startswith(LEAKAGE_SUBSET)


def _region_tables(rows: pl.DataFrame, scopes: Sequence[Scope]) -> list[Table]:
    tables = (
        region_table(rows, dataset, subset, metric, label)
        for dataset, subset in scopes
        for metric, label in REGION_METRICS
    )
    return [table for table in tables if table is not None]


def _show_methods(rows: pl.DataFrame, dataset: str, subset: str) -> Picture | None:
    chosen = select_scope(select_pooled(rows), dataset, subset)
    # One bar compares nothing.
    if chosen.get_column("mae").drop_nulls().len() < 2:
        return None

    name = scope_name(dataset, subset, synthetic=is_synthetic(chosen))
    plot = Plot(
        plot_methods(rows, dataset, subset),
        alt=f"Bar chart of the pooled MAE by method for {name}; the table above holds the numbers.",
    )
    return make_picture([plot], caption=f"{name}: pooled MAE by method")


def _show_ablation(rows: pl.DataFrame, dataset: str) -> Picture:
    plot = Plot(
        plot_ablation(rows, dataset),
        alt=f"Bar chart of the pooled MAE by ablation variant on {dataset}; the table above holds "
        "the numbers.",
    )
    return make_picture([plot], caption=f"{dataset.capitalize()}: pooled MAE by variant")
