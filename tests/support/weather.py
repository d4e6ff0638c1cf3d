"""Runs of forecast weather in Open-Meteo's layout, made up; no test lives here."""

import json
from datetime import UTC, datetime, timedelta

from compevo_pipeline.sources.weather.forecast import PLACES, VARIABLES
from tests.support.replay import Answer

ENDPOINT = ("single-runs-api.open-meteo.com", "/v1/forecast")
RUN = datetime(2025, 11, 10, 18, tzinfo=UTC)


def make_run(first=RUN, hours=72):
    """Return the answer for the five places: as many hours from a stamp on, all values 21."""
    stamps = [f"{first + timedelta(hours=i):%Y-%m-%dT%H:%M}" for i in range(hours)]
    return [
        {
            # The grid point, not the place that was asked for.
            "latitude": round(latitude, 1),
            "longitude": round(longitude, 1),
            "generationtime_ms": 0.5,
            "utc_offset_seconds": 0,
            "timezone": "GMT",
            "elevation": 30.0,
            "hourly_units": {"time": "iso8601"} | {v.published: v.unit for v in VARIABLES},
            "hourly": {"time": stamps} | {v.published: [21.0] * hours for v in VARIABLES},
        }
        for latitude, longitude in PLACES.values()
    ]


def asked_run(seen):
    return datetime.fromisoformat(seen.query["run"][0]).replace(tzinfo=UTC)


def answer_run(first):
    return Answer(body=json.dumps(make_run(first, 2)).encode(), kind="application/json")


def answer(seen):
    return answer_run(asked_run(seen))
