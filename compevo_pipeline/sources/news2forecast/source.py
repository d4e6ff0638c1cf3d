"""News2Forecast electricity benchmark (NeurIPS 2024, MIT): the files of each mode.

What belongs here: which file is the test set, the validation sample and the news table. What does
not: their formats (``news2forecast.parse``).
"""

from collections.abc import Iterator
from pathlib import Path

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    read_archive_file,
)
from compevo_pipeline.sources.sample_archive import read_sample_files

SOURCE = "n2f_benchmark"
FOLDER = "n2f_electricity"
TEST_PATTERN = "AULF_test_data_*.json"
VALIDATION_PATTERN = "AULF_validation_data_*.json"
NEWS = "n2f_news"
NEWS_PATTERN = "AU_load_merge_file_final_*.csv*"


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the benchmark's test file, its validation file (archive only) and the news tables.

    Raises:
        SourceAbsent: live mode, or no such files in the archive.
    """
    match mode:
        case Mode.SAMPLE:
            yield from read_sample_files(SOURCE)
            yield from read_sample_files(NEWS)
        case Mode.ARCHIVE:
            products = (
                (TEST_PATTERN, SOURCE),
                (VALIDATION_PATTERN, SOURCE),
                (NEWS_PATTERN, NEWS),
            )
            for pattern, source in products:
                for path in find_archive_files(archive, FOLDER, pattern):
                    yield read_archive_file(path, path.parents[1], source=source, clock=clock)
        case Mode.LIVE:
            raise SourceAbsent(
                "News2Forecast is a published benchmark without a live endpoint; "
                "use the archive mode"
            )


def is_test_file(raw: RawFile) -> bool:
    """Whether ``raw`` is the 100-window test set, and not the validation sample.

    The validation sample's targets lie in the training split.
    """
    return raw.source == SOURCE and raw.name.startswith("AULF_test_data")
