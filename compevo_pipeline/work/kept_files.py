"""Raw files that are kept, and rows that the store has lost.

What belongs here: which kept files are a feed's, in the order in which they came; how many rows
were stored when a run ended, and which stores have fewer now. What does not: parsing and storing
them again (``work.ingest``), the files themselves (``sources.common.raw_store``).
"""

import logging
from collections.abc import Iterator, Sequence

import polars as pl

from compevo_core.errors import DataError
from compevo_pipeline.sources.common.base import FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.feeds import Feed
from compevo_pipeline.storage.series_store import KEYS
from compevo_pipeline.work.deployment import Deployment

MAX_BATCH_BYTES = 256 * 2**20  # bytes of files that are parsed and stored together
log = logging.getLogger(__name__)


def list_batches(deployment: Deployment, feed: Feed) -> Iterator[list[RawFile]]:
    """Yield the kept files of a feed, oldest first, in batches that hold no name twice.

    Earlier versions of a file come in their turn, so what they alone hold is stored too. A file
    whose bytes are no longer those that came is left out with a warning.
    """
    batch: list[RawFile] = []
    size = 0
    for file in deployment.raw_store().list_kept():
        if not file.label.startswith(feed.labels):
            continue
        raw = file.load()
        if raw is None:
            log.warning("%s is damaged and left out", file.path)
            continue
        if batch and (size > MAX_BATCH_BYTES or any(raw.label == other.label for other in batch)):
            yield batch
            batch, size = [], 0
        batch.append(raw)
        size += len(raw.content)

    if batch:
        yield batch


def count_rows(deployment: Deployment, dataset: str, feeds: Sequence[Feed]) -> dict[str, int]:
    """Return the rows of each store that feeds write, by a name of it."""
    counts: dict[str, int] = {}
    kinds = {kind for feed in feeds for kind in feed.parsers}
    if FrameKind.SERIES in kinds:
        counts |= deployment.series_store().count_rows(dataset)
    for kind in kinds & KEYS.keys():
        rows = deployment.frame_store().read(dataset, kind, lambda rows: rows.select(pl.len()))
        counts[kind.value] = 0 if rows is None else int(rows.item())
    if FrameKind.ARTICLES in kinds:
        try:
            counts["articles"] = int(deployment.news_store().count_days()["articles"].sum())
        except DataError:
            counts["articles"] = 0
    return counts


def find_lost(deployment: Deployment, dataset: str, feeds: Sequence[Feed]) -> dict[str, int]:
    """Return how many rows each store has lost since the last run of a data set ended."""
    noted = _open_ledger(deployment).read_rows(dataset)
    if not noted:
        return {}
    there = count_rows(deployment, dataset, feeds)
    return {
        name: rows - there.get(name, 0) for name, rows in noted.items() if rows > there.get(name, 0)
    }


def note_rows(deployment: Deployment, dataset: str, feeds: Sequence[Feed]) -> None:
    """Note how many rows are stored, for :func:`find_lost` of the next run."""
    _open_ledger(deployment).note_rows(dataset, count_rows(deployment, dataset, feeds))


def ask_for_gone(deployment: Deployment, feeds: Sequence[Feed]) -> int:
    """Let the next fetch ask for stored files whose bytes are gone too; return their number."""
    labels = tuple(label for feed in feeds for label in feed.labels)
    ledger, raw = _open_ledger(deployment), deployment.raw_store()
    stored = [
        entry
        for entry in ledger.list_entries()
        if entry.is_stored
        and f"{Mode.LIVE}:{entry.source.removesuffix('-saved')}/".startswith(labels)
    ]
    gone = {entry.name for entry in stored if entry.sha256 and raw.read(entry) is None}
    # A report of a weekly zip has no bytes of its own.
    packs = {f"packed in {name}" for name in gone}
    lost = [entry for entry in stored if entry.name in gone or entry.note in packs]
    ledger.forget([(entry.source, entry.name) for entry in lost])
    return len(lost)


def _open_ledger(deployment: Deployment) -> Ledger:
    return Ledger(deployment.layout.ledger)
