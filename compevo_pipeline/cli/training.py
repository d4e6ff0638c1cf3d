"""``compevo fit``: train a method on a data set by its name.

What belongs here: reading its files and cutting its windows first. What does not: training
(``compevo_core.training``).
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_pipeline.cli import arguments

if TYPE_CHECKING:
    from compevo_core.data.window import WindowSet
    from compevo_pipeline.work.deployment import Deployment

log = logging.getLogger(__name__)


def fit(
    dataset: Annotated[str, typer.Argument(help="Name of a built-in or declared data set.")],
    method: Annotated[
        str | None,
        typer.Option(
            help="auto: the mixture of those that are good on validation, or the best (default "
            "for own data); compevo: a population of agents (default for built-in data); mixture; "
            "or a name, such as calendar-ridge, gbm or zero-shot:MODEL."
        ),
    ] = None,
    preset: arguments.OptionalPreset = None,
    changes: arguments.Changes = None,
    restart: arguments.Restart = False,
    fitted: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet file to write: forecasts of validation by a fit on only train, "
            "and the true values."
        ),
    ] = None,
) -> None:
    """Read a data set's files, cut its windows and train a method on them, in one go.

    `compevo forecast` and `compevo evaluate` then use the trained model. With the same files and
    settings, the command uses the existing model and does not train it again. Of a family it trains
    one block of series after the other.
    """
    from compevo_core.baselines import SharedFits
    from compevo_core.evaluation.method_choice import POPULATION, describe_static
    from compevo_core.runtime.usage import format_duration
    from compevo_core.training.trainer import train
    from compevo_pipeline.launchers.worker import describe_round
    from compevo_pipeline.storage.runs import make_run_name
    from compevo_pipeline.work.embedded_news import read_news
    from compevo_pipeline.work.methods import choose_name, plan_method, plan_preset

    deployment = arguments.open_deployment()
    blocks = deployment.registry.find_blocks(dataset)
    for block in blocks:
        typer.echo(f"{block}:")
        held_out = fitted and fitted.with_stem(f"{fitted.stem}-{block}")
        fit(block, method, preset, changes, restart, held_out)
    if blocks:
        return

    named = choose_name(dataset, method, preset)
    is_preset = named == POPULATION
    # Misspelt settings end before anything is read.
    config = arguments.resolve_config(preset or "default", changes if is_preset else None)
    changed = arguments.parse_changes(changes or [])
    layout = deployment.layout
    windows = _prepare_windows(deployment, dataset, config.encoder if is_preset else "")

    fits = SharedFits()
    started = time.monotonic()
    if is_preset:
        plan = plan_preset(config, dataset, preset or "default")
    else:
        plan = plan_method(
            deployment, dataset, windows, named, changed, fits=fits, on_step=arguments.show_progress
        )
        arguments.show_progress("")
    typer.echo(plan.sentence or f"method {plan.name}")
    if plan.trained is not None:
        typer.echo(f"trained before: {plan.trained}")
        _make_current(deployment, windows, plan.trained, fitted)
        return
    if unread := describe_static(plan.config, windows.split("train")):
        typer.echo(unread)

    news = read_news(deployment, plan.config.encoder, windows.views(), log=log)
    name = make_run_name(plan.label, plan.config, windows)
    if not is_preset:
        # Its fit, and its forecasts of validation: a part of the choice's work.
        most = format_duration(time.monotonic() - started)
        at_most = f", at most about {most} left" if plan.sentence else ""
        arguments.show_progress(f"training {plan.name} on train and validation{at_most}")
    train(
        plan.config,
        windows.split("train"),
        windows.split("val"),
        news,
        layout.run(name),
        resume=not restart,
        on_round=lambda record: arguments.show_progress(describe_round(record)),
        facts=plan.facts,
        fit=fits,
    )
    arguments.show_progress("")
    typer.echo(f"trained in {layout.run(name)}")
    _make_current(deployment, windows, layout.run(name), fitted)
    if plan.news:
        typer.echo(plan.news)
    typer.echo(f"Next: compevo forecast {dataset}, or compevo evaluate {dataset}")


def _make_current(
    deployment: "Deployment", windows: "WindowSet", run: Path, fitted: Path | None
) -> None:
    """Let a run forecast a data set, and report to Dagster what was made on the way.

    ``fitted`` is the file of its forecasts of validation.
    """
    from compevo_core.runtime.files import write_atomically
    from compevo_core.table.fitted import read_held_out
    from compevo_core.training.ensemble import read_experience, read_scaler
    from compevo_pipeline.config.settings import has_dagster_home
    from compevo_pipeline.storage.runs import set_current_run

    set_current_run(deployment.layout, windows.dataset, run.name)
    if fitted is not None:
        rows = read_held_out(
            read_experience(run), read_scaler(run), deployment.registry[windows.dataset].spec.step
        )
        is_parquet = fitted.suffix == ".parquet"
        write_atomically(fitted, rows.write_parquet if is_parquet else rows.write_csv)
    if has_dagster_home():
        from compevo_pipeline.defs.command_events import report_model

        report_model(deployment, windows, run)


def _prepare_windows(deployment: "Deployment", dataset: str, encoder: str) -> "WindowSet":
    """Read a data set's files and news, cut and store its windows, and print how many there are.

    ``encoder`` names the encoder of the news that the method reads; empty if it reads none.
    A file that cannot be read raises ``SourceError``, a file of news only if the method reads it.
    """
    from compevo_core.errors import SourceError
    from compevo_pipeline.config.settings import has_dagster_home
    from compevo_pipeline.work.ingest import ingest_dataset
    from compevo_pipeline.work.source_coverage import NEWS
    from compevo_pipeline.work.stored_windows import cut_windows, write_windows

    # A user's own data set has the articles that its windows hold.
    has_own_news = bool(deployment.registry[dataset].spec.news_source)
    for name in [dataset] if has_own_news else [dataset, NEWS]:
        arguments.show_progress(f"reading {name}")
        try:
            read = ingest_dataset(deployment, name, log=log)
        except SourceError as error:
            if name != NEWS or encoder:
                raise
            log.warning("no news, which the method does not read: %s", error)
            deployment.news_store().create()
            continue
        finally:
            arguments.show_progress("")
        arguments.show_counts(read)
        if has_dagster_home():
            from compevo_pipeline.defs.command_events import report_stored

            report_stored(deployment, name, read)

    arguments.show_progress("cutting windows")
    windows = cut_windows(deployment, dataset)
    write_windows(deployment, windows)
    arguments.show_progress("")
    by_split = ", ".join(
        f"{count} {name}" for name, count in windows.manifest["n_by_split"].items()
    )
    typer.echo(f"{len(windows)} windows ({by_split})")
    without = set(windows.manifest["series"]) - {view.series_id for view in windows.views()}
    if without:
        typer.echo(
            f"left out: {', '.join(sorted(without))}, as none of their whole windows is in train; "
            "set later days in [splits], or a shorter look-back"
        )
    return windows
