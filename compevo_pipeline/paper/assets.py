"""What the paper adds to the graph: ablation, benchmark, LUD, control, text, its page, the audit.

What belongs here: run configurations, partitions, metadata. What does not: training, scoring and
judging (``paper.runs``, ``compevo_core.paper``). Each partition of a benchmark is a run: a failed
one can be launched again by itself. ``report/site`` also writes the page of experiments, and
``evaluation/test`` audits news on demand: the definitions pass in the functions.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.baselines.zero_shot import PREFIX
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.leakage import (
    Violation,
    find_changed_files,
    find_training_after,
    hash_folder,
)
from compevo_core.evaluation.result_rows import POOLED, write_config, write_rows
from compevo_core.evaluation.scopes import select_month_scopes, thin_windows, write_forecasts
from compevo_core.evaluation.scoring import score_population
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.changes import (
    ABLATION,
    EXPERIMENTS,
    NamedChange,
    find_experiment,
    list_changes,
)
from compevo_core.paper.declared import BUDGETS, STANDARD, find_budget
from compevo_core.paper.lud import DEFAULT_PAIRS, build_judges, measure_lud
from compevo_core.paper.method_table import METHODS, find_method
from compevo_core.paper.news_audit import audit_run, write_audit
from compevo_core.paper.planted_news import TEXTS
from compevo_core.runtime.files import write_atomically, write_text
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.checks.content import find_availability_violations, format_violations
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs import definition, metadata
from compevo_pipeline.defs.assets.evaluation import (
    POPULATION_CODE,
    BaselineConfig,
    fit_and_score,
    load_current,
)
from compevo_pipeline.defs.assets.training import TrainConfig
from compevo_pipeline.defs.definition import Context, Result, WorkspaceParam
from compevo_pipeline.defs.resources import Launchers
from compevo_pipeline.paper.runs import (
    BenchmarkData,
    ExperimentRun,
    read_endpoint_judge,
    run_control_on,
    run_experiment,
    run_text_on,
)
from compevo_pipeline.storage.code_versions import read_commit
from compevo_pipeline.storage.runs import find_current_run, has_current_run
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.stored_windows import read_windows

RESEARCH_CODE = (
    "compevo_core/agents",
    "compevo_core/baselines",
    "compevo_core/data",
    "compevo_core/evaluation",
    "compevo_core/lm",
    "compevo_core/lora",
    "compevo_core/paper",
    "compevo_core/paper/arms.toml",
    "compevo_core/paper/budgets.toml",
    "compevo_core/paper/columns.toml",
    "compevo_core/paper/experiments.toml",
    "compevo_core/paper/planted_news.toml",
    "compevo_core/paper/settings.toml",
    "compevo_core/paper/worded_data.toml",
    "compevo_core/training",
)

ZERO_SHOT = "zero-shot"
_SEED = "-seed"
CONTROL_DATASET = "electricity"

# Each has a method and a seed; the launch names the pretrained model of ``zero-shot``.
_SEEDS = {**{name: method.seeds for name, method in METHODS.items()}, ZERO_SHOT: 1}
benchmark_runs = dg.StaticPartitionsDefinition(
    [f"{name}{_SEED}{seed}" for name, seeds in _SEEDS.items() for seed in range(seeds)]
)

# The launchpad offers the names; to a type checker they are texts.
if TYPE_CHECKING:
    from compevo_core.forecast.forecaster import CompEvoForecaster

    ExperimentName = str
    BudgetName = str
else:
    ExperimentName = Literal[tuple(name for name, e in EXPERIMENTS.items() if e.trains)]
    BudgetName = Literal[tuple(BUDGETS)]


class AblationConfig(TrainConfig):
    """The budget of every variant, and where it is scored."""

    experiment: ExperimentName = ABLATION
    """list of changes to train; `compevo paper experiment` has those that train nothing"""
    variants: list[str] | None = Field(default=None, min_length=1)
    """changes to train; left out: all, of the ablation the paper's six variants"""
    seeds: list[int] | None = Field(default=None, min_length=1)
    """seeds that every variant is trained with; left out: only run.seed"""
    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    scopes: int | None = Field(default=1, ge=1)
    """how many of the data set's test scopes to score, in order; null: all"""

    def select_variants(self) -> list[NamedChange]:
        """Return the changes to train."""
        names = self.variants or []
        if self.variants is None and self.experiment == ABLATION:
            names = list_changes("variant")
        return find_experiment(self.experiment).select(names)

    def select_seeds(self, base: RunConfig) -> list[int]:
        """Return the seeds to train with, each once; ``base`` has the settings of this run."""
        return [base.run.seed] if self.seeds is None else list(dict.fromkeys(self.seeds))


