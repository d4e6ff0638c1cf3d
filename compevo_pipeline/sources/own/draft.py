"""A first declaration of a user's file, from a look at it, as commented TOML.

What belongs here: what the file shows (its columns and clock, format of stamps, step, gaps, span,
unit), what follows from it, and the text with each key's meaning. What does not: the keys
(``own.declaration``), reading cells (``compevo_core.table``), parsing.

Every guess is said, in the file and to the user, who can overrule it.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import cast, get_args

import polars as pl

from compevo_core.data.content import describe_faults
from compevo_core.data.datasets import ALL_SERIES, DatasetSpec
from compevo_core.data.series import find_calendar_step, measure_gaps, split_series
from compevo_core.data.steps import (
    DAY,
    choose_horizon,
    choose_lookback,
    choose_stride,
    count_steps,
    name_step,
    read_step,
    shift,
)
from compevo_core.data.view import find_season
from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.explain import POWERS
from compevo_core.table import text_stamps
from compevo_core.table.cells import (
    LINE,
    DecimalMark,
    TextColumn,
    guess_decimal,
    is_numeric,
    read_numbers,
    refuse_text,
)
from compevo_core.table.frames import SERIES, START, VALUE, plan_windows
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.own import frames
from compevo_pipeline.sources.own.declaration import Declaration, check_declaration
from compevo_pipeline.sources.own.table import FIRST_ROW, JOINED, read_text_table, select_columns

HALF_HOUR = timedelta(minutes=30)
_FINEST = timedelta(minutes=5)  # finer rows are averaged: a day of them is too many steps
_TITLES = "series", "grid", "splits", "place", "covariates", "ahead", "news", "evaluation", "prompt"
_OPTIONAL = {"covariates": "daily values", "ahead": "values known ahead, by step,"}
_IS_END = re.compile(
    r"(?<![A-Za-z])(?i:end|ends|ending|ende|bis|until|fin|hasta|tot)(?![a-z])|"
    r"[a-z]End(ing|s)?(?![a-z])|(?i:hour|interval|period)_?(?i:end)"
)
_KNOWN_AT = ("known_at", "available_at", "issued_at")
_LISTED_SERIES, _LISTED_FAULTS = 3, 8
_ANY_SPLITS = {"fractions": [0.7, 0.1, 0.2]}  # of a declaration that only reads its file

ALL = "all"  # what `--value` says for every column of numbers
_CLOCKS = ("ds", "stamp", "timestamp", "datetime", "date_time", "time", "date", "day", "start")
_TIMES = (*_CLOCKS, "year", "month", "quarter", "week", "period", "ts", "epoch", "unix")
_AMOUNTS = ("usage", "count", "cnt", "quantity", "mw", "mwh", "kw", "kwh")
_VALUES = ("y", "value", "target", "load", "demand", "consumption", "sales", "power", *_AMOUNTS)
_FORECAST = re.compile(r"(?i)forecast|predict|progno|pr[eé]vi")
_SURER_TIME = re.compile(r"(?i)utc|gmt|start|begin")
_LOOKED_AT = 500  # rows, from the top
_FEWEST_NUMBERED = 20  # columns of one name and a number
_LEAST_SERIES = 1.5  # rows a stamp, in the mean, of a table of several series
_LEAST_ROWS = 10  # of a series
_FEW_TWICE = 0.02  # share of rows whose stamp and series come again
_PARTS_OF_DAY = (23, 24, 25, 26, 46, 48, 50, 92, 96, 100, 276, 288, 300)
_MOST_PARTS = 0.95  # share of cells that number parts of a day, where others do not: 2A, 2B
_NAMES_PART = re.compile(
    r"(?i)hour|period|interval|block|slot|tim[em]|stunde|heure|hora|(?<![a-z])(h[er]|ora|uur)(?![a-z])"
)
_HOUR = timedelta(hours=1)
_CHANGES = (3, 4, 9, 10, 11)  # months in which clocks change somewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user declares about the files, by the keys of a declaration; None or "": find it."""

    name: str
    file: Path
    time: str = ""
    period: str = ""
    values: tuple[str, ...] = ()
    id: str = ""
    static: tuple[str, ...] = ()
    unit: str = ""
    zone: str = ""
    decimal: str = ""
    time_format: str = ""
    stamps: str = ""  # "start" or "end"
    repeated_hour: text_stamps.RepeatedHour | None = None
    duplicates: str = ""  # "first", "last" or "mean"
    aggregate: str = ""
    fill: float | None = None
    step: str = ""
    horizon: int = 0
    lookback: int = 0
    test: float = 0.0  # share of the steps, the last ones, that neither train nor validation has
    country: str = ""
    covariates: Path | None = None
    ahead: Path | None = None
    news: Path | None = None
    gdelt: str = ""


