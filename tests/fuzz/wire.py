"""HTTP answers as bytes of a connection, through the client and the libraries below it.

What belongs here: valid answers to start from, and a client whose connections read such bytes. What
does not: mutating (``tests.fuzz.mutations``), TLS and time (``sources.common.connection``).
"""

import gzip
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import cast

from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

from compevo_pipeline.failures import MAX_RETRY_AFTER_S
from compevo_pipeline.sources.common.connection import Session
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.common.pacer import Pacer
from compevo_pipeline.sources.common.raw_store import RawStore

URL = "https://nemweb.com.au/answer"
TEXT = b"REGION,SETTLEMENTDATE,DEMAND\nNSW1,2026/07/19 00:30:00,7000\n" * 3
PACKED = gzip.compress(TEXT)
WHOLE = (
    b"HTTP/1.1 200 OK\r\nDate: Mon, 20 Jul 2026 07:00:00 GMT\r\n"
    b'Content-Type: text/csv; charset=utf-8\r\nETag: "5d8c"\r\n'
    b"Last-Modified: Sun, 19 Jul 2026 01:02:03 GMT\r\nSet-Cookie: s=1; Path=/; Secure\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(TEXT), TEXT)
)
FIRST_ANSWERS: Mapping[str, bytes] = {
    "wire-whole": WHOLE,
    "wire-chunks": b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Encoding: gzip\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n20;a=b\r\n%b\r\n%x\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n"
    % (PACKED[:32], len(PACKED) - 32, PACKED[32:]),
    "wire-throttled": b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\n"
    b"Retry-After: Mon, 20 Jul 2026 07:00:20 +0000\r\nContent-Length: 4\r\n\r\nwait",
    "wire-busy": b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\n"
    b"Retry-After: 20\r\nContent-Length: 10\r\n\r\n<html>busy",
    "wire-moved": b"HTTP/1.1 302 Found\r\nLocation: https://www.nemweb.com.au/a/../b?c=d#e\r\n"
    b"Content-Length: 0\r\n\r\n",
}
"""What the first request is answered; all that follow get :data:`WHOLE`."""


class _NoPauses:
    """In place of the pacer, whose pauses would be kept for the next case."""

    def wait_for_turn(self, host: str, pause_s: float) -> None:
        pass

    def postpone(self, host: str, seconds: float) -> None:
        assert 0 <= seconds <= MAX_RETRY_AFTER_S, seconds


class _Bytes:
    """A socket that has received an answer."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._content))

    def ignore(self, *_: object) -> None:
        pass

    sendall = settimeout = shutdown = close = ignore


def read_answer(first: bytes) -> bytes:
    """Ask with a client whose first connection answers so, and return what it takes for data.

    Raises:
        SourceError: it is not to be had.
    """
    answers = chain([first], repeat(WHOLE))

    class Connection(HTTPSConnection):
        def connect(self) -> None:
            self.sock = _Bytes(next(answers))
            self.is_verified = True

        @property
        def is_connected(self) -> bool:
            return False

    class Pool(HTTPSConnectionPool):
        ConnectionCls = Connection

    session = Session()
    session.trust_env = False
    session.get_adapter(URL).poolmanager.pool_classes_by_scheme = {"https": Pool}
    client = Client(
        user_agent="compevo-tests (nobody@example.org)",
        clock=lambda: datetime(2026, 7, 20, 7, tzinfo=UTC),
        # A form's answer is neither remembered nor kept.
        ledger=cast(Ledger, None),
        raw=cast(RawStore, None),
        pacer=cast(Pacer, _NoPauses()),
        sleep=lambda _: None,
        draw=lambda: 0.5,
        session=session,
    )
    return client.submit(URL, {})
