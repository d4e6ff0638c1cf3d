"""One forecast window as a picture needs it: history, truth, forecasts by method, the news the agents read.

What belongs here: the record, and its JSON-lines form in a run folder (``panels.jsonl``).
What does not: choosing windows or making forecasts (evaluation does), drawing (``forecast_plots``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from compevo_core.errors import DataError

FILE_NAME = "panels.jsonl"


@dataclass(frozen=True, kw_only=True)
class ForecastPanel:
    """A window and what was said about it; all values in physical units.

    Attributes:
        window_id: identity of the window.
        dataset: data set of the window.
        subset: named subset shown.
        entity: region, currency, sensor.
        unit: unit of all values.
        origin_utc: start of the first forecast interval, with zone.
        step_minutes: length of an interval.
        history: values before the origin, oldest first.
        truth: values from the origin; None where masked.
        forecasts: method name to values.
        news: (date, title) of the articles the agents chose, newest first. Untrusted text.
        synthetic: whether the series is made up.
    """

    window_id: str
    dataset: str
    subset: str
    entity: str
    unit: str
    origin_utc: datetime
    step_minutes: int
    history: Sequence[float]
    truth: Sequence[float | None]
    forecasts: Mapping[str, Sequence[float]]
    news: Sequence[tuple[str, str]] = ()
    synthetic: bool = False

    def __post_init__(self) -> None:
        if self.origin_utc.tzinfo is None:
            raise DataError(
                f"panel {self.window_id}: origin_utc has no zone; pass a datetime in UTC"
            )
        for method, values in self.forecasts.items():
            if len(values) != len(self.truth):
                raise DataError(
                    f"panel {self.window_id}: {method} has {len(values)} values, not {len(self.truth)}"
                )


def write_panels(path: Path, panels: Sequence[ForecastPanel]) -> None:
    """Write panels as JSON lines; a NaN in the truth is written as null."""
    lines = [
        json.dumps(_plain(asdict(panel)), ensure_ascii=False, allow_nan=False) for panel in panels
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    masked = [
        None if value is None or value != value else float(value) for value in record["truth"]
    ]
    return record | {
        "origin_utc": record["origin_utc"].isoformat(),
        "history": [float(value) for value in record["history"]],
        "truth": masked,
        "forecasts": {
            name: [float(value) for value in values] for name, values in record["forecasts"].items()
        },
        "news": [list(item) for item in record["news"]],
    }


def read_panels(path: Path) -> tuple[ForecastPanel, ...]:
    """Panels of a file that ``write_panels`` wrote; ``DataError`` names the line that is not one."""
    panels = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
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
