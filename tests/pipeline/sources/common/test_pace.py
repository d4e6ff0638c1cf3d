"""The pause belongs to a host, whichever of its files is asked for."""

import responses

from compevo_pipeline.sources.common.http import Client
from tests.support.sources import clock


@responses.activate
def test_another_file_of_one_host_waits_its_turn():
    slept = []
    client = Client(user_agent="test", clock=clock, monotonic=lambda: 100.0, sleep=slept.append)
    for name in ("a.csv", "b.csv"):
        url = f"https://data.example/{name}"
        responses.get(url, body=b"1")
        client.fetch(url, source="s", name=name, pause_s=5.0)
    assert slept == [5.0]
