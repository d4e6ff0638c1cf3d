"""A forecast against what happened, for one window.

What belongs here: the drawing of one ``ForecastPanel``.
What does not: choosing windows; the news beside it (``forecast_section`` writes that as text).
"""

from datetime import UTC, datetime, timedelta, timezone

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from compevo_core.evaluation.panels import ForecastPanel
from compevo_core.report.figures import GRID, INK, METHODS, axes, legend, method_colour
from compevo_core.report.wording import method_name

NEM_TIME = timezone(timedelta(hours=10), "UTC+10")
MARK = "#8a94a3"


def panel_zone(panel: ForecastPanel) -> timezone:
    """The clock a panel is drawn in: NEM time for the electricity market, UTC for everything else."""
    return NEM_TIME if panel.dataset == "electricity" else UTC


def forecast(panel: ForecastPanel) -> Figure:
    """History, truth and each method's forecast, on the panel's clock."""
    figure, (axis,) = axes(1, 1, height=3.0, width=7.4)
    zone = panel_zone(panel)
    step = timedelta(minutes=panel.step_minutes)
    origin = panel.origin_utc.astimezone(zone)
    past = _days([origin - step * k for k in range(len(panel.history), 0, -1)])
    ahead = _days([origin + step * k for k in range(len(panel.truth))])
    axis.plot(past, panel.history, color=METHODS["history"], linewidth=1.3, label="history")
    truth = [float("nan") if value is None else value for value in panel.truth]
    axis.plot(ahead, truth, color=INK, linewidth=2.4, label="what happened")
    for method in sorted(panel.forecasts, key=lambda name: name == "compevo"):
        own = method == "compevo"
        axis.plot(
            ahead,
            panel.forecasts[method],
            color=method_colour(method),
            linewidth=2.2 if own else 1.3,
            linestyle="-" if own else (0, (4, 2)),
            label=method_name(method),
        )
    axis.axvline(ahead[0], color=MARK, linewidth=1.0)
    axis.axvspan(ahead[0], ahead[-1], color=GRID, alpha=0.25, linewidth=0)
    axis.set_ylabel(panel.unit)
    locator = AutoDateLocator(tz=zone, minticks=4, maxticks=7)  # type: ignore[no-untyped-call]  # matplotlib.dates
    axis.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=zone)  # type: ignore[no-untyped-call]  # matplotlib.dates
    axis.xaxis.set_major_formatter(formatter)
    legend(axis, loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=4)
    return figure


def _days(moments: list[datetime]) -> list[float]:
    """Moments as matplotlib day numbers (they are UTC inside, whatever their zone)."""
    return [float(date2num(moment)) for moment in moments]  # type: ignore[no-untyped-call]  # matplotlib.dates