@dataclass(slots=True)
class DraftedDeclaration:
    """A declaration as text, with what the file shows and what was assumed."""

    text: str = ""
    findings: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def list_remarks(self) -> list[tuple[str, str]]:
        """Return all lines to show, each with its kind."""
        kinds = {"found": self.findings, "guessed": self.guesses, "warning": self.warnings}
        return [(kind, line) for kind, lines in kinds.items() for line in lines if line]


def draft_declaration(
    request: Request, raw: RawFile, others: dict[str, RawFile]
) -> DraftedDeclaration:
    """Look at a table of values, and others by key, and return their declaration.

    DataError if something cannot be decided or is not a table: which row, and what to do.
    """
    draft = DraftedDeclaration()
    text = read_text_table(raw.content, raw.name)
    request = _find_columns(request, text, raw.name, draft)
    sections = _draft_series(request, text, raw.name, draft)
    sections |= _draft_others(request, others, str(sections["series"]["decimal"]), draft)

    # What the values show, beyond what the columns do; the plan of windows follows from them.
    declaration = _check(request, sections | {"splits": _ANY_SPLITS})
    frame, repairs = frames.parse_series(raw, declaration, text)
    del text  # as large as what is read next
    draft.findings.append(
        ", ".join(f"{count:,} {what}" for what, count in repairs.items() if count)
    )
    draft.warnings += [
        f"{count:,} {what}: their steps have no value"
        for what, count in repairs.items()
        if what.startswith(frames.CODES)
    ]
    step = read_step(declaration.grid.step)
    gaps = _describe_series(frame, step, draft)

    # On the clock of the zone without daylight saving.
    offset = text_stamps.find_standard_offset(declaration.series.time_zone)
    rows = frame.select(
        pl.col("series_id").alias(SERIES),
        (pl.col("start_utc") + offset).alias(START),
        pl.col("value").alias(VALUE),
    ).sort(SERIES, START)
    if request.test:
        first, last = cast(datetime, rows[START].min()), cast(datetime, rows[START].max())
        kept = round((1 - request.test) * count_steps(first, last, step))
        rows = rows.filter(pl.col(START) < shift(first, kept, step))
    plan = plan_windows(
        rows, step, "UTC", horizon=request.horizon or None, lookback=request.lookback or None
    )
    _describe_plan(request, plan, gaps, draft)
    sections["grid"] |= {
        "horizon": plan.horizon_steps,
        "lookback": plan.lookback_steps,
        "stride": plan.stride_steps if _is_thinned(plan) else None,
        "season_steps": plan.season_steps or None,
        "max_fill_steps": plan.max_fill_steps,
        "max_filled_inputs": plan.max_filled_inputs,
    }
    sections["splits"] = {
        "validation_from": plan.spans[1].first_day,
        "test_from": plan.spans[-1].first_day,
    }
    sections["evaluation"] = {
        "low": plan.bounds[0],
        "max_gap_share": max(gaps) if _bridges(plan) else None,
    }
    # The checks of a declaration hold for the draft as well, before it is written.
    _check(request, sections)
    draft.text = write_declaration(request.name, sections, draft)
    return draft


