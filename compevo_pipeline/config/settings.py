"""The one place that reads the environment: folders, mode, endpoints, variables of processes.

What belongs here: environment variables with their defaults and meaning, and the folder layout
below ``COMPEVO_HOME``. What does not: objects that open files (``work.deployment``), settings of a
run (``compevo_core.config.run``). No message of this module holds a name, a password or a key.

Synthetic and real data of a source never share a folder: ``sample`` mode works below
``<home>/sample``, ``archive`` and ``live`` below ``<home>/real``. A user's own data sets are the
same files in every mode, and are stored with the data of that mode.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Secret,
    SecretStr,
    StringConstraints,
    ValidationError,
)

from compevo_core import __version__
from compevo_core.errors import ConfigError
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.hosts import PEMS_DISTRICT, PEMS_FILES, PemsAccess, QueryKey

REPOSITORY = Path(__file__).resolve().parents[2]
_DAGSTER_HOME = REPOSITORY / "dagster_home"

DEFAULT_PRESETS = {Mode.SAMPLE: "demo", Mode.ARCHIVE: "default", Mode.LIVE: "default"}
"""Training preset of each mode unless ``COMPEVO_PRESET`` or the run configuration names another."""

DATASET_PRESETS = {"electricity-operational": "operational"}  # in place of `default`
_PREFIX = "COMPEVO_"
_Kind = TypeVar("_Kind")


class _Place(Generic[_Kind]):
    """A path below the root; its description says what it holds."""

    def __init__(self, name: str, doc: str, make: Callable[[Path], _Kind]) -> None:
        self._name, self._make, self.__doc__ = name, make, doc

    def __get__(self, layout: "Layout", owner: type | None = None) -> _Kind:
        return self._make(layout.root / self._name)


_path = functools.partial(_Place[Path], make=Path)
_folder_of = functools.partial(_Place[Callable[[str], Path]], make=lambda path: path.joinpath)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Folders of one kind of data (synthetic or real)."""

    root: Path

    series = _path("series", "Parquet series, one folder per data set.")
    tables = _path("tables", "Frames that accompany a data set's series, one folder per data set.")
    raw = _path("raw", "Bytes as the publishers sent them, each with its url, sha256 and time.")
    ledger = _path("raw/ledger.sqlite", "What was asked of the publishers, what came, what not.")
    news_database = _path("news.duckdb", "The DuckDB file of articles.")
    embeddings = _path("embeddings", "Embeddings of titles, one folder per encoder.")
    receipts = _path("receipts", "What was made from what; may be deleted at any time.")
    stages = _path("stages", "Supervised stages that variants of an ablation share while it runs.")
    fits = _path("fits", "Fitted baselines that several assets use; may be deleted at any time.")
    forecasts = _path("forecasts", "Stored forecasts by window, one Parquet file an experiment.")
    all_issued = _path("forecasts/issued", "Issued forecasts, a folder for each data set.")
    all_scored = _path("forecasts/scored", "Scores of issued forecasts, a file for each data set.")
    alerts = _path("alerts", "Alerts that were sent, one file per fault and day.")
    results = _path("results", "Result rows, one CSV an experiment.")
    report = _path("report", "The static pages.")

    news_pool = _folder_of("news", "Articles that windows of a data set name, for its training.")
    windows = _folder_of("windows", "A data set's windows.")
    run = _folder_of("runs", "A training run.")
    control = _folder_of("control", "Runs of a data set in worlds with planted news.")
    text = _folder_of("text", "Runs on worded data.")
    issued = _folder_of("forecasts/issued", "A data set's issued forecasts, never changed.")

    def scored(self, dataset: str) -> Path:
        """Return the file of the scores of a data set's issued forecasts, by day."""
        return self.all_scored / f"{dataset}.parquet"


