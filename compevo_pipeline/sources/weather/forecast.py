"""Forecast weather of the five regions: single runs of ECMWF's IFS, as Open-Meteo publishes them.

What belongs here: places, variables, when a run counts as known, the parser of its JSON, and which
runs to ask for. What does not: HTTP (``common.http``), observed weather (``weather.observed``).

Why single runs: Open-Meteo's forecast joins the newest runs of many models and does not say when it
was issued. A run has an initialisation time, today's as well as one of 2024, so what was kept every
evening and what is fetched years later are the same thing. Its output is public 4 to 6 hours after
that time; here a run counts as known after twelve (decision 18-live-mode).

Stamps are UTC without an offset. Temperature and wind are values at a stamp, and a half-hour has
its value at the start: between two stamps their mean, which the run itself implies. Radiation is
the mean of the hour that ends at its stamp. Free use is non-commercial; the data are CC BY 4.0.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import polars as pl
from pydantic import BaseModel, Field

from compevo_core import errors
from compevo_core.data.schemas import STEP_COVARIATE_SCHEMA
from compevo_pipeline.sources.common.base import RawFile, read_product
from compevo_pipeline.sources.common.decode import Number, check_document, read_json
from compevo_pipeline.sources.common.http import FileRequest
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.nem import HALF_HOUR
from compevo_pipeline.sources.common.tables import Period, check_periods

SOURCE = "open_meteo_runs"
NAME_FORMAT = "ecmwf_ifs_%Y%m%dT%H%MZ.json"
PUBLIC_AFTER = timedelta(hours=12)  # from which on anybody could have had a run
URL = "https://single-runs-api.open-meteo.com/v1/forecast"
CUSTOMER_URL = "https://customer-single-runs-api.open-meteo.com/v1/forecast"  # of a paid plan
RUN_HOUR = 18  # UTC; its run is the newest public one at AEMO's issue of 07:00 UTC
LOOKBACK = timedelta(days=4)  # how far back a refresh looks for runs that it does not have
_FORECAST_DAYS = 3  # from the start of the run; the day that is forecast ends 44 hours after it

PLACES: dict[str, tuple[float, float]] = {
    "NSW1": (-33.87, 151.21),  # Sydney
    "QLD1": (-27.47, 153.03),  # Brisbane
    "SA1": (-34.93, 138.60),  # Adelaide
    "TAS1": (-42.88, 147.33),  # Hobart
    "VIC1": (-37.81, 144.96),  # Melbourne
}
"""Latitude and longitude that represent a region: where most of its people live."""

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_FARTHEST_DEGREES = 0.5  # from a place to the grid point that answers for it; the grid is 0.1 wide


@dataclass(frozen=True, slots=True)
class RunVariable:
    """One hourly variable of a run."""

    published: str  # its name at Open-Meteo
    name: str  # name of the covariate
    unit: str  # unit that the answer must state
    is_hour_mean: bool = False  # whether a value is the mean of the hour before its stamp
    factor: float = 1.0  # what turns a value of the answer into the covariate's unit


VARIABLES = (
    RunVariable("temperature_2m", "temperature_c", "°C"),
    RunVariable("dew_point_2m", "dew_point_c", "°C"),
    RunVariable("cloud_cover", "cloud_cover_pct", "%"),
    RunVariable("wind_speed_10m", "wind_speed_m_s", "m/s"),
    RunVariable("sunshine_duration", "sunshine_share", "s", is_hour_mean=True, factor=1 / 3600),
    RunVariable("shortwave_radiation", "solar_radiation_w_m2", "W/m²", is_hour_mean=True),
)


class _Hourly(BaseModel):
    time: list[str] = Field(min_length=1)
    temperature_2m: list[Number | None]
    # Runs that were kept before these three were asked for do not have them.
    dew_point_2m: list[Number | None] = Field(default_factory=list)
    cloud_cover: list[Number | None] = Field(default_factory=list)
    wind_speed_10m: list[Number | None]
    sunshine_duration: list[Number | None] = Field(default_factory=list)
    shortwave_radiation: list[Number | None]


class _Place(BaseModel):
    latitude: Number
    longitude: Number
    utc_offset_seconds: Literal[0]
    hourly: _Hourly
    hourly_units: dict[str, object]


_Places = Annotated[list[_Place], Field(min_length=len(PLACES), max_length=len(PLACES))]

read_files = functools.partial(
    read_product, source=SOURCE, folder=SOURCE, files=["ecmwf_ifs_*.json*"]
)
"""Yields the runs of an archive folder; the sample has no forecast weather."""


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Yield the runs of the span that are public and not stored yet, oldest first.

    A run that Open-Meteo does not have is asked for again later, then given up. SourceError for any
    other answer than a run; the runs before it are safe.
    """
    url = URL if live.open_meteo is None else CUSTOMER_URL
    start, end = live.span(LOOKBACK)
    run = start.replace(hour=RUN_HOUR, minute=0, second=0, microsecond=0)
    while run <= min(end, live.now - PUBLIC_AFTER):
        name = name_run(run)
        if run >= start and live.ledger.is_due(SOURCE, name, live.now):
            try:
                raw = _fetch_run(live, run, url)
            except errors.SourceAbsent:
                live.ledger.mark_absent(SOURCE, name, url, live.now)
            else:
                if raw is not None:
                    yield raw
        run += _DAY


