"""The real electricity windows, cut once a test session by the product's own parsers."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import polars as pl

from compevo_core.data.build import build_windows
from compevo_core.data.datasets import DATASETS
from compevo_core.data.window import WindowSet
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.feeds import default_feeds

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@cache
def load_electricity_frames(archive: Path) -> dict[FrameKind, pl.DataFrame]:
    """Return series, covariates, published forecasts and benchmark records of the archive."""
    frames: dict[FrameKind, list[pl.DataFrame]] = {}
    for feed in default_feeds()["electricity"]:
        raws = list(feed.read_files(Mode.ARCHIVE, archive, lambda: NOW))
        for kind, parse in feed.parsers.items():
            frames.setdefault(kind, []).append(parse(raws))
    return {kind: pl.concat(parts) for kind, parts in frames.items()}


@cache
def build_electricity_windows(archive: Path) -> WindowSet:
    """Return all windows of the real electricity data, without articles."""
    frames = load_electricity_frames(archive)
    series = frames[FrameKind.SERIES].unique(
        ["series_id", "variable", "start_utc"], keep="last", maintain_order=True
    )
    return build_windows(
        DATASETS["electricity"],
        series,
        covariates=frames[FrameKind.COVARIATES],
        published=frames[FrameKind.PUBLISHED],
        benchmark=frames[FrameKind.BENCHMARK],
    )
