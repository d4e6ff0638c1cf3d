"""Files of the forms that people have: read at the first call, or by what the refusal says."""

import bz2
import io
import json
import re
import tomllib
from datetime import UTC, datetime, timedelta
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
WEEKS = [datetime(2018, 1, 1) + timedelta(weeks=i) for i in range(260)]  # noqa: DTZ001
MONTHS = [datetime(1949 + i // 12, i % 12 + 1, 1) for i in range(144)]  # noqa: DTZ001
ODD_HOURS = [f"{t:%Y-%m-%d},{'2A' if t == HOURS[500] else t.hour},1" for t in HOURS]
OTHER_DAYS = [f"{t:%Y-%m-%d},1" for t in DAYS[:150]] + [f"{t:%d/%m/%Y},1" for t in DAYS[150:]]


def write(head, rows):
    return "\n".join([head, *rows, ""])


def fill(head, row, stamps=HOURS):
    """Write a row for each stamp: of its end, its hour and quarter from one on, and a load."""
    rows = []
    for t in stamps:
        names = {"t": t, "end": t + HOUR, "hour": t.hour + 1, "quarter": t.month // 3 + 1}
        unix, load = round(t.replace(tzinfo=UTC).timestamp()), 900 + t.hour + t.day + t.month
        rows.append(row.format(**names, unix=unix, load=load))
    return write(head, rows)


LINES = "".join(f'{{"ts":"{t}","load":{900 + t.hour}}}\n' for t in HOURS)
NONE = ["?", "unavailable", "unknown", "No Data", "#NV"]
YEARS = [f"{year}," + ",".join(map(str, range(12))) for year in range(1949, 1961)]
FORMS = {
    "household.csv": write(
        "Date;Time;Global_active_power",
        (f"{t:%d/%m/%Y};{t:%H:%M:%S};{NONE[t.day % 5] if t.hour == 3 else t.hour}" for t in HOURS),
    ),
    "entsoe.csv": fill(
        '"MTU (CET/CEST)","Actual Total Load [MW]"',
        '"{t:%d.%m.%Y %H:%M} - {end:%d.%m.%Y %H:%M}","{load}"',
    ),
    "smard.csv": fill(
        "Datum von;Datum bis;Netzlast [MWh]",
        "{t:%d.%m.%Y %H:%M};{end:%d.%m.%Y %H:%M};1.1{t.hour:02},5",
    ),
    "parts.csv": fill("year,month,day,hour,load", "{t.year},{t.month},{t.day},{t.hour},{load}"),
    **dict.fromkeys(("lines.jsonl", "lines.json"), LINES),
    "HistoricalQuotes.csv": fill(
        "Date, Close/Last, Volume",
        "{t:%m/%d/%Y}, ${t.day}.50, {t.day}000",
        [t for t in DAYS if t.weekday() < 5],
    ),
    "us-dates.csv": fill("date,price", "{t.month}/{t.day}/{t.year},{t.day}", DAYS),
    "trends.csv": "Category: All\n\n"
    + fill("Week,python: (Worldwide)", "{t:%Y-%m-%d},{load}", WEEKS),
    "iso-weeks.csv": fill("week,calls", "{t:%G-W%V},{load}", WEEKS),
    "months.csv": fill("Month,Passengers", "{t:%Y-%m},{load}", MONTHS),
    "quarters.csv": fill("quarter,beer", "{t.year} Q{quarter},{t.month}", MONTHS[::3]),
    "parts-of-years.csv": fill("year,month,sold", "{t.year},{t.month},7", MONTHS),
    "months-beside.csv": write("Year,Jan,Feb,Mar,Apr,May,Jun,Jul,Aug,Sep,Oct,Nov,Dec", YEARS),
    "months-in-german.csv": write(
        "Jahr,Januar,Februar,März,April,Mai,Juni,Juli,August,September,Oktober,November,Dezember",
        YEARS,
    ).replace(",", ";"),
    "years-beside.csv": write(
        '"Data Source","Indicators",\n\nName,Code,' + ",".join(map(str, range(1900, 2000))) + ",",
        ["Here,HE," + ",".join(str(1000 + i * 37 % 300) for i in range(100)) + ","],
    ),
    "days-beside.csv": write(
        "Province," + ",".join(f"{t.month}/{t.day}/{t:%y}" for t in DAYS[:199]),
        ["Here," + ",".join(str(t.day) for t in DAYS[:199])],
    ),
    "hours-beside.csv": fill(
        "date," + ",".join(f"H{hour}" for hour in range(24)),
        "{t:%Y-%m-%d}," + ",".join(str(900 + hour) for hour in range(24)),
        DAYS[:40],
    ),
    "hour-ending.csv": fill("Date,Hour Ending,MW", "{t:%m/%d/%Y},{hour},{load}"),
    "levels.csv": fill(",north,north\n,load,temp", "{t},{load},1"),
    "quotes.csv": fill("Price,Close,Close\nTicker,A,B\nDate,,", "{t:%Y-%m-%d},{load},1", DAYS[1:]),
    "logger.csv": fill("TIMESTAMP,load\nTS,MW", "{t},{load}"),
    "seconds.csv": fill("ts,load", "{unix},{load}"),
    "nanoseconds.csv": fill("ts,load", "{unix}000000000,{load}"),
    "pvgis.csv": fill("time,P", "{t:%Y%m%d:%H}10,{load}"),
    "quartale.csv": fill("Quartal;Bier", "{quarter}. Quartal {t.year};{t.month}", MONTHS[::3]),
    "flags.csv": write(
        "hour;sales",
        (f"{t};{1 + t.hour}\u2019000.5{' p' if t > HOURS[900] else ''}" for t in HOURS),
    ),
    "dwd.txt": fill("STATION;MESS_DATUM;TT", "433;{t:%Y%m%d%H};{load}"),
    "hora.csv": fill("Fecha;Hora;AE_kWh", "{t:%d/%m/%Y};{hour};0,{load}"),
    "text.xls": fill("ts\tload", "{t}\t{load}").replace(" 00:00:00", ""),  # as R writes
    "half-days.csv": fill("Date,Time,load", "{t:%m/%d/%Y},{t:%I:%M %p},{load}"),
    "he.csv": fill("date,HE,load", "{t:%Y-%m-%d},HE{hour:02},{t.hour}"),
    "to-24.csv": fill("Tag;Uhrzeit;Last", "{t:%d.%m.%Y};{hour}:00;{t.hour}"),
    "last-second.csv": fill("ts,load", "{t:%Y-%m-%d %H}:59:59,{t.hour}"),
    "last-of-end.csv": fill("end,load", "{t:%Y-%m-%d %H}:59:59,{t.hour}"),
    "hour-minute.csv": fill("day,hour,minute,load", "{t:%Y-%m-%d},{t.hour},0,7"),
    "hhmm.csv": fill("day,hhmm,load", "{t:%Y-%m-%d},{t.hour}00,{t.hour}"),
    "summary.csv": fill("day,sold", "{t:%Y-%m-%d},{t.day}", DAYS[:199]) + "Total,9\nMax,31\n",
    "yyyymm.csv": fill("yyyymm,sold", "{t:%Y%m},{t.month}", MONTHS),
    "stunden.csv": fill("Tag;Stunde;Last", "{t:%d.%m.%Y};{t.hour:02}-{hour:02};{t.hour}"),
    "power.csv": fill("YEAR,MO,DY,HR,T2M", "{t:%Y,%m,%d},{hour},{t.hour}"),
    "days-of-years.csv": fill("Year,DOY,T2M", "{t:%Y,%j},{t.day}", DAYS[:199]),
    "bls.csv": fill("Year,Period,Value", "{t.year},M{t:%m},{t.month}", MONTHS),
    "qtr.csv": fill("Year,Qtr,beer", "{t.year},{quarter},{t.month}", MONTHS[::3]),
    "index.csv": fill(",0", "{t},{load}"),
    "export.csv": "Load of the town,\nExported,2024-05-01\n"
    + fill("stamp,load", "{t},{load}")
    + "\n\nTotal,3000\nMean,900\n(c) the town\n",
    "blank.csv": fill("stamp,load", "{t},{load}\n"),
    "pandas.json": pd.DataFrame({"t": map(str, HOURS), "y": [*range(40)] * 24}).to_json(),
    "influx.json": json.dumps(
        {"results": [{"columns": ["time", "y"], "values": [[str(t), t.hour] for t in HOURS]}]}
    ),
    "report.csv": "C,NEMP.WORLD,DEMAND,AEMO\nI,DEMAND,REGION,4,SETTLEMENTDATE,TOTALDEMAND\n"
    + fill("", 'D,DEMAND,REGION,4,"{t:%Y/%m/%d %H:%M:%S}",{load}').strip()
    + "\nC,END OF REPORT,963\n",
    "nem12.csv": "100,NEM12,202405010000,MDP,ME\n200,6305,B1E1,E1,E1,N1,77,kWh,60,\n"
    + fill("", f"300,{{t:%Y%m%d}},{'{t.day},' * 24}A,,,20240501,", DAYS[:40]).strip()
    + "\n400,1,24,E,,\n900\n",
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
@pytest.mark.parametrize("span", [("2023-09-10", "2023-11-20"), ("2024-02-25", "2024-04-25")])
def test_hours_are_numbered_by_clock_or_by_count(first, is_wall, span):
    stamps = pd.date_range(*span, freq="h", tz="Europe/Berlin", inclusive="left")
    count = stamps.to_series().groupby(stamps.date).cumcount().to_numpy()
    number = first + (stamps.hour if is_wall else count)
    values = np.arange(len(stamps))
    text = pd.DataFrame({"date": stamps.date, "hour": number, "y": values}).to_csv(index=False)

    frame = read(text, zone="Europe/Berlin", values=("y",), period="hour")

    assert frame.sort("start_utc")["value"].to_list() == values.tolist()
    assert frame["start_utc"].sort().to_list() == [*stamps.tz_convert("UTC").to_pydatetime()]


def test_numbered_parts_of_days_are_steps():
    # As the market of London publishes them.
    stamps = pd.date_range("2024-03-01", periods=48 * 254, freq="30min", tz="Europe/London")
    number = 1 + stamps.to_series().groupby(stamps.date).cumcount().to_numpy()
    text = pd.DataFrame({"date": stamps.date, "period": number, "y": number}).to_csv(index=False)
    draft = look("a.csv", text, zone="Europe/London")

    assert 'period = "period"' in draft.text and 'step = "30min"' in draft.text
    assert any(", 0 of them" in line for line in draft.findings)
    with pytest.raises(CompEvoError, match=r"'period'.* 48.*--zone"):
        look("a.csv", text)


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
        ("a.csv", b"C,AEMO\nI,A,B,1,t,y\nD,A,B,1,2024,5\nI,A,C,1,t\n", "2 tables .A,B, A,C.: keep"),
        ("a.csv", b"100,NEM12\n300,20240101,5,A\n900\n", "line 2: not as in NEM12"),
        ("a.csv", write("date,sold", OTHER_DAYS), "row 152.*'31/05/2023'.*%Y-%m-%d"),
    ],
)
def test_what_is_no_table_is_refused_with_the_remedy(name, content, message):
    with pytest.raises(CompEvoError, match=message):
        look(name, content)


STRAY = [FIRST + i * timedelta(minutes=31, seconds=7 * (i % 5)) for i in range(2000)]
SOLD = write("time,shop,amount", (f"{t},{'ab'[t.second % 2]},{5 + t.hour}" for t in STRAY))
TWICE = write("date,sold", (f"{t:%Y-%m-%d},{t.day + again}" for t in DAYS for again in (0, 1)))
THERE = {"zone": "Europe/Berlin"}
BERLIN = {"periods": 960, "freq": "h", "tz": "Europe/Berlin"}
AUTUMN, SPRING = (
    fill("ts,load", "{t:%Y-%m-%d %H:%M},{load}", pd.date_range(first, **BERLIN))
    for first in ("2023-10-15", "2023-03-15")
)
EASTERN = pd.date_range("2023-10-10", periods=960, freq="h", tz="America/New_York")
SHARED = (f"{t:%m/%d/%Y %H:%M,%Z},{name},{t.hour}" for t in EASTERN for name in "AB")
NAMES = write("Time Stamp,Time Zone,Name,Load", SHARED)
STANDARD, LATE = (fill("ts,load", "{t},{load}", [t + n * DAY for t in HOURS]) for n in (60, 270))
PARTS = fill("date,nr,load", "{t:%Y-%m-%d},{hour},{t.hour}")
UNEVEN = write("ts,load", (f"{t + t.hour % 3 * timedelta(minutes=7)},{t.hour}" for t in HOURS))
POINT = fill("ts;load", "{t};1,{load}")
HOURLY = fill("ts,load", "{t},{load}")
REFUSALS = [
    # A text, what is said of it, each remedy that the refusal names, and the rows it gives.
    (fill("LastUpdated,Occupancy", "{t},{load}", STRAY), {}, "--step 30min --aggregate mean", 1464),
    (SOLD, {"id": "shop"}, "--step 1h --aggregate sum", 1315),
    *((TWICE, {"values": ("sold",)}, f"--duplicates {at}", 200) for at in ("first", "mean")),
    *((PARTS, {}, f"--{by} nr", 960) for by in ("period", "id")),
    (AUTUMN, {}, "--zone Europe/Paris", 960),
    (NAMES, {}, "--zone America/New_York", 1920),
    *((SPRING, {}, f"--zone {zone}", 960) for zone in ("Europe/Paris", "UTC")),
    (STANDARD, THERE, "--zone=+01:00", 960),
    *((LATE, THERE, f"--repeated-hour {at}", 960) for at in ("first", "second")),
    (UNEVEN, {"step": "1h"}, "--aggregate mean", 960),
    (UNEVEN, {}, "--step 1min --aggregate last", 960),
    *((POINT, {}, f"--decimal {mark}", 960) for mark in ",."),
    (fill("ts;load", "{t};{hour}.5"), {"decimal": ","}, "--decimal .", 960),
    (fill("when,load", "{t:%y%m%d},{t.day}", DAYS), {}, "--time when --time-format %y%m%d", 200),
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