def _draft_series(
    request: Request, text: pl.DataFrame, name: str, draft: DraftedDeclaration
) -> dict[str, dict[str, object]]:
    """Return what the columns of values and stamps show: the series, their step and their place."""
    named = filter(None, [request.id, request.period])
    table = select_columns(text, name, [request.time, *request.values, *named])
    if (first := table[LINE][0]) > FIRST_ROW:
        draft.findings.append(f"{first - FIRST_ROW} line(s) above the first row are left out")
    times = frames.join_clock(TextColumn(table, name, request.time), request.period)
    columns = [TextColumn(table, name, value) for value in request.values]
    time_format = request.time_format or text_stamps.guess_format(times)
    decimal = _find_decimal(request, columns, draft)
    unit = _find_unit(request, columns, decimal, draft)

    ends = [name for name in (request.time, request.period) if _IS_END.search(name)]
    # Where a day has 24:00, and none has 0:00, its hours are numbered by their ends.
    is_last, is_first = (times.text.str.contains(rf"[T ]{hour}:00") for hour in ("24", "0?0"))
    if times.table.select(is_last.any() & ~is_first.any()).item():
        ends.append(request.period or request.time)
    if ends and not request.stamps:
        draft.guesses.append(f"{ends[0]!r} ends its interval; if not, give --stamps start")

    zone = request.zone or "UTC"
    try:
        text_stamps.read_zone(zone)
    except ValueError as error:
        raise ConfigError(f"--zone: {error}") from error
    stamps, about = frames.read_stamps(
        times,
        request.period,
        zone=zone,
        time_format=time_format,
        by=request.id,
        repeated_hour=request.repeated_hour or "refuse",
        are_ends=request.stamps == "end",
    )
    if not request.zone and about.with_offset:
        draft.guesses.append("days and weekdays follow UTC; to follow a place, give --zone")
    elif not request.zone and (request.period or not about.are_days):
        refuse_changing_clock(times, stamps.dt.replace_time_zone(None), request.id)
        draft.guesses.append("the stamps have no offset and are read as UTC; if not, give --zone")
    place = text_stamps.find_place_zone(zone)
    if place != zone:
        draft.guesses.append(
            f"weekdays and holidays follow {place}; set place.time_zone to where people live"
        )

    step = _choose_step(request, stamps, name, draft)
    delays = frames.find_delays(
        (stamps + text_stamps.find_standard_offset(zone)).dt.replace_time_zone(None), step
    )
    if step < DAY and delays.n_unique() == 1 and delays[0]:
        draft.guesses.append(f"stamps come {delays[0]} after a step begins, and count for it")
    return {
        "series": {
            "file": str(request.file.resolve()),
            "time": request.time,
            "period": request.period,
            "values": list(request.values),
            "id": request.id,
            "static": list(request.static),
            "unit": unit,
            "time_zone": zone,
            "time_format": time_format,
            "stamps": request.stamps or ("end" if ends else "start"),
            "repeated_hour": request.repeated_hour,
            "duplicates": request.duplicates or None,
            "decimal": decimal,
            "aggregate": request.aggregate,
            "fill": request.fill,
        },
        "grid": {"step": name_step(step)},
        "place": {"time_zone": place, "country": request.country},
    }


def _draft_others(
    request: Request, others: Mapping[str, RawFile], decimal: str, draft: DraftedDeclaration
) -> dict[str, dict[str, object]]:
    """Return what the tables next to the values show: covariates, values known ahead, news."""
    sections: dict[str, dict[str, object]] = {"covariates": {}, "ahead": {}, "news": {}}
    tables = {key: read_text_table(raw.content, raw.name) for key, raw in others.items()}
    if request.covariates:
        daily, known = tables["covariates"], {"known": "after"}
        sections["covariates"] = _draft_values(request, request.covariates, daily, decimal, known)
    if request.ahead:
        table = tables["ahead"]
        known_at = next((name for name in table.columns if name.lower() in _KNOWN_AT), "")
        if not known_at:
            draft.guesses.append(
                f"the values of {request.ahead.name} count as known from the start, as there is no "
                f"column {' or '.join(_KNOWN_AT)}; if they were measured, forecasts would know the "
                "future"
            )
        known = {"known_at": known_at} if known_at else {"known": "start"}
        sections["ahead"] = _draft_values(
            request, request.ahead, table, decimal, known, takes_words=True
        )
    if request.news:
        table, name = tables["news"], request.news.name
        stamp_names = ("published_at", "published", "date", "time", "stamp", "seen_at")
        time = _find_column(table, name, stamp_names)
        there = set(table.columns)
        sections["news"] = {
            "articles": str(request.news.resolve()),
            "time": time,
            "title": _find_column(table, name, ("title", "headline")),
            "url": next((name for name in ("url", "link") if name in there), ""),
            "body": next((name for name in ("body", "text", "summary") if name in there), ""),
            "time_format": text_stamps.guess_format(TextColumn(table, name, time)),
        }
    if request.gdelt:
        sections["news"]["gdelt"] = request.gdelt
    return sections


