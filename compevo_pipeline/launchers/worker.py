"""The training process: what Dagster starts through Pipes, and what a shell can start by hand.

What belongs here: reading jobs, calling :func:`compevo_core.training.trainer.train`, telling Dagster how each round went.
What does not: any training logic. Killed at any moment, it goes on from the newest good checkpoint of its run folder
when it is started again with the same job. Under torchrun the processes share the agents; the first one alone speaks
to Dagster.

By hand: ``python -m compevo_pipeline.launchers.worker <run folder>/job.json``
"""

import argparse
import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from dagster_pipes import PipesContext, PipesEnvVarParamsLoader, open_dagster_pipes

from compevo_core.errors import ConfigError
from compevo_pipeline.launchers.progress import describe_round
from compevo_pipeline.settings import process_rank

INTERRUPTED = 130
"""Exit code after SIGINT or SIGTERM; the run folder stays resumable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """Everything a training needs, as paths and plain values."""

    config: Mapping[str, Mapping[str, Any]]
    windows: str
    news: str
    out: str
    resume: bool = True

    def write(self, path: Path) -> Path:
        """Writes the job as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a job written by :meth:`write`."""
        if not path.is_file():
            raise ConfigError(
                f"no training job at {path}: the asset writes it before it starts a process"
            )
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def run(job: TrainJob, log: logging.Logger) -> dict[str, Any]:
    """Trains and returns the trainer's summary."""
    from compevo_core.config import RunConfig
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.training.trainer import train

    config = RunConfig.from_mapping(job.config)
    windows = WindowSet.read(Path(job.windows))
    train_set, val_set = windows.split("train"), windows.split("val")
    news = NewsPool.read(Path(job.news))
    name = Path(job.out).name
    log.info(
        f"{name}: {len(train_set)} train and {len(val_set)} validation windows, configuration {config.hash}"
    )

    def on_round(record: Mapping[str, Any]) -> None:
        log.info(f"{name}: {describe_round(record, config.run.rounds)}")

    out = Path(job.out)
    summary: dict[str, Any] = train(
        config, train_set, val_set, news, out, resume=job.resume, on_round=on_round
    )
    return summary


def run_all(jobs: Sequence[TrainJob], log: logging.Logger) -> dict[str, Any]:
    """Runs the jobs in order; returns plain values, prefixed by the run's name where there are several."""
    found: dict[str, Any] = {}
    for job in jobs:
        prefix = f"{Path(job.out).name}/" if len(jobs) > 1 else ""
        found |= {f"{prefix}{key}": value for key, value in scalars(run(job, log)).items()}
    return found


def scalars(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a summary that Pipes can carry; NaN is left out."""
    return {
        key: value
        for key, value in summary.items()
        if isinstance(value, (str, int, float)) and value == value
    }


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {signum}")


def _pipes() -> PipesContext | None:
    loader = PipesEnvVarParamsLoader()  # type: ignore[no-untyped-call]  # its __init__ has no annotations
    return open_dagster_pipes() if loader.is_dagster_pipes_process() else None


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the process's exit code."""
    parser = argparse.ArgumentParser(
        description="Trains CompEvo populations, one job after the other."
    )
    parser.add_argument("job", type=Path, nargs="+", help="job.json of a run folder")
    jobs = [TrainJob.read(path) for path in parser.parse_args(arguments).job]
    from compevo_core.distributed import process_group  # torch, only in the training process

    signal.signal(signal.SIGTERM, _interrupt)
    rank, processes, local_rank = process_rank()
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s", stream=sys.stderr
    )
    pipes = _pipes() if rank == 0 else None
    try:
        if pipes is None:
            with process_group(rank, processes, local_rank):
                run_all(jobs, logging.getLogger("compevo.train"))
        else:
            with pipes, process_group(rank, processes, local_rank):
                pipes.report_asset_materialization(
                    metadata=run_all(jobs, pipes.log) | {"processes": processes}
                )
    except KeyboardInterrupt:
        sys.stderr.write(
            "interrupted; the run folder keeps its newest checkpoint, start the same job to go on\n"
        )
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
