"""Demand of Australia's market and AEMO's forecasts of it, as one frame.

What belongs here: joining what is stored of operational demand with what AEMO had published of it a
day ahead. What does not: fetching (``work.ingest``), parsing (``sources.aemo``). AEMO renamed its
monthly files in August 2024; the sources read both names.

    from compevo_pipeline.work.nem_data import read_nem

    frame = read_nem("2026-02", "2026-03")
"""

import logging
from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.data.steps import MONTH, count_steps, shift
from compevo_core.errors import ConfigError, DataError
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.work.deployment import Deployment, utc_now
from compevo_pipeline.work.ingest import ingest_dataset
from compevo_pipeline.work.source_coverage import backfill, choose_feeds

log = logging.getLogger(__name__)

DATASET = ELECTRICITY_OPERATIONAL.name
MARKET_OFFSET = timedelta(hours=10)  # of the market's clock from UTC, all year
_PREFIX = "AEMO/OPERATIONAL_DEMAND/"
_POE = {"poe10_mw": 0.9, "poe50_mw": 0.5, "poe90_mw": 0.1}
"""A level that is exceeded in 10 of 100 cases is the quantile at 0.9."""


def read_nem(first: str, last: str = "", *, deployment: Deployment | None = None) -> pl.DataFrame:
    """Return demand and AEMO's day-ahead forecast by region and half-hour, for whole months.

    Months that are not stored are read first: from the files of the mode, or in live mode from
    AEMO, which keeps forecasts for about 13 months.

    Months are YYYY-MM on the market's clock; without ``last`` it is the first one.

    Returns:
        ``region``, ``start`` (market's clock, UTC+10, of each half-hour), ``start_utc``,
        ``demand_mw`` (null where nothing was measured), ``poe10_mw``, ``poe50_mw``, ``poe90_mw``
        and ``known_at_utc``: the newest forecast that was published before the day began, null
        where there is none.

    Raises:
        ConfigError: a month is none, or lies before the first one.
        DataError: nothing is stored of a month, and no source has it.
    """
    deployment = deployment or Deployment(settings=Settings.from_environment())
    months = _list_months(first, last or first)
    demand = _read_demand(deployment, months)
    if _list_missing(demand, months):
        _fetch(deployment, months)
        demand = _read_demand(deployment, months)
    if missing := _list_missing(demand, months):
        raise DataError(
            f"{deployment.data_mode} mode has no demand of {', '.join(missing)}: give its files in "
            "COMPEVO_ARCHIVE, or ask AEMO with COMPEVO_MODE=live"
        )
    published = deployment.frame_store().read(DATASET, FrameKind.PUBLISHED)
    return _join_forecasts(demand, published)


def _read_month(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a month: give YYYY-MM") from error


def _list_months(first: str, last: str) -> list[datetime]:
    """Return the first instant of each month, on the market's clock read as UTC."""
    start, end = _read_month(first), _read_month(last)
    if end < start:
        raise ConfigError(f"{last} lies before {first}: give the first month first")
    return [shift(start, ahead, MONTH) for ahead in range(count_steps(start, end, MONTH) + 1)]


def _list_missing(demand: pl.DataFrame, months: list[datetime]) -> list[str]:
    there = {*demand["start"].dt.strftime("%Y-%m")}
    return [name for month in months if (name := f"{month:%Y-%m}") not in there]


def _read_demand(deployment: Deployment, months: list[datetime]) -> pl.DataFrame:
    """Return what is stored of some months; no rows where nothing is."""
    try:
        series = deployment.series_store().read(DATASET, series_prefix=_PREFIX)
    except DataError:
        return pl.DataFrame(schema={"region": pl.String(), "start": pl.Datetime("us")})

    first, end = months[0] - MARKET_OFFSET, shift(months[-1], 1, MONTH) - MARKET_OFFSET
    return (
        series.filter(pl.col("start_utc").is_between(first, end, closed="left"))
        .sort("start_utc", "fetched_at")
        .unique(["series_id", "start_utc"], keep="last", maintain_order=True)
        .select(
            pl.col("series_id").str.strip_prefix(_PREFIX).alias("region"),
            (pl.col("start_utc") + MARKET_OFFSET).dt.replace_time_zone(None).alias("start"),
            "start_utc",
            pl.col("value").alias("demand_mw"),
        )
        .sort("region", "start_utc")
    )


def _fetch(deployment: Deployment, months: list[datetime]) -> None:
    if deployment.data_mode is not Mode.LIVE:
        ingest_dataset(deployment, DATASET, clock=utc_now, log=log)
        return
    feeds = choose_feeds(deployment.feeds(), DATASET, None)
    since, until = months[0] - MARKET_OFFSET, shift(months[-1], 1, MONTH) - MARKET_OFFSET
    backfill(deployment, DATASET, feeds, since=since, until=until, clock=utc_now, log=log)


def _join_forecasts(demand: pl.DataFrame, published: pl.DataFrame | None) -> pl.DataFrame:
    """Add the newest forecast of each half-hour that was published before its day began."""
    known_at = pl.col("available_at")
    day = (pl.col("start_utc") + MARKET_OFFSET).dt.truncate("1d") - MARKET_OFFSET
    empty = {
        "entity": pl.String(),
        "start_utc": demand.schema["start_utc"],
        "quantile": pl.Float64(),
    }
    rows = pl.DataFrame(schema=empty | {"value": pl.Float64(), "available_at": empty["start_utc"]})

    ahead = (rows if published is None else published).filter(known_at < day)
    newest = ahead.filter(known_at == known_at.max().over("entity", "start_utc"))
    keys = ["entity", "start_utc"]

    wide = newest.group_by(keys).agg(
        *(
            pl.col("value").filter(pl.col("quantile") == level).first().alias(name)
            for name, level in _POE.items()
        ),
        known_at.first().alias("known_at_utc"),
    )

    return demand.join(
        wide, left_on=["region", "start_utc"], right_on=keys, how="left", maintain_order="left"
    )