def _describe_series(
    frame: pl.DataFrame, step: timedelta, draft: DraftedDeclaration
) -> list[float]:
    """Say what each series has, and return the share of its steps without a value, rounded up."""
    gaps, faults = [], []
    for series_id, part in split_series(frame):
        faults += describe_faults(series_id, part, step)
        measured = part.drop_nulls("value")["start_utc"].sort()
        if len(measured) < 2:
            raise DataError(f"{series_id} has {len(measured)} value(s); a forecast needs more")
        steps, longest, _ = measure_gaps(measured, step)
        lacking = steps - len(measured)
        gaps.append(math.ceil(100 * lacking / steps) / 100)
        if len(gaps) <= _LISTED_SERIES:
            draft.findings.append(
                f"{series_id}: {steps:,} steps of {name_step(step)} from "
                f"{measured[0]:%Y-%m-%d %H:%M} to {measured[-1]:%Y-%m-%d %H:%M} UTC, {lacking:,} "
                f"of them without a value (longest gap: {longest:,} steps)"
            )
    if len(gaps) > _LISTED_SERIES:
        draft.findings.append(f"{len(gaps) - _LISTED_SERIES} more series in the same way")
    draft.warnings += faults[:_LISTED_FAULTS]
    if len(faults) > _LISTED_FAULTS:
        draft.warnings.append(f"{len(faults) - _LISTED_FAULTS} more of the same kind")
    return gaps


def _check(request: Request, sections: Mapping[str, Mapping[str, object]]) -> Declaration:
    """Return the declaration of the keys that are set; ConfigError if it breaks a rule."""
    declared = {
        title: {key: value for key, value in keys.items() if value is not None}
        for title, keys in sections.items()
        if keys
    }
    return check_declaration({"name": request.name, **declared}, "the declaration")


def _find_columns(
    request: Request, table: pl.DataFrame, name: str, draft: DraftedDeclaration
) -> Request:
    """Return the request with the columns of stamps, series and values, and say those guessed."""
    if request.time and request.values and ALL not in request.values:
        return request

    time = request.time or guess_time(table, name, request.time_format)
    if not request.time:
        draft.guesses.append(f"the stamps are in {time!r}; if not, give --time")
    if time not in table.columns:
        return request  # reading it lists the columns that there are
    series, period = request.id, request.period
    if not (series or period) and (period := guess_period(table, name, time)):
        draft.guesses.append(f"{period!r} is the part of the day; if not, give --id")
    values = request.values
    if not series and not (len(values) > 1 or ALL in values):
        # The only numbers are the values, few as they may be.
        numbers = values or list_numbers(table, name, [time, period])
        series = guess_series(
            table, [time, period] if period else [time], numbers if len(numbers) == 1 else ()
        )
        if series:
            draft.guesses.append(f"{series!r} names the series of each row; if not, give --id")

    if not values or ALL in values:
        numbers = list_numbers(table, name, [time, period, *series.split(JOINED)])
        # Codes of places and numbers of rows are equally far from the next row's everywhere.
        number = pl.col(numbers).str.replace(",", ".").cast(pl.Float64, strict=False)
        distances = table.select(number.diff().drop_nulls().n_unique()).row(0, named=True)
        measured = [column for column in numbers if distances[column] != 1] or numbers
        measured.sort(key=lambda column: _FORECAST.search(column) is not None)
        likeliest = min(measured, key=lambda column: _rank(column, _VALUES))
        values = tuple(numbers) if values else (likeliest,)
        others = [name for name in numbers if name not in values]
        draft.guesses.append(
            f"the values are in {', '.join(map(repr, values))}"
            + (f", not in {', '.join(map(repr, others))}" if others else "")
            + ("; to change that, give --value, or --value all" if others else "")
        )
    return replace(request, time=time, period=period, id=series, values=values)


