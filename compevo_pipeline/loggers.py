"""The logger ``plain``: a run's progress in plain lines, with the time left.

What belongs here: turning Dagster's log records into lines for a terminal. What does not: running anything.
The time left is the usual duration of the steps that are still to come, scaled by how fast the finished ones were.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from compevo_core.durations import format_duration

USUAL_SECONDS = {
    "series__": 2.0,
    "series_": 3.0,
    "news__articles": 3.0,
    "news_": 1.0,
    "news__embeddings": 25.0,
    "windows_": 2.0,
    "models__compevo": 70.0,
    "evaluation__baselines": 8.0,
    "evaluation__test": 30.0,
    "evaluation__lud": 12.0,
    "ablation__variants": 180.0,
    "leakage__inference_2026": 40.0,
    "report__site": 8.0,
}
"""By the longest prefix of a step's name, for the job ``demo`` on two cores."""
_PRIOR_SECONDS = 10.0
_QUIET = ("[pipes]",)


class Progress:
    """How far a run is: which steps are done, and how long the others may take."""

    def __init__(self, steps: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = {name: usual_seconds(name) for name in steps}
        self._total = len(steps)
        self._clock = clock
        self._started = clock()
        self._usual = self._spent = _PRIOR_SECONDS

    def done(self, step: str, seconds: float) -> None:
        """A step has ended."""
        self._usual += self._left.pop(step, 0.0)
        self._spent += seconds

    @property
    def number(self) -> int:
        """Steps that have ended."""
        return self._total - len(self._left)

    def line(self, text: str) -> str:
        """``text`` behind the time passed and the steps done."""
        return f"[{format_duration(self._clock() - self._started):>6} {self.number:>2}/{self._total}] {text}"

    def left(self) -> str:
        """The time left, in words."""
        return f"about {format_duration(sum(self._left.values()) * self._spent / self._usual)} left"


def usual_seconds(step: str) -> float:
    """The usual duration of a step."""
    fitting = [prefix for prefix in USUAL_SECONDS if step.startswith(prefix)]
    return USUAL_SECONDS[max(fitting, key=len)] if fitting else 1.0


class PlainHandler(logging.Handler):
    """Writes one line for each step, each message of an asset, each check that failed."""

    def __init__(self, progress: Progress, write: Callable[[str], Any] = sys.stdout.write) -> None:
        super().__init__()
        self._progress = progress
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Handles one record of Dagster."""
        meta = getattr(record, "dagster_meta", {})
        event = getattr(record, "dagster_event", None) or meta.get("dagster_event")
        text = self._message(record, meta) if event is None else self._event(event)
        if text:
            self._write(self._progress.line(text) + "\n")

    def _message(self, record: logging.LogRecord, meta: Any) -> str:
        said = str(meta.get("orig_message", record.getMessage()))
        quiet = record.levelno < logging.INFO or said.startswith(_QUIET)
        return "" if quiet else f"  {said}"

    def _event(self, event: dg.DagsterEvent) -> str:
        step = (event.step_key or "").replace("__", "/")
        match event.event_type_value:
            case "STEP_START":
                return step
            case "STEP_SUCCESS":
                seconds = event.step_success_data.duration_ms / 1000
                self._progress.done(event.step_key or "", seconds)
                return f"{step} done in {format_duration(seconds)}, {self._progress.left()}"
            case "STEP_FAILURE" | "STEP_UP_FOR_RETRY":
                return f"{step}: {event.event_type_value.lower().replace('_', ' ')}"
            case "ASSET_CHECK_EVALUATION":
                found = event.asset_check_evaluation_data
                where = f"{found.asset_key.to_user_string()}: {found.check_name}"
                return "" if found.passed else f"  check failed, {where}: {found.description}"
        return ""


@dg.logger(
    config_schema={"steps": dg.Field([str], is_required=False, default_value=[])},
    description="Progress in plain lines, for make demo.",
)
def plain_logger(context: dg.InitLoggerContext) -> logging.Logger:
    """The logger; ``steps`` are the names of all steps of the run."""
    found = logging.Logger("compevo.plain", logging.DEBUG)
    found.addHandler(PlainHandler(Progress(context.logger_config["steps"])))
    return found
