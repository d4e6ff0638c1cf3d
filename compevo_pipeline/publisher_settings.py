"""Variables about publishers: how we name ourselves, accounts and keys, what is asked for.

What belongs here: what these variables may hold, and their meaning for the documentation. What does
not: reading the environment (``settings``), sending any of it (``sources``).

No message of this module holds a name, a password or a key.
"""

from collections.abc import Mapping

from compevo_core.errors import ConfigError
from compevo_pipeline.sources.common.access import (
    PEMS_DISTRICT,
    PEMS_FILES,
    PemsAccess,
    QueryKey,
)

PUBLISHER_VARIABLES = {
    "COMPEVO_CONTACT": (
        "none: only the program's name is sent",
        "address or page where a publisher reaches you; sent with every request of live mode",
    ),
    "COMPEVO_NEWS_QUERIES": (
        "the packaged `queries.toml`",
        "TOML file that says which of GDELT's news is kept, and how much is fetched a refresh",
    ),
    "COMPEVO_PEMS_USER": ("none", "account name at PeMS, for traffic in live mode"),
    "COMPEVO_PEMS_PASSWORD": (
        "none",
        "its password; sent to PeMS over TLS alone, and never logged or stored",
    ),
    "COMPEVO_PEMS_DISTRICT": (f"`{PEMS_DISTRICT}` (Bay Area)", "Caltrans district, 3 to 12"),
    "COMPEVO_PEMS_FILES": (
        f"`{','.join(PEMS_FILES)}`",
        "kinds of files to fetch: `station_hour` (a month each), `station_5min` (a day each)",
    ),
    "COMPEVO_PEMS_STATIONS": (
        "none: all of a file",
        "numbers of the PeMS stations that are stored, with commas between them, in live and in "
        "archive mode",
    ),
    "COMPEVO_OPEN_METEO_KEY": (
        "none: the free interface, which is not for commercial use",
        "key of a paid plan at Open-Meteo; sent to its customers' host over TLS alone, and never "
        "logged or stored",
    ),
}
"""Default and meaning of each variable."""

_PEMS_DISTRICTS = ("3", "4", "5", "6", "7", "8", "10", "11", "12")
_PEMS_KINDS = ("station_hour", "station_5min")


def read_contact(env: Mapping[str, str]) -> str:
    """Return the contact that every request names; empty where there is none.

    Raises:
        ConfigError: it holds what no header may.
    """
    contact = env.get("COMPEVO_CONTACT", "").strip()
    # It goes into a header: another character could end the header and begin another one.
    if not contact.isascii() or not contact.isprintable():
        raise ConfigError(
            "COMPEVO_CONTACT holds characters that no HTTP header may; use plain ASCII"
        )
    return contact


def read_pems(env: Mapping[str, str]) -> PemsAccess | None:
    """Return the account at PeMS, or None where there is none.

    Raises:
        ConfigError: half an account, an unknown district or kind of file.
    """
    user = env.get("COMPEVO_PEMS_USER", "")
    password = env.get("COMPEVO_PEMS_PASSWORD", "")
    if bool(user) != bool(password):
        missing = "COMPEVO_PEMS_PASSWORD" if user else "COMPEVO_PEMS_USER"
        raise ConfigError(f"PeMS needs an account name and its password: set {missing}, or neither")
    if not user:
        return None

    district = env.get("COMPEVO_PEMS_DISTRICT") or str(PEMS_DISTRICT)
    kinds = tuple((env.get("COMPEVO_PEMS_FILES") or ",".join(PEMS_FILES)).split(","))
    if district not in _PEMS_DISTRICTS:
        raise ConfigError(f"COMPEVO_PEMS_DISTRICT {district!r} is none of {_PEMS_DISTRICTS}")
    if not set(kinds) <= set(_PEMS_KINDS):
        raise ConfigError(f"COMPEVO_PEMS_FILES {kinds} are not all of {_PEMS_KINDS}")
    return PemsAccess(user=user, password=password, district=int(district), files=kinds)


def read_stations(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the numbers of the chosen PeMS stations; none are all.

    Raises:
        ConfigError: one that is no number.
    """
    text = env.get("COMPEVO_PEMS_STATIONS", "")
    stations = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in stations if not (name.isascii() and name.isdigit())]
    if wrong:
        raise ConfigError(
            f"COMPEVO_PEMS_STATIONS holds {wrong[0]!r}, which is no station's number; write them "
            "as 400001,400017 (the column ID of PeMS' station metadata)"
        )
    return stations


def read_open_meteo(env: Mapping[str, str]) -> QueryKey | None:
    """Return the key of a paid plan at Open-Meteo, or None where there is none.

    Raises:
        ConfigError: it holds what no key does.
    """
    key = env.get("COMPEVO_OPEN_METEO_KEY", "").strip()
    # Written as it is sent, so that it is found wherever it must not stand;
    if key and not (key.isascii() and key.replace("-", "").replace("_", "").isalnum()):
        raise ConfigError(
            "COMPEVO_OPEN_METEO_KEY holds other characters than letters, digits, - and _; copy "
            "the key from Open-Meteo's page again"
        )
    return QueryKey(name="apikey", value=key) if key else None
