"""Connections whose every answer ends in time, whatever part of it drips.

What belongs here: the socket that keeps an answer's time, and the session that is built on it. What
does not: requests (``common.http``), what is kept of a body (``common.body``).

A read timeout counts from the last byte, and the library looks at no clock between two header
lines, or inside the line that names a chunk's length: a server that sends a byte a minute would
hold a run for ever. The socket is below all of these.
"""

import ssl
import time
from typing import TYPE_CHECKING

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.ssl_ import create_urllib3_context

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

TOTAL_TIMEOUT_S = 600.0
"""Longest time for one answer, from the last byte of its request to its own last byte."""


class _TimedSocket(ssl.SSLSocket):
    """A socket that reads until the answer's time is over."""

    _end = float("inf")

    def sendall(self, data: "ReadableBuffer", flags: int = 0) -> None:
        """Send a part of a request; the time of its answer begins when all is sent."""
        super().sendall(data, flags)
        self._end = time.monotonic() + TOTAL_TIMEOUT_S

    def recv_into(
        self, buffer: "WriteableBuffer", nbytes: int | None = None, flags: int = 0
    ) -> int:
        """Read what has arrived.

        Raises:
            TimeoutError: nothing arrived in time, or the whole answer took too long.
        """
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the answer took longer than {TOTAL_TIMEOUT_S:.0f} s")

        timeout_s = self.gettimeout()
        self.settimeout(left_s if timeout_s is None else min(left_s, timeout_s))
        try:
            return super().recv_into(buffer, nbytes, flags)
        finally:
            self.settimeout(timeout_s)


class _TimedAdapter(HTTPAdapter):
    """Opens https connections with the socket above, with a proxy in between or without."""

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **settings: object
    ) -> None:
        """Make the pool of direct connections."""
        settings["ssl_context"] = _make_context()
        super().init_poolmanager(connections, maxsize, block, **settings)

    def proxy_manager_for(self, proxy: str, **settings: object) -> object:
        """Make the pool of connections through a proxy."""
        return super().proxy_manager_for(proxy, **settings, ssl_context=_make_context())


class Session(requests.Session):
    """A session of answers that end in time, which leaves redirects alone."""

    def __init__(self) -> None:
        super().__init__()
        self.mount("https://", _TimedAdapter())

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Find none: requests would read the whole body of a redirect, and parse its target."""


def _make_context() -> ssl.SSLContext:
    # As the library makes it: certificates and host names are checked.
    context = create_urllib3_context()
    context.sslsocket_class = _TimedSocket
    return context
