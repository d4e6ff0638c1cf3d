"""The training process: what Dagster starts through Pipes, and what a shell can start by hand.

What belongs here: writing and reading jobs, calling the trainer, reporting each round to Dagster.
What does not: any training logic. A process that was killed resumes with the same job.
Under torchrun processes share agents, or layers of the backbone; only the first one reports.

By hand: ``python -m compevo_pipeline.launchers.worker <run folder>/job.json``
"""

import contextlib
import functools
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from compevo_core.errors import CompEvoError, ConfigError
from compevo_core.runtime.files import translate_storage_errors, write_json
from compevo_core.runtime.usage import format_duration
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import disable_progress_bars, process_rank

INTERRUPTED = 130  # exit code after SIGINT or SIGTERM; the run folder stays resumable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """Everything a training needs, as paths and plain values."""

    config: Mapping[str, Mapping[str, Any]]  # resolved settings by section
    windows: str  # folder of windows
    news: str  # folder of articles and embeddings; empty where nothing reads
    out: str  # run folder
    resume: bool = True  # False starts over instead of resuming from the newest checkpoint
    fits: str = ""  # folder of fitted baselines; empty: shared only among the jobs of a process
    stages: str = ""  # folder of supervised stages that jobs share; empty: each trains its own
    shard_backbone: bool = False  # whether processes split the backbone in place of the agents
    facts: Mapping[str, Any] = field(default_factory=dict)  # more facts for the manifest

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.out)

    def write(self) -> Path:
        """Write the job and its settings into its run folder; return the job's file."""
        write_json(self.folder.config_file, self.config)
        return write_json(self.folder.job_file, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a job written by :meth:`write`."""
        if not path.is_file():
            raise ConfigError(
                f"no training job at {path}: the asset writes it before it starts a process"
            )
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def run_jobs(
    jobs: Sequence[TrainJob],
    log: logging.Logger,
    report: Callable[[TrainJob, RoundRecord], None] = lambda job, record: None,
) -> dict[str, Any]:
    """Train the jobs in order; return the plain values of every summary.

    What several jobs name is read and fitted once, and the run's name is the prefix of its values.
    """
    # torch and the language-model stack: reading a job needs neither.
    from compevo_core.baselines import SharedFits
    from compevo_core.config.run import RunConfig
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.training.trainer import train
    from compevo_pipeline.config.endpoints import read_selector

    read_windows, read_news = functools.cache(WindowSet.read), functools.cache(NewsPool.read)
    open_fits = functools.cache(lambda folder: SharedFits(Path(folder) if folder else None, log))

    values: dict[str, Any] = {}
    for job in jobs:
        name, config = job.folder.name, RunConfig.from_mapping(job.config)
        windows = read_windows(Path(job.windows))
        train_windows, val_windows = windows.split("train"), windows.split("val")
        log.info(
            f"{name}: {len(train_windows)} train and {len(val_windows)} validation windows, "
            f"configuration {config.hash}"
        )

        def on_round(record: RoundRecord, job: TrainJob = job) -> None:
            log.info(f"{job.folder.name}: {describe_round(record)}")
            report(job, record)

        summary = train(
            config,
            train_windows,
            val_windows,
            read_news(Path(job.news)) if job.news else None,
            Path(job.out),
            resume=job.resume,
            on_round=on_round,
            fit=open_fits(job.fits),
            stages=Path(job.stages) if job.stages else None,
            shard_backbone=job.shard_backbone,
            selector=read_selector(config),
            facts=job.facts,
        )
        # The ablation trains six in a process: their values must not overwrite each other.
        prefix = f"{name}/" if len(jobs) > 1 else ""
        values |= {f"{prefix}{key}": value for key, value in select_scalars(summary).items()}
    return values


def describe_round(record: RoundRecord) -> str:
    """Return a round as one line: number, stage, losses, best reward, validation, time left."""
    stage = " (supervised)" if record.stage == "supervised" else ""
    parts = [
        f"round {record.round + 1}/{record.rounds}{stage}",
        f"loss {record.loss:.4f}",
        f"loss_pred {record.loss_pred:.4f}",
        f"best reward {max(record.rewards):.4f}",
    ]
    # Most rounds are not followed by a validation.
    if record.val_mae_scaled is not None:
        parts.append(f"validation MAE {record.val_mae_scaled:.4f} (scaled)")

    # Before the middle, the most expensive kind of work may not have been seen yet.
    about = "about " if record.train_seconds < record.eta_seconds else ""
    parts += [f"{record.seconds:.1f} s", f"{about}{format_duration(record.eta_seconds)} left"]
    return ", ".join(parts)


def select_scalars(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a summary, which Pipes can carry; NaN is left out."""
    return {
        key: value
        for key, value in summary.items()
        # Only NaN differs from itself; the event log's JSON has no word for it.
        if isinstance(value, str | int | float) and value == value
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the jobs of the files ``job.json`` that are named; return the process's exit code."""
    jobs = [TrainJob.read(Path(path)) for path in arguments or sys.argv[1:]]

    # Dagster stops a run by SIGTERM; as an exception it closes files and reports the end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with translate_storage_errors(f"training for {jobs[0].out}"):
            _run(jobs)
    except KeyboardInterrupt:
        sys.stderr.write(
            "interrupted; the run folder has its newest checkpoint: start the same job to resume\n"
        )
        return INTERRUPTED
    except CompEvoError as error:
        # Our errors say what to do; Pipes has reported the traceback to Dagster.
        sys.stderr.write(f"compevo: {error}\n")
        return 1
    return 0


def _run(jobs: Sequence[TrainJob]) -> None:
    # Brings torch, only into the training process.
    from compevo_core.runtime.distributed import process_group

    rank, processes, local_rank = process_rank()
    disable_progress_bars()
    # Libraries report only problems; progress is only this project's own lines.
    prefix = f"process {rank}: " if processes > 1 else ""
    logging.basicConfig(
        level=logging.WARNING, format=f"%(asctime)s {prefix}%(message)s", stream=sys.stderr
    )
    # Under torchrun, the other processes would only repeat what the first one says.
    if rank == 0:
        logging.getLogger("compevo").setLevel(logging.INFO)

    # `compevo fit` describes rounds where Dagster is not installed.
    from dagster_pipes import PipesEnvVarParamsLoader, open_dagster_pipes

    loader = PipesEnvVarParamsLoader()  # type: ignore[no-untyped-call]  # its __init__ has no annotations
    with contextlib.ExitStack() as opened:
        is_reporting = rank == 0 and loader.is_dagster_pipes_process()
        pipes = opened.enter_context(open_dagster_pipes()) if is_reporting else None
        opened.enter_context(process_group(rank, processes, local_rank))
        if pipes is None:
            run_jobs(jobs, logging.getLogger("compevo.train"))
            return

        def report(job: TrainJob, record: RoundRecord) -> None:
            pipes.report_custom_message([job.out, record.to_json_line()])

        values = run_jobs(jobs, pipes.log, report)
        pipes.report_asset_materialization(metadata=values | {"processes": processes})


if __name__ == "__main__":
    sys.exit(main())
