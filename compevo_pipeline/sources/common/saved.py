"""Files that a person fetched by hand, in live mode: each is read once.

What belongs here: which files of a folder are new. What does not: formats, the archive mode, which
reads them all (``common.base``).
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from compevo_pipeline.sources.common.base import RawFile, read_archive_file
from compevo_pipeline.sources.common.live import LiveContext


def read_new_saved_files(
    live: LiveContext, folder: str, pattern: str, *, source: str
) -> Iterator[RawFile]:
    """Yield the files below the archive folder whose bytes were not read before.

    A file counts as fetched when it was saved, so that it never takes the place of a value that was
    fetched later.
    """
    if live.saved is None:
        return

    for path in sorted((live.saved / folder).glob(pattern)):
        saved_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        raw = read_archive_file(path, live.saved, source=source, clock=lambda: live.now)
        raw = replace(raw, fetched_at=min(saved_at, live.now))

        # Under a name of its own: the publisher's file of that name is another entry.
        entry = live.ledger.get(f"{source}-saved", path.name)
        if entry is None or entry.sha256 != raw.sha256:
            live.ledger.record_fetched(
                f"{source}-saved", path.name, url=raw.url, sha256=raw.sha256, now=live.now
            )
            yield raw
