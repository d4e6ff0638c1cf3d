"""Hours of PeMS stations as series: the local clock, imputed values, the share of observed samples.

What belongs here: local hours to UTC, flags, the two series of a station. What does not: the files'
columns (``pems.source``, ``pems.five_minutes``).

A timestamp is the *begin* of its interval on the local wall clock: the hour that daylight saving
skips is absent, and the hour that comes twice in November cannot be told apart, so both of its UTC
hours are nulled rather than guessed.
"""

import polars as pl

from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.series_frame import MISSING, OBSERVED, build_series_frame
from compevo_pipeline.sources.common.tables import refuse_duplicates, refuse_rows

LOCAL_ZONE = "America/Los_Angeles"

_AMBIGUOUS = "nulled:ambiguous-dst-hour"


def build_hours(table: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    """Build ``PEMS/<station>`` and ``PEMS_OBSERVED/<station>``.

    The first is occupancy as a fraction, the second the share of observed samples in percent.

    Args:
        table: one row a station and local hour: ``line``, ``stamp``, ``station``, ``pct_observed``,
            ``occupancy``; the repeated hour once or twice.
        raw: the file they are from.

    Raises:
        SchemaDrift: an hour given twice for a station, or one that daylight saving skips.
    """
    hours = _to_utc_hours(table, raw.name)
    return pl.concat([_occupancy_series(hours, raw), _observed_series(hours, raw)])


def is_repeated_hour() -> pl.Expr:
    """Return the expression of "this local ``stamp`` comes twice", in the hour of November."""
    return _to_utc("earliest") != _to_utc("latest")


def _to_utc(which: str) -> pl.Expr:
    local = pl.col("stamp").dt.replace_time_zone(
        LOCAL_ZONE,
        ambiguous=which,  # type: ignore[arg-type]  # "earliest" or "latest"
        non_existent="null",
    )
    return local.dt.convert_time_zone("UTC")


def _to_utc_hours(table: pl.DataFrame, file_name: str) -> pl.DataFrame:
    """Add ``start_utc`` and ``is_ambiguous``; a repeated local hour gives two rows."""
    table = table.with_columns(earliest=_to_utc("earliest"), latest=_to_utc("latest"))

    refuse_rows(
        table,
        file_name,
        pl.col("earliest").is_null(),
        f"{{stamp}} does not exist in {LOCAL_ZONE} (daylight saving starts)",
        "PeMS leaves that hour out: check whether the file is in standard time",
    )

    table = table.with_columns(is_ambiguous=pl.col("earliest") != pl.col("latest"))
    certain = table.filter(~pl.col("is_ambiguous"))
    refuse_duplicates(certain, file_name, ["station", "stamp"])

    # The repeated hour may stand in the file once or twice; either way it gives two null hours.
    ambiguous = table.filter("is_ambiguous").unique(
        ("station", "stamp"), keep="first", maintain_order=True
    )
    both = [ambiguous.with_columns(start_utc=pl.col(which)) for which in ("earliest", "latest")]
    return pl.concat([certain.with_columns(start_utc="earliest"), *both])


def _occupancy_series(hours: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    is_impossible = ~pl.col("occupancy").is_between(0.0, 1.0)
    flag = (
        pl.when(pl.col("is_ambiguous"))
        .then(pl.lit(_AMBIGUOUS))
        .when(pl.col("occupancy").is_null())
        .then(pl.lit(MISSING))
        .when(is_impossible)
        .then(pl.lit("nulled:out-of-range"))
        # PeMS fills detectors that sent nothing; its value is an estimate.
        .when(pl.col("pct_observed") == 0)
        .then(pl.lit("filled:pems-imputed"))
        .otherwise(pl.lit(OBSERVED))
    )
    has_value = (flag == OBSERVED) | flag.str.starts_with("filled:")

    return build_series_frame(
        hours,
        raw,
        series_id=pl.lit("PEMS/") + pl.col("station"),
        variable="occupancy",
        start_utc=pl.col("start_utc"),
        value=pl.when(has_value).then("occupancy"),
        unit="fraction",
        flag=flag,
    )


def _observed_series(hours: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    share = pl.when(~pl.col("is_ambiguous")).then("pct_observed")
    flag = (
        pl.when(pl.col("is_ambiguous"))
        .then(pl.lit(_AMBIGUOUS))
        .when(share.is_null())
        .then(pl.lit(MISSING))
        .otherwise(pl.lit(OBSERVED))
    )

    return build_series_frame(
        hours,
        raw,
        series_id=pl.lit("PEMS_OBSERVED/") + pl.col("station"),
        variable="pct_observed",
        start_utc=pl.col("start_utc"),
        value=share,
        unit="%",
        flag=flag,
    )
