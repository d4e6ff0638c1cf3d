"""A forecast window as the page shows it: the plot, its caption and the news beside it.

What belongs here: drawing one ``ForecastPanel``, its caption and alternative text. What does not:
choosing the windows (``evaluation.panels``), their markup (``templates/forecasts.html``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from compevo_core.evaluation.panels import ForecastPanel
from compevo_core.report.figures import Picture, Plot, add_legend, make_axis, make_picture
from compevo_core.report.theme import GRID, HISTORY, INK, method_colour
from compevo_core.report.wording import join_items, method_name, scope_name

# The market's clock has no daylight saving, and its day is what a reader of demand expects.
NEM_TIME = timezone(timedelta(hours=10), "UTC+10")


@dataclass(frozen=True, kw_only=True)
class ForecastView:
    """A drawn panel and its news as (date, title), which is untrusted text."""

    picture: Picture
    news: Sequence[tuple[str, str]]


def show_panel(panel: ForecastPanel) -> ForecastView:
    """Draw a panel and write its caption."""
    zone = panel_zone(panel)
    start = f"{panel.origin_utc.astimezone(zone):%d %b %Y, %H:%M} {zone.tzname(None)}"
    scope = scope_name(panel.dataset, panel.subset, synthetic=panel.synthetic)
    methods = join_items([method_name(name) for name in panel.forecasts])

    plot = Plot(
        plot_panel(panel),
        alt=f"Line plot of {panel.entity} in {panel.unit}: {len(panel.history)} values before "
        f"{start}, then the actual values and the forecasts by {methods}.",
    )
    picture = make_picture([plot], caption=f"{panel.entity}, from {start}. {scope}.")
    return ForecastView(picture=picture, news=panel.news)


def panel_zone(panel: ForecastPanel) -> timezone:
    """Return the clock of a panel: NEM time for the electricity market, UTC for everything else."""
    return NEM_TIME if panel.dataset == "electricity" else UTC


def plot_panel(panel: ForecastPanel) -> Figure:
    """Draw the history, the actual values and each method's forecast on the panel's clock."""
    figure, axis = make_axis(width=5.2, height=2.8)
    zone = panel_zone(panel)
    step = timedelta(minutes=panel.step_minutes)
    origin = panel.origin_utc.astimezone(zone)

    # The history ends one step before the origin, which is the start of the first forecast step.
    past = _to_days([origin - step * k for k in range(len(panel.history), 0, -1)])
    axis.plot(past, panel.history, color=HISTORY, linewidth=1.3, label="history")

    ahead = _to_days([origin + step * k for k in range(len(panel.truth))])
    # NaN breaks the line where a value was missing; None would be refused.
    truth = [float("nan") if value is None else value for value in panel.truth]
    axis.plot(ahead, truth, color=INK, linewidth=2.4, label="actual values")
    _draw_forecasts(axis, ahead, panel)

    # The line marks the origin: everything right of it was unknown to the models.
    axis.axvline(ahead[0], color=HISTORY, linewidth=1.0)
    axis.axvspan(ahead[0], ahead[-1], color=GRID, alpha=0.25, linewidth=0)
    axis.set_ylabel(panel.unit)
    _set_clock(axis, zone)
    add_legend(axis, columns=5)
    return figure


def _draw_forecasts(axis: Axes, days: list[float], panel: ForecastPanel) -> None:
    # CompEvo comes last, so that its line lies on top.
    for method in sorted(panel.forecasts, key=lambda name: name == "compevo"):
        is_compevo = method == "compevo"
        axis.plot(
            days,
            panel.forecasts[method],
            color=method_colour(method),
            linewidth=2.2 if is_compevo else 1.3,
            linestyle="-" if is_compevo else (0, (4, 2)),
            label=method_name(method),
        )


def _set_clock(axis: Axes, zone: timezone) -> None:
    # matplotlib.dates is not annotated.
    locator = AutoDateLocator(tz=zone, minticks=4, maxticks=7)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    # The caption names the year.
    formatter = ConciseDateFormatter(locator, tz=zone, show_offset=False)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_formatter(formatter)


def _to_days(moments: list[datetime]) -> list[float]:
    """Return matplotlib's day numbers, which are in UTC whatever the zone of the moments."""
    return [float(date2num(moment)) for moment in moments]  # type: ignore[no-untyped-call]
