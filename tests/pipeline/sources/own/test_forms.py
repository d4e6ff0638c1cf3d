"""Files of the forms that people have: read at the first call, or by what the refusal says."""

import bz2
import io
import json
import re
import tomllib
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from compevo_core.errors import CompEvoError
from compevo_pipeline.sources.own.declaration import check_declaration
from compevo_pipeline.sources.own.draft import Request, draft_declaration
from compevo_pipeline.sources.own.frames import parse_series
from tests.support.own_tables import wrap

FIRST = datetime(2023, 1, 1)  # noqa: DTZ001 - stamps of the tables have no zone
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS = [FIRST + i * HOUR for i in range(960)]
DAYS = [FIRST + i * DAY for i in range(200)]
WEEKS = [date(2018, 1, 1) + timedelta(weeks=i) for i in range(260)]
MONTHS = [date(1949 + i // 12, i % 12 + 1, 1) for i in range(144)]


def write(head, rows):
    return "\n".join([head, *rows, ""])


FORMS = {
    "household.csv": write(
        "Date;Time;Global_active_power",
        (f"{t:%d/%m/%Y};{t:%H:%M:%S};{'?' if t.hour == 3 else 1 + t.hour / 10}" for t in HOURS),
    ),
    "entsoe.csv": write(
        '"MTU (CET/CEST)","Actual Total Load [MW]"',
        (f'"{t:%d.%m.%Y %H:%M} - {t + HOUR:%d.%m.%Y %H:%M}","{900 + t.hour}"' for t in HOURS),
    ),
    "smard.csv": write(
        "Datum von;Datum bis;Netzlast [MWh]",
        (f"{t:%d.%m.%Y %H:%M};{t + HOUR:%d.%m.%Y %H:%M};1.{100 + t.hour},5" for t in HOURS),
    ),
    "parts.csv": write(
        "year,month,day,hour,load",
        (f"{t.year},{t.month},{t.day},{t.hour},{900 + t.hour}" for t in HOURS),
    ),
    "lines.jsonl": "".join(f'{{"ts":"{t}","load":{900 + t.hour}}}\n' for t in HOURS),
    "HistoricalQuotes.csv": write(
        "Date, Close/Last, Volume",
        (f"{t:%m/%d/%Y}, ${100 + t.day / 10:.2f}, {t.day}000" for t in DAYS if t.weekday() < 5),
    ),
    "us-dates.csv": write("date,price", (f"{t.month}/{t.day}/{t.year},{t.day}" for t in DAYS)),
    "trends.csv": "Category: All\n\n"
    + write("Week,python: (Worldwide)", (f"{week},{50 + week.month}" for week in WEEKS)),
    "iso-weeks.csv": write("week,calls", (f"{week:%G-W%V},{50 + week.month}" for week in WEEKS)),
    "months.csv": write("Month,Passengers", (f"{at:%Y-%m},{99 + at.month}" for at in MONTHS)),
    "quarters.csv": write(
        "quarter,beer", (f"{at.year} Q{at.month // 3 + 1},{at.month}" for at in MONTHS[::3])
    ),
    "parts-of-years.csv": write("year,month,sold", (f"{at.year},{at.month},7" for at in MONTHS)),
    "months-beside.csv": write(
        "Year,Jan,Feb,Mar,Apr,May,Jun,Jul,Aug,Sep,Oct,Nov,Dec",
        (f"{year}," + ",".join(map(str, range(12))) for year in range(1949, 1961)),
    ),
    "months-in-german.csv": write(
        "Jahr;Januar;Februar;März;April;Mai;Juni;Juli;August;September;Oktober;November;Dezember",
        (f"{year};" + ";".join(map(str, range(12))) for year in range(1949, 1961)),
    ),
    "years-beside.csv": write(
        "Country Name,Code," + ",".join(map(str, range(1900, 2000))),
        ["Here,HE," + ",".join(str(1000 + i * 37 % 300) for i in range(100))],
    ),
    "days-beside.csv": write(
        "Province," + ",".join(f"{t.month}/{t.day}/{t:%y}" for t in DAYS[:199]),
        ["Here," + ",".join(str(t.day) for t in DAYS[:199])],
    ),
    "hours-beside.csv": write(
        "date," + ",".join(f"H{hour}" for hour in range(24)),
        (f"{t:%Y-%m-%d}," + ",".join(str(900 + hour) for hour in range(24)) for t in DAYS[:40]),
    ),
    "hour-ending.csv": write(
        "Date,Hour Ending,MW", (f"{t:%m/%d/%Y},{t.hour + 1},{900 + t.hour}" for t in HOURS)
    ),
    "logger.csv": write("TIMESTAMP,load\nTS,MW", (f"{t},{900 + t.hour}" for t in HOURS)),
    "seconds.csv": write(
        "ts,load", (f"{1672531200 + 3600 * i},{900 + t.hour}" for i, t in enumerate(HOURS))
    ),
    "nanoseconds.csv": write(
        "ts,load",
        (f"{1672531200 + 3600 * i}000000000,{900 + t.hour}" for i, t in enumerate(HOURS)),
    ),
    "pvgis.csv": write("time,P", (f"{t:%Y%m%d:%H}10,{900 + t.hour}" for t in HOURS)),
    "quartale.csv": write(
        "Quartal;Bier", (f"{at.month // 3 + 1}. Quartal {at.year};{at.month}" for at in MONTHS[::3])
    ),
    "flags.csv": write(
        "hour;sales",
        (f"{t};{1 + t.hour}\u2019000.5{' p' if t > HOURS[900] else ''}" for t in HOURS),
    ),
    "total.csv": write("day,sold", (f"{t:%Y-%m-%d},{t.day}" for t in DAYS[:199])) + "Total,3000\n",
    "half-days.csv": write(
        "Date,Time,load", (f"{t:%m/%d/%Y},{t:%I:%M %p},{900 + t.hour}" for t in HOURS)
    ),
    "he.csv": write("date,HE,load", (f"{t:%Y-%m-%d},HE{t.hour + 1:02d},{t.hour}" for t in HOURS)),
    "to-24.csv": write(
        "Tag;Uhrzeit;Last", (f"{t:%d.%m.%Y};{t.hour + 1}:00;{t.hour}" for t in HOURS)
    ),
    "last-second.csv": write("ts,load", (f"{t:%Y-%m-%d %H}:59:59,{t.hour}" for t in HOURS)),
    "last-of-end.csv": write("end,load", (f"{t:%Y-%m-%d %H}:59:59,{t.hour}" for t in HOURS)),
    "hour-minute.csv": write("day,hour,minute,load", (f"{t:%Y-%m-%d},{t.hour},0,7" for t in HOURS)),
    "hhmm.csv": write("day,hhmm,load", (f"{t:%Y-%m-%d},{t.hour * 100},{t.hour}" for t in HOURS)),
    "summary.csv": write("day,sold", (f"{t:%Y-%m-%d},{t.day}" for t in DAYS[:199]))
    + "Average,15\nMax,31\n",
    "yyyymm.csv": write("yyyymm,sold", (f"{at:%Y%m},{at.month}" for at in MONTHS)),
    "stunden.csv": write(
        "Tag;Stunde;Last", (f"{t:%d.%m.%Y};{t.hour:02d}-{t.hour + 1:02d};{t.hour}" for t in HOURS)
    ),
    "power.csv": write("YEAR,MO,DY,HR,T2M", (f"{t:%Y,%m,%d},{t.hour + 1},{t.hour}" for t in HOURS)),
    "days-of-years.csv": write("Year,DOY,T2M", (f"{t:%Y,%j},{t.day}" for t in DAYS[:199])),
    "bls.csv": write("Year,Period,Value", (f"{at.year},M{at:%m},{at.month}" for at in MONTHS)),
    "qtr.csv": write(
        "Year,Qtr,beer", (f"{t.year},{t.month // 3 + 1},{t.month}" for t in MONTHS[::3])
    ),
    "index.csv": write(",0", (f"{t},{900 + t.hour}" for t in HOURS)),
    "export.csv": "Load of the town,\nExported,2024-05-01\n"
    + write("stamp,load", (f"{t},{900 + t.hour}" for t in HOURS))
    + "\n\nTotal,3000\nMean,900\n(c) the town\n",
    "blank.csv": write("stamp,load", (f"{t},{900 + t.hour}\n" for t in HOURS)),
    "lines.json": "".join(f'{{"ts":"{t}","load":{900 + t.hour}}}\n' for t in HOURS),
    "pandas.json": pd.DataFrame({"t": map(str, HOURS), "y": [*range(40)] * 24}).to_json(),
    "influx.json": json.dumps(
        {"results": [{"columns": ["time", "y"], "values": [[str(t), t.hour] for t in HOURS]}]}
    ),
    "years.csv": write("year,flow", (f"{1871 + i},{1000 + i * 37 % 300}" for i in range(100))),
}


def look(name, text, **said):
    return draft_declaration(Request(name="demand", file=Path(name), **said), wrap(text, name), {})


def read(text, **said):
    """Return the values of a file that is declared as `compevo init` does."""
    declared = check_declaration(tomllib.loads(look("a.csv", text, **said).text), "the draft")
    return parse_series(wrap(text, "a.csv"), declared)[0]


@pytest.mark.parametrize("name", FORMS)
def test_a_file_is_read_at_the_first_call(name):
    draft = look(name, FORMS[name])
    (found,) = [line for line in draft.findings if "steps of" in line]
    steps = {"1h": 960, "1d": 199, "1w": 260, "1mo": 144, "3mo": 48, "12mo": 100}
    ((step, count),) = [pair for pair in steps.items() if f" steps of {pair[0]} " in found]

    assert f": {count:,} steps" in found or (step, name) == ("1d", "us-dates.csv")
    # A number of an hour that ends is no start, nor are minutes after one.
    assert f"{count}" != "960" or "from 2023-01-01 00:00" in found
    assert any("0:10:00 after a step" in guess for guess in draft.guesses) == (name == "pvgis.csv")
    # 40 cells of the meter are marked as missing.
    assert ("40 empty cells" in draft.findings[0]) == (name == "household.csv")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("is_wall", [False, True])
@pytest.mark.parametrize(
    ("begin", "end"), [("2023-09-10", "2023-11-20"), ("2024-02-25", "2024-04-25")]
)
def test_hours_are_numbered_by_clock_or_by_count(first, is_wall, begin, end):
    stamps = pd.date_range(begin, end, freq="h", tz="Europe/Berlin", inclusive="left")
    count = stamps.to_series().groupby(stamps.date).cumcount().to_numpy()
    number = first + (stamps.hour if is_wall else count)
    values = np.arange(len(stamps))
    text = pd.DataFrame({"date": stamps.date, "hour": number, "y": values}).to_csv(index=False)

    frame = read(text, zone="Europe/Berlin", values=("y",), period="hour")

    assert frame.sort("start_utc")["value"].to_list() == values.tolist()
    assert frame["start_utc"].sort().to_list() == [*stamps.tz_convert("UTC").to_pydatetime()]


ODD_HOURS = [f"{t:%Y-%m-%d},{'2A' if t == HOURS[500] else t.hour},1" for t in HOURS]
OTHER_DAYS = [f"{t:%Y-%m-%d},1" for t in DAYS[:150]] + [f"{t:%d/%m/%Y},1" for t in DAYS[150:]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv.bz2", bz2.compress(b"a,b"), "packed.*: unpack it"),
        ("a.txt", b"stamp load\n2024-01-01 5\n", "separate cells by a comma"),
        ("a.csv", b"day,load\n2024-01-01,1,5\n", "line 2: 3 cells.*correct"),
        ("a.csv", b"<!doctype html>\n<html>", "a web page"),
        ("a.csv", "Время,load\n2024-01-01,1\n".encode("cp1251"), "UTF-8"),
        ("a.csv", "stamp,load\n2024-01-01,1\n2024-01-02,2\n2024-01-0", "line 4: 1 cells"),
        ("a.ndjson", b"[1, 2", "a.ndjson"),
        ("a.json", b'{"a": [1], "b": [2, 3]}', "a.json"),
        ("a.csv", write("date,hour,load", ODD_HOURS), "row 502, .*'hour': '2A'.*number"),
        ("a.csv", write("date,sold", OTHER_DAYS), "row 152.*'31/05/2023'.*%Y-%m-%d"),
    ],
)
def test_what_is_no_table_is_refused_with_the_remedy(name, content, message):
    with pytest.raises(CompEvoError, match=message):
        look(name, content)


STRAY = [FIRST + i * timedelta(minutes=31, seconds=7 * (i % 5)) for i in range(2000)]
PARKING = write("LastUpdated,Occupancy", (f"{t},{100 + t.hour}" for t in STRAY))
SOLD = write("time,shop,amount", (f"{t},{'ab'[t.second % 2]},{5 + t.hour}" for t in STRAY))


TWICE = write("date,sold", (f"{t:%Y-%m-%d},{t.day + again}" for t in DAYS for again in (0, 1)))
AUTUMN, SPRING = (
    write("ts,load", (f"{t:%Y-%m-%d %H:%M},{i % 7}" for i, t in enumerate(hours)))
    for hours in (
        pd.date_range(first, periods=960, freq="h", tz="Europe/Berlin")
        for first in ("2023-10-15", "2023-03-15")
    )
)
STANDARD = write("ts,load", (f"{FIRST + 60 * DAY + i * HOUR},{i % 7}" for i in range(960)))
LATE = write("ts,load", (f"{FIRST + 270 * DAY + i * HOUR},{i % 7}" for i in range(960)))
PARTS = write("date,nr,load", (f"{t:%Y-%m-%d},{t.hour + 1},{t.hour}" for t in HOURS))
UNEVEN = write("ts,load", (f"{t + t.hour % 3 * timedelta(minutes=7)},{t.hour}" for t in HOURS))
POINT = write("ts;load", (f"{t};1,{100 + t.hour}" for t in HOURS))
MARKS = write("ts;load", (f"{t};{1.5 + t.hour}" for t in HOURS))
WHEN = write("when,load", (f"{t:%y%m%d},{t.day}" for t in DAYS))
HOURLY = write("ts,load", (f"{t},{t.hour}" for t in HOURS))
REFUSALS = [
    # A text, what is said of it, each remedy that the refusal names, and the rows it gives.
    (PARKING, {}, "--step 30min --aggregate mean", 1464),
    (SOLD, {"id": "shop"}, "--step 1h --aggregate sum", 1315),
    (TWICE, {"values": ("sold",)}, "--duplicates first", 200),
    (TWICE, {"values": ("sold",)}, "--duplicates mean", 200),
    (PARTS, {}, "--period nr", 960),
    (PARTS, {}, "--id nr", 960),
    (AUTUMN, {}, "--zone Europe/Paris", 960),
    (SPRING, {}, "--zone Europe/Paris", 960),
    (SPRING, {}, "--zone UTC", 960),
    (STANDARD, {"zone": "Europe/Berlin"}, "--zone=+01:00", 960),
    *(
        (LATE, {"zone": "Europe/Berlin"}, f"--repeated-hour {at}", 960)
        for at in ("first", "second")
    ),
    (UNEVEN, {"step": "1h"}, "--aggregate mean", 960),
    (UNEVEN, {}, "--step 1min --aggregate last", 960),
    (POINT, {}, "--decimal ,", 960),
    (POINT, {}, "--decimal .", 960),
    (MARKS, {"decimal": ","}, "--decimal .", 960),
    (WHEN, {}, "--time when --time-format %y%m%d", 200),
    (HOURLY, {"step": "1 fortnight"}, "--step 1h", 960),
    (HOURLY, {"zone": "Paris"}, "--zone Europe/Paris", 960),
]


@pytest.mark.parametrize(("text", "said", "remedy", "rows"), REFUSALS)
def test_each_remedy_that_a_refusal_names_helps(text, said, remedy, rows):
    with pytest.raises(CompEvoError) as refused:
        read(text, **said)
    named = dict(re.findall(r"--([a-z-]+)[ =](\S+)", remedy))
    assert all(f"--{option}" in str(refused.value) for option in named)
    given = {option.replace("-", "_"): value for option, value in named.items()}
    assert read(text, **said | given).height == rows


def test_a_point_marks_thousands_where_only_some_cells_have_it():
    rows = [f"{t:%d.%m.%Y};{value}" for t, value in zip(DAYS, ["1.234", "987"] * 100, strict=True)]
    draft = look("a.csv", write("Datum;Absatz", rows))
    assert "',' marks decimals; if not, give --decimal ." in draft.guesses
    assert 'decimal = ","' in draft.text
    always = [row.replace("987", "0.987") for row in rows]
    assert 'decimal = "."' in look("a.csv", write("Datum;Absatz", always)).text


M5 = write(
    "item,store," + ",".join(f"d_{day}" for day in range(1, 301)),
    (",".join([item, "X", *(str(day * 7 % 5) for day in range(300))]) for item in "AB"),
)


def test_a_mark_of_decimals_or_thousands_is_a_guess():
    text = write("hour;sold", (f"{t};{1 + t.hour % 9}.{t.hour + 100}" for t in HOURS))
    said = "'.' marks decimals; if it marks thousands, give --decimal ,"
    assert said in look("a.csv", text).guesses
    assert said not in look("a.csv", text.replace(".", ".0")).guesses
    assert read(text, decimal=",")["value"].max() == 9 * 1000 + 117


def test_steps_as_columns_are_read_as_rows():
    with pytest.raises(CompEvoError) as refused:
        look("wide.csv", M5)
    assert "unpivot(index=['item', 'store'])" in str(refused.value)

    long = pl.read_csv(io.StringIO(M5)).unpivot(index=["item", "store"])
    number = pl.col("variable").str.extract(r"(\d+)$").cast(pl.Int64)
    rows = long.select("value", "item", "store", ds=pl.lit(FIRST) + number * DAY)
    draft = look("long.csv", rows.write_csv())
    assert len([line for line in draft.findings if "steps of" in line]) == 2


def test_two_columns_may_name_a_series():
    shops = [(store, item, t) for store in "AB" for item in (1, 2) for t in DAYS]
    text = write("date,store,item,sales", (f"{t:%Y-%m-%d},{s},{i},{t.day}" for s, i, t in shops))

    draft = look("sales.csv", text)

    assert '"store + item"' in draft.text
    named = [line.partition(":")[0] for line in draft.findings[1:4]]
    assert named == ["OWN/A-1", "OWN/A-2", "OWN/B-1"]
    assert draft.findings[4].startswith("1 more series")
