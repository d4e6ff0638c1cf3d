"""Texts to instants: formats, offsets, time zones, hours that daylight saving repeats or skips.

What belongs here: which instant a stamp is, which stamps are ambiguous, and the clocks that a
declaration may name: time zones and fixed offsets. What does not: stamps that have a type
(``table.stamps``), the grid and duplicates.

A stamp with an offset is an instant. One without is read on the clock of the declaration: where
clocks go back, its hour comes twice, in the order of the rows; where they go forward, it does not
exist.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

import polars as pl

from compevo_core.data.series import find_calendar_step
from compevo_core.data.steps import DAY
from compevo_core.errors import DataError
from compevo_core.table.cells import LINE, TextColumn

_YEAR_FIRST = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%Y-%j", "%G-W%V-%u")
_YEAR_LAST = ("%d %B %Y", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
_SHORT_YEAR = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d")
_DATES = _YEAR_FIRST + _YEAR_LAST + _SHORT_YEAR
_TIMES = ("", " %H:%M", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
_WITH_T = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M")
FORMATS = _WITH_T + tuple(date + time for date in _DATES for time in _TIMES)
"""Formats that are tried, without an offset; those that begin with the year are unambiguous."""

ISO = tuple(form for form in FORMATS if form.startswith("%Y-%m"))
SHAPES = {"": ISO, **{form: (form,) for form in FORMATS if form not in ISO}}
_OFFSET = r"(?:\s*)(Z|[+-]\d{2}:?\d{2})$"
MONTHS_BY_NAME = {
    "Jan": "jan|ene|gen|sty|янв|oca",
    "Feb": "feb|fév|fev|lut|фев|şub",
    "Mar": "mar|mär|mrt|mrz|maa|мар",
    "Apr": "apr|avr|abr|kwi|апр|nis",
    "May": "may|mai|mag|mei|maj|май|мая",
    "Jun": "jun|juin|giu|cze|июн|haz",
    "Jul": "jul|juil|lug|lip|июл|tem",
    "Aug": "aug|aoû|aou|ago|sie|авг|ağu",
    "Sep": "sep|set|wrz|сен|eyl",
    "Oct": "oct|okt|ott|out|paź|окт|eki",
    "Nov": "nov|lis|ноя|kas",
    "Dec": "dec|dez|déc|dic|des|gru|дек|ara",
}
"""How names of months begin: in seven languages of Western Europe, and in Danish, Norwegian,
Swedish, Polish, Russian and Turkish."""
# Names of one offset each: CST, IST and BST have several.
_NAMES_OF_OFFSETS = {
    "Z": ("WET",),
    "+01:00": ("CET", "MEZ", "WEST"),
    "+02:00": ("CEST", "MESZ", "EET"),
    "+03:00": ("EEST",),
    "-04:00": ("EDT",),
    "-05:00": ("EST", "CDT"),
    "-06:00": ("MDT",),
    "-07:00": ("MST", "PDT"),
    "-08:00": ("PST",),
    "+10:00": ("AEST",),
    "+11:00": ("AEDT",),
}
_OFFSETS = {f" {name}": at for at, names in _NAMES_OF_OFFSETS.items() for name in names}
_ZONES = "|".join(name.strip() for name in _OFFSETS)
_NAME = r"\p{L}{2}|\(\p{L}"  # of a month or a weekday, for which rules have a class of letters
_TO = r"(?: - | ?[\u2013\u2014~] ?| to | bis )"
_WEEKDAY = r"(?i:mon|tue|wed|thu|fri|sat|sun)\p{L}*"
_SPELLINGS = (
    (r"^'(\d)", "$1"),  # a spreadsheet's mark of a text
    # An interval by its start, in the zone of both.
    (r"^[\[(](.*), .*[\])]$", "$1"),
    (rf"^(.*:\d\d.*?){_TO}.*\d:\d\d.*?( \(?(?:{_ZONES}|UTC)\)?)?$", "$1$2"),
    (rf"^([^:]*\d{{4}}[^:]*?){_TO}[^:]*\d{{4}}[^:]*$", "$1"),
    (r"^(\d{4}-\d\d-\d\d[^/]*)/[\dP].*$", "$1"),
    # Years, quarters, weeks, months and days by number.
    (r"^((?:17|18|19|20|21)\d\d)(?:\.0)?$", "$1-01-01"),
    (r"^(\d{4})[-/.:](\d\d)$", "$1-$2-01"),
    (r"^(\d{4})-?[Mm](\d\d?)$", "$1-$2-01"),
    (r"^((?:19|20)\d\d)(0[1-9]|1[0-2])$", "$1-$2-01"),
    (r"^M?(\d{1,2})[-/. ](\d{4})$", "$2-$1-01"),
    (r"^([1-4])(?:[Qq]|\. ?Quartal)[-/' ]*", "Q$1-"),
    (r"^[Qq]([1-4])[-/'. ]*(\d\d|\d{4})$", "$2-Q$1"),
    (r"^([0-3]\d)-Q", "20$1-Q"),
    (r"^([4-9]\d)-Q", "19$1-Q"),
    *((rf"^(\d{{4}})[-/.: ]*[QqT]0?{q + 1}$", f"$1-{3 * q + 1:02d}-01") for q in range(4)),
    (r"^(?:K?W|[Ww]eek)[. ]*(\d\d?)[-/, ]+(\d{4})$", "$2-W$1"),
    (r"^(\d{4})[-/ ]?K?W ?(\d\d?)$", "$1-W$2-1"),
    (r"^(\d{4}-W)(\d-)", "${1}0$2"),
    (r"^(\d{4})[-/]?([0-3]\d\d)$", "$1-$2"),  # the day of a year
    (r"^(\d{4})-([0-3]\d\d)[T ]", "$1-$2 "),
    (r"^(\d{4}):(\d\d):(\d\d) ", "$1-$2-$3 "),
    (r"^(\d{4})\s?[年년]\s?(\d\d?)\s?[月월]$", "$1-$2-01"),
    (r"^(\d{4})\s?[年년]\s?(\d\d?)\s?[月월]\s?(\d\d?)\s?[日일]", "$1-$2-$3"),
    (r"^(\d{4})\. ?(\d\d?)\. ?(\d\d?)\b\.?", "$1-$2-$3"),
    (r"^(\p{L}{3,})\.?(?:[-/., ]*(\d{4})|[-/'](\d\d))$", "1 $1 $2$3"),
    # A weekday before or behind the date.
    (rf"^{_WEEKDAY}[.,]* ", ""),
    (r"^\p{L}{2,}\.?, (\d)", "$1"),
    (rf" \((?:{_WEEKDAY}|\p{{L}}{{1,2}})\)$", ""),
    # The month by its name.
    (r"^(\d{4})[- ]?(\p{L}{3,})$", "1 $2 $1"),
    (r"^(\d{4})[-/ ](\p{L}{3,})[-/ ](\d\d?)", "$3 $2 $1"),
    (r"^(\p{L}{3,}) +(\d\d?) (\d\d:\d\d:\d\d)( [A-Z]{3,4})? (\d{4})$", "$2 $1 $5 $3$4"),
    (r"^(\p{L}{3,})\.? +(\d\d?)(?:st|nd|rd|th)?,? +(\d{4})", "$2 $1 $3"),
    (r"^(\d\d?)(?:\.|st|nd|rd|th)?(?:[-/ ]| de )*(\p{L}{3,})\.?(?:[-/, ]| de )*(\d)", "$1 $2 $3"),
    *(
        (rf"^(\d\d?) (?i:{names})\p{{L}}* ", f"$1 {month} ")
        for month, names in MONTHS_BY_NAME.items()
    ),
    (r"^(\d+ \p{L}+) ([0-3]\d)\b", "$1 20$2"),
    (r"^(\d+ \p{L}+) ([4-9]\d)\b", "$1 19$2"),
    # The time behind the date.
    (r"^(\d\d?[-/.]\d\d?[-/.]\d{2,4}|\d{4}[-/]\d\d?[-/]\d\d?)[-T ](\d\d?)(Z?)$", "$1 $2:00$3"),
    (r"^(20\d{6})(\d\d)$", "$1 $2:00"),
    (r"^(\d{8})[T_: ]?(\d\d)(\d\d)(Z?)$", "$1 $2:$3$4"),
    (r"^(\d{8})[T_ ]?(\d\d)(\d\d)(\d\d)(Z?)$", "$1 $2:$3:$4$5"),
    (r"^(\d{8})[T_-](\d\d:)", "$1 $2"),
    (r"^(\d{4}-\d\d-\d\d)[-_](\d\d)[-.](\d\d)[-.](\d\d)", "$1 $2:$3:$4"),
    (r"(\d\d)(?:, ?|_)(\d\d?[:.h]\d\d)", "$1 $2"),
    (r"(\d{4}):(\d\d:\d\d)", "$1 $2"),
    (r"^(\d\d?:\d\d(?::\d\d)?(?: [AaPp][Mm])?)(?:-\d\d?:\d\d)? (\d.*)$", "$2 $1"),
    (r" Uhr$", ""),
    (r" (\d\d?)[hH](\d\d)$", " $1:$2"),
    (r" (\d\d?) ?(?:[hH]|時)$", " $1:00"),
    (r" (\d\d?) ?([AaPp][Mm])$", " $1:00 $2"),
    (r" (\d\d?)\.(\d\d)((?: ?[AaPp][Mm])?)$", " $1:$2$3"),
    (r" (\d\d?)\.(\d\d)\.(\d\d)(?:\.\d+)?((?: ?[AaPp][Mm])?)$", " $1:$2:$3$4"),
    (r"(:\d\d:\d\d)[,:](\d+)", "$1.$2"),
    (r"\s?([AaPp])\.? ?[Mm]\.?$", " ${1}M"),
    # The offset from UTC.
    (rf" \(({_ZONES})\)$", " $1"),
    (r"([+-]\d\d:?\d\d|Z) ?(?:\[.*\]|\(.*\)|UTC|[A-Z]{3,4})$", "$1"),
    (r"\s*(?:UTC|GMT)([+-]\d)", "$1"),
    (r"\s*(?:(?:Etc/)?(?:UTC|GMT)|\((?:UTC|GMT)\))$", "Z"),
    (r"(:\d\d)z$", "${1}Z"),
    (r"(:\d\d(?:\.\d+)?\s*[+-])(\d)$", "${1}0$2"),
    (r"(:\d\d(?:\.\d+)?\s*[+-]\d\d)$", "$1:00"),
)
# A clock time or an interval by its start: 1:00, 0100, 01:00-01:30; 100 stands for 01:00.
_CLOCK = (
    r"^(\d{1,2}(?::\d\d){1,2}|\d{1,2}(?::\d\d){0,2} ?[AaPp]\.?[Mm]\.?)"
    r"(?:\s*[-\u2013]\s*\d{1,2}:.*)?$"
)
_HOURS = r"^(\d\d?) ?[-\u2013] ?\d\d?$"  # 13-14
_DIGITS_OF_CLOCK = r"^([01]?\d|2[0-4])(00|15|30|45)$|^(00?|15|30|45)$"
_END_OF_DAY = r"([T ])24:00"
# Seconds, and thousandths of each other.
_SINCE_1970 = r"^[1-9]\d{8}$|^1\d{9}(?:(?:\d{3}){1,3}|\.\d+)?$"
_SINCE_1900 = r"^[1-7]\d{4}([.,]\d+)?$"  # days, as spreadsheets keep dates
_DAYS_TO_1970 = 25_569
_FIRST_YEAR, _LAST_YEAR = 1700, 2200
_CENTURY_ENDS = 2040  # of years with two digits
_FIRST, _LOOKED_AT = 20, 1000  # rows that rule out formats
LOCAL = "_local"
"""The column of stamps as a clock shows them, without a zone."""
_FIXED_OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})")
_END = r"(\d:\d\d)-(\d\d:\d\d)$"  # of an interval, or an offset from UTC
_MOST_OFFSETS = 3  # of one place: with daylight saving, and a change of standard time
_HOUR = timedelta(hours=1)
# A year without a change of any zone's standard time still has its daylight saving.
_MONTHS = tuple(datetime(2024, month, 15) for month in range(1, 13))  # noqa: DTZ001 - wall clock

RepeatedHour = Literal["refuse", "first", "second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampReport:
    """What was found: whether stamps are days, stamps with an offset, rows in a repeated hour."""

    are_days: bool
    with_offset: int
    repeated: int


def read_stamps(
    column: TextColumn,
    *,
    zone: str,
    time_format: str = "",
    by: str = "",
    repeated_hour: RepeatedHour = "refuse",
) -> tuple[pl.Series, StampReport]:
    """Return a column as instants in UTC.

    Days without a time are read as midnight of the clock.

    ``zone`` is the clock of stamps without an offset, ``time_format`` (strptime; empty: ISO 8601)
    of the part before it. ``by`` names the series, where the rows of several are in one table;
    ``repeated_hour`` says which hour a stamp is in that comes once where it could come twice.
    """
    try:
        parts = _parse_cells(column, (time_format,) if time_format else ISO)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{column.file}: {time_format!r} reads no stamps of {column.name!r} ({error}): correct "
            "time_format, or leave it out"
        ) from error
    parts.raise_if(
        pl.col(LOCAL).is_null(),
        f"is not a stamp as {time_format or 'ISO 8601, such as 2024-03-31 02:30'}",
        "correct the cell, or time_format in the declaration",
    )
    with_offset = int(parts.table["_offset"].is_not_null().sum())
    if with_offset:
        parts.raise_if(
            pl.col("_offset").is_null(),
            f"has no offset, and {with_offset:,} other rows have one",
            "write all stamps with an offset, or none",
        )
        offset = pl.col("_offset").str.replace("Z", "+0000", literal=True).str.replace(":", "")
        hours, minutes = (offset.str.slice(at, 2).cast(pl.Int64) for at in (1, 3))
        sign = pl.when(offset.str.starts_with("-")).then(-1).otherwise(1)
        instant = pl.col(LOCAL) - pl.duration(minutes=sign * (hours * 60 + minutes))
        report = StampReport(are_days=False, with_offset=with_offset, repeated=0)
        return parts.table.select(instant.dt.replace_time_zone("UTC")).to_series(), report

    walls = parts.table[LOCAL]
    are_days = bool((walls.dt.truncate("1d") == walls).all())
    instants, repeated = read_on_clock(parts, zone, by, repeated_hour)
    return instants, StampReport(are_days=are_days, with_offset=0, repeated=repeated)


def are_clock_times(cells: pl.Series) -> bool:
    """Whether all texts are clock times of a day, or intervals between two."""
    text = cells.str.strip_chars()
    has_hours = (text.str.len_chars() > len("00")).any()
    are_digits = has_hours and text.str.contains(_DIGITS_OF_CLOCK).all()
    return bool(are_digits or any(text.str.contains(form).all() for form in (_CLOCK, _HOURS)))


def add_clock(days: pl.Expr, clock: pl.Expr) -> pl.Expr:
    """Return texts of days with the clock times (:func:`are_clock_times`) of other texts."""
    text = clock.str.strip_chars()
    digits = text.str.zfill(4)
    time = pl.coalesce(
        text.str.extract(_CLOCK, 1),
        text.str.extract(_HOURS, 1) + pl.lit(":00"),
        digits.str.head(2) + pl.lit(":") + digits.str.tail(2),
    )
    return pl.concat_str(days, pl.lit(" "), time)


def spell(column: TextColumn) -> pl.Expr:
    """Return stamps in usual letters: an interval as its start, numbers as what they count."""
    text = _drop_end(column.text)
    number = text.str.replace(",", ".").cast(pl.Float64, strict=False)
    # Nine or ten digits are seconds, three more are milliseconds, and so on.
    since_1970 = number * pl.lit(1000.0).pow(4 - ((number.log10() + 1) / 3).floor())
    since_1900 = ((number - _DAYS_TO_1970) * 86_400).round() * 1000
    # The rules for names compile slowest, and most columns have none.
    has_names = column.table.select(column.text.str.contains(_NAME).any()).item()
    for found, usual in _SPELLINGS:
        if has_names or r"\p{L}" not in found:
            # Digits of all scripts compile half as fast, and no format reads them.
            text = text.str.replace(found.replace(r"\d", "[0-9]"), usual)
    text = text.str.replace_many(_OFFSETS)
    is_1970, is_1900 = (column.text.str.contains(form) for form in (_SINCE_1970, _SINCE_1900))
    milliseconds = pl.when(is_1970).then(since_1970).when(is_1900).then(since_1900)
    counted = pl.from_epoch(milliseconds.cast(pl.Int64, strict=False), "ms")
    stamp = counted.dt.strftime("%Y-%m-%dT%H:%M:%S")
    return pl.when(is_1970).then(stamp + "Z").when(is_1900).then(stamp).otherwise(text)


def _drop_end(text: pl.Expr) -> pl.Expr:
    """Return stamps without the end of an interval: 13:00 of 13:00-14:00, but 13:00-05:00 as is."""
    ends = text.str.extract(_END, 2)
    return (
        pl.when(ends.n_unique() > _MOST_OFFSETS).then(text.str.replace(_END, "$1")).otherwise(text)
    )


def _parse_cells(column: TextColumn, formats: Sequence[str]) -> TextColumn:
    """Return a column with its cells as datetimes (``_local``) and their offsets (``_offset``)."""
    text = pl.col("_text")
    local = strip_offset(text)
    # Series share their stamps: each is read once.
    cells = column.table.select(column.name).unique(maintain_order=True)
    cells = cells.with_columns(_text=_drop_end(column.text))

    # Most files write all stamps in one usual way, which is five times faster to read.
    usual = _find_begun(cells.head(_LOOKED_AT).select(local).to_series(), formats)
    read = cells.with_columns(_local=parse_walls(local, usual)) if usual else cells
    if not usual or read[LOCAL].null_count():
        spelled = cells.with_columns(_text=spell(replace(column, table=cells)))
        read = spelled.with_columns(_local=parse_walls(local, formats))

    offset = pl.when(has_time(text)).then(text.str.extract(_OFFSET, 1))
    read = read.select(column.name, LOCAL, _offset=offset)
    table = column.table.join(
        read, on=column.name, how="left", nulls_equal=True, maintain_order="left"
    )
    return replace(column, table=table)


def parse_stamp(text: pl.Expr, formats: Sequence[str], first_year: int) -> pl.Expr:
    """Return the naive datetime by the first fitting format; null where none fits."""
    # Publishers change the spelling inside one file, so each cell tries all formats.
    read = {form: text.str.to_datetime(form, strict=False, time_unit="us") for form in formats}
    stamp = pl.coalesce(
        # Two digits are a year from 1940 to 2039.
        pl.when(at.dt.year() < _CENTURY_ENDS).then(at).otherwise(at.dt.offset_by("-100y"))
        if "%y" in form
        else at
        for form, at in read.items()
    )
    # polars knows the years 0 and 12000; Python and the calendar of any publisher do not.
    return pl.when(stamp.dt.year().is_between(first_year, _LAST_YEAR)).then(stamp)


def parse_walls(text: pl.Expr, formats: Sequence[str]) -> pl.Expr:
    """Return the naive datetime by the first format that fits; 24:00 is the next midnight."""
    local = parse_stamp(text.str.replace(_END_OF_DAY, "${1}00:00"), formats, _FIRST_YEAR)
    return pl.when(text.str.contains(_END_OF_DAY)).then(local + DAY).otherwise(local)


def _find_begun(text: pl.Series, formats: Iterable[str]) -> list[str]:
    """Return the formats that read any text: a tenth of the work of reading all as walls."""
    dated = text.str.replace(_END_OF_DAY, "${1}00:00")
    read = {form: dated.str.to_datetime(form, strict=False, time_unit="us") for form in formats}
    return [form for form, stamps in read.items() if stamps.count()]


def read_by_each(column: TextColumn, shapes: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Return a column as each of the shapes reads it, those that read any cell; null elsewhere."""
    # One step after the other: polars evaluates what an expression names as often as it is named.
    spelled = column.table.select(_text=spell(column)).select(_text=strip_offset(pl.col("_text")))
    begun = _find_begun(spelled["_text"], itertools.chain(*shapes.values()))
    return spelled.select(
        parse_walls(pl.col("_text"), fitting).alias(name)
        for name, of in shapes.items()
        if (fitting := [form for form in of if form in begun])
    )


