"""``ablation/variants/<dataset>``: the paper's experiments, by default its ablation (5.4).

What belongs here: training every change of an experiment with equal settings, data and seeds. What
does not: what a change is, scoring and pairing (``compevo_core.experiments``).
"""

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import dagster as dg
from pydantic import Field

from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.experiments.ablation import VARIANTS
from compevo_core.experiments.controls import changes_nothing
from compevo_core.experiments.run import Trial, score_trials, write_experiment
from compevo_core.experiments.sweeps import (
    ABLATION,
    SWEEPS,
    change_windows,
    configure_change,
    find_experiment,
)
from compevo_pipeline.asset_keys import NEWS_EMBEDDINGS, ablation_key, windows_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version, stages_folder
from compevo_pipeline.assets.training_config import TrainConfig, prepare_job
from compevo_pipeline.embedded_news import write_news
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.launchers.kubernetes import PodClient
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.provenance import read_commit
from compevo_pipeline.resources import Launchers, Workspace
from compevo_pipeline.storage.runs import make_run_name

CODE = (
    "compevo_core/agents",
    "compevo_core/data",
    "compevo_core/evaluation",
    "compevo_core/experiments",
    "compevo_core/lm",
    "compevo_core/training",
)


class Training(NamedTuple):
    """One change under one seed, and the job that trains it."""

    trial: Trial
    job: TrainJob


# The launchpad offers the names and a launch with any other is refused; to a type checker they are
# texts.
if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[tuple(name for name, experiment in SWEEPS.items() if experiment.trains)]


class AblationConfig(TrainConfig):
    """The budget every variant gets, and where it is scored."""

    experiment: Name = ABLATION
    """list of changes to train; those that train nothing are `compevo experiment`'s"""
    variants: list[str] | None = Field(default=None, min_length=1)
    """changes to train; left out: all, of the ablation the paper's six variants"""
    seeds: list[int] | None = Field(default=None, min_length=1)
    """seeds that every variant is trained under; left out: run.seed alone"""
    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    scopes: int | None = Field(default=1, ge=1)
    """how many of the data set's test scopes to score, in order; null: all"""

    def select_variants(self) -> list[str]:
        """Return the names of the changes to train.

        Raises:
            ConfigError: the experiment has no change of that name.
        """
        known = find_experiment(self.experiment).list_names()
        if self.variants is None:
            return list(VARIANTS) if self.experiment == ABLATION else known
        if unknown := [name for name in self.variants if name not in known]:
            raise ConfigError(f"no change {unknown[0]!r}; known: {', '.join(known)}")
        return list(self.variants)

    def select_seeds(self, base: RunConfig) -> list[int]:
        """Return the seeds to train under, each once; ``base`` is what this run resolves to."""
        return [base.run.seed] if self.seeds is None else list(dict.fromkeys(self.seeds))


def build_ablation_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the ablation of one data set."""

    @dg.asset(
        key=ablation_key(dataset),
        deps=[windows_key(dataset), NEWS_EMBEDDINGS],
        group_name="ablation",
        description=(
            f"The full method on {dataset}, the paper's five variants and controls on demand, one "
            "change each: one budget, the same seeds, each paired with the full method by window."
        ),
        kinds={"pytorch", "csv"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        pool=GPU_POOL,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        config_schema=AblationConfig.schema_of_launch(),
    )
    def _variants(
        context: dg.AssetExecutionContext,
        workspace: Workspace,
        launchers: dg.ResourceParam[Launchers],
        pod_client: dg.ResourceParam[PodClient],
    ) -> dg.MaterializeResult[Any]:
        return _ablate(context, dataset, workspace, launchers, pod_client)

    return _variants


def _ablate(
    context: dg.AssetExecutionContext,
    dataset: str,
    workspace: Workspace,
    launchers: Launchers,
    pod_client: PodClient,
) -> dg.MaterializeResult[Any]:
    """Train the variants one after the other in one process, then score each and pair them."""
    config = AblationConfig.read(context)
    layout = workspace.layout

    with translate_errors(retry=False):
        windows = WindowSet.read(layout.windows(dataset))
        # One process trains all variants: windows are read and priors are fitted once, and so is a
        # supervised stage that several have in common.
        trainings = _prepare_trainings(context, config, workspace, windows)
        stages = stages_folder(layout, dataset)
        if not config.resume:
            shutil.rmtree(stages, ignore_errors=True)
        launcher = launchers.get(config.launcher, config.processes, pod_client)
        launcher.launch(context, [one.job for one in trainings])
        shutil.rmtree(stages, ignore_errors=True)

        # Scored only after all are trained: a variant that fails leaves no half table.
        experiment = find_experiment(config.experiment)
        scores = score_trials(
            config.experiment,
            experiment,
            [one.trial for one in trainings],
            NewsPool.read(trainings[0].job.news),
            commit=read_commit(),
            log=context.log,
            every=config.every,
            scopes=config.scopes,
        )
        path, rows, paired = write_experiment(
            layout.results,
            config.experiment,
            experiment,
            dataset,
            [one.trial for one in trainings],
            scores,
        )

    base = config.resolve(workspace.preset_for(dataset))
    budget = {
        "seeds": len(config.select_seeds(base)),
        "rounds": base.run.rounds,
        "batch_size": base.run.batch_size,
        "agents": base.population.agents,
    }
    return dg.MaterializeResult(
        metadata={
            **metadata.describe_scores(rows, path),
            "paired_tests": metadata.render_table(paired, rows=20),
            "budget": metadata.render_counts(budget),
        }
    )


def _prepare_trainings(
    context: dg.AssetExecutionContext,
    config: AblationConfig,
    workspace: Workspace,
    windows: WindowSet,
) -> list[Training]:
    """Return what to train and score under every seed, without what would repeat the full method.

    Raises:
        ConfigError: nothing is left.
    """
    layout = workspace.layout
    dataset = windows.dataset
    base = config.resolve(workspace.preset_for(dataset))
    experiment = find_experiment(config.experiment)
    # Windows with swapped news name the articles of the others.
    news = write_news(workspace, base.news.encoder, windows, log=context.log)

    trainings = []
    for name in config.select_variants():
        if config.experiment == ABLATION and changes_nothing(base, name):
            context.log.warning(f"{name} left out: with these settings it is the full method")
            continue

        prepared = change_windows(windows, experiment, name)
        folder = layout.windows(dataset)
        if prepared is not windows:
            folder = layout.windows(f"{dataset}-{name}")
            prepared.write(folder)

        for seed in config.select_seeds(base):
            changed = configure_change(base.with_overrides({"run.seed": seed}), experiment, name)
            # The name holds the hash of the configuration, which differs by seed.
            label = f"{config.experiment}-{dataset}"
            run = make_run_name(f"{label}-{name}", changed, prepared)
            job = prepare_job(workspace, folder, news, changed, run, config)
            # A variant that differs after the supervised stage alone goes on from its end.
            job = replace(job, stages=str(stages_folder(layout, dataset)))
            trial = Trial(change=name, config=changed, windows=prepared, run=job.folder.path)
            trainings.append(Training(trial, job))

    if not trainings:
        raise ConfigError(
            "nothing is left to train: every variant named is the full method under these "
            "settings; name others"
        )
    return trainings
