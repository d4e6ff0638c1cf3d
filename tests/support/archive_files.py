"""An archive folder of AEMO's files, made from the sample world, for a deployment in archive mode.

What belongs here: files where the archive mode looks for them. What does not: assertions.
"""

import io
import tarfile
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from compevo_pipeline.sources.aemo import histdemand, operational, price
from compevo_pipeline.sources.aemo.sample import (
    make_histdemand_reports,
    make_operational_days,
    make_price_and_demand_months,
)
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.sample_world import SampleWorld

WORLD = SampleWorld()


def make_archive(root: Path) -> None:
    """Write what a population of electricity is trained and validated on."""
    _write(root / histdemand.FOLDER, make_histdemand_reports(WORLD, histdemand.SOURCE))
    months = make_price_and_demand_months(WORLD, price.SOURCE)
    _write(root / price.FOLDER, (month for month in months if "_2020" in month.name))


def drop_days(root: Path, first: date, last: date) -> None:
    """Drop a bundle of days of operational demand into the archive, as a later month comes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for raw in make_operational_days(WORLD, operational.SOURCE, (first, last)):
            info = tarfile.TarInfo(raw.name)
            info.size = len(raw.content)
            bundle.addfile(info, io.BytesIO(raw.content))

    folder = root / operational.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first:%Y-%m}.tar.gz").write_bytes(packed.getvalue())


def _write(folder: Path, raws: Iterable[RawFile]) -> None:
    folder.mkdir(parents=True)
    for raw in raws:
        (folder / raw.name).write_bytes(raw.content)
