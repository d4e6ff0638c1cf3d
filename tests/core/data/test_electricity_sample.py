"""The sample world's electricity windows: something of every span of the split plan."""

from datetime import UTC, datetime

import pytest

from compevo_core.data.build import build_windows
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.splits import build_folds
from compevo_core.data.view import SPLITS
from compevo_core.data.window import WindowSet
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.nem import REGIONS

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def windows() -> WindowSet:
    raws = list(aemo.read_files(Mode.SAMPLE, None, clock=lambda: NOW))
    return build_windows(ELECTRICITY, aemo.parse_all(raws))


def test_every_span_of_the_plan_has_windows_of_every_region(windows: WindowSet) -> None:
    found = {(view.split, view.series_id) for view in windows.views()}
    measures = {
        "train": ("HISTDEMAND", "TOTALDEMAND"),
        "val": ("TOTALDEMAND",),
        "test": ("TOTALDEMAND",),
        "inference": ("OPERATIONAL_DEMAND",),
    }
    assert set(measures) == set(SPLITS)
    assert found == {
        (split, f"AEMO/{measure}/{region}")
        for split, names in measures.items()
        for measure in names
        for region in REGIONS
    }


def test_the_sample_can_be_cross_validated(windows: WindowSet) -> None:
    sizes = [(len(train), len(validation)) for train, validation in build_folds(windows)]
    assert len(sizes) == 5 and min(min(pair) for pair in sizes) >= 5 * len(REGIONS)
