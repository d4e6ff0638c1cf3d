"""What assets are given: the workspace (stores and folders of a mode), the feeds, the launchers, the clock.

What belongs here: opening what ``settings`` names. What does not: reading the environment, any asset.
The mode is run configuration of the ``workspace`` resource, so that one choice holds for a whole run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg

from compevo_core.errors import ConfigError
from compevo_pipeline.launchers.kubernetes import KubernetesLauncher, PodSpec
from compevo_pipeline.launchers.process import Launcher, ProcessLauncher
from compevo_pipeline.settings import Layout, Settings, parse_mode
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.storage.frame_store import FrameStore
from compevo_pipeline.storage.series_store import NewsStore, SeriesStore


class Workspace(dg.ConfigurableResource[None]):
    """Stores and folders of the run's mode; synthetic and real data never share one."""

    mode: str = ""
    """``sample``, ``archive`` or ``live``; empty is the deployment's (``COMPEVO_MODE``)."""
    settings: dg.ResourceDependency[Settings]

    @property
    def data_mode(self) -> Mode:
        """The run's mode."""
        return parse_mode(self.mode) if self.mode else self.settings.mode

    @property
    def layout(self) -> Layout:
        """The run's folders."""
        return self.settings.layout(self.data_mode)

    @property
    def preset(self) -> str:
        """Training preset where the run names none."""
        return self.settings.preset_for(self.data_mode)

    def series_store(self) -> SeriesStore:
        """Parquet series and raw files."""
        return SeriesStore(self.layout.root)

    def frame_store(self) -> FrameStore:
        """Covariates, published forecasts, benchmark records."""
        return FrameStore(self.layout.tables)

    def news_store(self) -> NewsStore:
        """Articles and embeddings."""
        return NewsStore(self.layout.news_database)


class Clock:
    """The time, for everything that stamps."""

    def __call__(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(UTC)


class Launchers:
    """Makes the launcher a run asks for."""

    def __init__(self, pod: PodSpec | None = None) -> None:
        self._pod = pod

    def get(self, kind: str, processes: int) -> Launcher:
        """``process``, ``torchrun`` with ``processes`` of them, or ``kubernetes``.

        Raises:
            ConfigError: an unknown kind, or Kubernetes without a pod specification.
        """
        makers: Mapping[str, Launcher | None] = {
            "process": ProcessLauncher(),
            "torchrun": ProcessLauncher(processes=max(1, processes)),
            "kubernetes": KubernetesLauncher(pod=self._pod) if self._pod else None,
        }
        if kind not in makers:
            raise ConfigError(
                f"launcher {kind!r} is not one of {', '.join(makers)}: correct the run configuration"
            )
        found = makers[kind]
        if found is None:
            raise ConfigError(
                "launcher 'kubernetes' needs build_defs(settings, pod=PodSpec(...)) in definitions.py"
            )
        return found
