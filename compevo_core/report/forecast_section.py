"""One forecast panel as HTML: the plot and the news beside it.

What belongs here: captions, alternative text, the news list (untrusted, escaped).
What does not: the drawing (``forecast_plots``).
"""

import html

from compevo_core.evaluation.panels import ForecastPanel
from compevo_core.report.figures import to_html
from compevo_core.report.forecast_plots import forecast, panel_zone
from compevo_core.report.wording import listed, method_name, scope_name


def panel_html(panel: ForecastPanel) -> str:
    """The plot, its caption and the list of news."""
    zone = panel_zone(panel)
    start = f"{panel.origin_utc.astimezone(zone):%d %b %Y, %H:%M} {zone.tzname(None)}"
    caption = f"{panel.entity}, from {start} ({scope_name(panel.dataset, panel.subset, synthetic=panel.synthetic)})."
    alt = (
        f"Line plot of {panel.entity} in {panel.unit}: {len(panel.history)} values before {start}, then the truth "
        f"beside forecasts by {listed([method_name(name) for name in panel.forecasts])}."
    )
    return f'<div class="panel">{to_html(forecast(panel), alt=alt, caption=caption)}{_news(panel)}</div>'


def _news(panel: ForecastPanel) -> str:
    if not panel.news:
        nothing = "No article was available or chosen for this window."
        return f'<aside><h3>News read</h3><p class="quiet">{nothing}</p></aside>'
    items = "".join(
        f"<li><time>{html.escape(date)}</time> {html.escape(title)}</li>"
        for date, title in panel.news
    )
    return f"<aside><h3>News read</h3><ul>{items}</ul></aside>"
