"""Dagster resources: the workspace (stores and folders of a mode), launchers, judge, clock.

What belongs here: opening what ``settings`` names, and entering secrets. What does not: reading
other variables of the environment (``settings``), any asset. The mode is run configuration of the
``workspace`` resource, so that one choice holds for a whole run.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Self

import dagster as dg
from pydantic import Field

from compevo_core.errors import ConfigError
from compevo_core.lud.judge import EndpointJudge
from compevo_pipeline.judges.judges import build_endpoint_judge
from compevo_pipeline.launchers.dead_runs import end_with_run
from compevo_pipeline.launchers.kubernetes import KubernetesLauncher, PodClient, PodSpec
from compevo_pipeline.launchers.process import Launcher, ProcessLauncher
from compevo_pipeline.registry import Registry, load_registry
from compevo_pipeline.settings import (
    JUDGE_KEY_VARIABLE,
    JudgeSettings,
    Layout,
    Settings,
)
from compevo_pipeline.sources.common.base import Clock as SourceClock
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.pacer import Pacer
from compevo_pipeline.sources.common.raw_store import RawStore
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.storage.frame_store import FrameStore
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore

LauncherName = Literal["process", "torchrun", "kubernetes"]
"""Where training runs."""

# Dagster offers an enumeration by its names; to a type checker they are texts.
if TYPE_CHECKING:
    ModeName = str
else:
    ModeName = StrEnum("ModeName", {mode.value: mode.value for mode in Mode})


class Workspace(dg.ConfigurableResource[None]):
    """Stores and folders of the run's mode; synthetic and real data never share one."""

    mode: ModeName | None = Field(
        default=None,
        description="where data comes from; left out: as the deployment says (COMPEVO_MODE)",
    )
    settings: dg.ResourceDependency[Settings]

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Let the process of a step die with its run; every asset has a workspace."""
        end_with_run()

    @property
    def data_mode(self) -> Mode:
        """The run's mode."""
        return Mode(self.mode) if self.mode else self.settings.mode

    @property
    def is_aside(self) -> bool:
        """Whether a run of a live deployment reads other data, such as a demo on sample data."""
        return self.settings.mode is Mode.LIVE and self.data_mode is not Mode.LIVE

    @property
    def layout(self) -> Layout:
        """The run's folders."""
        return self.settings.layout(self.data_mode)

    def preset_for(self, dataset: str = "") -> str:
        """Return the training preset of a data set, or of most, where the run names none."""
        return self.settings.preset_for(self.data_mode, dataset)

    def registry(self) -> Registry:
        """Read which data sets there are: the built-in ones, and the user's own."""
        return load_registry(self.settings.datasets_folder)

    def live_context(
        self, clock: SourceClock, *, since: datetime | None = None, until: datetime | None = None
    ) -> LiveContext:
        """Open what live mode works with: a client, the ledger, the span asked for."""
        ledger = Ledger(self.layout.ledger)
        client = Client(
            user_agent=self.settings.user_agent,
            clock=clock,
            ledger=ledger,
            raw=self.raw_store(),
            pacer=Pacer(folder=self.settings.host_turns),
        )
        return LiveContext(
            client=client,
            ledger=ledger,
            now=clock(),
            since=since,
            until=until,
            saved=self.settings.archive,
            pems=self.settings.pems,
            open_meteo=self.settings.open_meteo,
            news_queries=self.settings.news_queries,
        )

    def raw_store(self) -> RawStore:
        """Open the bytes as the publishers sent them."""
        return RawStore(self.layout.raw)

    def series_store(self) -> SeriesStore:
        """Open the Parquet series."""
        return SeriesStore(self.layout.root)

    def frame_store(self) -> FrameStore:
        """Open the covariates, published forecasts and benchmark records."""
        return FrameStore(self.layout.tables)

    def news_store(self) -> NewsStore:
        """Open the articles."""
        return NewsStore(self.layout.news_database)

    def embedding_store(self, encoder: str) -> EmbeddingStore:
        """Open the embeddings of an encoder."""
        return EmbeddingStore(self.layout.embeddings, encoder)


class JudgeEndpoint(dg.ConfigurableResource[None]):
    """An OpenAI-compatible endpoint that rates logic updates; empty where none is set."""

    url: str = Field(default="", description="address, without /chat/completions")
    model: str = Field(default="", description="name of the model as the endpoint knows it")
    # Out of repr: an error message that prints the resource must not print the key.
    key: str = Field(default="", repr=False, description="API key; empty sends none")

    @classmethod
    def from_settings(cls, judge: JudgeSettings | None) -> Self:
        """Return the resource of a deployment.

        The key stays an environment variable until a step runs. Run configuration, the UI and the
        event log hold the variable's name, never its value.
        """
        if judge is None:
            return cls()
        if not judge.has_key:
            return cls(url=judge.url, model=judge.model)
        return cls(url=judge.url, model=judge.model, key=dg.EnvVar(JUDGE_KEY_VARIABLE))

    def create_judge(self) -> EndpointJudge | None:
        """Return the judge behind the endpoint, or None where none is set."""
        return build_endpoint_judge(self.url, self.model, self.key) if self.url else None


class Clock:
    """The time, for everything that writes a time stamp."""

    def __call__(self) -> datetime:
        """Return the present time in UTC."""
        return datetime.now(UTC)


class Launchers:
    """Makes the launcher a run asks for.

    Args:
        pod: the pod that the launcher ``kubernetes`` starts; None refuses that launcher.
    """

    def __init__(self, pod: PodSpec | None = None) -> None:
        self._pod = pod

    def get(self, kind: LauncherName, processes: int | None, pod_client: PodClient) -> Launcher:
        """Return the launcher of a kind.

        Args:
            kind: where training runs.
            processes: how many processes torchrun starts; one unless given.
            pod_client: starts the pod of the launcher ``kubernetes``.

        Raises:
            ConfigError: Kubernetes without a pod specification.
        """
        if kind == "process":
            return ProcessLauncher()
        if kind == "torchrun":
            return ProcessLauncher(processes=processes or 1)

        if self._pod is None:
            raise ConfigError(
                "launcher 'kubernetes' needs a pod: set COMPEVO_POD to the TOML file of a PodSpec "
                "(deploy/kubernetes/training-pod.toml is one)"
            )
        # The GPUs of the pod, not this argument, say how many processes it starts.
        return KubernetesLauncher(pod=self._pod, client=pod_client)
