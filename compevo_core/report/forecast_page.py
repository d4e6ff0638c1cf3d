"""The page of forecasts: style and charts inside, so that nothing is fetched.

What belongs here: rendering the page or a single chart, the note on the kind of data. What does
not: the contents of tables and charts (``report.tomorrow``), markup (``templates``), the page of
experiments (``paper.report.page``).

Every value is escaped, and no template may mark one as safe: news titles, logics and judges' names
are untrusted text. A value that a template names and the view lacks is an error, not empty text.
"""

import functools
from collections.abc import Sequence
from datetime import datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from compevo_core.data.datasets import DATASETS
from compevo_core.report.charts import Chart
from compevo_core.report.days import ForecastDay
from compevo_core.report.figures import DARK_COLOURS
from compevo_core.report.tables import format_moment
from compevo_core.report.tomorrow import view_day

# A reader must learn before any number whether the data is real.
BANNERS = {
    "sample": "Sample data: synthetic, in the publishers' formats; only exchange rates are real. "
    "Errors on this page show that the system works, not how well it forecasts the world.",
    "archive": "Archive data: real files as their publishers or the published benchmarks ship "
    "them.",
    "live": "Live data: fetched from the publishers.",
}
OWN_BANNER = "Data: your own files."
FORECAST_PAGE, RESEARCH_PAGE = "forecast.html", "research.html"  # files, in one folder


def render_forecasts(
    days: Sequence[ForecastDay], *, mode: str, generated_at: datetime, is_published: bool = False
) -> str:
    """Return the page of the newest forecasts as HTML, without any script.

    ``mode`` is the kind of data: sample, archive or live; ``generated_at`` the moment that the page
    names as its own, with zone. A published page is in the folder of the sealed records, and says
    how to check them.
    """
    frame = frame_page(mode, generated_at)
    own = [name for day in days if (name := day.issued.facts["dataset"]) not in DATASETS]
    if own and len(own) == len(days):
        frame |= {"banner": OWN_BANNER, "banner_class": "real", "is_own": True}
    elif own:
        frame["banner"] = f"{frame['banner']} Your own files: {', '.join(own)}."
    newest_first = sorted(days, key=lambda day: day.issued.origin, reverse=True)
    return (
        template_environment()
        .get_template(FORECAST_PAGE)
        .render(
            days=[view_day(day) for day in newest_first],
            is_published=is_published,
            **frame,
        )
    )


def render_chart(chart: Chart) -> str:
    """Return a single chart as an SVG, in the colours of a light page."""
    return str(template_environment().get_template("chart.html").module.show_chart(chart))  # type: ignore[attr-defined]


def frame_page(mode: str, generated_at: datetime) -> dict[str, object]:
    """Return what every page has: the note on the kind of data, and the moment."""
    return {
        "title": "forecast",
        "banner": BANNERS.get(mode, f"Data mode: {mode}."),
        # Real exchange rates are among the sample's synthetic series: its pages always warn.
        "banner_class": "synthetic" if mode == "sample" else "real",
        "is_own": False,
        "made": format_moment(generated_at),
        "dark_colours": DARK_COLOURS,
    }


@functools.cache
def template_environment() -> Environment:
    """Return the environment over ``report/templates``."""
    return Environment(
        loader=PackageLoader("compevo_core.report"),
        # For every template and every file ending: a missed one is a hole.
        autoescape=True,
        # The default would silently render a misspelled name as empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
