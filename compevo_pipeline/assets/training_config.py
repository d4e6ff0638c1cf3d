"""What every asset that trains shares: its run configuration, and the job it hands to a launcher.

What belongs here: the library's settings as choices of a launch, run configuration ->
:class:`~compevo_core.config.RunConfig` -> ``job.json``. What does not: the settings themselves
(``compevo_core.config_sections``), their schema (``launch_config``), starting a process
(``launchers``), training (``compevo_core.training.trainer``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from compevo_core.config import RunConfig, list_presets
from compevo_core.config_sections import SettingsSection
from compevo_core.data.files import write_json
from compevo_core.errors import ConfigError
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.assets.definition import fits_folder
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.resources import LauncherName, Workspace


def build_settings_model() -> type[LaunchConfig]:
    """Return the library's settings by section, each of which a launch may leave out.

    Types, bounds, choices and notes are the library's. A note also says what the setting is where
    the launch leaves it out: its default, and the presets that have another value.
    """
    presets = {name: RunConfig.preset(name) for name in list_presets()}
    sections: dict[str, Any] = {}
    for section, info in RunConfig.model_fields.items():
        kind = info.annotation
        assert isinstance(kind, type) and issubclass(kind, SettingsSection)  # noqa: S101 - by construction
        values = {name: getattr(preset, section) for name, preset in presets.items()}
        sections[section] = (_make_optional(kind, values), Field(default=None))

    return create_model(
        "Settings",
        __base__=LaunchConfig,
        __doc__="Settings that differ from the preset's, by section.",
        **sections,
    )


def _make_optional(
    kind: type[SettingsSection], values: Mapping[str, SettingsSection]
) -> type[BaseModel]:
    """Return a section of settings without its defaults: what is not given stays the preset's."""
    settings: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        # A preset says what differs from the library, and a launch what differs from the preset.
        others = [
            f"{preset} {_show(getattr(value, name))}"
            for preset, value in values.items()
            if getattr(value, name) != field.default
        ]
        presets = f"; presets: {', '.join(others)}" if others else ""
        note = f"{field.description} (library: {_show(field.default)}{presets})"
        # The default is never checked, and a value that was not given is never read.
        settings[name] = (field.rebuild_annotation(), Field(default=None, description=note))

    return create_model(
        f"{kind.__name__}Choice",
        __config__=ConfigDict(frozen=True, extra="forbid", strict=True),
        __doc__=kind.__doc__,
        **settings,
    )


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} entries" if value else "none"
    return "none" if value is None else str(value)


# The launchpad offers the names and a launch with any other is refused; to a type checker they are
# texts, and the settings a model.
if TYPE_CHECKING:
    PresetName = str
    Settings = LaunchConfig
else:
    PresetName = Literal[tuple(list_presets())]
    Settings = build_settings_model()


class TrainConfig(LaunchConfig):
    """What to train: a preset, and what differs from it."""

    preset: PresetName | None = None
    """settings to start from; left out: the deployment's preset"""
    preset_file: str | None = None
    """a TOML file of settings to start from, in place of a preset"""
    settings: Settings = Settings()
    """what differs from the preset; a setting that is left out is the preset's"""
    launcher: LauncherName = "process"
    """a process on this machine, several under torchrun, or a pod"""
    processes: int | None = Field(default=None, ge=1)
    """processes under torchrun; left out: one"""
    shard_backbone: bool = False
    """split the layers of the backbone over the processes, in place of the agents: for a backbone
    that one device cannot hold"""
    resume: bool = True
    """false starts over instead of going on from the newest checkpoint"""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if self.preset and self.preset_file:
            raise ValueError("preset and preset_file are both given: leave one of them out")
        if self.processes and self.launcher != "torchrun":
            raise ValueError(
                f"processes = {self.processes} is for the launcher torchrun, and this one is "
                f"{self.launcher}: leave processes out or choose torchrun"
            )
        several = self.launcher == "kubernetes" or (self.processes or 1) > 1
        if self.shard_backbone and not several:
            raise ValueError(
                "shard_backbone needs several processes: choose the launcher torchrun with "
                "processes = 2 or more, or kubernetes with a pod of several GPUs"
            )

        # Settings that do not fit each other, as far as the launch itself says what they are.
        if self.preset or self.preset_file:
            try:
                self.resolve(self.preset_file or str(self.preset))
            except (ConfigError, OSError) as error:
                raise ValueError(str(error)) from error
        return self

    def resolve(self, default_preset: str) -> RunConfig:
        """Return the run configuration: the preset with this launch's changes."""
        preset = RunConfig.preset(self.preset_file or self.preset or default_preset)
        given = self.settings.model_dump(exclude_unset=True)
        return preset.with_overrides(
            {
                f"{section}.{name}": value
                for section, values in given.items()
                for name, value in values.items()
            }
        )


def prepare_job(
    workspace: Workspace,
    windows: Path,
    news: Path,
    config: RunConfig,
    name: str,
    launch: TrainConfig,
) -> TrainJob:
    """Return the job of one training; write the resolved configuration into its run folder.

    Args:
        workspace: where fits and runs are.
        windows: folder of the windows to train on.
        news: folder of the articles that they name.
        config: the run's settings.
        name: name of the run.
        launch: whether to resume, and whether processes split the backbone.
    """
    run: Path = workspace.layout.run(name)
    write_json(RunFolder(run).config_file, config.to_dict())

    return TrainJob(
        config=config.to_dict(),
        windows=str(windows),
        news=str(news),
        out=str(run),
        resume=launch.resume,
        fits=str(fits_folder(workspace.layout)),
        shard_backbone=launch.shard_backbone,
    )
