"""Commands of experiments: ``compevo paper experiment NAME``, planted news and real text.

What belongs here: the options that each of them takes, and what is printed. What does not: training
and scoring (``paper.runs``, ``compevo_core.paper``), tables (``paper.commands``).
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from compevo_core.errors import ConfigError
from compevo_pipeline.cli import arguments

if TYPE_CHECKING:
    import click

    from compevo_core.config.run import RunConfig

BuiltDataset = Annotated[str, typer.Argument(help="Name of a data set whose windows are built.")]
Preset = Annotated[str, typer.Option(help=f"{arguments.PRESETS}.")]
log = logging.getLogger(__name__)

_ABLATION = "ablation"
TABLES = {_ABLATION: _ABLATION, "parts": _ABLATION, "layers": "backbones", "news": "perturbation"}
"""Table that shows an experiment, if it is not ``sensitivity``."""

_PAPER = "paper"

Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]


class _ByName(TyperGroup):
    """A group that takes ``NAME DATASET`` for ``paper NAME DATASET``."""

    def resolve_command(
        self, ctx: "click.Context", args: list[str]
    ) -> "tuple[str | None, click.Command | None, list[str]]":
        """Return the command that the first word names, or the command ``paper``."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)

        from compevo_core.paper.changes import EXPERIMENTS

        if args[0] not in EXPERIMENTS:
            others = [name for name in self.commands if name != _PAPER]
            known = ", ".join([*EXPERIMENTS, *others])
            raise ConfigError(f"no experiment {args[0]!r}; known: {known}")
        return super().resolve_command(ctx, [_PAPER, *args])


experiments = typer.Typer(
    cls=_ByName,
    no_args_is_help=True,
    help="Run one of the paper's experiments (`compevo paper experiment NAME DATASET`), the "
    "control experiment, or one that reads text.",
)


