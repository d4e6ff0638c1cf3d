"""News2Forecast electricity benchmark (NeurIPS 2024, MIT): the files of each mode.

What belongs here: which file is the test set, the validation sample and the news table. What does
not: their formats (``news2forecast.parse``).
"""

from collections.abc import Iterator
from pathlib import Path

from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.sample_archive import read_product

SOURCE = "n2f_benchmark"
FOLDER = "n2f_electricity"
NEWS = "n2f_news"
VALIDATION_PATTERN = "AULF_validation_data_*.json"
_FILES = (
    (SOURCE, "AULF_test_data_*.json"),
    (SOURCE, VALIDATION_PATTERN),
    (NEWS, "AU_load_merge_file_final_*.csv*"),
)


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the benchmark's test file, its validation file (archive only) and the news tables.

    Raises:
        SourceAbsent: live mode, or no such files in the archive.
    """
    for source, pattern in _FILES:
        if mode is not Mode.SAMPLE or pattern != VALIDATION_PATTERN:
            yield from read_product(
                mode, archive, clock, source=source, folder=FOLDER, files=[pattern]
            )


def is_test_file(raw: RawFile) -> bool:
    """Whether ``raw`` is the 100-window test set, and not the validation sample.

    The validation sample's targets lie in the training split.
    """
    return raw.source == SOURCE and raw.name.startswith("AULF_test_data")
