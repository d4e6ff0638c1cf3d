"""Files that a person fetched by hand, in live mode: each is stored once.

What belongs here: which files of a folder are new, and their entries in the ledger. What does not:
formats, the archive mode, which reads them all (``common.base``).
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePosixPath

from compevo_pipeline.sources.common.base import Mode, RawFile, read_archive_file
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.live import LiveContext


def read_new_saved_files(
    live: LiveContext, folder: str, pattern: str, *, source: str
) -> Iterator[RawFile]:
    """Yield the files below the archive folder whose bytes are not stored yet.

    A file counts as fetched when it was saved, so that it never takes the place of a value that was
    fetched later.
    """
    if live.saved is None:
        return

    for path in sorted((live.saved / folder).glob(pattern)):
        # What a person unpacked there may be a folder of the archive's name.
        if not path.is_file():
            continue
        saved_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        raw = read_archive_file(path, live.saved, source=source, clock=lambda: live.now)
        raw = replace(raw, fetched_at=min(saved_at, live.now))

        key = name_entry(raw)
        entry = live.ledger.get(*key)
        is_stored = entry is not None and entry.state is EntryState.STORED
        if entry is None or not is_stored or entry.sha256 != raw.sha256:
            live.ledger.record_fetched(*key, url=raw.url, sha256=raw.sha256, now=live.now)
            yield raw


def name_entry(raw: RawFile) -> tuple[str, str]:
    """Return source and name of the ledger's entry of a file that live mode reads."""
    if raw.mode is Mode.LIVE:
        return raw.source, raw.packed_in or raw.name
    # Under a source of its own: the publisher's file of that name is another entry.
    return f"{raw.source}-saved", PurePosixPath(raw.url).name
