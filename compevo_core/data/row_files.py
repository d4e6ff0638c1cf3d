"""Files of rows that many writers share: each replaces its own rows and keeps the others'.

What belongs here: taking turns, and which rows give way. What does not: columns, order and format
of a file, which its reader and its writer know.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from compevo_core.data.filelock import file_lock


def replace_own_rows(
    path: Path,
    rows: pl.DataFrame,
    key: Sequence[str],
    *,
    read: Callable[[Path], pl.DataFrame],
    write: Callable[[pl.DataFrame], object],
) -> None:
    """Put rows in the place of those that agree with one of them in ``key``.

    Args:
        path: the file, which need not exist yet; its folder must.
        rows: the writer's own.
        key: columns, none of which may be null.
        read: returns what the file holds, with the columns of ``rows``.
        write: puts all rows into the file, in an order that does not depend on who came first.

    Raises:
        StoreBusy: others write the file for longer than a minute.
    """
    lock = path.with_name(f".{path.name}.lock")
    with file_lock(lock, exclusive=True):
        if path.exists():
            # An empty text comes back as a null, and would no longer equal what is written now.
            stored = read(path).with_columns(pl.col(pl.String).fill_null(""))
            rows = pl.concat([stored.join(rows, on=key, how="anti"), rows])
        write(rows)
        # Nothing but rows stays in a folder that is committed.
        lock.unlink()
