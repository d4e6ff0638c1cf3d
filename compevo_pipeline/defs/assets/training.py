"""``models/compevo/<dataset>``: one trained population for each data set, by a launcher.

What belongs here: the library's settings as choices of a launch, the job that a launcher gets, and
showing the run. What does not: the settings (``compevo_core.config.sections``), training
(``compevo_core.training.trainer``), processes (``launchers``). Materializing again with the same
configuration, data and code returns the finished run; after a crash, training resumes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import dagster as dg
from pydantic import ConfigDict, Field, create_model, model_validator

from compevo_core.config.run import RunConfig, list_presets
from compevo_core.config.sections import SettingsSection
from compevo_core.errors import ConfigError
from compevo_core.evaluation.method_choice import POPULATION
from compevo_core.training.prior import name_members, name_method
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.defs import definition
from compevo_pipeline.defs.asset_keys import NEWS_EMBEDDINGS, model_key, windows_key
from compevo_pipeline.defs.definition import Context, Result, WorkspaceParam
from compevo_pipeline.defs.metadata import escape_markdown, sketch_validation
from compevo_pipeline.defs.resources import LauncherName, Launchers
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.storage import runs
from compevo_pipeline.storage.code_versions import TRAINING_CODE, code_version, fits_folder
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import write_news
from compevo_pipeline.work.methods import choose_name, configure_chosen, plan_method, plan_preset
from compevo_pipeline.work.stored_windows import read_windows


def build_settings_model() -> type[definition.LaunchConfig]:
    """Return the library's settings by section, each of which a launch may leave out.

    Types, bounds, choices and notes come from the library. A note also names the value of a setting
    that is left out: its default, and the presets that have another one.
    """
    presets = {name: RunConfig.preset(name) for name in list_presets()}
    sections: dict[str, Any] = {}
    for section, info in RunConfig.model_fields.items():
        kind = info.annotation
        assert isinstance(kind, type) and issubclass(kind, SettingsSection)  # noqa: S101 - by construction
        values = {name: getattr(preset, section) for name, preset in presets.items()}
        settings: dict[str, Any] = {}
        for name, field in kind.model_fields.items():
            # A preset holds what differs from the library, a launch what differs from the preset.
            others = [
                f"{preset} {_show(getattr(value, name))}"
                for preset, value in values.items()
                if getattr(value, name) != field.default
            ]
            by_preset = f"; presets: {', '.join(others)}" if others else ""
            note = f"{field.description} (library: {_show(field.default)}{by_preset})"
            # The default is never checked, and a value that was not given is never read.
            settings[name] = (field.rebuild_annotation(), Field(default=None, description=note))
        choice = create_model(
            f"{kind.__name__}Choice",
            __config__=ConfigDict(frozen=True, extra="forbid", strict=True),
            __doc__=kind.__doc__,
            **settings,
        )
        sections[section] = (choice, Field(default=None))

    return create_model(
        "Settings",
        __base__=definition.LaunchConfig,
        __cls_kwargs__=definition.NO_SOURCE,
        __doc__="Settings that differ from the preset's, by section.",
        **sections,
    )


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} entries" if value else "none"
    return "none" if value is None else str(value)


# The launchpad offers the names and a launch with any other is refused; to a type checker they are
# texts, and the settings a model.
if TYPE_CHECKING:
    PresetName = str
    Settings = definition.LaunchConfig
else:
    PresetName = Literal[tuple(list_presets())]
    Settings = build_settings_model()


class TrainConfig(definition.LaunchConfig):
    """What to train: a method, or a preset, and what differs from it."""

    method: str | None = None
    """compevo: the population; auto: the mixture of those that are good on validation, or
    the best; mixture; or a name such as calendar-ridge; left out: auto for own data without a
    preset, else compevo"""
    preset: PresetName | None = None
    """settings to start from; left out: the deployment's preset"""
    preset_file: str | None = None
    """a TOML file of settings to start from, in place of a preset"""
    settings: Settings = Settings()
    """what differs from the preset; a setting that is left out is the preset's"""
    launcher: LauncherName = "process"
    """a process on this machine, the step's own, several under torchrun, or a pod"""
    processes: int | None = Field(default=None, ge=1)
    """processes under torchrun; left out: one"""
    shard_backbone: bool = False
    """split the layers of the backbone over the processes, instead of the agents: for a backbone
    that one device cannot hold"""
    resume: bool = True
    """false starts over instead of resuming from the newest checkpoint"""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if self.preset and self.preset_file:
            raise ValueError("preset and preset_file are both given: leave one of them out")
        if self.processes and self.launcher != "torchrun":
            raise ValueError(
                f"processes = {self.processes} is for the launcher torchrun, and this one is "
                f"{self.launcher}: leave processes out or choose torchrun"
            )
        if self.method not in (None, POPULATION) and (self.preset or self.preset_file):
            raise ValueError(
                f"a preset belongs to the method {POPULATION}, but the method is {self.method}: "
                "leave one of them out"
            )
        several = self.launcher == "kubernetes" or (self.processes or 1) > 1
        if self.shard_backbone and not several:
            raise ValueError(
                "shard_backbone needs several processes: choose the launcher torchrun with "
                "processes = 2 or more, or kubernetes with a pod of several GPUs"
            )

        # Settings that do not fit each other, as far as the launch itself says what they are.
        try:
            if self.preset or self.preset_file:
                self.resolve(self.preset_file or str(self.preset))
            elif self.method not in (None, POPULATION):
                configure_chosen(self.method, self.list_changes())
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    def resolve(self, default_preset: str) -> RunConfig:
        """Return the run configuration: the preset with this launch's changes."""
        preset = RunConfig.preset(self.preset_file or self.preset or default_preset)
        return preset.with_overrides(self.list_changes())

    def list_changes(self) -> dict[str, Any]:
        """Return the settings of this launch by dotted name."""
        given = self.settings.model_dump(exclude_unset=True)
        return {
            f"{section}.{name}": value
            for section, values in given.items()
            for name, value in values.items()
        }


