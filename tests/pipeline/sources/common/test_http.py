"""The HTTP client: what is kept and asked again, faults end in their class, one pace a host."""

import errno
import gzip
import re
import time
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from compevo_core import errors
from compevo_pipeline.errors import MAX_RETRY_AFTER_S, SHORT_RETRIES, Throttled, TooSlow, get_policy
from compevo_pipeline.sources.common import http
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.hosts import Pacer
from compevo_pipeline.sources.common.ledger import EntryState
from tests.support import nemweb
from tests.support.replay import Answer, open_live
from tests.support.trees import read_tree

HOST = "nemweb.com.au"
CSV = b"a,b\n1,2\n"
PAGE = b"<!DOCTYPE html><title>hello</title>"
CAPTCHA = b"<html><head><title>Just a moment...</title></head></html>"
ZIP = nemweb.pack(("x.csv", CSV * 50))
CAP = 4096
UNLISTED = (
    "http://nemweb.com.au/x",
    "https://example.org/x",
    "https://nemweb.com.au.example.org/x",
    "https://me:secret@nemweb.com.au/x",
    "https://nemweb.com.au:8443/x",
    "https://[::1/x",
    "https://127.0.0.1/x",
    "file:///etc/passwd",
    "nemweb.com.au/x",
    "",
)


def html(body, status=200):
    return Answer(body=body, status=status, kind="text/html; charset=utf-8")


def moved(target, status=302):
    return Answer(status=status, headers={"Location": target}, kind="")


def encoded(body, **kwargs):
    return Answer(body=body, headers={"Content-Encoding": "gzip"}, **kwargs)


def list_statuses(*statuses):
    return {f"{status}": Answer(status=status, body=b"no") for status in statuses}


