"""The page of experiments: style and images inside, so that nothing is fetched or run.

What belongs here: which sections the page has, and rendering it. What does not: the contents of
tables and plots, the sections of one run (``paper.report.run_sections``), markup and introductions
(``templates``), the page of forecasts (``report.forecast_page``).

Every value is escaped, and no template may mark one as safe: news titles, logics and judges' names
are untrusted text. A value that a template names and the view lacks is an error, not empty text.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from jinja2 import ChoiceLoader, Environment, PackageLoader

from compevo_core.paper.report import evidence_tables, result_tables
from compevo_core.paper.report.inputs import ReportInputs, find_side, list_scopes, select_pooled
from compevo_core.paper.report.paper_tables import (
    NOTES,
    PAPER_TABLES,
    build_paper_tables,
    show_curves,
)
from compevo_core.paper.report.result_tables import is_of_variant
from compevo_core.paper.report.run_sections import Section, build_run_sections, list_groups
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
    results = result_tables.summarize_results(inputs)
    finding = result_tables.count_verdicts(results)
    verdicts = result_tables.show_verdicts(results)
    yield _fold("summary", "Summary", finding, summaries=results, verdicts=verdicts)

    paired = [test for test in inputs.paired if not is_of_variant(test)]
    tables = [result_tables.headline_table(inputs.rows, *scope) for scope in tests]
    scopes = [
        {
            "table": table,
            "bars": result_tables.show_methods(inputs.rows, *scope),
            "agents": result_tables.agent_table(inputs.rows, *scope),
        }
        for scope, table in zip(tests, tables, strict=True)
    ]
    if tests or paired:
        pairs = result_tables.paired_table(paired) if paired else None
        finding = result_tables.name_leaders(tables)
        yield _fold("results", "Results", finding, scopes=scopes, paired=pairs)

    bands = [
        {"table": table, "reliability": result_tables.show_reliability(inputs.rows, *scope)}
        for scope in tests
        if (table := result_tables.quantile_table(inputs.rows, *scope)) is not None
    ]
    if bands:
        finding = result_tables.describe_bands(inputs.rows, tests)
        yield _fold("how-sure", "Uncertainty", finding, scopes=bands)

    if regions := _list_regions(inputs.rows, tests):
        columns, best = 0, 0
        for table in regions:
            columns += len({place for _, place in table.best_cells})
            best += len({place for row, place in table.best_cells if row in table.highlighted})
        finding = f"CompEvo is the best, or as good, in {best} of {columns} columns of regions."
        yield _fold("regions", "Results by region", finding, tables=regions)

    if inputs.panels:
        panels = [
            {"picture": result_tables.show_panel(panel), "news": panel.news}
            for panel in inputs.panels
        ]
        finding = result_tables.count_near(inputs.panels)
        yield _fold("forecasts", "Forecasts and actual values", finding, panels=panels)


def _list_learnt(inputs: ReportInputs) -> Iterator[Section]:
    """Yield the sections on what systems of agents do, and on what each part of the method adds."""
    if groups := list_groups(inputs):
        known = inputs.logics.drop_nulls("reward_slope")
        rising = known.filter(pl.col("slope_low") > 0).height
        rewards = f"The rewards of {rising} of {known.height} agents were still rising at the end"
        yield _fold("mechanism", "Mechanism", f"{rewards}, under one budget.", groups=groups)

    names = select_pooled(inputs.rows, ablation=True)["dataset"].unique(maintain_order=True)
    datasets = [
        {
            "tables": result_tables.list_variant_tables(inputs, name),
            "bars": result_tables.show_ablation(inputs.rows, name),
        }
        for name in names
    ]
    if datasets:
        sides = Counter(find_side(test) for test in inputs.paired if is_of_variant(test))
        finding = "Variants and controls under one budget; no comparison by window."
        if sides:
            finding = (
                f"Of {sides.total()} changes {sides[1]} make the forecast worse and {sides[-1]} "
                f"better; of {sides[0]} the interval includes zero."
            )
        yield _fold("ablation", "Ablation and controls", finding, datasets=datasets)

    if not inputs.rows.is_empty():
        built = {
            title: build_paper_tables(name, inputs) for name, (title, _) in PAPER_TABLES.items()
        }
        groups = [{"title": title, "tables": tables} for title, tables in built.items()]
        filled = [bool(table.rows) for tables in built.values() for table in tables]
        count = f"{sum(filled)} of {len(filled)} tables of the paper"
        finding = f"{count} have own figures besides the printed ones."
        view = {"groups": groups, "curves": show_curves(inputs), "reading": NOTES["reading"]}
        yield _fold("paper", "Comparison with the paper", finding, **view)


def _list_verdicts(inputs: ReportInputs) -> Iterator[Section]:
    """Yield the sections on what is read from news, each with verdicts."""
    controls = [
        (
            evidence_tables.control_table(rows),
            evidence_tables.show_control(rows, inputs.control_rounds),
        )
        for rows in evidence_tables.list_controls(inputs.control)
    ]
    searches = evidence_tables.list_search_tables(inputs.control)
    searches += evidence_tables.list_evidence("specialists", inputs.specialists)
    texts = evidence_tables.list_evidence("text", inputs.text)
    if controls or searches or texts:
        finding = evidence_tables.summarize_evidence(inputs.control, inputs.text)
        view = {"controls": controls, "searches": searches, "texts": texts}
        yield _fold("evidence", "Does search find evidence?", finding, **view)

    if audits := evidence_tables.list_evidence("audit", inputs.audit):
        # The first sentence of each verdict, equal ones counted.
        first = Counter(table.verdict.partition(". ")[0].rstrip(".") for table in audits)
        verdicts = [f"{text} ({n})." if n > 1 else f"{text}." for text, n in first.items()]
        yield _fold("news", "Does news help?", " ".join(verdicts), audits=audits)


def _list_origins(inputs: ReportInputs, later: Sequence[Scope]) -> Iterator[Section]:
    """Yield the sections on leakage and on the origin of the rows."""
    passed, total = sum(check["passed"] for check in inputs.checks), len(inputs.checks)
    if later or total:
        tables = [result_tables.headline_table(inputs.rows, *scope) for scope in later]
        finding = (
            f"{passed} of {total} checks passed." if total else result_tables.name_leaders(tables)
        )
        yield _fold(
            "leakage",
            "Leakage check",
            finding,
            tables=tables + _list_regions(inputs.rows, later),
            checks=result_tables.check_table(inputs.checks) if total else None,
            passed=passed,
            total=total,
        )

    if not inputs.rows.is_empty():
        table = result_tables.identity_table(inputs.rows)
        finding = f"{len(table.rows):,} pooled rows with their hashes, commits and devices."
        title = "Where the numbers come from"
        yield _fold("identity", title, finding, table=table, unread=inputs.unread)


def _list_regions(rows: pl.DataFrame, scopes: Sequence[Scope]) -> list[Table]:
    return [
        table
        for scope in scopes
        for metric, label in REGION_METRICS
        if (table := result_tables.region_table(rows, *scope, metric, label)) is not None
    ]
