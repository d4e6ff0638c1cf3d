"""The hosts that this program may ask, who runs each, and how long to pause between two requests.

What belongs here: this one table, and the refusal of every other address. What does not: paths on a
host (the source's own module), waiting (``common.pacer``).

A redirect is an address like any other: it is followed to a host of this table alone.
"""

from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from compevo_core.errors import SourceRejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host and the pace it is asked at.

    Attributes:
        publisher: who runs it.
        pause_s: least seconds between the starts of two requests, over all processes of a home.
        throttled_s: how long nobody asks after it said that requests are too many, where it does
            not say for how long; 0 leaves that to the waits of any other failure.
    """

    publisher: str
    pause_s: float
    throttled_s: float = 0.0


HOSTS: dict[str, Host] = {
    "aemo.com.au": Host(publisher="AEMO", pause_s=1.0),
    "www.aemo.com.au": Host(publisher="AEMO", pause_s=1.0),
    "nemweb.com.au": Host(publisher="AEMO (NEMWeb)", pause_s=0.5),
    "www.nemweb.com.au": Host(publisher="AEMO (NEMWeb)", pause_s=0.5),
    "pems.dot.ca.gov": Host(publisher="Caltrans PeMS", pause_s=2.0),
    "www.ecb.europa.eu": Host(publisher="European Central Bank", pause_s=1.0),
    "data-api.ecb.europa.eu": Host(publisher="European Central Bank", pause_s=1.0),
    "www.rba.gov.au": Host(publisher="Reserve Bank of Australia", pause_s=1.0),
    "bitinfocharts.com": Host(publisher="BitInfoCharts", pause_s=10.0),
    # GDELT's own host name has had a certificate that does not match; this bucket is the same data.
    "storage.googleapis.com": Host(publisher="GDELT (bulk files)", pause_s=0.2),
    "data.gdeltproject.org": Host(publisher="GDELT (bulk files)", pause_s=0.2),
    # GDELT asks for at most one request every five seconds, and who is throttled for minutes.
    "api.gdeltproject.org": Host(publisher="GDELT (DOC API)", pause_s=5.5, throttled_s=300.0),
    "archive-api.open-meteo.com": Host(publisher="Open-Meteo", pause_s=1.0),
    "api.open-meteo.com": Host(publisher="Open-Meteo", pause_s=1.0),
    "historical-forecast-api.open-meteo.com": Host(publisher="Open-Meteo", pause_s=1.0),
    "previous-runs-api.open-meteo.com": Host(publisher="Open-Meteo", pause_s=1.0),
    "single-runs-api.open-meteo.com": Host(publisher="Open-Meteo", pause_s=1.0),
    "customer-single-runs-api.open-meteo.com": Host(publisher="Open-Meteo (paid)", pause_s=0.2),
}
"""By host name; no other host is ever asked."""

_HTTPS_PORTS = (None, 443)


def find_host(url: str) -> tuple[str, Host]:
    """Return the name and the entry of an address's host.

    Raises:
        SourceRejected: the address is not https, carries a login, names a port, or its host is
            not in :data:`HOSTS`.
    """
    try:
        parts = urlsplit(url)
        name, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise SourceRejected(f"{url!r} is no address ({error}); correct it") from error

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

    Raises:
        SourceRejected: it is no address.
    """
    try:
        return urljoin(url, target)
    except ValueError as error:
        raise SourceRejected(
            f"{url}: names {target[:100]!r}, which is no address ({error}); correct the URL"
        ) from error
