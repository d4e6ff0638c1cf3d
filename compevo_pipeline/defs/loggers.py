"""The logger ``progress``: one view of a run with steps done, the current step and the time left.

What belongs here: turning Dagster's log records into a view for a terminal, or into plain lines
where the output is a file, a pipe or a CI log. What does not: running anything.

In a terminal messages such as the rounds of a training are one line, rewritten above the bar's end;
elsewhere a line is written at most every ``QUIET_SECONDS``. A failure or warning always has a line.

Steps differ by a factor of a hundred, so progress counts the usual seconds of the finished ones.
"""

import logging
import time
from collections.abc import Callable, Sequence

import dagster as dg
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from compevo_core.runtime.usage import format_duration
from compevo_pipeline.config.settings import is_ci

USUAL_SECONDS = {"models": 50.0, "evaluation": 6.0, "research": 12.0, "report": 3.0}
"""Usual duration by the first part of a step's name, in the jobs of the demo on two cores."""

_UNKNOWN_STEP_SECONDS = 1.5
LONGEST = 100  # characters of a message next to the bar
QUIET_SECONDS = 30.0  # least time between two lines of a log about steps that went well
# This much of a usual run counts as done at the usual speed: the first steps predict little.
_TRUSTED_SECONDS = 60.0
_RUN_ENDS = ("PIPELINE_SUCCESS", "PIPELINE_FAILURE", "PIPELINE_CANCELED")


class ProgressHandler(logging.Handler):
    """A run on one screen: a bar below its messages in a terminal, plain lines elsewhere.

    ``is_live`` redraws a bar; without it lines are written. ``clock`` gives seconds.
    """

    def __init__(
        self,
        steps: Sequence[str],
        console: Console,
        *,
        is_live: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._seconds_by_step = {
            step: USUAL_SECONDS.get(step.partition("__")[0], _UNKNOWN_STEP_SECONDS)
            for step in steps
        }
        self._steps = len(steps)
        self._console = console
        self._is_live = is_live
        self._clock = clock
        self._started_at = self._written_at = clock()

        self._bar = Progress(
            TextColumn("{task.fields[done]}/{task.fields[steps]} steps"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("elapsed, {task.fields[left]}  {task.description}"),
            console=console,
            get_time=clock,
            transient=True,
            disable=not is_live,
        )
        self._total = sum(self._seconds_by_step.values())
        left = self.describe_time_left()
        self._task = self._bar.add_task("", total=self._total, done=0, steps=self._steps, left=left)
        self._bar.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show one log record of Dagster: a step, a message of an asset or a failed check."""
        dagster_meta = getattr(record, "dagster_meta", {})
        event = getattr(record, "dagster_event", None) or dagster_meta.get("dagster_event")
        if event is None:
            message = str(dagster_meta.get("orig_message", record.getMessage()))
            # Dagster reports that a Pipes process was opened; the round lines show that anyway.
            if record.levelno >= logging.INFO and not message.startswith("[pipes]"):
                show = self.write if record.levelno >= logging.WARNING else self.show
                show(f"  {message}")
            return

        step = event.step_key or ""
        name = step.replace("__", "/")  # as the key of its asset
        match event.event_type_value:
            case "STEP_START":
                self._bar.update(self._task, description=name)

            case "STEP_SUCCESS":
                self.finish_step(step)
                seconds = event.step_success_data.duration_ms / 1000
                done = f"{name} done in {format_duration(seconds)}"
                self.show(", ".join(filter(None, [done, self.describe_time_left()])))

            case "STEP_FAILURE":
                self.write(f"{name}: step failed")

            case "STEP_UP_FOR_RETRY":
                self.write(f"{name}: step failed, to be retried")

            case "ASSET_CHECK_EVALUATION":
                check = event.asset_check_evaluation_data
                if not check.passed:
                    name = f"{check.asset_key.to_user_string()}: {check.check_name}"
                    self.write(f"  check failed, {name}: {check.description}")

            case ended if ended in _RUN_ENDS:
                self._bar.stop()

    def finish_step(self, step: str) -> None:
        """Count a step as done."""
        seconds = self._seconds_by_step.pop(step, 0.0)
        self._bar.advance(self._task, seconds)
        self._bar.update(self._task, done=self._count_done(), left=self.describe_time_left())

    def describe_time_left(self) -> str:
        """Return the time left in words, by how fast the finished steps were."""
        left = sum(self._seconds_by_step.values())
        elapsed = self._clock() - self._started_at
        slowness = (elapsed + _TRUSTED_SECONDS) / (self._total - left + _TRUSTED_SECONDS)
        return f"about {format_duration(left * slowness)} left"

    def show(self, text: str) -> None:
        """Show what went well: in place of what was shown before, or as a line now and then."""
        if self._is_live:
            self._bar.update(self._task, description=escape(" ".join(text.split())[:LONGEST]))
        elif self._clock() - self._written_at >= QUIET_SECONDS:
            self._written_at = self._clock()
            self.write(text)

    def write(self, text: str) -> None:
        """Write a message: above the bar, or as a line with time and steps in front."""
        if not self._is_live:
            elapsed = format_duration(self._clock() - self._started_at)
            text = f"[{elapsed:>6} {self._count_done():>2}/{self._steps}] {text}"

        # Messages hold paths and brackets: nothing in them is markup, and nothing is cut.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _count_done(self) -> int:
        return self._steps - len(self._seconds_by_step)


@dg.logger(
    config_schema={"steps": dg.Field([str], is_required=False, default_value=[])},
    description="One progress view for a terminal, plain lines elsewhere; for make demo.",
)
def progress_logger(context: dg.InitLoggerContext) -> logging.Logger:
    """Return the logger; ``steps`` are the names of all steps of the run."""
    console = Console()
    is_live = console.is_terminal and not is_ci()
    logger = logging.Logger("compevo.progress", logging.DEBUG)
    logger.addHandler(ProgressHandler(context.logger_config["steps"], console, is_live=is_live))
    return logger
