"""The forecast of one day from what is stored: views, known errors, the sealed record.

What belongs here: the way from stores and the current run to an issued forecast, for the asset and
the command line alike, and the comparison of an issued forecast with what is stored now. What does
not: what is stored and whether it is enough (``compevo_pipeline.next_day_inputs``), the record
(``compevo_core.issued``).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.data.build import find_next_origin
from compevo_core.data.datasets import DatasetSpec
from compevo_core.errors import CompEvoError, ConfigError, DataError
from compevo_core.evaluation.scoring import load_population
from compevo_core.issued import (
    IssuedForecast,
    find_issued,
    hash_views,
    is_issued,
    issue_forecast,
    read_issued,
    write_issued,
)
from compevo_core.training.manifest import verify_manifest
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.embedded_news import find_encoder, read_news
from compevo_pipeline.next_day_inputs import (
    KnownTo,
    NewsRule,
    Origin,
    StoredFrames,
    check_inputs,
)
from compevo_pipeline.provenance import read_commit
from compevo_pipeline.resources import Workspace
from compevo_pipeline.storage.runs import find_current_run, has_current_run


@dataclass(frozen=True, slots=True, kw_only=True)
class DayForecast:
    """The forecast of a day, as it was issued.

    Attributes:
        forecast: the record.
        folder: where it lies.
        is_new: whether it was issued just now.
        notes: what a reader should know: old news, or that the stored data or the current model are
            no longer those that it was made of.
    """

    forecast: IssuedForecast
    folder: Path
    is_new: bool
    notes: tuple[str, ...] = ()


def forecast_day(
    workspace: Workspace,
    dataset: str,
    day: date | None,
    known_to: KnownTo | None,
    *,
    clock: Callable[[], datetime],
    log: logging.Logger,
    run: Path | None = None,
    fit: FitBaseline = fit_baseline,
    news_rule: NewsRule | None = None,
) -> DayForecast:
    """Issue the forecast of a day, or read the one that was issued before.

    A day that was issued is verified and returned without any inference, whatever is stored now.

    Args:
        workspace: stores and folders.
        dataset: name of a declared data set, built-in or the user's own.
        day: first target day on the market's clock; None for the newest one that can be forecast.
        known_to: midnight before the day, or the time at which the publisher's own forecast of it
            is issued; None for the earlier one that the data set's views know.
        clock: gives the time of issue.
        log: gets a line about what is observed and issued, and the notes.
        run: folder of the training run; the data set's current one unless given.
        fit: fits priors anew where the run's settings say so.
        news_rule: how old the news may be; ``NewsRule()`` unless given.

    Raises:
        ConfigError: there is no such data set, or its views know no such instant.
        DataError: an input is missing or stale, or no run has finished.
        CheckpointMismatch: the issued forecast was altered since.
    """
    spec = find_daily_spec(workspace, dataset)
    day = day or find_next_day(workspace, dataset)
    origin = Origin.of(spec, day, known_to)
    folder = find_issued(workspace.layout.issued(dataset), origin.origin_utc, origin.until)

    if is_issued(folder):
        forecast = read_issued(folder)
        notes = _compare_with_stored(workspace, spec, origin, forecast, run)
        found = DayForecast(forecast=forecast, folder=folder, is_new=False, notes=notes)
        issued_at = forecast.facts["issued_at"]
        log.info(f"{dataset}, {day}: was issued {issued_at}, and is returned as it is: {folder}")
    else:
        found = _issue(
            workspace, spec, origin, news_rule or NewsRule(), clock=clock, log=log, run=run, fit=fit
        )
        log.info(f"{dataset}, {day}, known until {origin.until:%Y-%m-%d %H:%M} UTC: {folder}")

    for note in found.notes:
        log.warning(f"{dataset}, {day}: {note}")
    return found


def issue_next_day(
    workspace: Workspace,
    dataset: str,
    *,
    clock: Callable[[], datetime],
    log: logging.Logger,
    fit: FitBaseline = fit_baseline,
) -> DayForecast:
    """Forecast the newest day that can be forecast, from as early as views allow.

    Raises:
        ConfigError: there is no such data set, or its windows do not start with days.
        DataError: as for :func:`forecast_day`.
    """
    return forecast_day(workspace, dataset, None, None, clock=clock, log=log, fit=fit)


def find_next_day(workspace: Workspace, dataset: str) -> date:
    """Return the newest day, on the market's clock, that every series can be forecast for.

    Raises:
        ConfigError: there is no such data set, or its windows do not start with days.
        DataError: no value of the data set is stored.
    """
    spec = find_daily_spec(workspace, dataset)
    series = workspace.series_store().read(dataset)
    return (find_next_origin(spec, series) + spec.market_offset).date()


def find_daily_spec(workspace: Workspace, dataset: str) -> DatasetSpec:
    """Return the declaration of a data set whose windows start with a day.

    Raises:
        ConfigError: there is no such data set.
    """
    registry = workspace.registry()
    spec = registry[dataset].spec
    if not spec.starts_with_days:
        can = [name for name in registry if registry[name].spec.starts_with_days]
        raise ConfigError(
            f"{dataset} has no windows that start with a day; forecast one of {', '.join(can)}"
        )
    return spec


def _issue(
    workspace: Workspace,
    spec: DatasetSpec,
    origin: Origin,
    news_rule: NewsRule,
    *,
    clock: Callable[[], datetime],
    log: logging.Logger,
    run: Path | None,
    fit: FitBaseline,
) -> DayForecast:
    frames = StoredFrames.read(workspace, spec)
    inputs = check_inputs(frames, origin, news_rule)
    if inputs.missing or inputs.newest is None:
        raise DataError(
            f"{spec.name} cannot be forecast for {origin.day} as known until "
            f"{origin.until:%Y-%m-%d %H:%M} UTC ({'; '.join(inputs.missing)}): read the newest "
            "values, or name an earlier day"
        )

    run = run or find_current_run(workspace.layout, spec.name)
    later = frames.build_later_windows()
    views = (*inputs.built.views, *later.views())
    news = read_news(workspace, find_encoder(run), views, log=log)
    forecaster = load_population(run, news, fit=fit)
    # Errors that have become known since validation: the levels of the priors move on with them.
    known = forecaster.select_unobserved(later, origin.until)
    observed = forecaster.observe(known) if len(known) else 0
    log.info(f"{spec.name}: errors of {observed} windows since validation are known")

    forecast = issue_forecast(
        forecaster,
        inputs.built.views,
        news=news,
        market_offset=spec.market_offset,
        issued_at=clock(),
        commit=read_commit(),
        newest=inputs.newest.as_facts(),
    )
    folder = write_issued(workspace.layout.issued(spec.name), forecast)
    # The record that is kept: where two runs issue at once, the first one's.
    return DayForecast(
        forecast=read_issued(folder), folder=folder, is_new=True, notes=inputs.warnings
    )


def _compare_with_stored(
    workspace: Workspace,
    spec: DatasetSpec,
    origin: Origin,
    forecast: IssuedForecast,
    run: Path | None,
) -> tuple[str, ...]:
    """Return what would be another today; the record stays as it is."""
    notes = []
    try:
        views = StoredFrames.read(workspace, spec).build_views(origin).views
        revised = not views or hash_views(views) != forecast.facts["views_hash"]
    except CompEvoError as error:
        notes.append(f"what it was made of is no longer stored: {error}")
    else:
        if revised:
            notes.append(
                "the stored data were revised since: views made of them today have another hash"
            )

    if run is not None or has_current_run(workspace.layout, spec.name):
        run = run or find_current_run(workspace.layout, spec.name)
        model_hash = str(verify_manifest(RunFolder(run).model)["hash"])
        if model_hash != forecast.facts["artifact_hash"]:
            notes.append(
                f"model {model_hash[:16]} would forecast it today; it was issued by "
                f"{str(forecast.facts['artifact_hash'])[:16]}"
            )
    return tuple(notes)
