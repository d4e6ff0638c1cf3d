"""The packaged archive of the sample mode: invented files in the publishers' own formats.

What belongs here: reading it. What does not: the formats (the same parsers read these and the
publishers' files).

``python -m tools.sample_world`` in the repository writes the archive. Nothing in it is an
observation, and it depends on no clock: two runs store equal rows.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from compevo_pipeline.sources.common.base import RawFile, wrap_sample

SAMPLE_ARCHIVE = Path(__file__).with_suffix(".zip")
"""A folder for each product, named like the ``source`` of its files."""


def read_sample_files(source: str) -> Iterator[RawFile]:
    """Yield the invented files of a product by name; none where the archive lacks the product."""
    with zipfile.ZipFile(SAMPLE_ARCHIVE) as bundle:
        for member in sorted(bundle.namelist()):
            folder, _, name = member.partition("/")
            if folder == source:
                yield wrap_sample(source, name, bundle.read(member))
