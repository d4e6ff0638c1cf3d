"""Stamps are read as people and programs write them."""

from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pytest

from compevo_core.errors import CompEvoError
from compevo_core.table.cells import LINE, TextColumn
from compevo_core.table.text_stamps import add_clock, are_clock_times, guess_format, read_stamps

HOURS = pd.date_range("2024-01-01", periods=1200, freq="h")  # more than are looked at first
DAYS = pd.date_range("1998-12-01", periods=400, freq="D")
MONTHS = pd.date_range("1998-01-01", periods=120, freq="MS")
QUARTERS = pd.date_range("1998-01-01", periods=40, freq="QS")
WEEKS = pd.date_range("2018-12-31", periods=60, freq="W-MON")
EARLY = pd.date_range("1949-01-01", periods=144, freq="MS")


def read(texts):
    """Return texts as instants in UTC, by the format that they fit."""
    column = TextColumn(pl.DataFrame({LINE: range(1, len(texts) + 1), "t": texts}), "a.csv", "t")
    return read_stamps(column, zone="UTC", time_format=guess_format(column))[0].to_list()


@pytest.mark.parametrize(
    ("stamps", "form"),
    [
        (HOURS, "%Y-%m-%dT%H:%MZ"),
        (HOURS, "%Y-%m-%d %H"),
        (HOURS, "%Y-%m-%dT%HZ"),
        (HOURS, "%Y%m%d%H"),
        (HOURS, "%m/%d/%y %H:%M"),
        (HOURS, "%d/%m/%y %H:%M"),
        (HOURS, "%y/%m/%d %H:%M"),
        (HOURS, "%d.%m.%y %H:%M"),
        (HOURS, "%d-%b-%Y %H:%M"),
        (HOURS, "%a, %d %b %Y %H:%M:%S GMT"),
        (HOURS, "%d-%b-%y %I.%M.%S.000000 %p"),
        (DAYS, "%y/%m/%d"),
        (DAYS, "%d-%b-%y"),
        (DAYS, "%d %B %Y"),
        (MONTHS, "%b-%y"),
        (MONTHS, "%Y%m"),
        (MONTHS, "%m/%Y"),
        (MONTHS, "%Y %b"),
        (HOURS, "%Y-%m-%d %I:%M %p"),
        (HOURS, "%b %d, %Y %I:%M:%S %p"),
        (HOURS, "%m-%d-%Y %H:%M:%S"),
        (HOURS, "%Y%m%dT%H%M%S"),
        (HOURS, "%Y%m%d%H%M%S"),
        (HOURS, "%Y-%m-%d-%H"),
        (HOURS, "%m/%d/%Y %H"),
        (HOURS, "%m/%d/%Y %I%p"),
        (HOURS, "%Y-%m-%d_%H:%M:%S"),
        (HOURS, "%Y-%m-%d %H:%M:%S,%f"),
        (HOURS, "%Y-%jT%H:%M"),
        (HOURS, "%a %b %d %H:%M:%S %Y"),
        (HOURS, "%d/%b/%Y:%H:%M:%S +0000"),
        (HOURS, "%d/%m/%Y, %H:%M:%S"),
        (HOURS, "%d/%m/%Y %Hh%M"),
        (HOURS, "%H:%M %d/%m/%Y"),
        (HOURS, "%d.%m.%Y %H:%M Uhr"),
        (HOURS, "%Y年%m月%d日 %H:%M"),
        (DAYS, "%A, %B %d, %Y"),
        (DAYS, "%d. %B %Y"),
        (DAYS, "%Y.%m.%d"),
        (DAYS, "%Y-%j"),
        (DAYS, "%Y-%m-%d (%a)"),
        (DAYS, "%m-%d-%y"),
        (HOURS, "%Y-%m-%d %H:%M:%S +0000 UTC"),
        (HOURS, "%Y-%m-%dT%H:%M:%S+00:00[UTC]"),
        (HOURS, "%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)"),
        (HOURS, "%a %b %d %H:%M:%S UTC %Y"),
        (HOURS, "%Y-%m-%d %H:%M UTC+0"),
        (HOURS, "%Y-%m-%dT%H:%Mz"),
        (HOURS, "%Y-%m-%d-%H.%M.%S.000000"),
        (HOURS, "%Y:%m:%d %H:%M:%S"),
        (HOURS, "%Y-%m-%d %H:%M:%S:000"),
        (HOURS, "%d/%m/%Y %Hh"),
        (HOURS, "%I:%M %p %m/%d/%Y"),
        (HOURS, "'%Y-%m-%d %H:%M"),
        (HOURS, "%H:%M-%H:%M %d.%m.%Y"),
        (HOURS, "[%Y-%m-%d %H:%M, %Y-%m-%d %H:59)"),
        (HOURS, "%Y-%m-%dT%H:%MZ/PT1H"),
        (HOURS, "%d.%m.%Y %H:%M \u2013 %H:59"),
        (WEEKS, "%Y-%m-%d to %Y-%m-%d"),
        (WEEKS, "KW %V/%G"),
        (WEEKS, "W%V %G"),
        (WEEKS, "%G W%V"),
        (DAYS, "%Y-%b-%d"),
        (MONTHS, "%Y/%m"),
        (MONTHS, "%Y-M%m"),
        (MONTHS, "%b, %Y"),
        (MONTHS, "%d/%m/%Y"),
        (MONTHS, "%m/%d/%Y"),
        (EARLY, "%b-%y"),
        (EARLY, "%d.%m.%y"),
    ],
)
def test_stamps_are_read_whatever_writes_them(stamps, form):
    assert read(list(stamps.strftime(form))) == list(stamps.tz_localize("UTC"))


