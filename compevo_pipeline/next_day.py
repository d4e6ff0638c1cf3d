"""The forecast of one day from what is stored: views, known errors, the sealed record.

What belongs here: the way from stores and the current run to an issued forecast, for the asset and
the command line alike. What does not: views (``compevo_core.data.build``), the record
(``compevo_core.issued``), reading sources.
"""

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from enum import StrEnum
from pathlib import Path

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.data.build import BuiltViews, build_views
from compevo_core.data.datasets import DATASETS, DatasetSpec
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.scoring import load_population
from compevo_core.issued import IssuedForecast, issue_forecast, read_issued, write_issued
from compevo_pipeline.provenance import read_commit
from compevo_pipeline.resources import Workspace
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage.runs import find_current_run


class KnownTo(StrEnum):
    """Until when a forecast of a day may know."""

    MIDNIGHT = "midnight"
    ISSUE_TIME = "issue-time"


def forecast_day(
    workspace: Workspace,
    dataset: str,
    day: date,
    known_to: KnownTo,
    *,
    clock: Callable[[], datetime],
    log: logging.Logger,
    run: Path | None = None,
    fit: FitBaseline = fit_baseline,
) -> tuple[IssuedForecast, Path]:
    """Issue the forecast of a day.

    Args:
        workspace: stores and folders.
        dataset: name of a declared data set whose windows are days.
        day: target day on the market's clock.
        known_to: midnight before the day, or the time at which the publisher's own forecast of it
            is issued.
        clock: gives the time of issue.
        log: gets a line about what is observed and issued.
        run: folder of the training run; the data set's current one unless given.
        fit: fits priors anew where the run's settings say so.

    Returns:
        The forecast and its folder.

    Raises:
        ConfigError: there is no such data set, or its views know no such instant.
        DataError: an input is missing or stale, no run has finished, or another forecast was issued
            for this day.
    """
    spec = _find_spec(dataset)
    origin_utc = datetime.combine(day, time(), UTC) - spec.market_offset
    until = origin_utc - _count_unknown(spec, known_to) * spec.step

    news = NewsPool.read(workspace.layout.news_pool)
    built = _build_views(workspace, spec, news, origin_utc, until)
    if built.left_out or not built.views:
        reasons = "; ".join(f"{entity}: {why}" for entity, why in built.left_out.items())
        raise DataError(
            f"{dataset} cannot be forecast for {day} as known until {until:%Y-%m-%d %H:%M} UTC "
            f"({reasons or 'no series'}): read the newest values, or name an earlier day"
        )

    forecaster = load_population(run or find_current_run(workspace.layout, dataset), news, fit=fit)
    # Errors that have become known since validation: the levels of the priors move on with them.
    windows = WindowSet.read(workspace.layout.windows(dataset))
    known = forecaster.select_unobserved(windows, until)
    observed = forecaster.observe(known) if len(known) else 0
    log.info(f"{dataset}: errors of {observed} windows since validation are known")

    forecast = issue_forecast(
        forecaster,
        built.views,
        news=news,
        market_offset=spec.market_offset,
        issued_at=clock(),
        commit=read_commit(),
    )
    folder = write_issued(workspace.layout.issued(dataset), forecast)
    log.info(f"{dataset}, {day}, known until {until:%Y-%m-%d %H:%M} UTC: {folder}")
    # The record that is kept: of a forecast that was issued before, the first one.
    return read_issued(folder), folder


def _find_spec(dataset: str) -> DatasetSpec:
    if dataset not in DATASETS:
        raise ConfigError(f"no data set {dataset!r}; known: {', '.join(DATASETS)}")

    spec = DATASETS[dataset]
    if not spec.align_to_market_day:
        raise ConfigError(
            f"{dataset} has no windows of one day; forecast one of "
            f"{', '.join(name for name, other in DATASETS.items() if other.align_to_market_day)}"
        )
    return spec


def _count_unknown(spec: DatasetSpec, known_to: KnownTo) -> int:
    """Return how many steps before the origin nobody has measured.

    Raises:
        ConfigError: the data set's views all know to midnight.
    """
    if known_to is KnownTo.MIDNIGHT:
        return 0
    if max(spec.unknown_steps) == 0:
        raise ConfigError(f"views of {spec.name} all know to midnight; leave --known-to as it is")
    return max(spec.unknown_steps)


def _build_views(
    workspace: Workspace, spec: DatasetSpec, news: NewsPool, origin_utc: datetime, until: datetime
) -> BuiltViews:
    tables = workspace.frame_store()
    return build_views(
        spec,
        workspace.series_store().read(spec.name),
        covariates=tables.read(spec.name, FrameKind.COVARIATES),
        # Those that have an embedding: an agent can read no others.
        articles=news.articles,
        published=tables.read(spec.name, FrameKind.PUBLISHED),
        origin_utc=origin_utc,
        information_until=until,
        step_covariates=tables.read(spec.name, FrameKind.STEP_COVARIATES),
    )
