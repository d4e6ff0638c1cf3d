"""The one place that reads the environment: folders, mode, judge, variables of child processes.

What belongs here: environment variables, their defaults, and the folder layout below
``COMPEVO_HOME``. What does not: objects that open files (``resources``), what the variables about
publishers may hold (``publisher_settings``), run settings (``compevo_core.config``).

Synthetic and real data of a source never share a folder: ``sample`` mode works below
``<home>/sample``, ``archive`` and ``live`` below ``<home>/real``. A user's own data sets are the
same files in every mode, and are stored beside what the mode has.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from compevo_core import __version__
from compevo_core.errors import ConfigError
from compevo_pipeline.publisher_settings import (
    PUBLISHER_VARIABLES,
    read_contact,
    read_open_meteo,
    read_pems,
    read_stations,
)
from compevo_pipeline.sources.common.access import PemsAccess, QueryKey
from compevo_pipeline.sources.common.base import Mode

REPOSITORY = Path(__file__).resolve().parents[1]

DEFAULT_PRESETS = {Mode.SAMPLE: "demo", Mode.ARCHIVE: "default", Mode.LIVE: "default"}
"""Training preset of each mode unless ``COMPEVO_PRESET`` or the run configuration names another."""

DATASET_PRESETS = {"electricity-operational": "operational"}
"""Preset that takes the place of ``default`` for a data set whose views hold more."""

JUDGE_KEY_VARIABLE = "COMPEVO_JUDGE_KEY"
"""Variable of the endpoint's API key; its value is read by the resource that sends it alone."""

