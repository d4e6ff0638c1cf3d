"""Whom this program may ask, at what pace, and as whom.

What belongs here: the table of hosts and the rejection of every other address, turns at a host that
all processes of a home share, accounts and keys. What does not: paths on a host (the source's own
module), sending requests (``common.http``), the environment (``config.settings``).

A redirect is an address like any other: it is followed only to a host of this table.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import AnyStr
from urllib.parse import urljoin, urlsplit

from compevo_core.errors import SourceRejected
from compevo_core.runtime.files import file_lock
from compevo_pipeline.errors import MAX_TURN_WAIT_S, Throttled

PEMS_DISTRICT = 4  # the San Francisco Bay Area
PEMS_FILES = ("station_hour",)  # kinds of files that are fetched unless a deployment names others
_HTTPS_PORTS = (None, 443)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host and the pace it is asked at."""

    publisher: str  # who runs it
    pause_s: float  # least seconds between the starts of two requests, over all processes of a home
    throttled_s: float = 0.0  # pause after an answer that asks for fewer requests, without a time


HOSTS: dict[str, Host] = {
    "aemo.com.au": Host(publisher="AEMO", pause_s=1.0),
    "www.aemo.com.au": Host(publisher="AEMO", pause_s=1.0),
    "nemweb.com.au": Host(publisher="AEMO (NEMWeb)", pause_s=0.5),
    "www.nemweb.com.au": Host(publisher="AEMO (NEMWeb)", pause_s=0.5),
    "pems.dot.ca.gov": Host(publisher="Caltrans PeMS", pause_s=2.0),
    "www.ecb.europa.eu": Host(publisher="European Central Bank", pause_s=1.0),
    "www.rba.gov.au": Host(publisher="Reserve Bank of Australia", pause_s=1.0),
    "bitinfocharts.com": Host(publisher="BitInfoCharts", pause_s=10.0),
    # GDELT's own host name has had a certificate that does not match; this bucket is the same data.
    "storage.googleapis.com": Host(publisher="GDELT (bulk files)", pause_s=0.2),
    # GDELT asks for at most one request every five seconds, and who is throttled for minutes.
    "api.gdeltproject.org": Host(publisher="GDELT (DOC API)", pause_s=5.5, throttled_s=300.0),
    "single-runs-api.open-meteo.com": Host(publisher="Open-Meteo", pause_s=1.0),
    "customer-single-runs-api.open-meteo.com": Host(publisher="Open-Meteo (paid)", pause_s=0.2),
}
"""By host name; no other host is ever asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryKey:
    """A key that a publisher wants in the address, by parameter; its value is in no text."""

    name: str
    value: str = field(repr=False)

    def hide(self, text: AnyStr) -> AnyStr:
        """Return a text or bytes in which the key is three asterisks."""
        if isinstance(text, bytes):
            return text.replace(self.value.encode("ascii"), b"***")
        return text.replace(self.value, "***")


@dataclass(frozen=True, slots=True, kw_only=True)
class PemsAccess:
    """A PeMS account, whose district is 3 to 12; neither name nor password is in its text."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    district: int = PEMS_DISTRICT
    files: tuple[str, ...] = PEMS_FILES


def find_host(url: str) -> tuple[str, Host]:
    """Return the name and the entry of an address's host.

    SourceRejected if the address is not https, has a login or port, or no host of :data:`HOSTS`.
    """
    try:
        parts = urlsplit(url)
        name, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise SourceRejected(f"{url!r} is not an address ({error}); correct it") from error

    if parts.scheme != "https":
        # Without the rest of the address, which may hold a login.
        raise SourceRejected(
            f"{parts.scheme}:{name}: not an https address; use the publisher's https host"
        )
    if parts.username is not None or port not in _HTTPS_PORTS:
        raise SourceRejected(f"{name}: an address with a login or a port is never asked")
    if name not in HOSTS:
        raise SourceRejected(
            f"{url}: {name} is not a host this program may ask; add it to "
            "compevo_pipeline/sources/common/hosts.py if the publisher moved"
        )
    return name, HOSTS[name]


def resolve_link(url: str, target: str) -> str:
    """Return the address that a redirect or a page names, which may be relative to the asked one.

    SourceRejected if it is not an address.
    """
    try:
        return urljoin(url, target)
    except ValueError as error:
        raise SourceRejected(
            f"{url}: names {target[:100]!r}, which is not an address ({error}); correct the URL"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Pacer:
    """Gives out turns at hosts: a process takes the next free turn and sleeps until then.

    Two processes never share a turn, and neither holds the lock while it sleeps.
    """

    folder: Path  # of files that processes share, one a host: time of writing, of the next turn
    now_s: Callable[[], float] = time.time  # seconds since the epoch, which all processes agree on
    sleep: Callable[[float], None] = time.sleep  # waits for a turn

    def wait_for_turn(self, host: str, pause_s: float) -> None:
        """Sleep until the host's next free turn, and take it.

        Throttled if the host asked for a pause that is too long to sleep through; StoreBusy if
        other processes held the host's file for too long.
        """
        with self._locked(host) as path:
            now = self.now_s()
            wait = max(0.0, _read_free_at(path, now) - now)
            if wait > MAX_TURN_WAIT_S:
                raise Throttled(
                    f"{host} asked for a pause, {wait:.0f} s of it left; try again after it", wait
                )
            _write_free_at(path, now, now + wait + pause_s)

        if wait > 0:
            self.sleep(wait)

    def postpone(self, host: str, seconds: float) -> None:
        """Give out no turn at a host for some time, because it asked for a pause."""
        with self._locked(host) as path:
            now = self.now_s()
            _write_free_at(path, now, max(_read_free_at(path, now), now + seconds))

    @contextmanager
    def _locked(self, host: str) -> Iterator[Path]:
        path = self.folder / f"{host}.turn"
        with file_lock(path.with_suffix(".lock"), exclusive=True):
            yield path


def _write_free_at(path: Path, now: float, free_at: float) -> None:
    path.write_text(f"{now!r} {free_at!r}", encoding="ascii")


def _read_free_at(path: Path, now: float) -> float:
    try:
        written_at, free_at = map(float, path.read_text(encoding="ascii").split())
    except (FileNotFoundError, ValueError):
        return now  # no turn was taken yet, or a process was killed while it wrote one
    # Written in the future: by a clock that has been set back since, not one a little ahead.
    return now if written_at > now + MAX_TURN_WAIT_S else free_at
