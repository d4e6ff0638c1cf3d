"""The picture of an issued forecast in the UI.

What belongs here: the report's still picture as metadata. What does not: drawing it
(``compevo_core.report.day_pictures``), the asset that shows it.
"""

from typing import Any

import dagster as dg

from compevo_core.issued import IssuedForecast
from compevo_core.report.day_pictures import MOST_SERIES, plot_day
from compevo_core.report.forecast_days import ForecastDay
from compevo_pipeline.assets.metadata import render_figure


def render_day(issued: IssuedForecast) -> dg.MetadataValue[Any]:
    """Return bands, members, yesterday as it was known, and what was published, by series."""
    shown = min(MOST_SERIES, len(issued.entities))
    title = f"{issued.origin:%A %d %B %Y}, {shown} of {len(issued.entities)} series"
    return render_figure(plot_day(ForecastDay(issued=issued)), title)