def _split(text: object) -> object:
    """Return the parts of a text between commas; anything else as it is."""
    if not isinstance(text, str):
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_schedules(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data sets that run by themselves; ``off`` is none of them."""
    if len(names) > 1 and {"on", "off"} & set(names):
        raise ValueError("on and off cannot be combined with names")
    return () if names == ("off",) else names


def _variable(default: object, shown: str) -> Any:  # noqa: ANN401 - as pydantic's
    """Return a field with the words for its default that the documentation shows."""
    return Field(default=default, title=shown)


_Texts = Annotated[tuple[str, ...], BeforeValidator(_split)]
_Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
_District = Annotated[Literal[3, 4, 5, 6, 7, 8, 10, 11, 12], BeforeValidator(int)]
_Kinds = tuple[Literal["station_hour", "station_5min"], ...]
_Stations = tuple[Annotated[str, StringConstraints(pattern="^[0-9]+$")], ...]
# It goes into a header: another character could end the header and begin another one.
_Contact = Annotated[str, StringConstraints(strip_whitespace=True, pattern="^[ -~]*$")]
_Commit = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{7,40}\+?)?$")]
# Sent as it is written, so that every text can be searched for it.
_QueryKey = Secret[
    Annotated[str, StringConstraints(strip_whitespace=True, pattern="^[A-Za-z0-9_-]*$")]
]


class Settings(BaseModel):
    """How this deployment runs: a field for each variable ``COMPEVO_<FIELD>``."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    # In the repository, so that a first run needs no settings at all.
    home: _Folder = _variable(REPOSITORY / ".compevo", "`.compevo` in the repository")
    """where series, news, windows, runs, results and the report go"""
    mode: Mode = _variable(Mode.SAMPLE, "`sample`")
    """`sample`, `archive` or `live`"""
    archive: _Folder | None = _variable(None, "none")
    """folder of archive files; needed in archive mode"""
    datasets: _Folder | None = _variable(None, "`datasets` in `COMPEVO_HOME`")
    """folder of the TOML files that declare your own data sets"""
    preset: str = _variable(
        "", "`demo` in sample mode; `operational` for operational demand; `default` for others"
    )
    """training preset, or a path to a `.toml`"""
    contact: _Contact = _variable("", "none: only the program's name is sent")
    """address or page, in ASCII, where a publisher reaches you; sent with every request of live
    mode"""
    news_queries: _Folder | None = _variable(None, "the packaged `queries.toml`")
    """TOML file: what of GDELT's news is kept, and how much each refresh fetches"""
    pems_user: str = Field(default="", repr=False, title="none")
    """account name at PeMS, for traffic in live mode"""
    pems_password: SecretStr = _variable(SecretStr(""), "none")
    """its password; sent only to PeMS, over TLS, and never logged or stored"""
    pems_district: _District = _variable(PEMS_DISTRICT, f"`{PEMS_DISTRICT}` (Bay Area)")
    """Caltrans district, 3 to 12"""
    pems_files: Annotated[_Kinds, BeforeValidator(_split)] = _variable(
        PEMS_FILES, f"`{','.join(PEMS_FILES)}`"
    )
    """kinds of files to fetch: `station_hour` (a month each), `station_5min` (a day each)"""
    pems_stations: Annotated[_Stations, BeforeValidator(_split)] = _variable(
        (), "none: all of a file"
    )
    """numbers of the PeMS stations that are stored, with commas between them, in live and in
    archive mode"""
    open_meteo_key: _QueryKey = _variable(
        Secret(""), "none: the free interface, which is not for commercial use"
    )
    """key of a paid plan at Open-Meteo; sent only to its customers' host, over TLS, and never
    logged or stored"""
    news_domains: _Texts = _variable((), "none: any")
    """sites whose news a forecast may read, such as `abc.net.au,reuters.com`, with those below
    them; strangers' pages are indexed as news, too"""
    schedules: Annotated[_Texts, AfterValidator(_check_schedules)] = _variable((), "`off`")
    """data sets whose schedules and sensors run from the start, with commas between them; `on` for
    all (traffic needs its account); `off` for none"""
    alerts: SecretStr = _variable(SecretStr(""), "none: only the log")
    """where alerts go, with spaces between them: addresses of Apprise, such as
    `mailtos://user:password@host?to=me@example.org` or `jsons://host/hook`, or
    `command:/path/of/a/program`, which reads an alert from standard input; never logged"""
    report_url: str = _variable("", "none: Dagster shows the path")
    """address of the report where something serves its folder, for the link in Dagster"""
    commit: _Commit = _variable("", "none: git is asked")
    """commit of the code where there is no git, in hexadecimal digits; the image has it"""
    pod: Path | None = _variable(None, "none: training runs where Dagster does")
    """TOML file of the training pod, for the launcher `kubernetes`"""
    judge_url: str = _variable("", "none: only the backbone judges")
    """OpenAI-compatible endpoint that judges logic updates, e.g. `https://host/v1`"""
    judge_model: str = _variable("", "none")
    """model name at that endpoint; needed with the address"""
    judge_key: SecretStr = _variable(SecretStr(""), "none")
    """its key; sent over TLS or to this machine only, and never logged"""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables of this project, or those that are given.

        ConfigError for an unknown mode, archive mode without an archive folder, an address without
        its model, an account without its password, or a value that its use does not allow.
        """
        source = os.environ if environment is None else environment
        texts = {name: source.get(f"{_PREFIX}{name.upper()}") for name in cls.model_fields}
        try:
            settings = cls.model_validate({name: text for name, text in texts.items() if text})
        except ValidationError as error:
            fault = error.errors()[0]
            name = f"{_PREFIX}{str(fault['loc'][0]).upper()}"
            given = "" if name.endswith("KEY") else f" holds {fault['input']!r}"
            raise ConfigError(
                f"{name}{given}: {fault['msg']}; write what it is for: {VARIABLES[name][1]}"
            ) from None  # what was given may be a key

        folder = settings.archive
        if settings.mode is Mode.ARCHIVE and (folder is None or not folder.is_dir()):
            raise ConfigError(
                "COMPEVO_MODE=archive needs COMPEVO_ARCHIVE to name a folder of archive files; it "
                f"is {str(folder or '')!r}"
            )
        settings._require_both("judge_url", "judge_model", "the endpoint of a judge")
        settings._require_both("pems_user", "pems_password", "an account at PeMS")
        return settings

    def _require_both(self, first: str, second: str, subject: str) -> None:
        given = [name for name in (first, second) if getattr(self, name) not in ("", SecretStr(""))]
        if len(given) == 1:
            (missing,) = {first, second} - set(given)
            names = [f"{_PREFIX}{name.upper()}" for name in (missing, *given)]
            raise ConfigError(f"{subject} needs two variables: set {names[0]}, or unset {names[1]}")

    @property
    def pems(self) -> PemsAccess | None:
        """The account at PeMS; None where there is none."""
        if not self.pems_user:
            return None
        return PemsAccess(
            user=self.pems_user,
            password=self.pems_password.get_secret_value(),
            district=self.pems_district,
            files=self.pems_files,
        )

    @property
    def open_meteo(self) -> QueryKey | None:
        """The key of a paid plan at Open-Meteo; None where there is none."""
        key = self.open_meteo_key.get_secret_value()
        return QueryKey(name="apikey", value=key) if key else None

    def default_status(self, dataset: str) -> str:
        """Return how schedules and sensors of a data set start: ``RUNNING`` or ``STOPPED``."""
        is_on = dataset in self.schedules
        if self.schedules == ("on",):
            is_on = dataset != "traffic" or bool(self.pems_user)
        return "RUNNING" if is_on else "STOPPED"

    @property
    def datasets_folder(self) -> Path:
        """Folder of the TOML files that declare a user's own data sets."""
        return self.datasets or self.home / "datasets"

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


VARIABLES = {
    f"{_PREFIX}{name.upper()}": (field.title or "", " ".join((field.description or "").split()))
    for name, field in Settings.model_fields.items()
}
"""Default and meaning of every variable of this project, for the documentation."""

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
    """Return the environment of a process that is started, with a number of OpenMP threads."""
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
    """Return rank, number of processes and local rank as set by torchrun (default: 0, 1, 0)."""
    from compevo_core.runtime.distributed import torchrun_rank  # torch, only in a training process

    return torchrun_rank(os.environ)


def has_dagster_home() -> bool:
    """Return whether there are records of Dagster to which a command should report its result."""
    return bool(os.environ.get("DAGSTER_HOME"))


def locate_dagster_home() -> Path:
    """Return ``DAGSTER_HOME``, set to this repository's folder where it is not set."""
    return Path(os.environ.setdefault("DAGSTER_HOME", str(_DAGSTER_HOME))).expanduser()


def ensure_dagster_home() -> Path:
    """Return :func:`locate_dagster_home`; ConfigError unless it is a folder."""
    home = locate_dagster_home()
    # Not created: without a dagster.yaml its pools would let two runs write at once.
    if not (home.is_absolute() and home.is_dir()):
        raise ConfigError(
            f"DAGSTER_HOME is {str(home)!r}, and there is no folder of this absolute path: create "
            f"it with a copy of {_DAGSTER_HOME / 'dagster.yaml'}, or unset DAGSTER_HOME to use "
            f"{_DAGSTER_HOME}"
        )
    return home
