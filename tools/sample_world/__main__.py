"""Write the archive of the sample mode: ``python -m tools.sample_world``.

What belongs here: which product has which invented files, and packing them with equal bytes on
every run. What does not: the files (the other modules here), reading them
(``compevo_pipeline.sources.common.base``).
"""

import sys
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from compevo_pipeline.sources.common.base import SAMPLE_ARCHIVE
from tools.sample_world import aemo, bitinfocharts, gdelt, news2forecast, pems
from tools.sample_world.world import SampleWorld, days_between

_PACKED_AT = (2026, 1, 1, 0, 0, 0)  # fixed: a zip stores the time of its members


def make_members() -> Iterator[tuple[str, bytes]]:
    """Yield ``<product>/<file name>`` and bytes of every file."""
    world = SampleWorld()
    products = {
        "aemo_histdemand": aemo.make_histdemand_reports(world),
        "aemo_operational_demand": aemo.make_operational_days(world),
        "aemo_price_and_demand": aemo.make_price_and_demand_months(world),
        "bitinfocharts": [bitinfocharts.make_long_csv()],
        "n2f_benchmark": [news2forecast.make_benchmark(world)],
        "n2f_news": [news2forecast.make_news_table(world)],
        "n2f_weather": [news2forecast.make_weather_table(world)],
        "pems": pems.make_station_hour_files(),
        "planted": [list_events(world)],
    }
    for product, files in products.items():
        for name, content in files:
            yield f"{product}/{name}", content

    for name, content in gdelt.make_files(world):
        product = "gdelt_doc" if name.startswith("artlist_") else "gdelt_bulk"
        yield f"{product}/{name}", content


def list_events(world: SampleWorld) -> tuple[str, bytes]:
    """Write day, region and topic of every event that the news of the sample announces."""
    spans = (*news2forecast.NEWS_SPANS, gdelt.DAILY_SPAN)
    announced = [day for span in spans for day in days_between(*span)]
    events = [event for day in announced for event in world.events(day + timedelta(days=1))]
    lines = [f"{event.day},{event.region},{event.topic}\n" for event in events]
    return "events.csv", "".join(lines).encode()


def write_archive(path: Path) -> None:
    """Pack all members into ``path``, in the order of their names."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bundle:
        for name, content in sorted(make_members()):
            info = zipfile.ZipInfo(name, _PACKED_AT)
            info.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(info, content, compresslevel=9)


if __name__ == "__main__":
    write_archive(SAMPLE_ARCHIVE)
    sys.stdout.write(f"{SAMPLE_ARCHIVE}: {SAMPLE_ARCHIVE.stat().st_size:,} bytes\n")