@experiments.command(_PAPER, cls=arguments.DocumentedCommand)
def run_paper(
    name: Annotated[
        str,
        typer.Argument(
            help="ablation, lambda-pg, lambda-div, lambda-prune, tau, beta, t-gen, agents, epochs, "
            "instruction, news, weather, layers or parts."
        ),
    ],
    dataset: BuiltDataset,
    only: Annotated[
        str, typer.Option(help="Names of changes, separated by commas (default: all).")
    ] = "",
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="Finished run of the full method, for experiments that train nothing (tau, news); "
            "repeat for several seeds (default: the data set's current run).",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Training budget: quick, small or standard (the preset's own).")
    ] = "standard",
    preset: Preset = "default",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    every: arguments.Every = 1,
    scopes: Annotated[
        int, typer.Option(min=1, help="Number of test sets to score, in the data set's order.")
    ] = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Run one of the paper's experiments; the word `paper` may be left out.

    Changes one setting at a time and compares each variant with the reference on the same windows.
    Rows go to experiment-NAME-DATASET.csv (ablation: ablation-DATASET.csv); `compevo paper table`
    compares them with the paper. `parts` changes four settings, and scores validation.
    """
    from compevo_core.config.run import RunConfig
    from compevo_core.paper.changes import find_experiment
    from compevo_pipeline.launchers.worker import run_jobs
    from compevo_pipeline.paper.runs import ExperimentRun, run_experiment

    # Before hours of training: a name may be misspelt.
    definition = find_experiment(name)
    selected = definition.select(split_names(only))
    base = RunConfig.preset(preset)
    base = base.with_overrides(
        _read_budget(budget, name, base) | arguments.parse_changes(changes or [])
    )

    arguments.log_progress(log)
    deployment = arguments.open_deployment()
    plan = ExperimentRun(
        experiment=definition,
        changes=selected,
        dataset=deployment.registry[dataset].name,
        base=base,
        seeds=range(seeds),
        runs=runs or [],
        every=every,
        scopes=scopes,
        budget=budget if definition.trains and budget != "standard" else "",
    )
    path, _, _ = run_experiment(
        deployment, plan, train=lambda jobs: run_jobs(jobs, log), log=log, results=results
    )
    typer.echo(f"Rows: {path}")
    table = TABLES.get(name, "sensitivity")
    typer.echo(f"Show them: compevo paper table {table} --results {path.parent}")


@experiments.command("control", cls=arguments.DocumentedCommand)
def run_control(
    dataset: BuiltDataset,
    effects: Annotated[
        str,
        typer.Option(
            help="Effects of a planted topic, in standard deviations of the error of a calendar "
            "ridge, separated by commas."
        ),
    ] = "0,0.5,1,2,4",
    world: Annotated[
        str,
        typer.Option(
            help="plain, regional (only news of the home region has an effect), many-topics "
            "(three of a hundred topics have one), events (heat waves, holidays, outages and "
            "maintenance, in articles of three lengths), niches, niches-wide (eight of forty or a "
            "hundred topics) or niches-regional (another topic in each region)."
        ),
    ] = "plain",
    arms: Annotated[
        str,
        typer.Option(
            help="What to compare: reading (who reads which news) or search (who writes new "
            "logics)."
        ),
    ] = "reading",
    only: Annotated[
        str, typer.Option(help="Names of arms, separated by commas (default: all).")
    ] = "",
    series: Annotated[
        str, typer.Option(help="Series to use, separated by commas (default: all).")
    ] = "",
    preset: Preset = "specialists",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Plant news with a known effect in a data set's windows, and measure how much is found.

    Rows go to control-DATASET.csv and replace rows with the same world, effect, seed and arm.
    """
    from compevo_core.paper.control import ControlPlan
    from compevo_core.paper.report.evidence_tables import (
        control_table,
        list_controls,
        list_search_tables,
    )
    from compevo_pipeline.paper.runs import run_control_on
    from compevo_pipeline.storage.code_versions import read_commit

    config = arguments.resolve_config(preset, changes)
    plan = ControlPlan(
        config=config,
        world=world,
        series=split_names(series),
        compares=arms,
        only=split_names(only),
        effects=_read_effects(effects),
        seeds=range(seeds),
        commit=read_commit(),
    )

    arguments.log_progress(log)
    path, rows = run_control_on(
        arguments.open_deployment(), dataset, plan, log=log, results=results
    )
    made = rows.to_dicts()
    tables = [*map(control_table, list_controls(made)), *list_search_tables(made)]
    typer.echo("\n\n".join(table.to_markdown() for table in tables))
    typer.echo(f"\nRows: {path}")


@experiments.command("specialists", cls=arguments.DocumentedCommand)
def run_specialists(
    dataset: BuiltDataset,
    worlds: Annotated[
        str, typer.Option(help="Worlds to cut it to, separated by commas (default: all).")
    ] = "",
    effects: Annotated[
        str, typer.Option(help="Effects to cut it to, separated by commas (default: all).")
    ] = "",
    arms: Annotated[
        str, typer.Option(help="Arms to cut it to, separated by commas (default: all).")
    ] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Most seeds of a world (default: five or ten).")
    ] = None,
    preset: Preset = "specialists",
    changes: arguments.Changes = None,
    results: arguments.OptionalResults = None,
) -> None:
    """Measure what agents that are read together add, in worlds that were fixed beforehand.

    Rows go to specialists-DATASET.csv after each world; rows with the same settings are not made
    again.
    """
    import polars as pl

    from compevo_core.paper.control import list_cells
    from compevo_core.paper.planted_news import SPECIALISTS_SCHEMA
    from compevo_core.paper.report.evidence_tables import format_evidence
    from compevo_pipeline.paper.runs import run_specialists_on
    from compevo_pipeline.storage.code_versions import read_commit

    cells = list_cells(
        arguments.resolve_config(preset, changes),
        worlds=split_names(worlds),
        effects=_read_effects(effects),
        seeds=seeds,
        only=split_names(arms),
        commit=read_commit(),
    )
    arguments.log_progress(log)
    path = run_specialists_on(arguments.open_deployment(), dataset, cells, log=log, results=results)
    rows = pl.read_csv(path, schema_overrides=SPECIALISTS_SCHEMA).to_dicts()
    typer.echo(f"{format_evidence('specialists', rows)}\n\nRows: {path}")


