"""What every asset that trains shares: its run configuration, and the job it hands to a launcher.

What belongs here: run configuration -> :class:`~compevo_core.config.RunConfig` -> ``job.json``.
What does not: starting a process (``launchers``), training (``compevo_core.training.trainer``).
"""

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from compevo_core.config import RunConfig
from compevo_core.data.files import write_json
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.assets.definition import fits_folder
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.resources import Workspace


class TrainConfig(dg.Config):
    """What to train; empty fields take the preset's values."""

    preset: str = Field(
        default="",
        description=(
            "tiny, demo, default, paper, paper-small or a .toml file; empty: the deployment's"
        ),
    )
    rounds: int = Field(default=0, description="stop after this many rounds; 0: as the preset says")
    seed: int = Field(default=-1, description="seed of every generator; -1: as the preset says")
    overrides: dict[str, Any] = Field(
        default={},
        description=(
            'further settings, e.g. {"population.agents": 2, "population.members": '
            '[{"prior": "gbm"}, {"lookback_steps": 24}]}'
        ),
    )
    launcher: str = Field(default="process", description="process, torchrun or kubernetes")
    processes: int = Field(default=1, description="processes under torchrun")
    resume: bool = Field(
        default=True, description="false starts over instead of going on from the newest checkpoint"
    )

    def resolve(self, default_preset: str) -> RunConfig:
        """Return the run configuration: the preset with this run's changes."""
        # A copy: Dagster's config objects are frozen.
        overrides = dict(self.overrides)
        # Dagster's launch form has no empty number: 0 and -1 stand for "as the preset says".
        if self.rounds > 0:
            overrides["run.rounds"] = self.rounds
        if self.seed >= 0:
            overrides["run.seed"] = self.seed

        return RunConfig.preset(self.preset or default_preset).with_overrides(overrides)


def prepare_job(
    workspace: Workspace, windows: Path, config: RunConfig, name: str, *, resume: bool
) -> TrainJob:
    """Return the job of one training; write the resolved configuration into its run folder.

    Args:
        workspace: where news, fits and runs are.
        windows: folder of the windows to train on.
        config: the run's settings.
        name: name of the run.
        resume: False starts over.
    """
    run: Path = workspace.layout.run(name)
    write_json(RunFolder(run).config_file, config.to_dict())

    return TrainJob(
        config=config.to_dict(),
        windows=str(windows),
        news=str(workspace.layout.news_pool),
        out=str(run),
        resume=resume,
        fits=str(fits_folder(workspace.layout)),
    )
