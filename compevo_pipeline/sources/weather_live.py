"""Live runs of forecast weather: which runs to ask Open-Meteo for.

What belongs here: the address, the parameters and the runs of a span. What does not: HTTP
(``common.http``), parsing (``sources.weather_runs``).

One request a run answers for all places. The run of 18:00 UTC is the newest that is public when
AEMO issues its day-ahead forecast, at 07:00 UTC; the others would be seen by no view before it.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from compevo_core.errors import CompEvoError, SourceAbsent, SourceRejected
from compevo_pipeline.sources import weather_runs
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.weather_runs import PLACES, PUBLIC_AFTER, SOURCE, VARIABLES

URL = "https://single-runs-api.open-meteo.com/v1/forecast"
CUSTOMER_URL = "https://customer-single-runs-api.open-meteo.com/v1/forecast"
"""The same for a paid plan, whose key goes with every request."""

RUN_HOUR = 18  # UTC
LOOKBACK = timedelta(days=4)
"""How far back a refresh looks for runs that it does not have."""

_DAY = timedelta(days=1)
_FORECAST_DAYS = 3  # from the start of the run; the day that is forecast ends 44 hours after it
_NO_SUCH_RUN = ("modelRunUnavailable", "run is not available")


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Yield the runs of the span that are public and not stored yet, oldest first.

    A run that Open-Meteo does not have is asked for again later, then given up.

    Raises:
        SourceError: any other answer than a run; the runs before it are safe.
    """
    start, end = live.span(LOOKBACK)
    for run in list_runs(start, min(end, live.now - PUBLIC_AFTER)):
        name = weather_runs.name_run(run)
        if not live.ledger.is_due(SOURCE, name, live.now):
            continue

        try:
            raw = _fetch_run(live, run, name)
        except SourceAbsent:
            live.ledger.mark_absent(SOURCE, name, _find_url(live), live.now)
            continue
        if raw is not None:
            yield raw


def list_runs(start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the initialisation times from ``start`` to ``end``, both included, in UTC."""
    run = start.replace(hour=RUN_HOUR, minute=0, second=0, microsecond=0)
    while run <= end:
        if run >= start:
            yield run
        run += _DAY


def _fetch_run(live: LiveContext, run: datetime, name: str) -> RawFile | None:
    """Return a run that can be read.

    Raises:
        SourceAbsent: there is no such run.
        SourceError: another fault; the bytes will be fetched again.
    """
    try:
        raw = live.client.fetch(
            _find_url(live),
            source=SOURCE,
            name=name,
            params=_make_query(run),
            is_final=True,
            key=live.open_meteo,
            check_start=weather_runs.refuse_streamed_error,
        )
    except SourceRejected as error:
        # For one place the answer to a run that is not there is 400; for several, 200 and a text.
        if any(sign in str(error) for sign in _NO_SUCH_RUN):
            raise SourceAbsent(f"{name}: Open-Meteo does not have this run") from error
        raise

    if raw is None:
        return None
    try:
        weather_runs.parse(raw)
    except CompEvoError as error:
        live.ledger.reject(SOURCE, name, f"{type(error).__name__}: {error}")
        raise
    return raw


def _find_url(live: LiveContext) -> str:
    return URL if live.open_meteo is None else CUSTOMER_URL


def _make_query(run: datetime) -> dict[str, str]:
    return {
        "latitude": ",".join(str(latitude) for latitude, _ in PLACES.values()),
        "longitude": ",".join(str(longitude) for _, longitude in PLACES.values()),
        "hourly": ",".join(variable.published for variable in VARIABLES),
        "models": "ecmwf_ifs",
        "run": f"{run:%Y-%m-%dT%H:%M}",
        "forecast_days": str(_FORECAST_DAYS),
        "wind_speed_unit": "ms",
        "timezone": "GMT",
    }
