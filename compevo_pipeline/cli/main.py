"""The command line: ``compevo train | predict | evaluate | lud | table | report | params | demo``.

What belongs here: arguments, one call into the library each, and what is printed.
What does not: anything worth calling from elsewhere. Heavy modules are imported inside the commands, so that
``compevo --help`` answers at once.
"""

import json
import logging
import os
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from compevo_core.config import RunConfig
from compevo_core.errors import CompEvoError, ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="News-driven forecasts by a competing, evolving population of language-model agents.",
)

Windows = Annotated[
    Path, typer.Option(help="Folder of windows (windows.parquet and manifest.json).")
]
News = Annotated[Path, typer.Option(help="Folder of news and embeddings.")]
Run = Annotated[Path, typer.Argument(help="Folder of a training run.")]
Results = Annotated[Path, typer.Argument(help="Folder of result rows (CSV).")]
Chosen = Annotated[str, typer.Option(help="Split to use: val, test or inference.")]
Subset = Annotated[str, typer.Option(help="Named subset to use instead of the whole split.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; an error of this project ends as one line and exit code 1."""
    try:
        app(args=arguments, standalone_mode=True)
    except CompEvoError as error:
        typer.echo(f"compevo: {error}", err=True)
        raise SystemExit(1) from error


@app.command()
def train(
    windows: Windows,
    news: News,
    out: Annotated[
        Path, typer.Option(help="Run folder; an unfinished run of the same identity goes on.")
    ],
    preset: Annotated[
        str, typer.Option(help="paper, default, tiny, demo, or a path to a .toml file.")
    ] = "default",
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting: population.agents=3.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over instead of going on.")
    ] = False,
) -> None:
    """Train a population on the train split; validation chooses the round.

    Under torchrun the processes share the agents, and the first one alone prints.
    """
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.distributed import process_group, torchrun_rank
    from compevo_core.training.trainer import train as run

    config = RunConfig.preset(preset).with_overrides(parse_changes(changes or []))
    found = WindowSet.read(windows)
    rank, processes, local_rank = torchrun_rank(os.environ)
    with process_group(rank, processes, local_rank):
        summary = run(
            config,
            found.split("train"),
            found.split("val"),
            NewsPool.read(news),
            out,
            resume=not restart,
            on_round=lambda record: typer.echo(round_line(record)),
        )
    if rank == 0:
        typer.echo(json.dumps(summary, indent=1, sort_keys=True))


@app.command()
def predict(
    run: Run,
    windows: Windows,
    news: News,
    out: Annotated[Path, typer.Option(help="Parquet file to write: one row a window and step.")],
    split: Chosen = "inference",
    subset: Subset = "",
) -> None:
    """Forecast the chosen windows with a trained population; nothing is updated."""
    import polars as pl

    from compevo_core.data.news_pool import NewsPool
    from compevo_core.forecaster import CompEvoForecaster

    views = choose(windows, split, subset).views()
    forecast_NH = CompEvoForecaster.load(run, NewsPool.read(news)).predict(views)
    rows = [
        {
            "window_id": view.window_id,
            "entity": view.entity,
            "start_utc": view.origin_utc + step * view.step,
            "step": step,
            "value": float(value),
            "unit": view.unit,
        }
        for view, line in zip(views, forecast_NH, strict=True)
        for step, value in enumerate(line)
    ]
    pl.DataFrame(rows).write_parquet(out)
    typer.echo(f"{len(views)} windows, {len(rows)} values: {out}")


@app.command()
def evaluate(
    run: Run,
    windows: Windows,
    news: News,
    results: Annotated[
        Path, typer.Option(help="Folder that rows, paired tests and configuration are written to.")
    ] = Path("results"),
    experiment: Annotated[
        str, typer.Option(help="Name of the experiment; also the file's name.")
    ] = "main",
    split: Chosen = "test",
    subset: Subset = "",
    every: Annotated[int, typer.Option(min=1, help="Score every n-th origin.")] = 1,
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of the baselines that draw random numbers.")
    ] = 5,
) -> None:
    """Score a trained population and every baseline that can forecast the chosen windows.

    Writes result rows and paired tests; forecasts and panels go into the run folder.
    """
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.evaluation.score_files import write_population_scores
    from compevo_core.evaluation.scoring import load_population, score_with_baselines
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.provenance import commit

    window_set = WindowSet.read(windows)
    pool = NewsPool.read(news)
    population = load_population(run, pool)
    scores = score_with_baselines(
        population,
        select_scopes(window_set, split=split, subset=subset, every=every),
        train=window_set.split("train"),
        news=pool,
        experiment=experiment,
        commit=commit(),
        log=logging.getLogger(__name__),
        seeds=seeds,
    )
    write_population_scores(
        scores,
        population.config,
        results,
        RunFolder(run),
        rows_name=experiment,
        paired_name=f"paired-{experiment}",
    )
    typer.echo(headline_of(results))