@pytest.mark.parametrize(
    "form",
    ["Q{q} {y}", "{q}Q{y}", "{y}q{q}", "{y}-Q{q}", "{y}:Q{q}", "Q{q}'{short}", "{q}Q{short}"],
)
def test_quarters_are_read(form):
    texts = [form.format(q=at.quarter, y=at.year, short=f"{at:%y}") for at in QUARTERS]
    assert read(texts) == list(QUARTERS.tz_localize("UTC"))


def test_days_of_a_spreadsheet_are_read():
    half_days = pd.date_range("2024-01-01", periods=3, freq="12h", tz="UTC")
    assert read(["45292", "45292.5", "45293"]) == list(half_days)


@pytest.mark.parametrize(
    "names",
    [
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "gen feb mar apr mag giu lug ago set ott nov dic",
        "jan fev mar abr mai jun jul ago set out nov dez",
        "jan feb mrt apr mei jun jul aug sep okt nov dec",
        "jan feb mars april maj juni juli aug sept okt nov dec",
        "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października "
        "listopada grudnia",
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
        "Oca Şub Mar Nis May Haz Tem Ağu Eyl Eki Kas Ara",
    ],
)
def test_months_are_read_in_ten_languages(names):
    months = dict(enumerate(names.split(), start=1))

    texts = [f"{day.day}. {months[day.month]} {day.year}" for day in DAYS]

    assert read(texts) == list(DAYS.tz_localize("UTC"))


@pytest.mark.parametrize("form", ["%d.%m.%Y %H:%M", "%Y-%m-%d %H:%M"])
def test_the_end_of_an_interval_is_no_offset(form):
    starts, ends = HOURS.strftime(form), (HOURS + pd.Timedelta("1h")).strftime("-%H:%M")
    assert read(list(starts + ends)) == list(HOURS.tz_localize("UTC"))

    assert read(list(starts + "-05:00")) == list(HOURS.tz_localize("-05:00"))


@pytest.mark.parametrize("form", ["{} {}", "{} ({})", "{0} - 2024-03-31 23:00 ({1})"])
def test_names_of_zones_are_offsets(form):
    texts = [form.format("2024-03-31 01:00", "CET"), form.format("2024-03-31 03:00", "CEST")]
    assert read(texts) == [datetime(2024, 3, 31, hour, tzinfo=UTC) for hour in (0, 1)]

    with pytest.raises(CompEvoError, match="is not a stamp in a format that is known"):
        read(["2024-03-31 01:00 (CST)", "2024-03-31 02:00 (CST)"])


def test_a_cell_only_in_the_last_row_counts():
    texts = [*HOURS.strftime("%Y-%m-%d %H:%M"), "2024-02-20 00:00:00+00"]
    with pytest.raises(CompEvoError, match="has no offset"):
        read(texts)
    for mark in " T":
        last = f"2024-02-19{mark}24:00"
        assert read([*texts[:-1], last])[-1] == datetime(2024, 2, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1:00", "23:30"], ["2024 1:00", "2024 23:30"]),
        (["0000", "2330"], ["2024 00:00", "2024 23:30"]),
        (["0", "100", "2400"], ["2024 00:00", "2024 01:00", "2024 24:00"]),
        (["00:00-00:30", "00:30 - 01:00"], ["2024 00:00", "2024 00:30"]),
        (["12:30 AM", "1 PM"], ["2024 12:30 AM", "2024 1 PM"]),
        (["00-01", "13-14"], ["2024 00:00", "2024 13:00"]),
        (["0", "1", "23"], None),  # hours by number
        (["100", "170"], None),
    ],
)
def test_a_column_of_clock_times_joins_its_days(cells, expected):
    column = pl.Series("clock", cells)
    assert are_clock_times(column) == (expected is not None)
    if expected:
        joined = column.to_frame().select(add_clock(pl.lit("2024"), pl.col("clock")))
        assert joined.to_series().to_list() == expected
