"""``compevo audit-news``."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    from compevo_core.data.arrays import FloatArray
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.scopes import Scope

log = logging.getLogger(__name__)

PROBE_ENCODER = "packaged:minilm"
"""Encoder of the headlines where no run names one."""


def audit_news(
    target: Annotated[
        str,
        typer.Argument(
            help="The name of a data set: its current run, or the probe where there is none; or "
            "the folder of a run, with --windows and --news."
        ),
    ],
    windows: Annotated[
        Path | None, typer.Option(help="Folder of windows, as the windows asset writes it.")
    ] = None,
    news: Annotated[Path | None, typer.Option(help="Folder of news and embeddings.")] = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Ask a linear probe, which takes a minute, and no run."),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder of rows: `results`, or that of the deployment for a name."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Score every n-th origin.")] = 1,
) -> None:
    """Say whether the articles help: own news, none, that of another day, irrelevant ones.

    Validation and test splits are measured apart. Rows go to news-audit-DATASET.csv, and the
    report and `compevo report` show them.
    """
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.report.audit_tables import format_audit

    run, windows_folder, news_folder, out = _find(target, windows, news, results, probe=probe)
    window_set = WindowSet.read(windows_folder)
    pool = NewsPool.read(news_folder)
    forecast, facts = _fit_probe(window_set, pool) if run is None else _load_run(run, pool)
    typer.echo(format_audit(_audit(window_set, pool, forecast, facts, out, every)))


def _find(
    target: str, windows: Path | None, news: Path | None, results: Path | None, *, probe: bool
) -> tuple[Path | None, Path, Path, Path]:
    """Return the run (None: the probe), the folders of windows and news, and that of results.

    Raises:
        ConfigError: a folder without its windows and news.
    """
    from compevo_core.data.window import WindowSet
    from compevo_pipeline.embedded_news import find_encoder, write_news
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings
    from compevo_pipeline.storage.runs import find_current_run, has_current_run

    if windows is not None and news is not None:
        run = None if probe else Path(target)
        return run, windows, news, results or Path("results")
    if windows is not None or news is not None or Path(target).is_dir():
        raise ConfigError("a folder needs --windows and --news; a data set's name needs neither")

    workspace = Workspace(settings=Settings.from_environment())
    layout = workspace.layout
    dataset = workspace.registry()[target].name
    current = None
    if not probe and has_current_run(layout, dataset):
        current = find_current_run(layout, dataset)
    encoder = PROBE_ENCODER if current is None else find_encoder(current)
    window_set = WindowSet.read(layout.windows(dataset))
    folder = write_news(workspace, encoder, window_set, log=log)
    return current, layout.windows(dataset), folder, results or layout.results


def _fit_probe(
    windows: "WindowSet", news: "NewsPool"
) -> "tuple[Callable[[Scope], FloatArray], dict[str, Any]]":
    from compevo_core.experiments.news_probe import NewsProbe

    fitted = NewsProbe.fit(windows.split("train"), windows.split("val"), news)
    facts = {"source": "probe", "penalty": fitted.penalty, "encoder": news.encoder_name}
    return lambda scope: fitted.predict(scope.windows.views()), facts


def _load_run(
    run: Path, news: "NewsPool"
) -> "tuple[Callable[[Scope], FloatArray], dict[str, Any]]":
    from compevo_core.evaluation.population_forecast import forecast_scopes
    from compevo_core.evaluation.scoring import load_population

    forecaster = load_population(run, news)
    facts = {
        "source": "run",
        "config_hash": forecaster.config.hash,
        "artifact_hash": forecaster.artifact_hash,
        "encoder": news.encoder_name,
    }
    return lambda scope: forecast_scopes(forecaster, [scope], log)[0].values_NH, facts


def _audit(
    windows: "WindowSet",
    news: "NewsPool",
    forecast: "Callable[[Scope], FloatArray]",
    facts: dict[str, Any],
    results: Path,
    every: int,
) -> list[dict[str, Any]]:
    """Measure validation and test apart, write the rows and return them."""
    import polars as pl

    from compevo_core.agents.logic_grammar import TOPICS
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.experiments.news_audit import audit_scope, write_audit
    from compevo_core.experiments.perturbations import Relevance
    from compevo_core.lm.encoder import load_encoder
    from compevo_pipeline.provenance import read_commit

    relevance = Relevance(news, load_encoder(news.encoder_name).encode(TOPICS))
    # Validation first: what a user may act on, while the test split stays for the last word.
    scopes = [
        scope
        for split in ("val", "test")
        for scope in select_scopes(windows, split=split, every=every)
    ]
    named = facts | {"commit": read_commit()}
    rows = pl.concat([audit_scope(scope, forecast, relevance, TOPICS, named) for scope in scopes])
    path = write_audit(results, rows)
    typer.echo(f"Rows: {path}\n")
    return rows.to_dicts()