PAUSES = {
    "for-an-hour": "3600",
    "until-a-date": datetime(2026, 7, 20, 8, tzinfo=UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
    "for-nonsense": "soon",
    "for-a-digit-of-no-number": "\u00b2",
    "with-a-separator": "3600\x1d",
    "in-a-zone-beyond-time": f"Mon, 20 Jul 2026 08:00 +{'9' * 20}",
}
FORBIDDEN_TARGETS = {
    "off-the-list": "https://files.example/x.csv",
    "to-http": "http://nemweb.com.au/x.csv",
    "with-a-login": "https://me:secret@nemweb.com.au/x",
    "to-nowhere": "https://[nemweb/",
    "in-a-circle": "/file.csv",
}
FAULTS = {
    errors.SourceRejected: {
        **list_statuses(300, 400, 405),
        **{f"redirect-{name}": moved(target) for name, target in FORBIDDEN_TARGETS.items()},
        "redirect-without-target": Answer(status=302, kind=""),
        "206-a-part": Answer(status=206, body=CSV),
        "304-to-a-request-without-conditions": Answer(status=304, kind=""),
        "two-lengths": Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\nabc"),
        "bomb-in-the-encoding": encoded(gzip.compress(b"0" * 20 * CAP)),
        "too-large": Answer(body=b"x" * (CAP + 1)),
        "too-large-in-chunks": Answer(body=b"x" * (CAP + 1), is_chunked=True),
        "too-large-without-length": Answer(body=b"x" * (CAP + 1), has_length=False),
    },
    errors.SourceBlocked: {
        **list_statuses(401, 403, 451),
        "403-with-a-page": html(PAGE, 403),
        **{f"captcha-with-{status}": html(CAPTCHA, status) for status in (200, 429, 503)},
        "login-page": html(b"<html><head><title>Login</title></head></html>"),
    },
    errors.SourceAbsent: {**list_statuses(404, 410), "404-with-a-page": html(PAGE, 404)},
    errors.SourceTransient: {
        **list_statuses(408, 500, 520),
        "502-with-a-page": html(PAGE, 502),
        "500-without-a-byte": Answer(status=500),
        "204": Answer(status=204, kind=""),
        "empty-body": Answer(),
        "empty-body-without-length": Answer(has_length=False),
        "white-space": Answer(body=b" \r\n\t", kind="text/csv"),
        "cut-body": Answer(body=CSV, send_bytes=3),
        "cut-chunks": Answer(body=CSV, send_bytes=3, is_chunked=True),
        "nothing-of-the-body": Answer(body=CSV, send_bytes=0),
        "reset": Answer(is_reset=True),
        "no-http": Answer(raw=b"SSH-2.0-OpenSSH_9.9\r\n\r\n"),
        "endless-headers": Answer(raw=b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 300 + b"\r\n"),
        "a-megabyte-of-header": Answer(raw=b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**20 + b"\r\n\r\n"),
        "damaged-encoding": encoded(b"\x1f\x8bnot gzip at all"),
    },
    Throttled: {
        **list_statuses(429),
        **{
            f"429-{name}": Answer(status=429, headers={"Retry-After": pause})
            for name, pause in PAUSES.items()
        },
        "503-for-an-hour": Answer(status=503, headers={"Retry-After": "3600"}),
    },
    errors.SchemaDrift: {
        "page-as-csv": Answer(body=PAGE, kind="text/csv"),
        "page-as-html": html(b"<p>maintenance"),
        "page-in-capitals-and-marked": Answer(body=b"\xef\xbb\xbf  <HTML><BODY>", kind="text/csv"),
    },
}
"""What the server does, by what it amounts to."""

CASES = {
    name: ("file.csv", answer, error)
    for error, answers in FAULTS.items()
    for name, answer in answers.items()
} | {
    "page-as-zip": ("x.zip", html(PAGE), errors.SchemaDrift),
    "text-as-zip": ("x.zip", Answer(body=CSV), errors.SchemaDrift),
    "cut-zip": ("x.zip", Answer(body=ZIP[:-30], has_length=False), errors.SourceTransient),
    "text-as-gzip": ("x.gal.json.gz", Answer(body=b'{"a":1}'), errors.SchemaDrift),
    "zip-as-gzip": ("x.gal.json.gz", Answer(body=ZIP), errors.SchemaDrift),
}


def fetch(live, path="file.csv", name="f.csv", **options):
    request = http.FileRequest(url=f"https://{HOST}/{path}", source="t", name=name, **options)
    return live.client.fetch(request)


def kept_files(home):
    """Everything below the home that is neither bookkeeping nor a lock."""
    return [path for path in read_tree(home) if not re.search("ledger|locks/|replay-ca", path)]


def test_a_wrong_certificate_is_refused(replay, tmp_path):
    replay.bad_certificates.add(HOST)
    with pytest.raises(errors.SourceBlocked, match="certificate"):
        fetch(open_live(tmp_path))

    trustme.CA().cert_pem.write_to_path(tmp_path / "replay-ca.pem")
    request = http.FileRequest(url="https://aemo.com.au/x", source="test", name="x")
    with pytest.raises(errors.SourceBlocked, match="certificate"):
        open_live(tmp_path).client.fetch(request)
    assert replay.seen == []


@pytest.mark.parametrize(("name", "answer", "error"), CASES.values(), ids=CASES)
def test_a_fault_of_http_has_its_class(replay, tmp_path, name, answer, error):
    replay.serve({(HOST, f"/{name}"): answer})
    live = open_live(tmp_path)
    with pytest.raises(error) as caught:
        fetch(live, name, name, max_bytes=CAP)

    assert type(caught.value) is error
    assert kept_files(tmp_path) == []
    entry = live.ledger.get("t", name)
    # Only the source knows whether a missing file is expected.
    assert (entry is None) if error is errors.SourceAbsent else (entry.state is EntryState.FAILED)
    said = str(caught.value)
    assert any(place in said for place in (HOST, "example", "file:", name)) and "secret" not in said

    # A short wait is taken in the step; a long one, or a failure for good, ends it at once.
    is_long = getattr(caught.value, "retry_after_s", 0.0) > 0
    is_tried = isinstance(caught.value, errors.SourceTransient) and not is_long
    tries = 1 + SHORT_RETRIES if is_tried else 1
    followed = 5 if answer is CASES["redirect-in-a-circle"][1] else 0
    assert len(replay.seen) == tries + followed


@pytest.mark.parametrize("url", UNLISTED)
def test_an_unlisted_address_is_never_asked(replay, tmp_path, url):
    with pytest.raises(errors.SourceRejected) as caught:
        open_live(tmp_path).client.fetch(http.FileRequest(url=url, source="test", name="x"))
    assert "secret" not in str(caught.value)
    assert replay.seen == []


SUCCESSES = {
    "without-length": Answer(body=CSV, has_length=False),
    "in-chunks": Answer(body=CSV, is_chunked=True),
    "encoded": encoded(gzip.compress(CSV)),
    "encoded-in-chunks": encoded(gzip.compress(CSV), is_chunked=True),
    "another-content-type": Answer(body=CSV, kind="application/x-zip-compressed"),
    "without-content-type": Answer(body=CSV, kind=""),
    "second-try": [Answer(status=503), Answer(body=CSV)],
    "third-try": [Answer(is_reset=True), Answer(body=CSV, send_bytes=2), Answer(body=CSV)],
    "asked-to-wait-no-time": [Answer(status=429, headers={"Retry-After": "0"}), Answer(body=CSV)],
    "moved-on-the-host": moved("/Moved.csv", 301),
    "moved-to-a-known-host": moved("https://www.nemweb.com.au/Moved.csv", 308),
}


@pytest.mark.parametrize("answer", SUCCESSES.values(), ids=SUCCESSES)
def test_an_odd_but_whole_answer_is_the_file(replay, tmp_path, answer):
    replay.serve({(HOST, "/file.csv"): answer, (HOST, "/Moved.csv"): Answer(body=CSV)})
    replay.serve({("www.nemweb.com.au", "/Moved.csv"): Answer(body=CSV)})
    live, waits = open_live(tmp_path), []
    live.client.sleep = waits.append

    assert fetch(live).content == CSV
    assert (tmp_path / "raw" / "t" / "f.csv").read_bytes() == CSV
    assert len(waits) == (len(answer) - 1 if isinstance(answer, list) else 0)


def test_a_full_disk_is_no_publishers_failure(replay, tmp_path, monkeypatch):
    replay.serve({(HOST, "/file.csv"): Answer(body=CSV)})

    def fill(response, url, cap, sink, deadline):
        sink.write(CSV[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(http, "read_body", fill)
    with pytest.raises(OSError, match="No space"):
        fetch(open_live(tmp_path))
    assert (len(replay.seen), kept_files(tmp_path)) == (1, [])


@pytest.mark.parametrize("options", [{}, {"is_chunked": True}, {"has_length": False}])
def test_a_dripping_publisher_is_not_asked_again(replay, tmp_path, monkeypatch, options):
    answer = Answer(body=CSV * 9, drip_seconds=0.1, **options)
    replay.serve({(HOST, "/file.csv"): answer, (HOST, "/next.csv"): Answer(body=CSV)})
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.3)
    live, started = open_live(tmp_path), time.monotonic()
    with pytest.raises(TooSlow, match="time"):
        fetch(live)

    assert time.monotonic() - started < 0.1 * len(answer.body)
    assert (len(replay.seen), kept_files(tmp_path)) == (1, [])
    assert get_policy(TooSlow("")).retries == 0
    # Another file of the feed is asked for, until its time is over.
    assert fetch(live, "next.csv", "n.csv").content == CSV
    live.client.deadline = time.monotonic()
    with pytest.raises(TooSlow, match="time"):
        fetch(live, "next.csv", "o.csv")
    assert len(replay.seen) == 2


def test_a_pause_is_kept_by_other_processes(replay, tmp_path):
    replay.serve({(HOST, "/file.csv"): CASES["429-for-an-hour"][1]})
    for _ in range(2):
        with pytest.raises(Throttled) as caught:
            fetch(open_live(tmp_path))
        assert caught.value.retry_after_s == pytest.approx(3600, abs=60)
    assert len(replay.seen) == 1


def test_a_failure_leaves_what_was_kept(replay, tmp_path):
    good = Answer(body=CSV, etag='"1"')
    replay.serve({(HOST, "/file.csv"): [good, html(PAGE), good]})
    live = open_live(tmp_path, now=datetime(2026, 7, 20, tzinfo=UTC))
    fetch(live)
    live.ledger.confirm()
    with pytest.raises(errors.SchemaDrift):
        fetch(live)
    assert (tmp_path / "raw" / "t" / "f.csv").read_bytes() == CSV
    entry = live.ledger.get("t", "f.csv")
    assert (entry.state, entry.tries) == (EntryState.STORED, 1)
    assert "SchemaDrift" in entry.note

    assert fetch(open_live(tmp_path, now=live.now + timedelta(days=1))) is None
    assert replay.seen[-1].headers["if-none-match"] == '"1"'


def test_a_login_of_netrc_is_not_sent(replay, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    replay.serve({(HOST, "/file.csv"): Answer(body=CSV)})
    fetch(open_live(tmp_path))
    assert "authorization" not in replay.seen[0].headers


def test_a_forms_values_are_in_no_message(replay, tmp_path):
    replay.serve({(HOST, "/login"): [html(b"<p>Logout"), Answer(status=403, body=b"secret")]})
    client = open_live(tmp_path).client
    assert client.submit(f"https://{HOST}/login", {"password": "secret"}) == b"<p>Logout"
    assert (replay.seen[0].method, replay.seen[0].body) == ("POST", b"password=secret")
    assert kept_files(tmp_path) == []
    with pytest.raises(errors.SourceBlocked) as caught:
        client.submit(f"https://{HOST}/login", {"password": "secret"})
    assert "secret" not in str(caught.value)


def test_a_fetched_file_carries_its_provenance(replay, tmp_path):
    replay.serve({(HOST, "/file.csv"): Answer(body=CSV, etag='"1"')})
    url = f"https://{HOST}/file.csv"
    for _ in range(2):
        live = open_live(tmp_path)
        raw = fetch(live)
        assert (raw.content, raw.url, raw.mode, raw.fetched_at) == (CSV, url, Mode.LIVE, live.now)
    assert [seen.is_conditional for seen in replay.seen] == [False, True]
    assert replay.seen[0].headers["user-agent"] == "compevo-tests (nobody@example.org)"


def test_a_changed_file_is_asked_for_since(replay, tmp_path):
    at = "Mon, 20 Jul 2026 06:30:00 GMT"
    replay.serve({(HOST, "/file.csv"): [Answer(body=CSV, modified=at), Answer(body=CSV)]})
    for _ in range(3):
        fetch(open_live(tmp_path, now=datetime(2026, 7, 20, tzinfo=UTC)))
    assert replay.seen[1].headers["if-modified-since"] == at
    # Without it, the server's own clock says when it answered.
    assert not replay.seen[2].headers["if-modified-since"].endswith("20 Jul 2026 00:00:00 GMT")


def test_a_final_file_is_requested_once(replay, tmp_path):
    replay.serve({(HOST, "/file.csv"): Answer(body=CSV)})
    fetch(open_live(tmp_path), is_final=True)
    live = open_live(tmp_path)
    assert fetch(live, is_final=True).content == CSV
    live.ledger.confirm()
    assert fetch(open_live(tmp_path), is_final=True) is None
    assert len(replay.seen) == 1


def test_an_unchanged_page_is_returned(replay, tmp_path):
    replay.serve({(HOST, "/list/"): Answer(body=PAGE, kind="text/html", etag='"7"')})
    request = http.FileRequest(url=f"https://{HOST}/list/", source="test", name="list.html")
    for _ in range(2):
        live = open_live(tmp_path)
        page = live.client.read_page(request)
        live.ledger.confirm()
        assert page == PAGE

    assert replay.seen[1].is_conditional


def test_a_challenge_is_no_page():
    answer = http.Answer(status=200, content_type="text/html", head=CAPTCHA, html_expected=True)
    assert http.classify_answer(answer) is errors.SourceBlocked


class Watch:
    """A clock whose sleep passes no real time."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def pacer(self, folder):
        return Pacer(folder=folder, now_s=lambda: self.now, sleep=self.sleep)


def test_two_processes_share_a_hosts_pace(tmp_path):
    watch = Watch()
    first, second = watch.pacer(tmp_path), watch.pacer(tmp_path)
    first.wait_for_turn("a", 5.0)
    second.wait_for_turn("b", 5.0)
    assert watch.slept == []
    watch.now += 2.0
    second.wait_for_turn("a", 5.0)
    assert watch.slept == [3.0]


def test_a_turn_is_taken_before_it_comes(tmp_path):
    asleep = Watch()
    asleep.sleep = asleep.slept.append  # three processes that sleep at the same time
    for _ in range(3):
        asleep.pacer(tmp_path).wait_for_turn("a", 5.0)
    assert asleep.slept == [5.0, 10.0]


@pytest.mark.parametrize(
    ("back_s", "slept"),
    # The clock of another machine may be a little ahead.
    [(2.0, [3.0]), (600.0, []), (3600.0, []), (2 * MAX_RETRY_AFTER_S, [])],
)
def test_a_clock_set_back_stops_no_host(tmp_path, back_s, slept):
    watch = Watch()
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    watch.now -= back_s
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    assert watch.slept == slept


def test_a_cut_turn_stops_no_host(tmp_path):
    watch = Watch()
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    (tmp_path / "a.turn").write_text("10")
    (tmp_path / "b.turn").write_text("")
    for host in "ab":
        watch.pacer(tmp_path).wait_for_turn(host, 1.0)
    assert watch.slept == []
