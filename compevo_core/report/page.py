"""The report: two pages with style, images and charts inside, so that nothing is fetched.

What belongs here: the page of forecasts and the page of experiments, which sections they have, the
note on the kind of data, rendering and writing the files. What does not: the contents of tables and
plots, the sections of one run (``report.run_sections``), markup and introductions (``templates``).

Every value is escaped, and no template may mark one as safe: news titles, logics and judges' names
are untrusted text. A value that a template names and the view lacks is an error, not empty text.
"""

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from compevo_core.report import summaries
from compevo_core.report.audit_tables import audit_table, judge_news, list_audits
from compevo_core.report.charts import Chart
from compevo_core.report.control_tables import (
    control_table,
    judge_control,
    judge_text,
    list_controls,
    list_searches,
    list_texts,
    search_table,
    show_control,
    text_table,
)
from compevo_core.report.figures import DARK_COLOURS
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.mechanism import list_groups
from compevo_core.report.paper.tables import PAPER_TABLES, READING, build_paper_tables, show_curves
from compevo_core.report.plots import (
    show_ablation,
    show_methods,
    show_panel,
    show_reliability,
    show_verdicts,
)
from compevo_core.report.result_tables import (
    agent_table,
    check_table,
    headline_table,
    identity_table,
    is_of_variant,
    list_variant_tables,
    paired_table,
    quantile_table,
    region_table,
)
from compevo_core.report.rows import list_scopes, select_pooled
from compevo_core.report.run_sections import Section, build_run_sections
from compevo_core.report.tables import Table, format_moment
from compevo_core.report.tomorrow import view_day
from compevo_core.runtime.files import write_text

# A reader must learn before any number whether the data is real.
BANNERS = {
    "sample": "Sample data: synthetic, in the publishers' formats; exchange rates alone are real. "
    "Errors on this page show that the system works, not how well it forecasts the world.",
    "archive": "Archive data: real files as their publishers or the published benchmarks ship "
    "them.",
    "live": "Live data: fetched from the publishers.",
}
MIXED = (
    " Some rows below come from synthetic data; they are marked under 'Where the numbers come "
    "from'."
)
#: Subsets later than all training data have a section apart from the results.
LEAKAGE_SUBSET = "inference-"
# Absolute and relative: demand differs several-fold between regions.
REGION_METRICS = (("mae", "MAE"), ("mape_pct", "MAPE %"))

SCRIPTS_MARK = "<!-- scripts -->"  # where the page's template wants its scripts

Scope = tuple[str, str]


FORECAST_PAGE, RESEARCH_PAGE = "forecast.html", "research.html"


def write_report(inputs: ReportInputs, folder: Path) -> Path:
    """Write both pages, each in one step, so that nobody sees half of one; return the first."""
    write_text(folder / RESEARCH_PAGE, render_research(inputs))
    return write_text(folder / FORECAST_PAGE, render_forecasts(inputs))


def render_forecasts(inputs: ReportInputs, *, is_published: bool = False) -> str:
    """Return the page of the newest forecasts as HTML, without any script.

    A published page is in the folder of the sealed records, and says how to check them.
    """
    newest_first = sorted(inputs.days, key=lambda day: day.issued.origin, reverse=True)
    days = [view_day(day) for day in newest_first]
    return render(FORECAST_PAGE, days=days, is_published=is_published, **_frame(inputs))


def render_research(inputs: ReportInputs) -> str:
    """Return the page of the experiments as HTML; equal inputs give equal text."""
    scripts = () if inputs.logics.is_empty() else read_scripts()
    page = render(
        RESEARCH_PAGE,
        has_scripts=bool(scripts),
        sections=build_sections(inputs),
        **(_frame(inputs) | {"title": "research", "script_policy": _allow_scripts(scripts)}),
    )
    # After the rendering, which would escape them. No text of the data can hold this mark: there
    # its first character is escaped.
    return page.replace(SCRIPTS_MARK, "\n".join(f"<script>{text}</script>" for text in scripts))


def render_chart(chart: Chart) -> str:
    """Return a chart alone as an SVG, in the colours of a light page."""
    return str(template_environment().get_template("chart.html").module.show_chart(chart))  # type: ignore[attr-defined]


