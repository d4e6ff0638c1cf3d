"""Frames that accompany a data set's series: covariates, published forecasts, benchmark records.

What belongs here: storing each as one Parquet file, idempotently. What does not: series
(``storage.series_store``), news (``storage.news_store``).

Writing a frame twice changes nothing; of two rows with one key the row written last stays.
"""

from pathlib import Path

import polars as pl

from compevo_core.data.filelock import file_lock
from compevo_core.data.files import write_atomically
from compevo_core.storage_errors import translate_storage_errors
from compevo_pipeline.sources.common.base import FrameKind

KEYS: dict[FrameKind, tuple[str, ...]] = {
    FrameKind.COVARIATES: ("entity", "name", "valid_date", "available_at"),
    FrameKind.PUBLISHED: ("entity", "start_utc", "available_at", "quantile"),
    FrameKind.STEP_COVARIATES: ("entity", "name", "start_utc", "available_at"),
    FrameKind.BENCHMARK: ("source", "record"),
}
"""Columns that identify a row of a kind."""


class FrameStore:
    """Frames under ``root/<dataset>/<kind>.parquet``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, dataset: str, kind: FrameKind) -> Path:
        """Return the path of a frame, whether it exists or not."""
        return self._root / dataset / f"{kind}.parquet"

    def write(
        self, dataset: str, kind: FrameKind, frame: pl.DataFrame, *, replace: bool = False
    ) -> int:
        """Merge rows into the stored frame by the kind's key, or put them in its place.

        Returns:
            The number of rows that the frame has now.

        Raises:
            StoreBusy: another process writes the frame for longer than a minute.
        """
        path = self.path(dataset, kind)
        # One writer from reading to writing: rows that another adds in between would be lost.
        with file_lock(path.with_name(f".{path.stem}.lock"), exclusive=True):
            stored = None if replace else self.read(dataset, kind)
            rows = frame if stored is None else pl.concat([stored, frame])

            # Stored rows come first, so that keep="last" prefers the given ones.
            keys = list(KEYS[kind])
            merged = rows.unique(keys, keep="last", maintain_order=True).sort(keys)
            write_atomically(path, merged.write_parquet)
        return merged.height

    def read(self, dataset: str, kind: FrameKind) -> pl.DataFrame | None:
        """Read the stored frame, or return None if there is none."""
        path = self.path(dataset, kind)
        if not path.exists():
            return None
        with translate_storage_errors(f"reading {path}"):
            return pl.read_parquet(path, glob=False)
