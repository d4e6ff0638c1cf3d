"""The real electricity windows, cut once a test session from the archive by the product's own parsers."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import polars as pl

from compevo_core.data.build import build_windows
from compevo_core.data.datasets import DATASETS
from compevo_core.data.window import WindowSet
from compevo_pipeline.feeds import Kind, default_feeds
from compevo_pipeline.sources.common.base import Mode

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@cache
def electricity_frames(archive: Path) -> dict[Kind, pl.DataFrame]:
    """Series, covariates, published forecasts and benchmark records of the archive."""
    frames: dict[Kind, list[pl.DataFrame]] = {}
    for feed in default_feeds()["electricity"]:
        raws = list(feed.raw_files(Mode.ARCHIVE, archive, lambda: NOW))
        for kind, parse in feed.parsers.items():
            frames.setdefault(kind, []).append(parse(raws))
    return {kind: pl.concat(parts) for kind, parts in frames.items()}


@cache
def electricity_windows(archive: Path) -> WindowSet:
    """All windows of the real electricity data, without articles."""
    frames = electricity_frames(archive)
    series = frames[Kind.SERIES].unique(
        ["series_id", "variable", "start_utc"], keep="last", maintain_order=True
    )
    return build_windows(
        DATASETS["electricity"],
        series,
        covariates=frames[Kind.COVARIATES],
        published=frames[Kind.PUBLISHED],
        benchmark=frames[Kind.BENCHMARK],
    )
