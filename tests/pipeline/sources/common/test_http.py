"""The HTTP client: statuses, pauses, caps, certificates."""

from datetime import timedelta

import pytest
import requests
import responses

from compevo_core.errors import (
    SchemaDrift,
    SourceAbsent,
    SourceBlocked,
    SourceRejected,
    SourceTransient,
)
from compevo_pipeline.failures import Throttled
from compevo_pipeline.sources.common import http
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.http import Client, parse_retry_after_s
from tests.support.sources import NOW, clock

URL = "https://data.example/file.csv"


class Watch:
    """A clock whose sleep passes no real time."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def client(watch):
    return Client(
        user_agent="compevo-tests (nobody@example.org)",
        clock=clock,
        monotonic=watch.monotonic,
        sleep=watch.sleep,
    )


def fetch(client, url=URL, **kwargs):
    return client.fetch(url, source="test", name="file.csv", pause_s=5.0, **kwargs)


@responses.activate
def test_a_fetched_file_carries_its_provenance(client):
    responses.get(URL, body=b"a,b\n", content_type="text/csv")
    file = fetch(client)
    assert (file.content, file.url, file.mode, file.fetched_at) == (b"a,b\n", URL, Mode.LIVE, NOW)
    assert responses.calls[0].request.headers["User-Agent"] == "compevo-tests (nobody@example.org)"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, SourceAbsent),
        (403, SourceBlocked),
        (400, SourceRejected),
        (405, SourceRejected),
        (500, SourceTransient),
    ],
)
@responses.activate
def test_a_failed_status_becomes_its_error_and_is_requested_once(client, status, error):
    responses.get(URL, status=status, body=b"no")
    with pytest.raises(error, match=rf"{URL}: HTTP {status}"):
        fetch(client)
    assert len(responses.calls) == 1


@responses.activate
def test_a_throttled_answer_carries_the_wait_it_asks_for(client):
    responses.get(URL, status=429, headers={"Retry-After": "120"})
    with pytest.raises(Throttled) as caught:
        fetch(client)
    assert caught.value.retry_after_s == 120


@responses.activate
def test_a_web_page_under_a_data_address_never_becomes_a_file(client):
    responses.get(URL, body=b"<!DOCTYPE html><p>moved</p>", content_type="text/html")
    with pytest.raises(SchemaDrift):
        fetch(client)


@responses.activate
def test_a_challenge_page_is_blocked_even_with_status_200(client):
    responses.get(
        URL, body=b"<html><title>Just a moment...</title></html>", content_type="text/html"
    )
    with pytest.raises(SourceBlocked):
        fetch(client, html_expected=True)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (requests.exceptions.ConnectTimeout("t"), SourceTransient),
        (requests.exceptions.ReadTimeout("t"), SourceTransient),
        (requests.exceptions.ConnectionError("c"), SourceTransient),
        (requests.exceptions.ChunkedEncodingError("c"), SourceTransient),
        (requests.exceptions.SSLError("certificate"), SourceBlocked),
        (requests.exceptions.TooManyRedirects("r"), SourceRejected),
    ],
)
@responses.activate
def test_a_broken_connection_becomes_its_error(client, failure, error):
    responses.get(URL, body=failure)
    with pytest.raises(error, match=r"data\.example"):
        fetch(client)


def test_an_address_without_tls_is_refused(client):
    with pytest.raises(SourceRejected, match="not an https address"):
        fetch(client, "http://data.example/file.csv")


@responses.activate
def test_a_body_over_the_cap_is_refused(client, monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 3)
    responses.get(URL, body=b"abcd")
    with pytest.raises(SourceRejected, match="more than 3 bytes"):
        fetch(client)


@responses.activate
def test_requests_to_one_host_are_paced_and_other_hosts_do_not_wait(client, watch):
    responses.get(URL, body=b"a")
    responses.get("https://other.example/x", body=b"b")
    fetch(client)
    fetch(client, "https://other.example/x")
    assert watch.slept == []
    watch.now += 2.0
    fetch(client)
    assert watch.slept == [3.0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("30", 30),
        ("soon", 0),
        ((NOW + timedelta(minutes=2)).strftime("%a, %d %b %Y %H:%M:%S GMT"), 120),
    ],
)
def test_retry_after_is_read_as_number_or_date(value, seconds):
    assert parse_retry_after_s(value, NOW) == seconds