def name_run(run: datetime) -> str:
    """Return the file name of a run by its initialisation time (UTC)."""
    return f"{run:{NAME_FORMAT}}"


def read_periods(raw: RawFile) -> list[Period]:
    """Return the period that a file's name states for its first stamp: the day up to the run."""
    run = _read_run_time(raw)
    return [Period(first=run - _DAY + _HOUR, end=run + _HOUR)]


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one run into ``STEP_COVARIATE_SCHEMA``, by half-hour from the start of the run on.

    Raises:
        SourceAbsent: Open-Meteo does not have the run, or not one value of it.
        SourceTransient: the answer broke off, or is empty.
        SourceRejected: the answer is an error message.
        SchemaDrift: not the known structure, place or unit; names the file and the remedy.
    """
    run = _read_run_time(raw)
    raise_if_streamed_error(raw.content)

    document = read_json(raw.content, raw.name)
    if isinstance(document, dict) and document.get("error"):
        raise errors.SourceRejected(
            f"{raw.name}: Open-Meteo answers {str(document.get('reason'))[:200]!r}"
        )
    answers = check_document(document, raw.name, _Places)
    for region, place in zip(PLACES, answers, strict=True):
        # Answers come in the order of the places that were asked for, each with its grid point.
        for asked, given in zip(PLACES[region], (place.latitude, place.longitude), strict=True):
            if abs(given - asked) > _FARTHEST_DEGREES:
                raise _drift(raw, f"{given} degrees are not near {asked}, the place of {region}")

        if len({len(values) for _, values in place.hourly if values}) > 1:
            raise _drift(raw, f"hourly of {region} has lists without a value for each stamp")
        for variable in VARIABLES:
            values = getattr(place.hourly, variable.published)
            unit = place.hourly_units.get(variable.published)
            # A variable that a run does not hold comes as nulls of an undefined unit.
            if unit != variable.unit and any(value is not None for value in values):
                raise _drift(raw, f"{variable.published} is in {unit!r}, not {variable.unit!r}")

    rows = split_hours(_join_places(raw, answers), VARIABLES, ["entity"]).filter(
        # A stamp before the run is not a forecast of it.
        pl.col("value").is_not_null() & (pl.col("start_utc") >= run)
    )
    if not rows.height:
        raise errors.SourceAbsent(f"{raw.name}: the run has no value yet; ask again later")

    rows = rows.with_columns(
        pl.lit(run + PUBLIC_AFTER).alias("available_at"), pl.lit(raw.label).alias("source")
    )
    ordered = rows.sort("entity", "name", "start_utc")
    return ordered.select(pl.col(name).cast(kind) for name, kind in STEP_COVARIATE_SCHEMA.items())


def raise_if_streamed_error(content: bytes) -> None:
    """Reject an error that came as text with or after a status of 200.

    SourceAbsent if Open-Meteo does not have the run; SourceTransient if the answer broke off.
    """
    if b"modelRunUnavailable" in content:
        raise errors.SourceAbsent("Open-Meteo does not have this run; ask again later")
    if b"Unexpected error while streaming data" in content:
        raise errors.SourceTransient("Open-Meteo's answer broke off; fetch the run again")


def _fetch_run(live: LiveContext, run: datetime, url: str) -> RawFile | None:
    """Return a run that can be read."""
    name = name_run(run)
    request = FileRequest(
        url=url,
        source=SOURCE,
        name=name,
        params={
            "latitude": ",".join(str(latitude) for latitude, _ in PLACES.values()),
            "longitude": ",".join(str(longitude) for _, longitude in PLACES.values()),
            "hourly": ",".join(variable.published for variable in VARIABLES),
            "models": "ecmwf_ifs",
            "run": f"{run:%Y-%m-%dT%H:%M}",
            "forecast_days": str(_FORECAST_DAYS),
            "wind_speed_unit": "ms",
            "timezone": "GMT",
        },
        is_final=True,
        key=live.open_meteo,
        check_start=raise_if_streamed_error,
    )
    try:
        raw = live.client.fetch(request)
    except errors.SourceRejected as error:
        # For one place the answer to a run that is not there is 400; for several, 200 and a text.
        if any(sign in str(error) for sign in ("modelRunUnavailable", "run is not available")):
            raise errors.SourceAbsent(f"{name}: Open-Meteo does not have this run") from error
        raise

    if raw is None:
        return None
    try:
        parse(raw)
    except errors.CompEvoError as error:
        live.ledger.reject(SOURCE, name, f"{type(error).__name__}: {error}")
        raise
    return raw


def _read_run_time(raw: RawFile) -> datetime:
    try:
        return datetime.strptime(raw.name, NAME_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise _drift(raw, f"its name is not of the form {NAME_FORMAT}") from error


def _join_places(raw: RawFile, places: list[_Place]) -> pl.DataFrame:
    """Return entity, stamp and every covariate, in its unit, by hour."""
    kinds = {each.published: pl.Float64() for each in VARIABLES} | {"time": pl.String()}
    hours = pl.concat(
        pl.DataFrame(
            {name: values or [None] * len(place.hourly.time) for name, values in place.hourly},
            schema_overrides=kinds,
        ).with_columns(entity=pl.lit(region))
        for region, place in zip(PLACES, places, strict=True)
    ).select(
        "entity",
        *((pl.col(each.published) * each.factor).alias(each.name) for each in VARIABLES),
        stamp=pl.col("time").str.to_datetime(
            "%Y-%m-%dT%H:%M", strict=False, time_unit="us", time_zone="UTC"
        ),
    )

    is_odd = pl.col("stamp").is_null() | (pl.col("stamp").diff().over("entity") != _HOUR)
    odd = hours.filter(is_odd)["entity"]
    if odd.len():
        raise _drift(raw, f"hourly.time of {odd[0]} has no stamps an hour apart")
    # Hours of its day before the run are passed over, but those of another day are another run's.
    firsts = hours.group_by("entity").agg(pl.col("stamp").min())["stamp"].unique()
    check_periods(pl.DataFrame({"start_utc": firsts, "source": raw.label}), [raw], read_periods)
    return hours


def split_hours(
    hours: pl.DataFrame, variables: Sequence[RunVariable], by: Sequence[str]
) -> pl.DataFrame:
    """Return a name and a value for each half-hour, by its start, of rows that ``by`` groups."""
    states = [pl.col(variable.name) for variable in variables if not variable.is_hour_mean]
    means = [pl.col(variable.name) for variable in variables if variable.is_hour_mean]
    between = [(state + state.shift(-1).over(by)) / 2 for state in states]

    halves = {timedelta(): states, HALF_HOUR: between, -_HOUR: means, -HALF_HOUR: means}
    return pl.concat(
        hours.select(*by, *values, start_utc=pl.col("stamp") + offset).unpivot(
            index=[*by, "start_utc"], variable_name="name"
        )
        for offset, values in halves.items()
    )


def _drift(raw: RawFile, problem: str) -> errors.SchemaDrift:
    return errors.SchemaDrift(
        f"{raw.name}: {problem}; fetch the run again; extend the parser if the format changed"
    )
