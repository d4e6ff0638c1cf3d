"""The jinja2 environment of the report.

What belongs here: how templates are found and escaped. What does not: what they show
(``report.page``, ``report.sections``).

Every value is escaped, and no template may mark one as safe: news titles, logics and judges' names
are untrusted text. A value that a template names and the view lacks is an error, not empty text.
"""

import functools

from jinja2 import Environment, PackageLoader, StrictUndefined

_CHARTS = "charts.js"


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
    """Return plotly's script and the one that draws the page's charts with it.

    Plotly's is 4.8 MB, once in a page that holds charts.
    """
    from plotly.offline import get_plotlyjs

    environment = template_environment()
    charts, _, _ = PackageLoader("compevo_core.report").get_source(environment, _CHARTS)
    return get_plotlyjs(), charts