def _find_decimal(
    request: Request, columns: Sequence[TextColumn], draft: DraftedDeclaration
) -> DecimalMark:
    marks = [request.decimal] if request.decimal else [guess_decimal(each) for each in columns]
    if "," in marks:
        if not request.decimal:
            draft.guesses.append("',' marks decimals; if not, give --decimal .")
        return ","

    is_either = (each.text.str.contains(r"^[1-9]\d{0,2}\.\d{3}$") for each in columns)
    if not request.decimal and columns[0].table.select(pl.all_horizontal(is_either).all()).item():
        draft.guesses.append("'.' marks decimals; if it marks thousands, give --decimal ,")
    return "."


def _find_unit(
    request: Request, columns: Sequence[TextColumn], decimal: DecimalMark, draft: DraftedDeclaration
) -> str:
    units = sorted({read_numbers(column, decimal)[1].unit for column in columns} - {""})
    if units:
        draft.findings.append(f"the cells are in {units[0]!r}")
    if request.unit or units:
        return request.unit or units[0]

    # In brackets (Load [MW]), as a short last word (sales_usd), or as the end (ConsumptionMWh).
    name = request.values[0]
    match = re.search(r"(?<=[(\[])[^)\]]+", name)
    match = match or re.search(r"(?<=_)[^\W\d_]{1,3}$|(?i:[kmg]wh?)$", name)
    unit = match[0].strip() if match else "units"
    unit = next((power for power in POWERS if power.lower() == unit.lower()), unit)
    why = "from the column's name" if match else "as nothing names one"
    draft.guesses.append(f"the unit is {unit!r}, {why}; if not, give --unit")
    return unit


def _choose_step(
    request: Request, stamps: pl.Series, name: str, draft: DraftedDeclaration
) -> timedelta:
    """Return the step that is asked for, or the distance of most rows where it is not too fine."""
    distances = stamps.unique().sort().diff().drop_nulls()
    if request.step:
        try:
            named = read_step(request.step)
        except ValueError as error:
            raise ConfigError(f"--step: {error}") from error
        least = distances.min()
        has_all = request.aggregate or request.fill is not None
        if isinstance(least, timedelta) and least >= 2 * named and not has_all:
            raise DataError(
                f"{name}: no rows are {name_step(named)} apart, as --step says, but {least} or "
                "more: leave out --step, name another, or give --fill the value between rows"
            )
        return named
    if not len(distances):
        raise DataError(f"{name} has one stamp only; a forecast needs hundreds of rows")
    step = cast(timedelta, distances.mode().min())
    if calendar := find_calendar_step(distances):
        step = calendar
    elif (DAY % step if step < DAY else step % DAY) or step < timedelta(minutes=1):
        raise DataError(
            f"{name}: most rows are {step} apart, and a day is not a whole number of such steps; "
            "give --step, and for events --aggregate sum, mean or last"
        )
    if step >= _FINEST or HALF_HOUR % step:
        return step
    draft.guesses.append(
        f"rows {name_step(step)} apart are averaged to half-hours; --step says otherwise"
    )
    return HALF_HOUR


def _bridges(plan: DatasetSpec) -> bool:
    """Whether gaps belong to the series, as weekends do."""
    return plan.max_filled_inputs > plan.lookback_steps // 4


def _is_thinned(plan: DatasetSpec) -> bool:
    """Whether windows are further apart than the step by itself would have them."""
    return plan.stride_steps != choose_stride(plan.step, plan.horizon_steps, 0, 1)