def to_wall_clock(instants: pl.Series, zone: str) -> pl.Series:
    """Return what a clock shows at instants, without a zone."""
    clock = read_zone(zone)
    if isinstance(clock, timezone):
        # polars knows no zone of a fixed offset.
        return instants.dt.replace_time_zone(None) + clock.utcoffset(None)
    return instants.dt.convert_time_zone(zone).dt.replace_time_zone(None)


def guess_format(column: TextColumn) -> str:
    """Return the format that every stamp of a column fits; "" for ISO 8601.

    DataError if no format fits, or day and month can be exchanged.
    """
    cells = replace(column, table=column.table.filter(~column.is_blank))
    if not (rows := cells.table.height):
        raise DataError(
            f"{column.file}: column {column.name!r} is empty; name the column of stamps"
        )

    # A few rows rule out most formats, and rows of the whole span rule out exchanged days.
    possible = list(SHAPES)
    for few in (cells.table.head(_FIRST), cells.table.gather_every(max(1, rows // _LOOKED_AT))):
        begun = read_by_each(replace(cells, table=few), {form: SHAPES[form] for form in possible})
        counts = {stamps.name: stamps.count() for stamps in begun}
        most = max(counts.values(), default=0)
        possible = [form for form, count in counts.items() if count == most] or possible

    # Where none of these rows fits a format, not all rows are tried.
    walls = {form: _parse_cells(cells, SHAPES[form]).table[LOCAL] for form in possible if most}
    counts = {form: parsed.count() for form, parsed in walls.items()}
    if counts.get("", 0) == rows:
        return ""
    fitting = [form for form, count in counts.items() if count == rows]
    if not fitting:
        # Of the format that fits most, the first row that it does not fit.
        best, likely = max(counts, key=lambda form: counts[form], default=""), ""
        if counts.get(best):
            seen = best or max(
                ISO, key=lambda form: _parse_cells(cells, (form,)).table[LOCAL].count()
            )
            likely = f"; most stamps fit {seen}"
        _parse_cells(cells, SHAPES[best]).raise_if(
            pl.col(LOCAL).is_null(),
            f"is not a stamp in a format that is known{likely}",
            "correct the cell, write stamps as 2024-03-31 02:30, 2024-03, 2024-Q1 or 2024-W13, or "
            "give their format with --time-format (DataFrame: pd.to_datetime)",
        )

    # Stamps are evenly spaced: with days and months exchanged they are not.
    distances = {form: _count_distances(walls[form]) for form in fitting}
    ranked = sorted(fitting, key=lambda form: distances[form])
    if (
        len(ranked) > 1
        and distances[ranked[0]] == distances[ranked[1]]
        and not walls[ranked[0]].equals(walls[ranked[1]])
    ):
        first = cells.table.row(0, named=True)
        raise DataError(
            f"{column.file}, row {first[LINE]}, column {column.name!r}: {first[column.name]!r} "
            f"fits {' and '.join(ranked[:2])}; say which with --time-format (DataFrame: "
            "pd.to_datetime)"
        )
    return ranked[0]


def _count_distances(walls: pl.Series) -> int:
    """Return how many distances there are between neighbouring stamps, of which months are one."""
    distances = walls.diff().drop_nulls().abs()
    step = find_calendar_step(distances) if len(distances) else None
    return (distances / step).round().n_unique() if step else distances.n_unique()


def strip_offset(text: pl.Expr) -> pl.Expr:
    """Return stamps without their offset from UTC."""
    # The end of 05-03-2024 looks like an offset: only a stamp with a time has one.
    return pl.when(has_time(text)).then(text.str.replace(_OFFSET, "")).otherwise(text)


def has_time(text: pl.Expr) -> pl.Expr:
    """Return whether stamps have a time of the day."""
    return text.str.contains(r"\d:\d|\d{12}")


def read_on_clock(
    parts: TextColumn, zone: str, by: str, repeated_hour: RepeatedHour
) -> tuple[pl.Series, int]:
    """Return what a clock shows (column :data:`LOCAL`) as instants, and rows in a repeated hour.

    Arguments as of :func:`read_stamps`.
    """
    if (offset := read_zone(zone).utcoffset(None)) is not None:
        instant = (pl.col(LOCAL) - offset).dt.replace_time_zone("UTC")
        return parts.table.select(instant).to_series(), 0

    earlier, later = (
        pl.col(LOCAL).dt.replace_time_zone(zone, ambiguous=which, non_existent="null")
        for which in ("earliest", "latest")
    )
    parts = parts.add(_early=earlier, _late=later)
    parts.raise_if(
        pl.col("_early").is_null(),
        f"does not exist in {zone}, where clocks go forward",
        "if the stamps keep standard time all year, set time_zone to its offset (compevo init "
        f"--zone={name_standard_offset(zone)})",
    )
    if not parts.table.select((pl.col("_early") != pl.col("_late")).any()).item():
        return parts.table["_early"].dt.convert_time_zone("UTC"), 0

    # The first row of a repeated stamp is the earlier hour, the second the later one; the other way
    # round in a file whose newest row comes first.
    second_is_late = parts.table[LOCAL][0] <= parts.table[LOCAL][-1]
    key = [LOCAL, by] if by else [LOCAL]
    parts = parts.add(
        _repeated=pl.col("_early") != pl.col("_late"),
        _times=pl.len().over(key),
        _place=pl.int_range(pl.len()).over(key),
    )
    if repeated_hour == "refuse":
        parts.raise_if(
            pl.col("_repeated") & (pl.col("_times") == 1),
            f"comes once, and in {zone} that hour comes twice, as clocks go back",
            "write its offset, or give --repeated-hour first or second (repeated_hour in the "
            "declaration)",
        )
    parts.raise_if(
        pl.col("_repeated") & (pl.col("_times") > 2),
        f"comes more than twice, and in {zone} that hour comes twice",
        "remove the duplicates",
    )
    is_late = (
        pl.when(pl.col("_times") == 1)
        .then(repeated_hour == "second")
        .otherwise((pl.col("_place") == 1) == second_is_late)
    )
    instant = pl.when(is_late).then("_late").otherwise("_early").dt.convert_time_zone("UTC")
    return parts.table.select(instant).to_series(), int(parts.table["_repeated"].sum())


@cache
def list_zones() -> frozenset[str]:
    """Return the names of all time zones, read once: the standard library walks its folders."""
    return frozenset(available_timezones())


def read_zone(name: str) -> ZoneInfo | timezone:
    """Return a time zone, or a fixed offset such as +01:00; ValueError if there is none such."""
    if match := _FIXED_OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        if offset < DAY:
            return timezone(offset if match[1] == "+" else -offset)
    if name in list_zones():
        return ZoneInfo(name)
    raise ValueError(f"{name!r} is not a time zone; write Europe/Paris, UTC or an offset as +01:00")


def find_standard_offset(zone: str) -> timedelta:
    """Return a clock's offset without daylight saving: the smaller one of the year."""
    return min(_list_offsets(zone))


def find_summer_offset(zone: str) -> timedelta:
    """Return a clock's offset with daylight saving, or its only one."""
    return max(_list_offsets(zone))


def _list_offsets(zone: str) -> list[timedelta]:
    clock = read_zone(zone)
    return [moment.replace(tzinfo=clock).utcoffset() or timedelta(0) for moment in _MONTHS]


def name_standard_offset(zone: str) -> str:
    """Return a clock's offset without daylight saving as declarations write it: ``-08:00``."""
    return _MONTHS[0].replace(tzinfo=timezone(find_standard_offset(zone))).isoformat()[-6:]


def find_place_zone(zone: str) -> str:
    """Return the time zone of weekdays where the stamps are on a clock.

    A fixed offset is no place. Where it is whole hours there is a zone with that offset all year.
    """
    if zone in list_zones():
        return zone
    hours, rest = divmod(find_standard_offset(zone), _HOUR)
    # These zones count the other way round: Etc/GMT+8 is eight hours behind UTC.
    name = f"Etc/GMT{-hours:+d}"
    return name if not rest and name in list_zones() else "UTC"
