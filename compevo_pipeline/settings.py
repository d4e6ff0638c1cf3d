"""The one place that reads the environment: where things lie and how a deployment runs.

What belongs here: environment variables, their defaults, and the folder layout below ``COMPEVO_HOME``.
What does not: objects that open files (``resources``), run settings (``compevo_core.config``).

Synthetic and real data never share a folder: ``sample`` mode works below ``<home>/sample``, ``archive`` and ``live``
below ``<home>/real``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from compevo_core.errors import ConfigError
from compevo_pipeline.sources.common.base import Mode

REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULT_PRESETS = {Mode.SAMPLE: "demo", Mode.ARCHIVE: "default", Mode.LIVE: "default"}
"""Training preset of each mode unless ``COMPEVO_PRESET`` or the Launchpad names another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Folders of one kind of data (synthetic or real)."""

    root: Path

    @property
    def series(self) -> Path:
        """Parquet series, one folder a data set."""
        return self.root / "series"

    @property
    def tables(self) -> Path:
        """Frames that accompany a data set's series, one folder a data set."""
        return self.root / "tables"

    @property
    def raw(self) -> Path:
        """Bytes as the publishers sent them, with url, sha256 and time beside them."""
        return self.root / "raw"

    @property
    def news_database(self) -> Path:
        """The DuckDB file of articles and embeddings."""
        return self.root / "news.duckdb"

    @property
    def news_pool(self) -> Path:
        """Articles and embeddings as training reads them."""
        return self.root / "news"

    def windows(self, dataset: str) -> Path:
        """Windows of one data set."""
        return self.root / "windows" / dataset

    def run(self, name: str) -> Path:
        """A training run."""
        return self.root / "runs" / name

    @property
    def results(self) -> Path:
        """Result rows, one CSV an experiment."""
        return self.root / "results"

    @property
    def report(self) -> Path:
        """The static page."""
        return self.root / "report" / "index.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """An OpenAI-compatible endpoint that judges logic updates; the key is in no text made from this."""

    url: str
    model: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this deployment runs."""

    home: Path
    mode: Mode
    archive: Path | None = None
    preset: str = ""
    judge: JudgeSettings | None = None

    def layout(self, mode: Mode) -> Layout:
        """Folders that data of ``mode`` lives in."""
        return Layout(root=self.home / ("sample" if mode is Mode.SAMPLE else "real"))

    def preset_for(self, mode: Mode) -> str:
        """Training preset unless the run names one."""
        return self.preset or DEFAULT_PRESETS[mode]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Reads the variables of this project.

        These are ``COMPEVO_HOME``, ``COMPEVO_MODE``, ``COMPEVO_ARCHIVE``, ``COMPEVO_PRESET``, and for the judge
        ``COMPEVO_JUDGE_URL``, ``COMPEVO_JUDGE_MODEL`` and ``COMPEVO_JUDGE_KEY``.

        Raises:
            ConfigError: an unknown mode, archive mode without an archive folder, or half a judge.
        """
        env = os.environ if environment is None else environment
        mode = parse_mode(env.get("COMPEVO_MODE") or Mode.SAMPLE)
        named = env.get("COMPEVO_ARCHIVE")
        archive = Path(named).expanduser().resolve() if named else None
        if mode is Mode.ARCHIVE and (archive is None or not archive.is_dir()):
            raise ConfigError(
                f"COMPEVO_MODE=archive needs COMPEVO_ARCHIVE to name a folder of archive files; it is {named!r}"
            )
        home = Path(env.get("COMPEVO_HOME") or REPOSITORY / ".compevo").expanduser().resolve()
        return cls(
            home=home,
            mode=mode,
            archive=archive,
            preset=env.get("COMPEVO_PRESET", ""),
            judge=_judge(env),
        )


def _judge(env: Mapping[str, str]) -> JudgeSettings | None:
    url, model = env.get("COMPEVO_JUDGE_URL", ""), env.get("COMPEVO_JUDGE_MODEL", "")
    if bool(url) != bool(model):
        missing = "COMPEVO_JUDGE_MODEL" if url else "COMPEVO_JUDGE_URL"
        raise ConfigError(
            f"a judge's endpoint needs both an address and a model: set {missing}, or unset the other"
        )
    return (
        JudgeSettings(url=url, model=model, key=env.get("COMPEVO_JUDGE_KEY", "")) if url else None
    )


def parse_mode(text: str) -> Mode:
    """Turns ``live``, ``archive`` or ``sample`` into a :class:`Mode`.

    Raises:
        ConfigError: any other word.
    """
    try:
        return Mode(text)
    except ValueError as error:
        known = ", ".join(Mode)
        raise ConfigError(
            f"mode {text!r} is not one of {known}: correct COMPEVO_MODE or the run config"
        ) from error


QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
}
"""Threads that wait asleep rather than spinning (on cores shared with another process a training was 2.5 times faster
with it), and memory that is kept between steps rather than given back and zeroed again."""


def child_environment(threads: int = 0) -> dict[str, str]:
    """Environment of a process started by the pipeline: ours, :data:`QUIET`, and the thread count if one is set."""
    env = QUIET | dict(os.environ)
    if threads > 0:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def process_rank() -> tuple[int, int, int]:
    """Rank, number of processes and rank on this machine as torchrun sets them; (0, 1, 0) outside torchrun."""
    from compevo_core.distributed import torchrun_rank  # torch, only in a training process

    return torchrun_rank(os.environ)


def ensure_dagster_home() -> Path:
    """``DAGSTER_HOME``, set to this repository's folder where nobody has set it."""
    return Path(os.environ.setdefault("DAGSTER_HOME", str(REPOSITORY / "dagster_home")))