def _describe_plan(
    request: Request, plan: DatasetSpec, gaps: Sequence[float], draft: DraftedDeclaration
) -> None:
    """Say what the values made of the plan that the step by itself would not."""
    usual = choose_horizon(plan.step)
    if not request.horizon and plan.horizon_steps < usual:
        draft.guesses.append(
            f"forecasts have {plan.horizon_steps} steps in place of {usual}, as the file is short; "
            "use --horizon for another number"
        )
    usual = choose_lookback(plan.step, plan.horizon_steps)
    if not request.lookback and plan.lookback_steps < usual:
        draft.guesses.append(
            f"forecasts look {plan.lookback_steps} steps back in place of {usual}, as the file is "
            "short; set grid.lookback otherwise"
        )
    if _bridges(plan):
        draft.guesses.append(
            f"{max(gaps):.0%} of the steps have no value, so up to {plan.max_filled_inputs} of "
            f"{plan.lookback_steps} inputs may be carried over gaps of up to {plan.max_fill_steps} "
            "steps"
        )
    if plan.season_steps:
        draft.guesses.append(
            f"the values repeat after {plan.season_steps} steps, not after "
            f"{find_season(plan.step)}; without grid.season_steps the step decides"
        )
    if _is_thinned(plan):
        draft.guesses.append(
            f"a forecast every {plan.stride_steps} steps is enough to learn from; set grid.stride "
            "otherwise"
        )
    if plan.bounds[0] == 0:
        draft.guesses.append(
            "no value is below 0, so forecasts stay at or above 0 (evaluation.low)"
        )


def _draft_values(
    request: Request,
    file: Path,
    table: pl.DataFrame,
    decimal: str,
    known: Mapping[str, str],
    *,
    takes_words: bool = False,
) -> dict[str, object]:
    """Return the columns of a table besides the series: its stamps, numbers and series."""
    time = _find_column(table, file.name, (request.time, "date", "day", "time", "stamp"))
    no_values = ("line", time, request.id, known.get("known_at"))
    others = [column for column in table.columns if column not in no_values]
    numeric = [column for column in others if is_numeric(TextColumn(table, file.name, column))]
    if not numeric and takes_words:
        numeric = others
    if not numeric:
        raise DataError(f"{file.name}: no column of numbers besides {time!r}; write one a column")
    return {
        "time": time,
        "values": numeric,
        "id": request.id,
        "time_format": text_stamps.guess_format(TextColumn(table, file.name, time)),
        "file": str(file.resolve()),
        "decimal": decimal,
        **known,
    }


def _find_column(table: pl.DataFrame, name: str, likely: Sequence[str]) -> str:
    by_small = {column.lower(): column for column in table.columns}
    for candidate in likely:
        if candidate.lower() in by_small:
            return by_small[candidate.lower()]
    raise DataError(
        f"{name}: none of the columns {', '.join(map(repr, likely))}; the columns are "
        f"{', '.join(map(repr, (c for c in table.columns if c != 'line')))}: rename one"
    )


def write_declaration(
    name: str, sections: Mapping[str, Mapping[str, object]], draft: DraftedDeclaration
) -> str:
    """Return the text of a declaration whose ``sections`` hold the keys that are set."""
    lines = [f"# The data set {name}: written by `compevo init`, yours to change."]
    lines += [f"# {kind.capitalize()}: {line}." for kind, line in draft.list_remarks()]
    lines += ["", f"name = {_to_toml(name)}"]

    for title in _TITLES:
        given = sections.get(title, {})
        if title in _OPTIONAL and not given:
            lines += ["", f"# [{title}] is left out: no table of {_OPTIONAL[title]} was given"]
            continue

        lines += ["", f"[{title}]"]
        kind = Declaration.model_fields[title].annotation
        (section,) = (kind for kind in (kind, *get_args(kind)) if hasattr(kind, "model_fields"))
        for key, about in section.model_fields.items():
            value, meaning = given.get(key), " ".join((about.description or "").split())
            if value in (None, "", []):
                lines.append(f"# {key} = {_to_toml(about.default)}  # {meaning}")
            else:
                lines.append(f"{key} = {_to_toml(value)}  # {meaning}")
    lines += [
        "",
        "# [totals] is left out: with it forecasts of sums of series are made to add up, as",
        f'# total = ["{ALL_SERIES}"] for all series, or north = ["shop-1", "shop-2"]',
    ]
    return "\n".join(lines) + "\n"