@app.command()
def lud(
    run: Run,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="local or endpoint (COMPEVO_JUDGE_URL); may be given twice."),
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=1, help="Updates of an agent that a judge sees, evenly spaced.")
    ] = 8,
    encoder: Annotated[str, typer.Option(help="Encoder of the logics; empty: the run's own.")] = "",
) -> None:
    """Measure how much the logics of a run changed (LUD); writes lud.json and lud.csv into its folder."""
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.lud.measure import BackboneJudge, measure_lud
    from compevo_core.training.artifact import read_config

    trained, judges = read_config(run), []
    for name in judge or ["local"]:
        if name not in ("local", "endpoint"):
            raise ConfigError(f"--judge {name!r} is not local or endpoint")
        judges.append(BackboneJudge(trained.backbone) if name == "local" else _endpoint_judge())
    found = measure_lud(run, judges, load_encoder(encoder or trained.news.encoder), pairs=pairs)
    typer.echo(json.dumps(found, indent=1))


def _endpoint_judge() -> Any:
    from compevo_pipeline.judges.judges import endpoint_from_environment

    return endpoint_from_environment()


@app.command()
def table(results: Results = Path("results")) -> None:
    """Print the result tables as Markdown."""
    typer.echo(headline_of(results))


@app.command()
def report(
    results: Results,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders to show.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    mode: Annotated[
        str, typer.Option(help="What the data is: sample, archive or live.")
    ] = "sample",
) -> None:
    """Write the static report page."""
    from compevo_core.report.page import write_report

    typer.echo(write_report(_inputs(results, runs or [], mode), out))


@app.command()
def params(
    backbone: Annotated[str, typer.Option(help="Architecture to count for.")] = "llama-3.1-8b",
    agents: Annotated[int, typer.Option(help="Number of agents.")] = 10,
    rank: Annotated[int, typer.Option(help="Adapter rank.")] = 16,
) -> None:
    """Print trainable parameters by method and part, as JSON."""
    from compevo_core.lm.parameter_counts import build_parameter_report

    typer.echo(json.dumps(build_parameter_report(backbone, agents=agents, rank=rank), indent=1))


@app.command()
def demo() -> None:
    """Run everything end to end on the sample data (what `make demo` runs)."""
    from compevo_pipeline.cli import demo as run_demo

    raise SystemExit(run_demo.main([]))


def choose(windows: Path, split: str, subset: str) -> Any:
    """The windows of a split or, if named, of a subset."""
    from compevo_core.data.window import WindowSet

    found = WindowSet.read(windows)
    chosen = found.subset(subset) if subset else found.split(split)
    if not len(chosen):
        raise ConfigError(
            f"{windows}: no window in {subset or split}; name another --split or --subset"
        )
    return chosen


def headline_of(results: Path) -> str:
    """The result tables of a folder of rows, as Markdown."""
    from compevo_core.report.markdown import headline_markdown

    return headline_markdown(_inputs(results, [], "archive"))


def _inputs(results: Path, runs: Sequence[Path], mode: str) -> Any:
    from compevo_core.report.inputs import read_inputs

    return read_inputs(results, runs, mode=mode, generated_at=datetime.now(UTC))


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """``population.agents=3`` as {"population.agents": 3}; the value is read as TOML, else as text."""
    parsed: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--set {change!r} is not section.setting=value, for example population.agents=3"
            )
        try:
            parsed[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[name] = text
    return parsed


def round_line(record: dict[str, Any]) -> str:
    """One round as one line: how far, how well, how long still."""
    left = int(record["eta_seconds"])
    best = max(record["rewards"])
    validated = record.get("val_mae_scaled")
    tail = "" if validated is None else f"  validation {validated:.4f}"
    return (
        f"round {record['round'] + 1}/{record['rounds']}  loss {record['loss_pred']:.4f}  best reward {best:.4f}{tail}"
        f"  {left // 60}:{left % 60:02d} left"
    )


if __name__ == "__main__":
    main()