def _frame(inputs: ReportInputs) -> dict[str, object]:
    """Return what both pages have: the note on the kind of data, and the moment."""
    # The samples of real exchange rates are among synthetic series, so sample mode always warns.
    has_synthetic = inputs.is_synthetic or inputs.mode == "sample"
    banner = BANNERS.get(inputs.mode, f"Data mode: {inputs.mode}.")
    if inputs.is_synthetic and inputs.mode != "sample":
        banner += MIXED
    return {
        "title": "forecast",
        "banner": banner,
        "banner_class": "synthetic" if has_synthetic else "real",
        "made": format_moment(inputs.generated_at),
        "dark_colours": DARK_COLOURS,
        "script_policy": "",
    }


@functools.cache
def template_environment() -> Environment:
    """Return the environment over ``report/templates``."""
    return Environment(
        loader=PackageLoader("compevo_core.report"),
        # For every template, whatever its ending: a missed one is a hole.
        autoescape=True,
        # The default would render a misspelled name as empty text, and nobody would see it.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **view: object) -> str:
    """Fill a template with a view."""
    return template_environment().get_template(template).render(view)


@functools.cache
def read_scripts() -> tuple[str, ...]:
    """Return plotly's script, which has 4.8 MB, and the one that plots the page's charts."""
    from plotly.offline import get_plotlyjs

    loader = PackageLoader("compevo_core.report")
    return get_plotlyjs(), loader.get_source(template_environment(), "charts.js")[0]


def _allow_scripts(scripts: Sequence[str]) -> str:
    """Return the page's policy for scripts: these to the letter, and no other."""
    if not scripts:
        return ""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = (base64.b64encode(digest).decode() for digest in digests)
    return "; script-src " + " ".join(f"'sha256-{value}'" for value in hashes)


def build_sections(inputs: ReportInputs) -> list[Section]:
    """Return every section that has something to show, in reading order."""
    scopes = list_scopes(select_pooled(inputs.rows))
    tests = [scope for scope in scopes if not scope[1].startswith(LEAKAGE_SUBSET)]
    later = [scope for scope in scopes if scope not in tests]

    sections = [
        _build_summary(inputs),
        _build_results(inputs, tests),
        _build_bands(inputs, tests),
        _build_regions(inputs, tests),
        _build_panels(inputs),
        *build_run_sections(inputs.runs, inputs.audit),
        _build_mechanism(inputs),
        _build_ablation(inputs),
        _build_paper(inputs),
        _build_evidence(inputs),
        _build_audit(inputs),
        _build_leakage(inputs, later),
        _build_identity(inputs),
        _fold("terms", "Glossary", "What the words of this page mean."),
    ]
    return [section for section in sections if section is not None]


def _fold(anchor: str, title: str, finding: str, **view: Any) -> Section:  # noqa: ANN401
    return Section(
        anchor=anchor,
        title=title,
        finding=finding,
        template="sections.html",
        macro=anchor.replace("-", "_"),
        view=view,
    )


def _build_summary(inputs: ReportInputs) -> Section:
    # Always there: the absence of scores is also shown.
    results = summaries.summarize_results(inputs)
    finding = summaries.count_verdicts(results)
    verdicts = show_verdicts(results)
    return _fold("summary", "Summary", finding, summaries=results, verdicts=verdicts)


def _build_results(inputs: ReportInputs, tests: Sequence[Scope]) -> Section | None:
    paired = [test for test in inputs.paired if not is_of_variant(test)]
    if not tests and not paired:
        return None

    tables = [headline_table(inputs.rows, *scope) for scope in tests]
    views = [
        {
            "table": table,
            "bars": show_methods(inputs.rows, *scope),
            "agents": agent_table(inputs.rows, *scope),
        }
        for scope, table in zip(tests, tables, strict=True)
    ]
    finding = summaries.name_leaders(tables)
    table = paired_table(paired) if paired else None
    return _fold("results", "Results", finding, scopes=views, paired=table)


def _build_bands(inputs: ReportInputs, tests: Sequence[Scope]) -> Section | None:
    views = [
        {"table": table, "reliability": show_reliability(inputs.rows, *scope)}
        for scope in tests
        if (table := quantile_table(inputs.rows, *scope)) is not None
    ]
    if not views:
        return None
    finding = summaries.describe_bands(inputs.rows, tests)
    return _fold("how-sure", "Uncertainty", finding, scopes=views)


def _build_regions(inputs: ReportInputs, tests: Sequence[Scope]) -> Section | None:
    tables = _list_regions(inputs.rows, tests)
    if not tables:
        return None
    return _fold("regions", "Results by region", summaries.count_best(tables), tables=tables)


def _build_panels(inputs: ReportInputs) -> Section | None:
    if not inputs.panels:
        return None
    views = [{"picture": show_panel(panel), "news": panel.news} for panel in inputs.panels]
    finding = summaries.count_near(inputs.panels)
    return _fold("forecasts", "Forecasts and actual values", finding, panels=views)


def _build_mechanism(inputs: ReportInputs) -> Section | None:
    groups = list_groups(inputs)
    if not groups:
        return None
    return _fold("mechanism", "Mechanism", summaries.describe_mechanism(inputs), groups=groups)


def _build_ablation(inputs: ReportInputs) -> Section | None:
    names = select_pooled(inputs.rows, ablation=True)["dataset"].unique(maintain_order=True)
    views = [
        {"tables": list_variant_tables(inputs, name), "bars": show_ablation(inputs.rows, name)}
        for name in names
    ]
    if not views:
        return None
    finding = summaries.count_changes([test for test in inputs.paired if is_of_variant(test)])
    return _fold("ablation", "Ablation and controls", finding, datasets=views)


def _build_paper(inputs: ReportInputs) -> Section | None:
    if inputs.rows.is_empty():
        return None
    groups = [
        {"title": title, "tables": build_paper_tables(name, inputs)}
        for name, (title, _) in PAPER_TABLES.items()
    ]
    view = {"groups": groups, "curves": show_curves(inputs), "reading": READING}
    return _fold("paper", "Comparison with the paper", summaries.count_tables(groups), **view)


def _build_evidence(inputs: ReportInputs) -> Section | None:
    controls: list[dict[str, Any]] = [
        {
            "verdict": judge_control(rows),
            "table": control_table(rows),
            "picture": show_control(rows, inputs.control_rounds),
        }
        for rows in list_controls(inputs.control)
    ]
    searches = [search_table(rows) for rows in list_searches(inputs.control)]
    texts: list[dict[str, Any]] = [
        {"verdict": judge_text(rows), "table": text_table(rows)} for rows in list_texts(inputs.text)
    ]
    if not controls and not searches and not texts:
        return None

    finding = summaries.join_verdicts([view["verdict"] for view in (*controls, *texts)])
    view = {"controls": controls, "searches": searches, "texts": texts}
    return _fold("evidence", "Does competition find evidence?", finding, **view)


def _build_audit(inputs: ReportInputs) -> Section | None:
    views: list[dict[str, Any]] = [
        {"verdict": judge_news(rows), "table": audit_table(rows)}
        for rows in list_audits(inputs.audit)
    ]
    if not views:
        return None
    finding = summaries.join_verdicts([view["verdict"] for view in views])
    return _fold("news", "Does news help?", finding, audits=views)


def _build_leakage(inputs: ReportInputs, later: Sequence[Scope]) -> Section | None:
    if not later and not inputs.checks:
        return None

    headlines = [headline_table(inputs.rows, *scope) for scope in later]
    passed, total = sum(check.passed for check in inputs.checks), len(inputs.checks)
    finding = f"{passed} of {total} checks passed." if total else summaries.name_leaders(headlines)
    return _fold(
        "leakage",
        "Leakage check",
        finding,
        tables=headlines + _list_regions(inputs.rows, later),
        checks=check_table(inputs.checks) if inputs.checks else None,
        passed=passed,
        total=total,
    )


def _build_identity(inputs: ReportInputs) -> Section | None:
    if inputs.rows.is_empty():
        return None
    table = identity_table(inputs.rows)
    finding = f"{len(table.rows):,} pooled rows with their hashes, commits and devices."
    title = "Where the numbers come from"
    return _fold("identity", title, finding, table=table, unread=inputs.unread)


def _list_regions(rows: pl.DataFrame, scopes: Sequence[Scope]) -> list[Table]:
    return [
        table
        for scope in scopes
        for metric, label in REGION_METRICS
        if (table := region_table(rows, *scope, metric, label)) is not None
    ]
