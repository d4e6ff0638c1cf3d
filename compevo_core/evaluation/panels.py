"""Forecast panels: one window with everything that a picture of it needs.

What belongs here: the record, choosing the windows of a scope, and the JSON-lines file of a run
folder (``panels.jsonl``). What does not: plotting (``report.plots``). Shapes: N windows, H horizon.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from compevo_core.data.arrays import FloatArray, evenly_spaced
from compevo_core.data.news_pool import NewsPool
from compevo_core.errors import DataError
from compevo_core.evaluation.scopes import Scope
from compevo_core.runtime.files import write_text


@dataclass(frozen=True, kw_only=True)
class ForecastPanel:
    """A window and what was forecast for it; all values in physical units."""

    window_id: str  # identity of the window
    dataset: str  # data set of the window
    subset: str  # name of the scope that the window belongs to
    entity: str  # region, currency or sensor
    unit: str  # unit of all values
    origin_utc: datetime  # start of the first forecast interval, with zone
    step_minutes: int  # length of an interval
    history: Sequence[float]  # values before the origin, oldest first
    truth: Sequence[float | None]  # values from the origin on; None where masked
    forecasts: Mapping[str, Sequence[float]]  # values by method
    # (date, title) of the articles the agents chose, newest first. Untrusted text
    news: Sequence[tuple[str, str]] = ()
    synthetic: bool = False  # whether the series is made up

    def __post_init__(self) -> None:
        if self.origin_utc.tzinfo is None:
            raise DataError(
                f"panel {self.window_id}: origin_utc has no zone; pass a datetime in UTC"
            )

        # A shorter line would be plotted as one that ends early, which nobody would notice.
        for method, values in self.forecasts.items():
            if len(values) != len(self.truth):
                raise DataError(
                    f"panel {self.window_id}: {method} has {len(values)} values, "
                    f"not {len(self.truth)}"
                )


def build_panels(
    scope: Scope,
    forecasts: Mapping[str, FloatArray],
    chosen: Sequence[Sequence[str]],
    news: NewsPool,
    count: int,
) -> list[ForecastPanel]:
    """Return panels of ``count`` evenly spaced windows of a scope.

    ``forecasts`` (N, H) by method are in the order of the plot; ``chosen`` are the ids of the
    articles that the agents read, for each window.
    """
    # From the manifest: the picture of a made-up day must say so wherever it is shown.
    is_synthetic = bool(scope.windows.manifest.get("synthetic", False))

    panels = []
    for position in evenly_spaced(len(scope.windows), count):
        window = scope.windows[position]
        view = window.view
        # Newest first, as a reader of the report meets them; equal dates go by title.
        articles = sorted(
            ((news.get_date(i), news.get_title(i)) for i in chosen[position]), reverse=True
        )
        panels.append(
            ForecastPanel(
                window_id=view.window_id,
                dataset=view.dataset,
                subset=scope.subset,
                entity=view.entity,
                unit=view.unit,
                origin_utc=view.origin_utc,
                step_minutes=view.step_minutes,
                history=view.x.tolist(),
                truth=window.y.tolist(),
                forecasts={name: values[position].tolist() for name, values in forecasts.items()},
                news=[(f"{date:%Y-%m-%d %H:%M}", title) for date, title in articles],
                synthetic=is_synthetic,
            )
        )
    return panels


def write_panels(path: Path, panels: Sequence[ForecastPanel]) -> None:
    """Write panels as JSON lines; a NaN in the truth is written as null."""
    lines = []
    for panel in panels:
        # JSON has no NaN, and a reader must not take a masked truth for a number.
        truth = [None if value is None or value != value else value for value in panel.truth]
        record = asdict(panel) | {"origin_utc": panel.origin_utc.isoformat(), "truth": truth}
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False))
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_panels(path: Path) -> tuple[ForecastPanel, ...]:
    """Return the panels of a file; DataError names a line that is not a panel."""
    panels = []
    # Not splitlines(): a headline may hold a Unicode line separator, which is not an end of a line.
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                record = json.loads(line)
                record["origin_utc"] = datetime.fromisoformat(record["origin_utc"])
                record["news"] = tuple((str(date), str(title)) for date, title in record["news"])
                panels.append(ForecastPanel(**record))
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(
                    f"{path}, line {number}: not a forecast panel ({error}); evaluate the run again"
                ) from error
    return tuple(panels)
