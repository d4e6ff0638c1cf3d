"""Files of a product by mode: the packaged archive of invented ones, or the publisher's on disk.

What belongs here: reading them. What does not: the formats (the same parsers read the invented and
the publishers' files), live mode (a source's own ``live`` module).

``python -m tools.sample_world`` in the repository writes the archive. Nothing in it is an
observation, and it depends on no clock: two runs store equal rows.
"""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    read_archive_file,
    wrap_sample,
)

SAMPLE_ARCHIVE = Path(__file__).with_suffix(".zip")
"""A folder for each product, named like the ``source`` of its files."""


def read_sample_files(source: str) -> Iterator[RawFile]:
    """Yield the invented files of a product by name; none where the archive lacks the product."""
    with zipfile.ZipFile(SAMPLE_ARCHIVE) as bundle:
        for member in sorted(bundle.namelist()):
            folder, _, name = member.partition("/")
            if folder == source:
                yield wrap_sample(source, name, bundle.read(member))


def read_product(
    mode: Mode,
    archive: Path | None,
    clock: Clock,
    *,
    source: str,
    folder: str,
    files: Sequence[str],
) -> Iterator[RawFile]:
    """Yield the files of one product in a mode.

    Args:
        mode: ``sample`` or ``archive``.
        archive: root of the publishers' files.
        clock: the present time.
        source: the product.
        folder: where it lies in ``archive``.
        files: patterns of its file names; one that fits no file costs nothing where others do.

    Raises:
        SourceAbsent: live mode, or no file of the product.
    """
    if mode is Mode.LIVE:
        raise SourceAbsent(f"{source} has no live endpoint; use its files, in archive mode")
    if mode is Mode.SAMPLE:
        yield from read_sample_files(source)
        return

    for path in find_archive_files(archive, folder, *files):
        yield read_archive_file(path, path.parents[1], source=source, clock=clock)
