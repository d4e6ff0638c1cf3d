"""``compevo experiment``."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.errors import ConfigError
from compevo_pipeline.cli.arguments import Changes, Preset, parse_changes

if TYPE_CHECKING:
    from compevo_core.config import RunConfig
    from compevo_core.data.window import WindowSet
    from compevo_core.experiments.run import Trial
    from compevo_core.experiments.sweeps import Experiment
    from compevo_pipeline.resources import Workspace

log = logging.getLogger(__name__)


def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="ablation, lambda-pg, lambda-div, lambda-prune, tau, beta, t-gen, agents, epochs, "
            "instruction, news or layers."
        ),
    ],
    dataset: Annotated[str, typer.Argument(help="Name of a data set whose windows are built.")],
    only: Annotated[
        str, typer.Option(help="Changes to make, separated by commas; left out: every one.")
    ] = "",
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="Finished runs of the full method, for experiments that train nothing (tau, "
            "news); left out: the data set's current run.",
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(help="What a training may spend: quick, small, or standard: the preset's."),
    ] = "standard",
    preset: Preset = "default",
    changes: Changes = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds that each change is trained under.")] = 1,
    every: Annotated[int, typer.Option(min=1, help="Score every n-th origin.")] = 1,
    scopes: Annotated[
        int, typer.Option(min=1, help="How many of the data set's test sets to score, in order.")
    ] = 1,
    results: Annotated[
        Path | None, typer.Option(help="Folder of result rows; else that of the deployment.")
    ] = None,
) -> None:
    """Run one of the paper's experiments: named changes, one at a time, each paired by window.

    Rows go to experiment-NAME-DATASET.csv, those of the ablation to ablation-DATASET.csv; `compevo
    table` shows them beside the paper's.
    """
    from compevo_core.config import RunConfig
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.experiments.run import score_trials, write_experiment
    from compevo_core.experiments.sweeps import find_experiment
    from compevo_pipeline.embedded_news import write_news
    from compevo_pipeline.provenance import read_commit
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings

    # Before hours of training: a name may be misspelt.
    found = find_experiment(name)
    names = _choose(found, only)
    base = RunConfig.preset(preset)
    base = base.with_overrides(_read_budget(budget, name, base) | parse_changes(changes or []))

    workspace = Workspace(settings=Settings.from_environment())
    layout = workspace.layout
    windows = WindowSet.read(layout.windows(workspace.registry()[dataset].name))
    if found.trains:
        news = write_news(workspace, base.news.encoder, windows, log=log)
        trials = _train(workspace, name, found, names, windows, news, base, range(seeds))
    else:
        trials, news = _list_untrained(workspace, found, names, windows, dataset, runs or [])

    scores = score_trials(
        name,
        found,
        trials,
        NewsPool.read(news),
        commit=read_commit(),
        log=log,
        every=every,
        scopes=scopes,
        budget=_name_budget(budget, found),
    )
    path, _, _ = write_experiment(results or layout.results, name, found, dataset, trials, scores)
    typer.echo(f"Rows: {path}")
    typer.echo(f"Show them: compevo table {_find_table(name)} --results {path.parent}")


def _find_table(name: str) -> str:
    """Return the name of the table that shows an experiment."""
    tables = {"ablation": "ablation", "layers": "backbones", "news": "perturbation"}
    return tables.get(name, "sensitivity")


def _choose(experiment: "Experiment", only: str) -> list[str]:
    """Return the names of the changes to make.

    Raises:
        ConfigError: the experiment has no change of that name.
    """
    names = [one.strip() for one in only.split(",") if one.strip()] or experiment.list_names()
    if unknown := [one for one in names if one not in experiment.list_names()]:
        raise ConfigError(f"no change {unknown[0]!r}; known: {', '.join(experiment.list_names())}")
    return names


def _read_budget(name: str, experiment: str, preset: "RunConfig") -> dict[str, int]:
    """Return the settings of a budget.

    Raises:
        ConfigError: it is not one that a population has, or not one of this experiment.
    """
    from compevo_core.benchmark.agents import spend
    from compevo_core.benchmark.budgets import STANDARD, find_budget

    budget = find_budget(name)
    if budget == STANDARD:
        return {}
    if name not in ("quick", "small"):
        raise ConfigError(
            f"--budget {name} is of methods that are tuned; name quick, small or standard"
        )
    # A fixed number of updates would leave each number of passes the same training.
    if experiment == "epochs":
        raise ConfigError("epochs changes what a training may spend: name --budget standard")
    return spend(budget, preset)


def _name_budget(name: str, experiment: "Experiment") -> str:
    """Return what rows say: nothing of the preset's own budget, and of runs that are only read."""
    from compevo_core.benchmark.budgets import STANDARD

    return name if experiment.trains and name != STANDARD.name else ""


def _train(
    workspace: "Workspace",
    name: str,
    experiment: "Experiment",
    names: Sequence[str],
    windows: "WindowSet",
    news: Path,
    base: "RunConfig",
    seeds: Sequence[int],
) -> "list[Trial]":
    """Train every change under every seed; what was trained before is kept."""
    from compevo_core.baselines.shared_fits import SharedFits
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.experiments.run import Trial
    from compevo_core.experiments.sweeps import change_windows, configure_change
    from compevo_core.training.shared_stages import SharedStages
    from compevo_core.training.trainer import train
    from compevo_pipeline.assets.definition import fits_folder, stages_folder
    from compevo_pipeline.launchers.progress import describe_round
    from compevo_pipeline.storage.runs import make_run_name

    pool = NewsPool.read(news)
    fit = SharedFits(fits_folder(workspace.layout))
    # Changes that act after the supervised stage alone go on from its end.
    stages = stages_folder(workspace.layout, f"experiment-{name}-{windows.dataset}")
    trials = []
    # Changes of several experiments are one training where their settings are equal, as those that
    # the others are compared with are.
    label = f"experiment-{windows.dataset}"
    for change in names:
        prepared = change_windows(windows, experiment, change)
        for seed in seeds:
            config = configure_change(base.with_overrides({"run.seed": seed}), experiment, change)
            run = workspace.layout.run(make_run_name(label, config, prepared))
            typer.echo(f"{change}, seed {seed}: {run}")
            train(
                config,
                prepared.split("train"),
                prepared.split("val"),
                pool,
                run,
                on_round=lambda record: log.info(describe_round(record)),
                fit=fit,
                stages=SharedStages(stages),
            )
            trials.append(Trial(change=change, config=config, windows=prepared, run=run))

    # An interrupted command finds them; after the last training nobody asks again.
    shutil.rmtree(stages, ignore_errors=True)
    return trials


def _list_untrained(
    workspace: "Workspace",
    experiment: "Experiment",
    names: Sequence[str],
    windows: "WindowSet",
    dataset: str,
    runs: Sequence[Path],
) -> "tuple[list[Trial], Path]":
    """Return the trials of finished runs, and the folder of the news that they read."""
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.evaluation.seeds import read_seeds
    from compevo_core.experiments.run import list_trials_of_runs
    from compevo_pipeline.embedded_news import find_encoder, write_news
    from compevo_pipeline.storage.runs import find_current_run

    found = list(runs) or [find_current_run(workspace.layout, dataset)]
    configs = read_seeds(found)
    news = write_news(workspace, find_encoder(found[0]), windows, log=log)
    pairs = list(zip(found, configs, strict=True))
    return list_trials_of_runs(experiment, pairs, windows, NewsPool.read(news), names), news