@definition.define_by_dataset(
    keys.ablation_key,
    # The model first: under the same settings it is the full method.
    deps=[keys.windows_key, keys.NEWS_EMBEDDINGS, keys.model_key],
    description=(
        "The full method on {dataset}, the paper's five variants and controls on demand, one "
        "change each: one budget, the same seeds, each paired with the full method by window."
    ),
    kinds={"pytorch", "csv"},
    code=RESEARCH_CODE,
    pool=definition.GPU_POOL,
    config=AblationConfig,
)
def build_ablation_asset(
    dataset: str,
    context: Context,
    workspace: WorkspaceParam,
    launchers: dg.ResourceParam[Launchers],
) -> Result:
    """Train the variants, score them and pair them with the full method."""
    config = AblationConfig.read(context)

    base = config.resolve(workspace.preset_for(dataset))
    seeds = config.select_seeds(base)
    plan = ExperimentRun(
        experiment=find_experiment(config.experiment),
        changes=config.select_variants(),
        dataset=dataset,
        base=base,
        seeds=seeds,
        every=config.every,
        scopes=config.scopes,
        resume=config.resume,
        shard_backbone=config.shard_backbone,
    )
    path, rows, paired = run_experiment(
        workspace,
        plan,
        train=lambda jobs: launchers.launch(context, jobs, config.launcher, config.processes),
        log=context.log,
    )
    budget = {
        "seeds": len(seeds),
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


class BenchmarkConfig(definition.LaunchConfig):
    """What a fit may spend, and where it is scored."""

    budget: BudgetName = STANDARD.name
    """what a fit may spend; rows name it"""
    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    scopes: int | None = Field(default=None, ge=1)
    """how many of the data set's test scopes to score, in order; left out: all"""
    zero_shot_model: str | None = None
    """folder or hub id of a pretrained model of time series, for the partition zero-shot"""


@definition.define_by_dataset(
    keys.benchmark_key,
    deps=[keys.windows_key, keys.NEWS_EMBEDDINGS],
    partitions_def=benchmark_runs,
    description=(
        "Every method of the comparison on the test split of {dataset}, one method and seed per "
        "partition, under one budget."
    ),
    kinds={"pytorch", "csv"},
    code=RESEARCH_CODE,
    pool=definition.GPU_POOL,
    config=BenchmarkConfig,
)
def build_benchmark_asset(dataset: str, context: Context, workspace: WorkspaceParam) -> Result:
    """Fit and score the method and seed of the partition."""
    config = BenchmarkConfig.read(context)
    name, _, seed = context.partition_key.rpartition(_SEED)

    if name == ZERO_SHOT:
        if config.zero_shot_model is None:
            raise ConfigError(
                "the partition zero-shot needs the folder or hub id of a pretrained model of time "
                "series: give zero_shot_model in the launch"
            )
        name = f"{PREFIX}{config.zero_shot_model}"
    method = find_method(name)
    data = BenchmarkData.read(workspace, dataset, every=config.every, scopes=config.scopes)
    if not data.can_run(method):
        context.log.info(f"{method.name} cannot forecast these windows: it has no rows")
        return dg.MaterializeResult(metadata={"dagster/row_count": 0})

    inputs = data.prepare(workspace, method, find_budget(config.budget))
    rows = data.run(method, inputs, int(seed))

    return dg.MaterializeResult(metadata=metadata.describe_scores(rows, data.rows))


class LudConfig(definition.LaunchConfig):
    """How the updates of a run are judged."""

    pairs: int = Field(default=DEFAULT_PAIRS, ge=1)
    """updates of an agent that a judge rates, evenly spaced"""
    encoder: str | None = None
    """encoder of the logics; left out: the run's own"""


@definition.define_by_dataset(
    keys.lud_key,
    deps=[keys.model_key],
    description=(
        "Logic Update Degree of every agent of {dataset}: embedding distance of its updates, "
        "and their ratings by the backbone, by a rule for logics with slots and, if one is "
        "set, by an endpoint."
    ),
    kinds={"pytorch", "json"},
    code=(
        "compevo_core/paper/lud.py",
        "compevo_core/paper/judge_prompt.toml",
        "compevo_core/lm/encoder.py",
    ),
    pool=definition.GPU_POOL,
    config=LudConfig,
)
def build_lud_asset(dataset: str, context: Context, workspace: WorkspaceParam) -> Result:
    """Let the judges rate the logic updates of the run in use."""
    from compevo_core.training.ensemble import read_config  # torch, only in the step

    config = LudConfig.read(context)
    # The endpoint is another party's server: its transient failures are worth another try.
    with definition.translate_errors(attempt=context.retry_number):
        run = find_current_run(workspace.layout, dataset)
        trained = read_config(run)

        settings = workspace.settings
        endpoint = read_endpoint_judge(settings) if settings.judge_url else None
        judges = build_judges(trained, endpoint)
        context.log.info(f"{run.name}: judged by {', '.join(judge.name for judge in judges)}")

        encoder = load_encoder(config.encoder or trained.news.encoder)
        summary = measure_lud(run, judges, encoder, pairs=config.pairs)

    judged = summary["judges"]
    updates, agreement = pl.DataFrame(summary["agents"]), pl.DataFrame(summary["agreement"])
    scores = pl.DataFrame([{"judge": it["name"]} | row for it in judged for row in it["agents"]])
    described = {
        **metadata.describe_table(scores),
        "encoder": summary["encoder"],
        "prompt_hash": summary["prompt_hash"],
        "updates": metadata.render_table(updates, rows=updates.height),
        "verdicts": metadata.render_table(scores, rows=scores.height),
        "asked": sum(judge["asked"] for judge in judged),
        "failures": sum(judge["failures"] for judge in judged),
        "summary": dg.MetadataValue.path(RunFolder(run).lud_summary_file),
    }
    # A single judge has no one to agree with.
    if agreement.height:
        described["agreement"] = metadata.render_table(agreement)
    return dg.MaterializeResult(metadata=described)


class ControlConfig(definition.LaunchConfig):
    """Which worlds are made."""

    preset: str = "specialists"
    """settings of the search"""
    world: str = "plain"
    """kind of worlds, of ``WORLDS`` in ``compevo_core.paper.planted_news``"""
    arms: str = "reading"
    """what is compared: reading (who reads which news) or search (who writes new logics)"""
    effects: list[float] = Field(default=[0.0, 1.0, 2.0], min_length=1)
    """effects of an acting topic, in standard deviations of what a calendar ridge misses"""
    seeds: int = Field(default=3, ge=1)
    """seeds of each world and its trainings"""
    series: list[str] = Field(default=["NSW1", "VIC1"])
    """series of the data set; empty: all"""


@definition.define_asset(
    keys.CONTROL,
    deps=[keys.windows_key(CONTROL_DATASET)],
    description=(
        "A positive control: made-up articles move the targets of real windows, and the share of "
        "the known effect that each arm recovers shows whether evolved logics find what acts."
    ),
    kinds={"pytorch", "csv"},
    code=RESEARCH_CODE,
    dataset=CONTROL_DATASET,
    pool=definition.GPU_POOL,
    config=ControlConfig,
)
def control(context: Context, workspace: WorkspaceParam) -> Result:
    """Train every arm in every world, one after the other."""
    from compevo_core.paper.control import ControlPlan  # torch, only in the step
    from compevo_core.paper.report.evidence_tables import judge_control

    config = ControlConfig.read(context)
    plan = ControlPlan(
        config=RunConfig.preset(config.preset),
        world=config.world,
        series=config.series,
        compares=config.arms,
        effects=config.effects,
        seeds=range(config.seeds),
        commit=read_commit(),
    )
    path, rows = run_control_on(workspace, CONTROL_DATASET, plan, log=context.log)
    return dg.MaterializeResult(
        metadata={
            "verdict": judge_control(rows.to_dicts()),
            **metadata.describe_table(rows),
            "table": metadata.render_table(rows, rows=rows.height),
            "rows": dg.MetadataValue.path(path),
        }
    )


class TextConfig(definition.LaunchConfig):
    """Which text is read."""

    preset: str = "specialists"
    """settings of the search"""
    names: list[str] = Field(default=list(TEXTS), min_length=1)
    """worded data of the archive"""
    seeds: int = Field(default=3, ge=1)
    """seeds of each training"""


@definition.define_asset(
    keys.TEXT,
    deps=[keys.windows_key(keys.OPERATIONAL)],
    description=(
        "Real text that is known to be about the day that is forecast: captions of the same day "
        "(perfect foresight), worded weather forecasts and words of news titles, read by ridges "
        "and by populations."
    ),
    kinds={"pytorch", "csv"},
    code=RESEARCH_CODE,
    dataset=keys.OPERATIONAL,
    pool=definition.GPU_POOL,
    config=TextConfig,
)
def text(context: Context, workspace: WorkspaceParam) -> Result:
    """Train every arm on every text, one after the other."""
    from compevo_core.paper.control import TextPlan  # torch, only in the step
    from compevo_core.paper.report.evidence_tables import list_evidence

    config = TextConfig.read(context)
    plan = TextPlan(
        config=RunConfig.preset(config.preset), seeds=range(config.seeds), commit=read_commit()
    )
    rows = pl.concat(
        run_text_on(workspace, name, plan, log=context.log)[1] for name in config.names
    )
    return dg.MaterializeResult(
        metadata={
            "verdict": " ".join(table.verdict for table in list_evidence("text", rows.to_dicts())),
            **metadata.describe_table(rows),
            "table": metadata.render_table(rows, rows=rows.height),
        }
    )


def audit_news(
    windows: WindowSet,
    news: NewsPool,
    forecaster: "CompEvoForecaster",
    layout: Layout,
    *,
    log: logging.Logger,
    every: int,
) -> None:
    """Measure what news adds to a run's forecasts of every n-th origin, and write the rows."""
    rows = audit_run(windows, news, forecaster, commit=read_commit(), log=log, every=every)
    write_audit(layout.results, rows)


def write_research(deployment: Deployment) -> Mapping[str, Any]:
    """Write the page of experiments of a deployment's mode; return what the UI shows of it."""
    # Drawing takes a second to import.
    from compevo_core.paper.report.inputs import read_inputs
    from compevo_core.paper.report.markdown import format_results
    from compevo_core.paper.report.page import render_research
    from compevo_core.report.forecast_page import RESEARCH_PAGE

    layout, names = deployment.layout, deployment.registry.whole
    # Every data set that has a finished run, not only the one that was trained last; no blocks.
    runs = [find_current_run(layout, name) for name in names if has_current_run(layout, name)]
    mode = deployment.data_mode.value
    inputs = read_inputs(layout.results, runs, mode=mode, generated_at=deployment.clock())
    write_text(layout.report / RESEARCH_PAGE, render_research(inputs))
    return {
        "result_rows": inputs.rows.height,
        "results": dg.MetadataValue.md(format_results(inputs)),
    }


SUBSET = "inference-2026-100"
NAME_2026 = "leakage-2026"  # of the experiment in the result rows, and of the files
CHECK_DESCRIPTIONS = {
    "artifact_unchanged": (
        "Every file of the trained model has the same hash before and after the inference."
    ),
    "available_before_origin": (
        "No article, covariate or published forecast was available only at or after its origin."
    ),
    "nothing_of_2026_in_training": (
        "No train or validation window reaches the first inference origin."
    ),
    "every_window_scored": "All windows of the subset were forecast and scored.",
}


@definition.define_asset(
    keys.INFERENCE_2026,
    deps=[
        keys.model_key(keys.DEFAULT_DATASET),
        keys.windows_key(keys.DEFAULT_DATASET),
        keys.NEWS_EMBEDDINGS,
    ],
    description=(
        "100 electricity windows of February and March 2026 over five regions, and every complete "
        "day since, by month: inference only, the model's hashes compared before and after."
    ),
    kinds={"pytorch", "csv"},
    code=("compevo_core/agents", "compevo_core/baselines", *POPULATION_CODE[1:]),
    pool=definition.GPU_POOL,
    config=BaselineConfig,
    # Every refresh makes windows again, mostly the same ones, and embeds titles of all data sets.
    automation_condition=dg.AutomationCondition.eager()
    .replace(
        "newly_updated_without_root",
        dg.AutomationCondition.data_version_changed()
        & ~dg.AutomationCondition.executed_with_root_target(),
    )
    .ignore(dg.AssetSelection.assets(keys.NEWS_EMBEDDINGS)),
    check_specs=[
        dg.AssetCheckSpec(name, asset=keys.INFERENCE_2026, blocking=True, description=description)
        for name, description in CHECK_DESCRIPTIONS.items()
    ],
)
def inference_2026(context: Context, workspace: WorkspaceParam) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster refuses a parameter with check results
    """Forecast 2026 with the sealed electricity population and check that this was honest."""
    config = BaselineConfig.read(context)
    layout = workspace.layout
    windows = read_windows(layout, keys.DEFAULT_DATASET)
    named = thin_windows(windows.subset(SUBSET), SUBSET, config.every)
    scopes = [named, *select_month_scopes(windows, config.every)]
    model = RunFolder(find_current_run(layout, keys.DEFAULT_DATASET)).model

    # Before anything is loaded: this would also catch a loader that writes into the folder.
    hashes_before = hash_folder(model)
    views = {view.window_id: view for scope in scopes for view in scope.windows.views()}
    forecaster, _ = load_current(context, workspace, model.parent, views.values())
    population = score_population(
        forecaster,
        scopes,
        train=windows.split("train"),
        experiment=NAME_2026,
        commit=read_commit(),
        log=context.log,
    )
    baselines = fit_and_score(workspace, windows, scopes, NAME_2026, config.seeds)

    path = layout.results / f"{NAME_2026}.csv"
    rows = pl.concat([population.rows, baselines.rows])
    write_rows(path, rows)
    write_config(layout.results, forecaster.config)
    write_forecasts(
        layout.forecasts / f"{NAME_2026}.parquet",
        [*population.predictions, *zip(scopes, baselines.forecasts, strict=True)],
    )

    totals = {scope.subset: len(scope.windows) for scope in scopes}
    pooled = rows.filter(pl.col("entity") == POOLED).select("method", "subset", "n_windows")
    # All four are computed before any is reported: one failure must not hide another.
    violations = {
        "artifact_unchanged": find_changed_files(hashes_before, hash_folder(model)),
        "available_before_origin": find_availability_violations(
            workspace, keys.DEFAULT_DATASET, list(views.values())
        ),
        "nothing_of_2026_in_training": [
            # The windows that training used and that reach the first origin of the scope.
            violation
            for split in ("train", "val")
            for violation in find_training_after(
                windows.split(split), min(view.origin_utc for view in named.windows.views())
            )
        ],
        "every_window_scored": [
            Violation(kind="windows left out", where=method, detail=f"{count} of {totals[subset]}")
            for method, subset, count in pooled.iter_rows()
            if count != totals[subset]
        ],
    }
    # The report has no access to Dagster's event log.
    checks = [
        (CHECK_DESCRIPTIONS[name], not listed, format_violations(listed))
        for name, listed in violations.items()
    ]
    frame = pl.DataFrame(checks, schema=["check", "passed", "detail"], orient="row")
    write_atomically(layout.results / "leakage-checks.csv", frame.write_csv)

    return dg.MaterializeResult(
        metadata={
            **metadata.describe_scores(rows, path),
            "artifact_hash": forecaster.artifact_hash,
            "windows": len(views),
            "run_folder": dg.MetadataValue.path(model.parent),
        },
        check_results=[
            dg.AssetCheckResult(
                check_name=name,
                passed=not listed,
                description=format_violations(listed),
                metadata={"violations": len(listed)},
            )
            for name, listed in violations.items()
        ],
    )