def _to_toml(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    # JSON and TOML write texts, numbers and lists alike; TOML has no null.
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def guess_time(table: pl.DataFrame, name: str, time_format: str = "") -> str:
    """Return the column of stamps, in a format if one is given: one with a likely name first.

    DataError if no column holds stamps, or the first row names no columns.
    """
    columns = _list_columns(table)
    if len(columns) == 1:
        raise DataError(
            f"{name}: its rows are one cell each, in {columns[0]!r}: separate cells by a comma, "
            "semicolon, tab or |, and write a list in a cell as a row for each value"
        )
    head = table.head(_LOOKED_AT)
    candidates = _list_times(head, name, time_format)
    if not candidates:
        for column in (*_list_times(head[1:], name), *_list_times(head[:1], name)):
            # Most often units, or another format: name the row.
            text_stamps.guess_format(TextColumn(table, name, column))
        # Many columns number the steps of a series, as d_1 and so on do.
        stems = {column: re.sub(r"\d+$", "", column) for column in columns}
        stem, count = Counter(stems.values()).most_common(1)[0]
        if count >= _FEWEST_NUMBERED:
            steps = [column for column in columns if stems[column] == stem]
            others = [column for column in columns if column not in steps]
            raise DataError(
                f"{name}: the columns {steps[0]!r} to {steps[-1]!r} seem to be steps of one "
                f"series: write a row for each with its stamp, as polars' unpivot(index={others}) "
                "does, or name the columns of stamps and values with --time and --value"
            )
        raise DataError(
            f"{name}: no column holds stamps in a format that is known; the columns are "
            f"{', '.join(map(repr, columns))}: name the column with --time, and its format with "
            "--time-format, or write stamps as 2024-03-31 02:30, 2024-03, 2024-Q1 or 2024-W13"
        )
    # Of several clocks, hours of UTC neither come twice nor are missing; of two ends, steps begin.
    candidates.sort(key=lambda column: -len(_SURER_TIME.findall(column)))
    time = min(candidates, key=lambda column: _rank(column, _TIMES))
    if _holds_stamps(TextColumn(pl.DataFrame({LINE: [1], time: [time]}), name, time)):
        raise DataError(
            f"{name}, row 1: {time!r} is a stamp and not a name; write a line of column names"
        )
    return time


def guess_period(table: pl.DataFrame, name: str, time: str) -> str:
    """Return the column with the part of the day of each row, by clock or number; or "".

    DataError if a column's cells say so, and its name does not: it may name series.
    """
    if _LEAST_SERIES * table[time].n_unique() > table.height:
        return ""
    if table[time].str.contains(":").any():
        return ""
    for column in _list_columns(table):
        cells = table[column]
        is_part = cells.n_unique() in _PARTS_OF_DAY
        if text_stamps.are_clock_times(cells) and (is_part or cells.str.contains(":").all()):
            return column
        share = cast(float, cells.str.contains(frames.PART_OF_DAY).mean())
        if is_part and share > _MOST_PARTS and _NAMES_PART.search(column):
            return column
        if is_part and share == 1:
            raise DataError(
                f"{name}: {column!r} may number the parts of the days of {time!r}, or name series; "
                f"give --period {column!r} or --id {column!r}"
            )
    return ""


def guess_series(table: pl.DataFrame, time: Sequence[str], values: Sequence[str]) -> str:
    """Return the column that names each row's series, two as ``store + item``, "" without.

    ``time`` are the columns of stamps, of days and of parts of a day; ``values`` name no series.
    """
    # An hour that comes twice as clocks go back is not a second series.
    if _LEAST_SERIES * table.select(pl.struct(time).n_unique()).item() > table.height:
        return ""
    names = []
    for column in _list_columns(table):
        cells = table[column]
        few = _LEAST_ROWS * cells.n_unique() <= table.height
        if column not in (*time, *values) and not cells.null_count() and few:
            names.append(column)
    # One column, or two that name a series together, as a store and an item do.
    for columns in (*((name,) for name in names), *itertools.combinations(names, 2)):
        # Of a change of clocks, an hour comes twice.
        if table.select(pl.struct(*time, *columns).is_duplicated().mean()).item() < _FEW_TWICE:
            return JOINED.join(columns)
    return ""


def list_numbers(table: pl.DataFrame, name: str, others: Sequence[str]) -> list[str]:
    """Return the columns of numbers besides others; DataError if there is none."""
    columns = [column for column in _list_columns(table) if column not in others]
    texts = [TextColumn(table, name, column) for column in columns]
    numeric = [text.name for text in texts if is_numeric(text)]
    if not numeric:
        refuse_text(texts)
        raise DataError(
            f"{name}: no column of numbers besides {others[0]!r}; write the values as numbers"
        )
    return numeric


def refuse_changing_clock(times: TextColumn, walls: pl.Series, by: str) -> None:
    """Raise DataError where an hour of a Sunday comes twice or is missing, as clocks change.

    ``walls`` are the stamps as they are written, without an offset.
    """
    series = pl.col(by) if by else pl.lit("")
    rows = times.table.select(LINE, series.alias("_series"), walls.alias("_wall"))
    moved = rows.sort("_series", "_wall", LINE).with_columns(
        pl.col("_wall").diff().over("_series").alias("_distance"),
        pl.len().over("_series", "_wall").alias("_times"),
    )
    step = moved.filter(pl.col("_distance") > timedelta(0))["_distance"].mode().min()
    if not isinstance(step, timedelta) or step > _HOUR:
        return

    is_change = (
        (pl.col("_wall").dt.weekday() == 7)  # a Sunday
        & (pl.col("_wall").dt.hour() <= 4)
        & pl.col("_wall").dt.month().is_in(_CHANGES)
    )
    twice = moved.filter(is_change & (pl.col("_times") == 2)).sort(LINE)
    skipped = moved.filter(is_change & (pl.col("_distance") == step + _HOUR)).sort(LINE)
    unless = ", or --zone UTC if clocks do not change"
    found = ((twice, "comes twice", ""), (skipped, "follows a missing hour", unless))
    for suspects, what, also in found:
        if suspects.height:
            row = suspects.row(0, named=True)
            stamp = f"{row['_wall']:%Y-%m-%d %H:%M}"
            raise DataError(
                f"{times.file}, row {row[LINE]}, column {times.name!r}: {stamp}, a Sunday, "
                f"{what}, as where clocks change; say whose clock it is with --zone, such as "
                f"--zone Europe/Paris{also}"
            )


def _list_columns(table: pl.DataFrame) -> list[str]:
    return [column for column in table.columns if column != LINE]


def _list_times(table: pl.DataFrame, name: str, time_format: str = "") -> list[str]:
    columns = [TextColumn(table, name, column) for column in _list_columns(table)]
    return [column.name for column in columns if _holds_stamps(column, time_format)]


def _holds_stamps(column: TextColumn, time_format: str = "") -> bool:
    column = replace(column, table=column.table.filter(~column.is_blank))
    # A number is a stamp as the month 202401 or the day 20240101, or in a column named like one.
    is_number = column.text.str.contains(r"^\d+(\.\d+)?$")
    is_number &= ~column.text.str.contains(r"^(19|20)\d\d(0[1-9]|1[0-2])(\d\d){0,4}$")
    is_named = _rank(column.name, _TIMES) < 2 * len(_TIMES)
    is_number &= not time_format
    if not column.table.height or (column.table.select(is_number.any()).item() and not is_named):
        return False
    shapes = {"": (time_format,)} if time_format else text_stamps.SHAPES
    read = text_stamps.read_by_each(column, shapes)
    return any(not stamps.null_count() for stamps in read.iter_columns())


def _rank(column: str, usual: Sequence[str]) -> int:
    """Return the place of a column's name among usual ones, behind them where it is none."""
    words = re.sub(r"[ /]|(?<=[a-z])(?=[A-Z])", "_", column).lower()
    places = [i for i, word in enumerate(usual) if words == word]
    places += [len(usual) + i for i, word in enumerate(usual) if word in words.split("_")]
    return min(places, default=2 * len(usual))
