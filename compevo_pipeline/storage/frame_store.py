"""Frames that accompany a data set's series: covariates, published forecasts, benchmark records.

What belongs here: keeping each as one Parquet file, idempotently. What does not: series and news (``storage``).
Writing a frame twice changes nothing; of two rows with one key the newer file's stands.
"""

import os
import tempfile
from pathlib import Path

import polars as pl

from compevo_pipeline.feeds import Kind

KEYS: dict[Kind, tuple[str, ...]] = {
    Kind.COVARIATES: ("entity", "name", "valid_date", "available_at"),
    Kind.PUBLISHED: ("entity", "start_utc", "available_at", "quantile"),
    Kind.BENCHMARK: ("source", "record"),
}


class FrameStore:
    """Frames under ``root/<dataset>/<kind>.parquet``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, dataset: str, kind: Kind) -> Path:
        """Where a frame lies, whether it exists or not."""
        return self._root / dataset / f"{kind}.parquet"

    def write(self, dataset: str, kind: Kind, frame: pl.DataFrame) -> int:
        """Merges rows into the stored frame by the kind's key, in one rename; returns how many rows it holds now."""
        path, keys = self.path(dataset, kind), list(KEYS[kind])
        stored = self.read(dataset, kind)
        whole = frame if stored is None else pl.concat([stored, frame])
        whole = whole.unique(keys, keep="last", maintain_order=True).sort(keys)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        whole.write_parquet(part)
        Path(part).replace(path)
        return whole.height

    def read(self, dataset: str, kind: Kind) -> pl.DataFrame | None:
        """The stored frame, or None if there is none."""
        path = self.path(dataset, kind)
        return pl.read_parquet(path) if path.exists() else None
