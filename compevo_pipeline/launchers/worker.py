"""The training process: what Dagster starts through Pipes, and what a shell can start by hand.

What belongs here: writing and reading jobs, calling the trainer, reporting each round to Dagster.
What does not: any training logic. A process killed at any moment resumes
from the newest good checkpoint of its run folder when it is started again with the same job.
Under torchrun the processes share the agents, or the layers of the backbone; only the first one
reports to Dagster.

By hand: ``python -m compevo_pipeline.launchers.worker <run folder>/job.json``
"""

import contextlib
import functools
import json
import logging
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from compevo_core.errors import CompEvoError, ConfigError
from compevo_core.runtime.files import translate_storage_errors, write_json
from compevo_core.runtime.usage import format_duration
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Layout, disable_progress_bars, process_rank
from compevo_pipeline.storage.code_versions import fits_folder

if TYPE_CHECKING:
    from dagster_pipes import PipesContext

    from compevo_core.config.run import RunConfig

INTERRUPTED = 130  # exit code after SIGINT or SIGTERM; the run folder stays resumable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """Everything a training needs, as paths and plain values."""

    config: Mapping[str, Mapping[str, Any]]  # resolved settings by section
    windows: str  # folder of windows
    news: str  # folder of articles and embeddings; empty where nothing reads
    out: str  # run folder
    resume: bool = True  # False starts over instead of resuming from the newest checkpoint
    # Folder of fitted baselines to share with others; empty: fits are shared only among the jobs of
    # a process.
    fits: str = ""
    # Folder of supervised stages that several jobs share; empty: each trains its own.
    stages: str = ""
    # Whether several processes split the backbone in place of the agents.
    shard_backbone: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # more facts for the manifest

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.out)

    def write(self) -> Path:
        """Write the job into its run folder; return the file."""
        return write_json(self.folder.job_file, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a job written by :meth:`write`."""
        if not path.is_file():
            raise ConfigError(
                f"no training job at {path}: the asset writes it before it starts a process"
            )
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def prepare_job(
    layout: Layout,
    windows: Path,
    news: Path | None,
    config: "RunConfig",
    name: str,
    *,
    resume: bool = True,
    shard_backbone: bool = False,
    stages: Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> TrainJob:
    """Return the job of one training; write the resolved configuration into its run folder.

    Arguments are as the attributes of :class:`TrainJob`.
    """
    run = RunFolder(layout.run(name))
    settings = config.to_dict()
    write_json(run.config_file, settings)

    return TrainJob(
        config=settings,
        windows=str(windows),
        news=str(news or ""),
        out=str(run.path),
        resume=resume,
        fits=str(fits_folder(layout)),
        stages=str(stages or ""),
        shard_backbone=shard_backbone,
        facts=facts or {},
    )


def run_jobs(jobs: Sequence[TrainJob], log: logging.Logger) -> dict[str, Any]:
    """Run the jobs in order; return the plain values of every summary.

    The run's name is their prefix where there are several.
    """
    inputs = SharedInputs(log)
    values: dict[str, Any] = {}
    for job in jobs:
        # The ablation trains six in a process: their values must not overwrite each other.
        prefix = f"{job.folder.name}/" if len(jobs) > 1 else ""
        summary = select_scalars(run_job(job, inputs, log))
        values |= {f"{prefix}{key}": value for key, value in summary.items()}
    return values


class SharedInputs:
    """What the jobs of one process read and fit once: windows, news and priors."""

    def __init__(self, log: logging.Logger) -> None:
        # torch and the language-model stack are imported here and below: reading a job needs
        # neither.
        from compevo_core.baselines import SharedFits
        from compevo_core.data.news_pool import NewsPool
        from compevo_core.data.window import WindowSet

        self.windows = functools.cache(WindowSet.read)
        self.news = functools.cache(NewsPool.read)
        self.fits = functools.cache(
            lambda folder: SharedFits(Path(folder) if folder else None, log)
        )


def run_job(job: TrainJob, inputs: SharedInputs, log: logging.Logger) -> dict[str, Any]:
    """Train and return the trainer's summary."""
    from compevo_core.config.run import RunConfig
    from compevo_core.training.trainer import train
    from compevo_pipeline.config.endpoints import read_selector, read_server

    config = RunConfig.from_mapping(job.config)
    windows = inputs.windows(job.windows)
    train_windows = windows.split("train")
    val_windows = windows.split("val")

    name = job.folder.name
    log.info(
        f"{name}: {len(train_windows)} train and {len(val_windows)} validation windows, "
        f"configuration {config.hash}"
    )

    stages = None
    if job.stages:
        from compevo_core.training.checkpoint import SharedStages

        stages = SharedStages(Path(job.stages))

    def on_round(record: RoundRecord) -> None:
        log.info(f"{name}: {describe_round(record)}")

    summary: dict[str, Any] = train(
        config,
        train_windows,
        val_windows,
        inputs.news(Path(job.news)) if job.news else None,
        Path(job.out),
        resume=job.resume,
        on_round=on_round,
        fit=inputs.fits(job.fits),
        stages=stages,
        shard_backbone=job.shard_backbone,
        selector=read_selector(config),
        server=read_server(config),
        facts=job.facts,
    )
    return summary


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


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def train_jobs(
    job: Annotated[list[Path], typer.Argument(help="job.json of a run folder; several in order.")],
) -> None:
    """Train CompEvo populations, one job after the other."""
    jobs = [TrainJob.read(path) for path in job]

    # Dagster stops a run by SIGTERM; as an exception it closes files and reports the end.
    signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        with translate_storage_errors(f"training for {jobs[0].out}"):
            _run(jobs)
    except KeyboardInterrupt as error:
        typer.echo(
            "interrupted; the run folder has its newest checkpoint: start the same job to resume",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from error
    except CompEvoError as error:
        # Our errors say what to do; Pipes has reported the traceback to Dagster.
        typer.echo(f"compevo: {error}", err=True)
        raise typer.Exit(1) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the process's exit code."""
    try:
        app(args=arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
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

    with _open_pipes(rank) as pipes, process_group(rank, processes, local_rank):
        if pipes is None:
            run_jobs(jobs, logging.getLogger("compevo.train"))
        else:
            values = run_jobs(jobs, pipes.log)
            pipes.report_asset_materialization(metadata=values | {"processes": processes})


@contextlib.contextmanager
def _open_pipes(rank: int) -> Iterator["PipesContext | None"]:
    """Yield the connection to Dagster, or None where there is none or another process has it."""
    # `compevo fit` describes rounds where Dagster is not installed.
    from dagster_pipes import PipesEnvVarParamsLoader, open_dagster_pipes

    loader = PipesEnvVarParamsLoader()  # type: ignore[no-untyped-call]  # its __init__ has no annotations
    if rank != 0 or not loader.is_dagster_pipes_process():
        yield None
        return

    with open_dagster_pipes() as pipes:
        yield pipes


def _raise_interrupt(signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {signum}")


if __name__ == "__main__":
    sys.exit(main())