@experiments.command("text", cls=arguments.DocumentedCommand)
def run_text(
    name: Annotated[str, typer.Argument(help="weather, demand, ireland, ireland-earlier or toy.")],
    preset: Preset = "specialists",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Read real text about the day that is forecast, from the archive.

    Weather has captions of the same day (perfect foresight), demand has worded forecasts, ireland
    the words of the day's news titles, ireland-earlier the words of 35 days before, and toy a sine
    whose changes of period are announced. Rows go to text-*.csv.
    """
    from compevo_core.paper.control import TextPlan
    from compevo_core.paper.report.evidence_tables import format_evidence
    from compevo_pipeline.paper.runs import run_text_on
    from compevo_pipeline.storage.code_versions import read_commit

    config = arguments.resolve_config(preset, changes)
    arguments.log_progress(log)
    plan = TextPlan(config=config, seeds=range(seeds), commit=read_commit())
    path, rows = run_text_on(arguments.open_deployment(), name, plan, log=log, results=results)
    typer.echo(f"{format_evidence('text', rows.to_dicts())}\n\nRows: {path}")


@experiments.command("context", cls=arguments.DocumentedCommand)
def run_context(
    reader: Annotated[
        str,
        typer.Option(
            help="What reads the text: none (seconds), local (the preset's backbone: hours on "
            "one core) or endpoint (COMPEVO_JUDGE_URL, COMPEVO_JUDGE_MODEL)."
        ),
    ] = "none",
    samples: Annotated[int, typer.Option(min=2, help="Answers of the reader to each task.")] = 5,
    preset: Preset = "default",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Forecast the public tasks of Context-is-Key, whose text gives the answer.

    Nothing is trained. Rows go to context-is-key.csv, next to the published scores.
    """
    from compevo_core.paper.context_is_key import write_by_backbone, write_by_endpoint
    from compevo_core.paper.report.evidence_tables import format_context
    from compevo_pipeline.paper.runs import read_endpoint_judge, run_context_on

    if reader not in ("none", "local", "endpoint"):
        raise ConfigError(f"--reader {reader!r} is not one of none, local, endpoint")
    arguments.log_progress(log)
    config = arguments.resolve_config(preset, changes).backbone
    write, model, rows = None, "", []
    for seed in range(seeds):
        if reader == "local":
            from compevo_core.lm.backbone import load_backbone

            write, model = write_by_backbone(load_backbone(config), seed), config.name_or_path
        elif reader == "endpoint":
            judge = read_endpoint_judge()
            write, model = write_by_endpoint(judge.transport, judge.model), judge.name
        path, made = run_context_on(
            arguments.open_deployment(),
            write,
            model=model,
            samples=samples,
            seed=seed,
            log=log,
            results=results,
        )
        rows += made.to_dicts()
    typer.echo(f"{format_context(rows)}\n\nRows: {path}")


def _read_effects(effects: str) -> list[float]:
    try:
        return [float(effect) for effect in split_names(effects)]
    except ValueError:
        raise ConfigError(f"--effects {effects} is not a list of numbers: write 0,1,2") from None


def _read_budget(name: str, experiment: str, preset: "RunConfig") -> dict[str, int]:
    from compevo_core.paper.agent_systems import spend
    from compevo_core.paper.declared import find_budget

    budget = find_budget(name)
    if name == "standard":
        return {}
    if name not in ("quick", "small"):
        raise ConfigError(
            f"--budget {name} is for methods that are tuned: name quick, small or standard"
        )
    # A fixed number of updates would leave each number of passes the same training.
    if experiment == "epochs":
        raise ConfigError("epochs changes the training budget itself: name --budget standard")
    return spend(budget, preset)


def split_names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