VARIABLES = {
    "COMPEVO_HOME": (
        "`.compevo` in the repository",
        "where series, news, windows, runs, results and the report go",
    ),
    "COMPEVO_MODE": ("`sample`", "`sample`, `archive` or `live`"),
    "COMPEVO_ARCHIVE": ("none", "folder of archive files; needed in archive mode"),
    "COMPEVO_DATASETS": (
        "`datasets` in `COMPEVO_HOME`",
        "folder of the TOML files that declare your own data sets",
    ),
    "COMPEVO_PRESET": (
        "`demo` for sample; else `operational` for operational demand and `default` for the others",
        "training preset, or a path to a `.toml`",
    ),
    **PUBLISHER_VARIABLES,
    "COMPEVO_REPORT_URL": (
        "none: Dagster shows the path",
        "address of the report where something serves its folder, for the link in Dagster",
    ),
    "COMPEVO_POD": (
        "none: training runs where Dagster does",
        "TOML file of the training pod, for the launcher `kubernetes`",
    ),
    "COMPEVO_JUDGE_URL": (
        "none: the backbone alone judges",
        "OpenAI-compatible endpoint that judges logic updates, e.g. `https://host/v1`",
    ),
    "COMPEVO_JUDGE_MODEL": ("none", "model name at that endpoint; needed with the address"),
    JUDGE_KEY_VARIABLE: (
        "none",
        "its key; sent over TLS or to this machine only, and never logged",
    ),
}
"""Default and meaning of every variable of this project, for the documentation."""


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
        """Bytes as the publishers sent them, each with a file of its url, sha256 and time."""
        return self.root / "raw"

    @property
    def ledger(self) -> Path:
        """What was asked of the publishers, what came, what is absent."""
        return self.raw / "ledger.sqlite"

    @property
    def news_database(self) -> Path:
        """The DuckDB file of articles."""
        return self.root / "news.duckdb"

    @property
    def embeddings(self) -> Path:
        """Embeddings of titles, one folder an encoder."""
        return self.root / "embeddings"

    def news_pool(self, dataset: str) -> Path:
        """Return the folder of the articles that windows of a data set name, for its training."""
        return self.root / "news" / dataset

    def windows(self, dataset: str) -> Path:
        """Return the folder of a data set's windows."""
        return self.root / "windows" / dataset

    def run(self, name: str) -> Path:
        """Return the folder of a training run."""
        return self.root / "runs" / name

    @property
    def stages(self) -> Path:
        """Supervised stages that the variants of an ablation share while it runs."""
        return self.root / "stages"

    @property
    def fits(self) -> Path:
        """Fitted baselines that several assets use; may be deleted at any time."""
        return self.root / "fits"

    @property
    def forecasts(self) -> Path:
        """Stored forecasts by window, one Parquet file an experiment."""
        return self.root / "forecasts"

    def issued(self, dataset: str) -> Path:
        """Return the folder of a data set's issued forecasts, which are never changed."""
        return self.forecasts / "issued" / dataset

    def scored(self, dataset: str) -> Path:
        """Return the file of the scores of a data set's issued forecasts, by day."""
        return self.forecasts / "scored" / f"{dataset}.parquet"

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
    """An OpenAI-compatible endpoint that rates logic updates; the key itself is not in here."""

    url: str
    model: str
    has_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this deployment runs."""

    home: Path
    mode: Mode
    archive: Path | None = None
    preset: str = ""
    report_url: str = ""
    contact: str = ""
    judge: JudgeSettings | None = None
    declarations: Path | None = None
    news_queries: Path | None = None
    pems: PemsAccess | None = None
    pems_stations: tuple[str, ...] = ()
    open_meteo: QueryKey | None = None
    pod: Path | None = None

    @property
    def datasets_folder(self) -> Path:
        """Folder of the TOML files that declare a user's own data sets."""
        return self.declarations or self.home / "datasets"

    @property
    def host_turns(self) -> Path:
        """The turns at publishers' hosts that all processes of this home share."""
        return self.home / "locks" / "hosts"

    @property
    def user_agent(self) -> str:
        """How this deployment names itself to publishers."""
        return f"compevo/{__version__}" + (f" ({self.contact})" if self.contact else "")

    def layout(self, mode: Mode) -> Layout:
        """Return the folders that data of ``mode`` is stored in."""
        return Layout(root=self.home / ("sample" if mode is Mode.SAMPLE else "real"))

    def preset_for(self, mode: Mode, dataset: str = "") -> str:
        """Return the training preset of a mode and data set, unless the run names one."""
        preset = DEFAULT_PRESETS[mode]
        if preset == "default":
            preset = DATASET_PRESETS.get(dataset, preset)
        return self.preset or preset

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables of this project.

        These are ``COMPEVO_HOME``, ``COMPEVO_MODE``, ``COMPEVO_ARCHIVE``, ``COMPEVO_PRESET``,
        ``COMPEVO_DATASETS``, ``COMPEVO_REPORT_URL``, ``COMPEVO_CONTACT``,
        ``COMPEVO_NEWS_QUERIES``, ``COMPEVO_POD``; for the judge ``COMPEVO_JUDGE_URL``,
        ``COMPEVO_JUDGE_MODEL`` and ``COMPEVO_JUDGE_KEY``; for PeMS ``COMPEVO_PEMS_USER``,
        ``COMPEVO_PEMS_PASSWORD``, ``COMPEVO_PEMS_DISTRICT``, ``COMPEVO_PEMS_FILES`` and
        ``COMPEVO_PEMS_STATIONS``; for Open-Meteo ``COMPEVO_OPEN_METEO_KEY``.

        Args:
            environment: variables to read in place of the process's own.

        Raises:
            ConfigError: an unknown mode, archive mode without an archive folder, or a judge with an
                address and no model, or the other way round.
        """
        env = os.environ if environment is None else environment
        mode = parse_mode(env.get("COMPEVO_MODE") or Mode.SAMPLE)
        # Beside the code, so that a first run needs no settings at all.
        home = Path(env.get("COMPEVO_HOME") or REPOSITORY / ".compevo").expanduser().resolve()
        declarations = env.get("COMPEVO_DATASETS")
        queries = env.get("COMPEVO_NEWS_QUERIES")

        return cls(
            home=home,
            mode=mode,
            archive=_read_archive(env, mode),
            preset=env.get("COMPEVO_PRESET", ""),
            report_url=env.get("COMPEVO_REPORT_URL", ""),
            contact=read_contact(env),
            judge=_read_judge(env),
            declarations=Path(declarations).expanduser().resolve() if declarations else None,
            news_queries=Path(queries).expanduser().resolve() if queries else None,
            pems=read_pems(env),
            pems_stations=read_stations(env),
            open_meteo=read_open_meteo(env),
            pod=Path(env["COMPEVO_POD"]) if env.get("COMPEVO_POD") else None,
        )


def _read_archive(env: Mapping[str, str], mode: Mode) -> Path | None:
    name = env.get("COMPEVO_ARCHIVE")
    archive = Path(name).expanduser().resolve() if name else None

    if mode is Mode.ARCHIVE and (archive is None or not archive.is_dir()):
        raise ConfigError(
            "COMPEVO_MODE=archive needs COMPEVO_ARCHIVE to name a folder of archive files; it is "
            f"{name!r}"
        )
    return archive


def _read_judge(env: Mapping[str, str]) -> JudgeSettings | None:
    url = env.get("COMPEVO_JUDGE_URL", "")
    model = env.get("COMPEVO_JUDGE_MODEL", "")

    if bool(url) != bool(model):
        missing = "COMPEVO_JUDGE_MODEL" if url else "COMPEVO_JUDGE_URL"
        raise ConfigError(
            f"a judge's endpoint needs both an address and a model: set {missing}, or unset the "
            "other"
        )
    if not url:
        return None
    return JudgeSettings(url=url, model=model, has_key=bool(env.get(JUDGE_KEY_VARIABLE)))


def parse_mode(text: str) -> Mode:
    """Return the :class:`Mode` called ``live``, ``archive`` or ``sample``.

    Raises:
        ConfigError: any other word.
    """
    try:
        return Mode(text)
    except ValueError as error:
        known = ", ".join(Mode)
        raise ConfigError(
            f"mode {text!r} is not one of {known}: correct COMPEVO_MODE or the run configuration"
        ) from error


PROCESS_VARIABLES = {
    # Idle OpenMP threads sleep instead of spinning: 2.5 times faster on cores that are shared.
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc keeps freed memory between steps instead of returning it and clearing it again. Bytes.
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
}
"""Variables of a process that trains, unless the environment sets them."""

NO_PROGRESS_BARS = {
    # One progress view is enough; a bar redrawn into a log file is hundreds of lines.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}
"""Variables that switch the libraries' own progress bars off."""


def child_environment(threads: int = 0) -> dict[str, str]:
    """Return the environment of a process that the pipeline starts.

    Args:
        threads: number of OpenMP threads; 0 leaves it to the environment.
    """
    # The environment comes last: what a user sets wins.
    env = PROCESS_VARIABLES | NO_PROGRESS_BARS | dict(os.environ)
    if threads > 0:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def disable_progress_bars() -> None:
    """Switch the libraries' own progress bars off in this process and those it starts."""
    for name, value in NO_PROGRESS_BARS.items():
        os.environ.setdefault(name, value)


def is_ci() -> bool:
    """Return whether a continuous-integration service runs this process."""
    return bool(os.environ.get("CI"))


def process_rank() -> tuple[int, int, int]:
    """Return rank, number of processes and local rank as torchrun sets them; else (0, 1, 0)."""
    from compevo_core.distributed import torchrun_rank  # torch, only in a training process

    return torchrun_rank(os.environ)


def ensure_dagster_home() -> Path:
    """Return ``DAGSTER_HOME``; set it to this repository's folder where it is not set."""
    return Path(os.environ.setdefault("DAGSTER_HOME", str(REPOSITORY / "dagster_home")))
