"""News2Forecast electricity benchmark (NeurIPS 2024, MIT): the files of each mode.

What belongs here: which file is the test set, the validation sample and the news table. What does
not: the prompts (``news2forecast.prompts``), the news tables (``news2forecast.news``), the
synthetic files (``news2forecast.sample``).
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
from compevo_pipeline.sources.common.sample_world import SampleWorld
from compevo_pipeline.sources.news2forecast import news, sample

SOURCE = "n2f_benchmark"
FOLDER = "n2f_electricity"
TEST_PATTERN = "AULF_test_data_*.json"
VALIDATION_PATTERN = "AULF_validation_data_*.json"


def read_files(mode: Mode, *, archive: Path | None = None, clock: Clock) -> Iterator[RawFile]:
    """Yield the benchmark's test file, its validation file (archive only) and the news tables.

    Raises:
        SourceAbsent: live mode, or no such files in the archive.
    """
    match mode:
        case Mode.SAMPLE:
            world = SampleWorld()
            # Both from one world: the invented news announces the demand of the invented prompts.
            yield sample.make_benchmark(world, SOURCE)
            yield sample.make_news_table(world, news.SOURCE)
        case Mode.ARCHIVE:
            products = (
                (TEST_PATTERN, SOURCE),
                (VALIDATION_PATTERN, SOURCE),
                (news.PATTERN, news.SOURCE),
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
