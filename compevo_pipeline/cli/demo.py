"""``make demo``: runs a job in this process, tells how far it is, and ends with the results.

What belongs here: the command line around one run. What does not: what the job does (``jobs``), how lines look
(``console``). The run is stored in ``DAGSTER_HOME`` like any other, so the UI shows it afterwards.
"""

import argparse
import os
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from compevo_core.durations import format_duration
from compevo_core.report.inputs import read_inputs
from compevo_core.report.markdown import headline_markdown
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.jobs import DEFAULT_PARTITION, run_config
from compevo_pipeline.settings import Layout, Settings, ensure_dagster_home
from compevo_pipeline.sources.common.base import Mode

PARTITION_TAG = next(iter(DEFAULT_PARTITION))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns 0 if it succeeded."""
    parser = argparse.ArgumentParser(
        description="Runs a job of the project with progress in plain lines."
    )
    parser.add_argument("--job", default="demo", choices=["demo", "full", "refresh"])
    parser.add_argument(
        "--dataset", default=DEFAULT_PARTITION[PARTITION_TAG], help="data set to train and score"
    )
    chosen = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    ensure_dagster_home()
    settings = Settings.from_environment()
    mode = Mode.SAMPLE if chosen.job == "demo" else settings.mode
    started = time.monotonic()
    failures = run(build_defs(settings), chosen.job, chosen.dataset)
    _say(
        f"\n{chosen.job} ran for {format_duration(time.monotonic() - started)}, {peak_gigabytes():.1f} GB of memory at most."
    )
    if failures:
        _say("It failed:", *failures)
        _say(
            "Correct the cause and run it again: what is finished is kept, training goes on where it stopped."
        )
        return 1
    finish(settings.layout(mode), mode)
    return 0


def run(defs: dg.Definitions, name: str, dataset: str) -> list[str]:
    """Runs a job in this process; returns what failed, in words."""
    job = defs.resolve_job_def(name)
    loggers: dict[str, Any] = {
        "loggers": {"plain": {"config": {"steps": [node.name for node in job.nodes]}}}
    }
    with dg.DagsterInstance.get() as instance:
        result = job.execute_in_process(
            run_config=run_config(name) | loggers,
            instance=instance,
            partition_key=dataset if job.partitions_def else None,
            raise_on_error=False,
        )
        if result.success:
            return []
        return [
            f"  {event.step_key}: {reason(event)}"
            for event in result.filter_events(lambda e: e.is_step_failure)
        ]


def reason(event: dg.DagsterEvent) -> str:
    """Why a step failed, in one line: the innermost error."""
    failure = event.step_failure_data
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else "no error was recorded"


def peak_gigabytes() -> float:
    """The largest resident memory of this process plus that of its largest child."""
    scale = 1e9 if sys.platform == "darwin" else 1e6
    parts = [
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(parts) / scale


def finish(layout: Layout, mode: Mode) -> None:
    """Tells the results, where the page is, how to open the UI."""
    inputs = read_inputs(layout.results, [], mode=mode.value, generated_at=datetime.now(UTC))
    _say("", headline_markdown(inputs), "")
    if mode is Mode.SAMPLE:
        _say(
            "The data is synthetic (exchange rates excepted): these errors show that everything works, no more."
        )
    _say(
        f"Report:      {layout.report}",
        f"Result rows: {layout.results}",
        "Dagster UI:  make ui",
        *_also(layout.root),
    )


def _also(root: Path) -> list[str]:
    return [f"Everything else (windows, runs, news): {root}"]


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(
        code
    )  # everything is closed; leaving now spares the terminal duckdb's pages of warnings at shutdown
