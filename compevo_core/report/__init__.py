"""Rows and run folders to tables, plots and one static page.

What belongs here: reading what evaluation and training wrote, and showing it.
What does not: any computation of a metric, a forecast or a weight. If a number is missing here, it is missing upstream.
"""

from compevo_core.report.inputs import ReportInputs, RunRecord, keep_config, read_inputs
from compevo_core.report.page import render_page, write_report
from compevo_core.report.panels import ForecastPanel, write_panels
from compevo_core.report.readme import headline_markdown

__all__ = [
    "ForecastPanel",
    "ReportInputs",
    "RunRecord",
    "headline_markdown",
    "keep_config",
    "read_inputs",
    "render_page",
    "write_panels",
    "write_report",
]
