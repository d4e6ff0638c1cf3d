"""A local replay server: publishers' answers and faults over real TLS; no test lives here.

It is a proxy that takes the place of every https host. Production code reaches it as it would reach
a company's proxy, by ``HTTPS_PROXY`` and ``REQUESTS_CA_BUNDLE``, and so has no hook for tests.
"""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import trustme

from compevo_pipeline import errors as failures
from compevo_pipeline.sources.common import hosts
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.raw_store import RawStore


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer, and what goes wrong with it; 304 where an unchanged tag or time is asked for."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/octet-stream"  # of the content; empty sends none
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    modified: str = ""
    send_bytes: int | None = None  # of the body, before the connection ends
    is_chunked: bool = False  # the body has no length
    has_length: bool = True  # else the end of the connection ends the body
    is_reset: bool = False  # before anything is sent
    raw: bytes = b""  # sent in place of everything else
    drip_seconds: float = 0.0  # before each byte of the body


@dataclass(frozen=True, kw_only=True)
class Seen:
    method: str
    host: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_conditional(self):
        return "if-none-match" in self.headers or "if-modified-since" in self.headers


AUTHORITY = trustme.CA()


@cache
def make_context(host):
    """Make what a host shows of itself, once in a process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(host).configure_cert(context)
    return context


Reply = Answer | Sequence[Answer] | Callable[[Seen], Answer]
"""An answer, answers to one request after the other (the last one stays), or a function."""


@dataclass
class Replay:
    answers: dict[tuple[str, str], Reply] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    bad_certificates: set[str] = field(default_factory=set)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, answers):
        """Adds answers by host and path; everything else is 404."""
        self.answers.update(answers)

    def paths(self):
        return [seen.path for seen in self.seen]

    def find(self, seen):
        key = (seen.host, seen.path)
        with self._lock:
            self.seen.append(seen)
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
        reply = self.answers.get(key, Answer(status=404, body=b"not found", kind="text/plain"))
        if callable(reply):
            return reply(seen)
        return reply if isinstance(reply, Answer) else reply[min(count, len(reply) - 1)]

    def context(self, host):
        return make_context("elsewhere.example" if host in self.bad_certificates else host)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A body follows its headers in a write of its own, which would wait 40 ms to be acknowledged.
    disable_nagle_algorithm = True
    server: "_Server"
    host = ""

    def do_CONNECT(self):  # named by http.server
        self.host = self.path.partition(":")[0]
        self.wfile.write(b"HTTP/1.1 200 connected\r\n\r\n")
        try:
            context = self.server.replay.context(self.host)
            self.connection = context.wrap_socket(self.connection, server_side=True)
        except (ssl.SSLError, OSError):  # the client refused the certificate
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def do_GET(self):  # named by http.server
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        seen = Seen(
            method=self.command,
            host=self.host,
            path=parts.path,
            query=parse_qs(parts.query, keep_blank_values=True),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(length),
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self._send(self.server.replay.find(seen), seen)

    do_POST = do_GET

    def log_message(self, format, *args):
        pass

    def _send(self, answer, seen):
        if answer.is_reset:
            # Linger of zero seconds: the close becomes a reset.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            self.close_connection = True
            return
        if answer.raw:
            self.wfile.write(answer.raw)
            self.close_connection = True
            return

        is_same = (answer.etag and seen.headers.get("if-none-match") == answer.etag) or (
            answer.modified and seen.headers.get("if-modified-since") == answer.modified
        )
        self.send_response(304 if is_same else answer.status)
        headers = {"ETag": answer.etag, "Last-Modified": answer.modified}
        if not is_same:
            headers["Content-Type"] = answer.kind
            if answer.is_chunked:
                headers["Transfer-Encoding"] = "chunked"
            elif answer.has_length:
                headers["Content-Length"] = str(len(answer.body))
            else:
                self.close_connection = True
        for name, value in {**answer.headers, **headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if not is_same:
            self._send_body(answer)

    def _send_body(self, answer):
        body = answer.body[: answer.send_bytes]
        if answer.is_chunked and body:
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n"
        size = 1 if answer.drip_seconds else len(body) or 1
        for first in range(0, len(body), size):
            time.sleep(answer.drip_seconds)
            self.wfile.write(body[first : first + size])
        if answer.send_bytes is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif answer.is_chunked:
            self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    replay: Replay

    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests."""


@contextlib.contextmanager
def run_replay(folder, monkeypatch):
    """Make the server the proxy of this process for a block, without pauses between requests."""
    replay = Replay()
    bundle = folder / "replay-ca.pem"
    AUTHORITY.cert_pem.write_to_path(bundle)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.replay = replay
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    quick = {name: replace(host, pause_s=0.0) for name, host in hosts.HOSTS.items()}
    monkeypatch.setattr(hosts, "HOSTS", quick)
    monkeypatch.setattr(failures, "FIRST_SHORT_WAIT_S", 0.0)
    try:
        yield replay
    finally:
        server.shutdown()
        server.server_close()


def open_live(home, *, now=None, since=None, until=None):
    """What a feed's ``fetch_live`` takes, as a deployment whose home is ``home`` makes it."""
    moment = now or datetime(2026, 7, 20, 7, tzinfo=UTC)
    ledger = Ledger(home / "raw" / "ledger.sqlite")
    client = Client(
        user_agent="compevo-tests (nobody@example.org)",
        clock=lambda: moment,
        ledger=ledger,
        raw=RawStore(home / "raw"),
        pacer=hosts.Pacer(folder=home / "locks"),
    )
    return LiveContext(client=client, ledger=ledger, now=moment, since=since, until=until)
