"""The page of experiments: style and images inside, so that nothing is fetched or run.

What belongs here: which sections the page has, and rendering it. What does not: the contents of
tables and plots, the sections of one run (``paper.report.run_sections``), markup and introductions
(``templates``), the page of forecasts (``report.forecast_page``).

Every value is escaped, and no template may mark one as safe: news titles, logics and judges' names
are untrusted text. A value that a template names and the view lacks is an error, not empty text.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from jinja2 import ChoiceLoader, Environment, PackageLoader

from compevo_core.paper.report import summaries
from compevo_core.paper.report.evidence_tables import (
    control_table,
    list_controls,
    list_evidence,
    list_search_tables,
    show_control,
    summarize_evidence,
)
from compevo_core.paper.report.inputs import ReportInputs
from compevo_core.paper.report.mechanism import list_groups
from compevo_core.paper.report.paper_tables import (
    NOTES,
    PAPER_TABLES,
    build_paper_tables,
    show_curves,
)
from compevo_core.paper.report.result_tables import (
    agent_table,
    check_table,
    headline_table,
    identity_table,
    is_of_variant,
    list_variant_tables,
    paired_table,
    quantile_table,
    region_table,
    show_ablation,
    show_methods,
    show_panel,
    show_reliability,
)
from compevo_core.paper.report.rows import list_scopes, select_pooled
from compevo_core.paper.report.run_sections import Section, build_run_sections
from compevo_core.report.forecast_page import RESEARCH_PAGE, frame_page, template_environment
from compevo_core.report.tables import Table

MIXED = (
    " Some rows below come from synthetic data; they are marked under 'Where the numbers come "
    "from'."
)
#: Subsets later than all training data have a section of their own.
LEAKAGE_SUBSET = "inference-"
# Absolute and relative: demand differs several-fold between regions.
REGION_METRICS = (("mae", "MAE"), ("mape_pct", "MAPE %"))

Scope = tuple[str, str]


def render_research(inputs: ReportInputs) -> str:
    """Return the page of the experiments as HTML; equal inputs give equal text."""
    view = frame_page(inputs.mode, inputs.generated_at) | {
        "title": "research",
        "sections": build_sections(inputs),
    }
    if inputs.is_synthetic and inputs.mode != "sample":
        view |= {"banner": f"{view['banner']}{MIXED}", "banner_class": "synthetic"}
    return research_environment().get_template(RESEARCH_PAGE).render(view)


@functools.cache
def research_environment() -> Environment:
    """Return the environment over the templates of both reports."""
    packages = ("compevo_core.paper.report", "compevo_core.report")
    return template_environment().overlay(loader=ChoiceLoader([*map(PackageLoader, packages)]))


def build_sections(inputs: ReportInputs) -> list[Section]:
    """Return every section that has something to show, in reading order."""
    scopes = list_scopes(select_pooled(inputs.rows))
    tests = [scope for scope in scopes if not scope[1].startswith(LEAKAGE_SUBSET)]
    later = [scope for scope in scopes if scope not in tests]

    return [
        *_list_scored(inputs, tests),
        *build_run_sections(inputs.runs, inputs.audit),
        *_list_learnt(inputs),
        *_list_verdicts(inputs),
        *_list_origins(inputs, later),
        _fold("terms", "Glossary", "What the words of this page mean."),
    ]


def _fold(anchor: str, title: str, finding: str, **view: Any) -> Section:  # noqa: ANN401
    return Section(
        anchor=anchor,
        title=title,
        finding=finding,
        template="sections.html",
        macro=anchor.replace("-", "_"),
        view=view,
    )


def _list_scored(inputs: ReportInputs, tests: Sequence[Scope]) -> Iterator[Section]:
    """Yield the sections on the scores of test sets."""
    # Always shown, even without scores.
    results = summaries.summarize_results(inputs)
    finding = summaries.count_verdicts(results)
    verdicts = summaries.show_verdicts(results)
    yield _fold("summary", "Summary", finding, summaries=results, verdicts=verdicts)

    paired = [test for test in inputs.paired if not is_of_variant(test)]
    tables = [headline_table(inputs.rows, *scope) for scope in tests]
    scopes = [
        {
            "table": table,
            "bars": show_methods(inputs.rows, *scope),
            "agents": agent_table(inputs.rows, *scope),
        }
        for scope, table in zip(tests, tables, strict=True)
    ]
    if tests or paired:
        finding, pairs = summaries.name_leaders(tables), paired_table(paired) if paired else None
        yield _fold("results", "Results", finding, scopes=scopes, paired=pairs)

    bands = [
        {"table": table, "reliability": show_reliability(inputs.rows, *scope)}
        for scope in tests
        if (table := quantile_table(inputs.rows, *scope)) is not None
    ]
    if bands:
        finding = summaries.describe_bands(inputs.rows, tests)
        yield _fold("how-sure", "Uncertainty", finding, scopes=bands)

    if regions := _list_regions(inputs.rows, tests):
        finding = summaries.count_best(regions)
        yield _fold("regions", "Results by region", finding, tables=regions)

    if inputs.panels:
        panels = [{"picture": show_panel(panel), "news": panel.news} for panel in inputs.panels]
        finding = summaries.count_near(inputs.panels)
        yield _fold("forecasts", "Forecasts and actual values", finding, panels=panels)


def _list_learnt(inputs: ReportInputs) -> Iterator[Section]:
    """Yield the sections on what systems of agents do, and on what each part of the method adds."""
    if groups := list_groups(inputs):
        yield _fold("mechanism", "Mechanism", summaries.describe_mechanism(inputs), groups=groups)

    names = select_pooled(inputs.rows, ablation=True)["dataset"].unique(maintain_order=True)
    datasets = [
        {"tables": list_variant_tables(inputs, name), "bars": show_ablation(inputs.rows, name)}
        for name in names
    ]
    if datasets:
        finding = summaries.count_changes([test for test in inputs.paired if is_of_variant(test)])
        yield _fold("ablation", "Ablation and controls", finding, datasets=datasets)

    if not inputs.rows.is_empty():
        tables = [
            {"title": title, "tables": build_paper_tables(name, inputs)}
            for name, (title, _) in PAPER_TABLES.items()
        ]
        view = {"groups": tables, "curves": show_curves(inputs), "reading": NOTES["reading"]}
        yield _fold("paper", "Comparison with the paper", summaries.count_tables(tables), **view)


def _list_verdicts(inputs: ReportInputs) -> Iterator[Section]:
    """Yield the sections on what is read from news, each with verdicts."""
    controls = [
        (control_table(rows), show_control(rows, inputs.control_rounds))
        for rows in list_controls(inputs.control)
    ]
    searches = list_search_tables(inputs.control)
    searches += list_evidence("specialists", inputs.specialists)
    texts = list_evidence("text", inputs.text)
    if controls or searches or texts:
        finding = summarize_evidence(inputs.control, inputs.text)
        view = {"controls": controls, "searches": searches, "texts": texts}
        yield _fold("evidence", "Does search find evidence?", finding, **view)

    if audits := list_evidence("audit", inputs.audit):
        yield _fold("news", "Does news help?", summaries.join_verdicts(audits), audits=audits)


def _list_origins(inputs: ReportInputs, later: Sequence[Scope]) -> Iterator[Section]:
    """Yield the sections on leakage and on the origin of the rows."""
    passed, total = sum(check["passed"] for check in inputs.checks), len(inputs.checks)
    if later or total:
        tables = [headline_table(inputs.rows, *scope) for scope in later]
        finding = f"{passed} of {total} checks passed." if total else summaries.name_leaders(tables)
        yield _fold(
            "leakage",
            "Leakage check",
            finding,
            tables=tables + _list_regions(inputs.rows, later),
            checks=check_table(inputs.checks) if total else None,
            passed=passed,
            total=total,
        )

    if not inputs.rows.is_empty():
        table = identity_table(inputs.rows)
        finding = f"{len(table.rows):,} pooled rows with their hashes, commits and devices."
        title = "Where the numbers come from"
        yield _fold("identity", title, finding, table=table, unread=inputs.unread)


def _list_regions(rows: pl.DataFrame, scopes: Sequence[Scope]) -> list[Table]:
    return [
        table
        for scope in scopes
        for metric, label in REGION_METRICS
        if (table := region_table(rows, *scope, metric, label)) is not None
    ]
