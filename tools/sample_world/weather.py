"""The synthetic world's weather in the layout of the benchmark's collected table."""

from compevo_pipeline.sources.weather.observed import FILE, HEADER
from tools.sample_world.world import SampleWorld


def make_weather_table(world: SampleWorld) -> tuple[str, bytes]:
    """Return name and bytes of the table, CRLF line ends included."""
    rows = [",".join(HEADER)]
    for day in world.weather_days():
        for state, values in world.weather(day):
            rows.append(f"{day:%Y-%m-%d},{state}," + ",".join(f"{value:.2f}" for value in values))

    return FILE, "".join(row + "\r\n" for row in rows).encode()
