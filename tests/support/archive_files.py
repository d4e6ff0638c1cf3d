"""An archive folder of AEMO's files, from the sample's archive, for a deployment in archive mode.

What belongs here: files where the archive mode looks for them. What does not: assertions.
"""

import io
import tarfile

from compevo_pipeline.sources.common.base import read_sample_files

DEMAND, PRICE, OPERATIONAL = "aemo_histdemand", "aemo_price_and_demand", "aemo_operational_demand"


def make_archive(root):
    """Write what a population of electricity is trained and validated on."""
    for source in (DEMAND, PRICE):
        (root / source).mkdir(parents=True)
        for raw in read_sample_files(source):
            if source == DEMAND or "_2020" in raw.name:
                (root / source / raw.name).write_bytes(raw.content)


def drop_days(root, first, last):
    """Drop a bundle of days of operational demand into the archive, as a later month comes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for raw in read_sample_files(OPERATIONAL):
            if f"{first}" <= raw.name.removesuffix(".json") <= f"{last}":
                info = tarfile.TarInfo(raw.name)
                info.size = len(raw.content)
                bundle.addfile(info, io.BytesIO(raw.content))

    folder = root / OPERATIONAL
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first:%Y-%m}.tar.gz").write_bytes(packed.getvalue())