@definition.define_by_dataset(
    model_key,
    deps=[windows_key, NEWS_EMBEDDINGS],
    description=(
        "What forecasts {dataset}: a CompEvo population (adapters, logics, gates, prior, scaler) "
        "or another method; sealed with a hash."
    ),
    kinds={"pytorch", "huggingface"},
    code=TRAINING_CODE,
    pool=definition.GPU_POOL,
    config=TrainConfig,
)
def build_model_asset(
    dataset: str,
    context: Context,
    workspace: WorkspaceParam,
    launchers: dg.ResourceParam[Launchers],
) -> Result:
    """Train the method, or find the run that is trained already."""
    config = TrainConfig.read(context)
    layout = workspace.layout

    windows = read_windows(layout, dataset)
    preset = config.preset_file or config.preset or workspace.settings.preset
    method = choose_name(dataset, config.method, preset)
    if method == POPULATION:
        default = workspace.preset_for(dataset)
        plan = plan_preset(config.resolve(default), dataset, preset or default)
    else:
        plan = plan_method(
            workspace,
            dataset,
            windows,
            method,
            config.list_changes(),
            fits=workspace.shared_fits(),
            on_step=context.log.info,
        )
    context.log.info("\n".join(filter(None, (plan.sentence, plan.news))))
    if plan.trained is not None:
        runs.set_current_run(layout, dataset, plan.trained.name)
        return describe_model(workspace, plan.trained, plan.config, choice=plan.sentence)

    # Named by configuration and data: the same training finds its own checkpoints.
    run = layout.run(runs.make_run_name(plan.label, plan.config, windows))
    version, resumes = code_version(*TRAINING_CODE), config.resume
    is_finished = RunFolder(run).is_finished
    made_by = runs.read_code_version(run) if is_finished else None
    # A run of the command line keeps no version, and is taken as it is.
    if made_by not in (None, version):
        context.log.warning(
            f"{run.name} was trained by version {made_by} of the code, which is {version} now: it "
            "is trained again"
        )
        resumes = False

    news = write_news(workspace, plan.config.encoder, windows, log=context.log, to_test=True)
    job = TrainJob(
        config=plan.config.to_dict(),
        windows=str(layout.windows(dataset)),
        news=str(news or ""),
        out=str(run),
        resume=resumes,
        fits=str(fits_folder(layout)),
        shard_backbone=config.shard_backbone,
        facts=plan.facts,
    )
    reported = launchers.launch(context, [job], config.launcher, config.processes)
    if not (is_finished and resumes):
        runs.write_code_version(run, version)

    # Only a finished run becomes the one that is scored: a failed launch raises above.
    runs.set_current_run(layout, dataset, run.name)
    return describe_model(workspace, run, plan.config, **reported)


def describe_model(
    workspace: Deployment,
    run: Path,
    config: RunConfig,
    **reported: Any,  # noqa: ANN401 - metadata
) -> Result:
    """Return what the UI shows of a finished run: rounds, if any, settings, what was reported."""
    rounds = RunFolder(run).read_rounds()
    of_rounds: dict[str, Any] = {}
    if rounds:
        # The loss of the last round; validation may have chosen an earlier one for the model.
        last = rounds[-1]
        logics = "\n".join(f"{i}. {escape_markdown(text)}" for i, text in enumerate(last.logics))
        is_validated = any(record.val_mae_scaled is not None for record in rounds)
        of_rounds = {
            # What one looks for comes first: the UI keeps the order.
            **({"validation_mae_by_round": sketch_validation(rounds)} if is_validated else {}),
            "logics": dg.MetadataValue.md(logics),
            "rounds": len(rounds),
            **({"loss": last.loss} if last.grad_norm else {}),  # without a gradient step none
        }

    shown = {
        **of_rounds,
        "method": name_method(config),
        "members": ", ".join(name_members(config)),
        "run_folder": dg.MetadataValue.path(run),
        "config_hash": config.hash,
        "config": dg.MetadataValue.json(config.to_dict()),
        "mode": workspace.data_mode.value,
    }
    return dg.MaterializeResult(
        metadata=shown | reported,
        # Another training is another model, even from the same inputs: old scores are stale.
        data_version=dg.DataVersion(runs.hash_model(run)),
    )
