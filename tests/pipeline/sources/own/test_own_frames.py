"""A user's tables: what is guessed, repaired and counted, and what is refused with its row."""

import gzip
import io
import json
import re
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from compevo_core.data.news import deduplicate_articles
from compevo_core.data.series import validate_series
from compevo_core.errors import CompEvoError, DataError
from compevo_core.table import text_stamps
from compevo_pipeline.sources.own.declaration import CovariateKeys, make_spec
from compevo_pipeline.sources.own.draft import Request, draft_declaration, guess_time
from compevo_pipeline.sources.own.frames import parse_articles, parse_covariates, parse_series
from compevo_pipeline.sources.own.table import read_columns, read_text_table
from compevo_pipeline.sources.registry import make_dataset
from tests.support.nemweb import pack as zipped
from tests.support.own_tables import declare, wrap

FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone
NAMED = {"unit": "", "time": "stamp", "values": ("load_mw",)}
OTHER = NAMED | {"values": ("power",)}
UNITS = "when,temperature,load\n" + 4 * "UTC,MW,MW\n"  # three rows may be of units
EVENTS = "at,shop,sold\n" + "\n".join(
    f"{FIRST + timedelta(hours=5 * i, minutes=7 * i % 60, seconds=i % 60)},{'ab'[i % 2]},{i % 5}"
    for i in range(900)
)


def parse(text, **series):
    return parse_series(wrap(text), declare(**series))[0]


def read(text, **series):
    frame = parse(text, **series)
    return dict(zip(frame["start_utc"], frame["value"], strict=True))


def morning(*rows):
    return "stamp,load_mw\n" + "".join(f"2024-01-01 {row}\n" for row in rows)


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def test_units_and_empty_cells_are_counted():
    text = (
        b"\xef\xbb\xbfstamp;load_mw\r\n2024-01-01 00:00;1,234 MW\r\n2024-01-01 00:30;987.5 MW\r\n"
        b"2024-01-01 01:00;n/a\r\n"
    )
    frame, repairs = parse_series(wrap(text), declare())

    assert frame["value"].to_list() == [1234.0, 987.5, None]
    assert frame["flag"].to_list() == ["observed", "observed", "missing"]
    assert (repairs["cells with unit"], repairs["empty cells"]) == (2, 1)
    assert set(frame["series_id"]) == {"OWN/load_mw"}


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        ("3.25-|(1.5)|- 5|\u22126|7", [-3.25, -1.5, -5.0, -6.0, 7.0]),
        ("(1\u2019234)|($5.5)|7\u2009000", [-1234, -5.5, 7000]),
        ("8'000-|\u2212 9\u202f000", [-8000, -9000]),
        ("21.5 °C|-3 °C", [21.5, -3.0]),
        ("1'234 kWh/m2|12 kWh/m2", [1234.0, 12.0]),
        ("12|13*", [12.0, 13.0]),  # the mark of a provisional number
        *((cells, None) for cells in ("950|1.05k", "0.5|50%", "01:00|02:00", "1/2|3/2")),
        *((cells, None) for cells in ("5+|6", "1.5D+03|2D+03", "5x10^3", "5 W-|6 W-", "5-7")),
    ],
)
def test_signs_and_units_are_of_all_cells(cells, values):
    text = morning(*(f"0{h}:00,{cell}" for h, cell in enumerate(cells.split("|"))))
    if values is None:
        with pytest.raises(CompEvoError, match="column 'load_mw'"):
            parse(text, step="1h")
    else:
        assert list(read(text, step="1h").values()) == values


def test_duplicates_and_another_order_are_counted():
    text = morning("00:30,2", "00:00,1", "00:30,2", "01:00,3")

    frame, repairs = parse_series(wrap(text), declare())

    assert frame["value"].to_list() == [1.0, 2.0, 3.0]
    assert (repairs["equal duplicates"], repairs["out of order"]) == (1, 1)


def table(*rows):
    return "\n".join(["stamp,load_mw", *rows, ""])


COMMAS = "stamp;load_mw\n2024-01-01 00:00;1.234,5\n"
TWO, RULES = morning("00:00,1", "00:00,4"), {"first": 1.0, "last": 4.0, "mean": 2.5}
ONCE = table("2024-10-27 01:00,1", "2024-10-27 02:00,2", "2024-10-27 03:00,4")
TWICE = ONCE.replace("2024-10-27 03", "2024-10-27 02:00,3\n2024-10-27 03")
SPRING = table("2024-03-31 01:00,1", "2024-03-31 02:00,2", "2024-03-31 03:00,3")
OFFSETS = table("2024-10-27T02:30+02:00,1", "2024-10-27T02:00+01:00,2")
HOURLY = {"step": "1h"}
PARIS = HOURLY | {"time_zone": "Europe/Paris"}
SECOND = {utc(2024, 10, 26, 23): 1.0, utc(2024, 10, 27, 1): 2.0, utc(2024, 10, 27, 2): 4.0}
SPAN = table("01.02.2024 03:00 - 01.02.2024 04:00,1")
NEPAL = {"time_zone": "+05:45", "step": "1h"}
NIGHT = {utc(2024, 10, 26, 23) + timedelta(hours=hour): 1.0 + hour for hour in range(4)}
STRAY = morning("00:10:01,1", "00:50:00,3", "01:05:00,8")
QUARTERS = morning(*(f"0{i // 4}:{i % 4 * 15:02d},{i}" for i in range(8)))


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        (COMMAS, {"decimal": ","}, {utc(2024, 1, 1): 1234.5}),
        *((TWO, {"duplicates": rule}, {utc(2024, 1, 1): at}) for rule, at in RULES.items()),
        (ONCE, PARIS | {"repeated_hour": "second"}, SECOND),
        (STRAY, HOURLY | {"aggregate": "last"}, {utc(2024, 1, 1): 3.0, utc(2024, 1, 1, 1): 8.0}),
        (STRAY, HOURLY | {"aggregate": "mean"}, {utc(2024, 1, 1): 2.0, utc(2024, 1, 1, 1): 8.0}),
        (TWICE, PARIS, NIGHT),
        (table(*TWICE.splitlines()[:0:-1]), PARIS, NIGHT),
        (SPRING, PARIS | {"time_zone": "+01:00"}, {utc(2024, 3, 31, h): 1.0 + h for h in range(3)}),
        (OFFSETS, {}, {utc(2024, 10, 27, 0, 30): 1.0, utc(2024, 10, 27, 1): 2.0}),
        (morning("00:30,1"), {"stamps": "end"}, {utc(2024, 1, 1): 1.0}),
        (table("2024-01-01 24:00,1"), {}, {utc(2024, 1, 2): 1.0}),
        (table("1995-Q4,1"), {}, {utc(1995, 10, 1): 1.0}),
        (table("2024-03-31,2"), PARIS | {"step": "1d"}, {utc(2024, 3, 30, 23): 2.0}),
        (table("2024-01-07,2"), {"step": "1d", "stamps": "end"}, {utc(2024, 1, 7): 2.0}),
        (table("2024-01-07,2"), {"step": "1w", "stamps": "end"}, {utc(2024, 1, 1): 2.0}),
        (table("2024-01-08 00:00,2"), {"step": "1w", "stamps": "end"}, {utc(2024, 1, 1): 2.0}),
        (table(",", "2024-01-01,1", ",", "Total,1", "of all shops,"), {}, {utc(2024, 1, 1): 1.0}),
        (SPAN, {"time_format": "%d.%m.%Y %H:%M"}, {utc(2024, 2, 1, 3): 1.0}),
        (QUARTERS, NEPAL, {utc(2023, 12, 31, 18, 15): 1.5, utc(2023, 12, 31, 19, 15): 5.5}),
    ],
)
def test_a_table_is_read_as_declared(text, keys, values):
    assert read(text, **keys) == values


def test_a_series_called_total_keeps_its_last_rows():
    days = [f"2024-01-0{day},{day}" for day in range(1, 8)]
    rows = [f"{region},{day}" for region in ("North", "Total") for day in days]

    frame = parse("\n".join(["region,stamp,load_mw", *rows]), id="region", step="1d")
    assert frame["series_id"].value_counts()["count"].to_list() == [7, 7]


@pytest.mark.parametrize(
    ("text", "keys", "facts"),
    [
        (COMMAS, {}, r"row 2, column 'load_mw': '1\.234,5'.*decimal"),
        (TWO, {}, "row 3, column 'load_mw'.* of row 2"),
        (ONCE, PARIS, "row 3, column 'stamp'.*repeated_hour"),
        (SPRING, PARIS, r"row 3, column 'stamp'.*Europe/Paris.*\+01:00"),
        (OFFSETS + "2024-10-27T02:30,3\n", {}, "row 4, column 'stamp'.* offset"),
        ("", {}, "demand.csv"),
        ("stamp,load_mw\n", {}, "demand.csv"),
        ("time,load_mw\n2024-01-01,1\n", {}, "'stamp'.*'time', 'load_mw'"),
        (table("2024-01-01,1", "2024-01-02,1,2"), {}, "line 3: 3 cells"),
        (table("2024-01-01,x"), {}, "row 2, column 'load_mw': 'x'"),
        (table("2024-01-01,1e999"), {}, "row 2, column 'load_mw': '1e999'"),
        (table("01.02.2024,1"), {}, r"row 2, column 'stamp': '01\.02\.2024'.*ISO"),
        (table("2024010205,1"), {"time_format": "%Y%m%d%H"}, "'%Y%m%d%H' reads no stamps"),
        (b"stamp,load_mw\n2024-01-01,\xff\n", {}, "line 2: byte 0xff"),
        (morning("00:00,5 MW", "00:30,5000 kW"), {}, "row 3, column 'load_mw'.*'kW'.*'MW'"),
        (morning("00:00,1", "01:07,3"), {}, "row 3, column 'stamp'.* 0:30:00"),
        (table("2024-01-01,1", "2024-01-08,2", "2024-01-16,3"), {"step": "1w"}, "row 4.*01-16'"),
    ],
)
def test_a_faulty_table_is_refused_with_its_row(text, keys, facts):
    with pytest.raises(CompEvoError, match=facts):
        parse(text, **keys)


def test_a_column_of_names_gives_series():
    text = "stamp,load_mw,site\n2024-01-01,1,A 1\n2024-01-01,2,B\n2024-01-02,3,A 1\n"
    rows = parse(text, id="site", step="1d").select("series_id", "value").rows()
    assert rows == [("OWN/A-1", 1.0), ("OWN/A-1", 3.0), ("OWN/B", 2.0)]


def test_names_of_one_label_are_refused():
    text = "stamp,Zürich 1,Zürich-1\n2024-01-01,1,2\n"
    assert set(parse(text, values=["Zürich 1"], step="1d")["series_id"]) == {"OWN/Zürich-1"}
    with pytest.raises(DataError, match="Zürich-1"):
        parse(text, values=["Zürich 1", "Zürich-1"], step="1d")


def read_covariates(text, known="after"):
    keys = CovariateKeys(file="weather.csv", time="day", values=["temp"], known=known)
    declaration = declare(time_zone="Europe/Paris")
    return parse_covariates(wrap(text, "weather.csv"), declaration, keys, ["load_mw"])


def declare_news(**news):
    return declare({"news": {"articles": "a.csv", **news}}, time_zone="Europe/Paris")


def test_a_measured_day_is_known_when_over():
    text = "day,temp\n2024-01-05,4.5\n"
    # Midnights of Paris, an instant before: what is known at the origin itself is too late.
    for known, day in (("after", 5), ("before", 4)):
        found = read_covariates(text, known)["available_at"].item()
        assert found == utc(2024, 1, day, 22, 59, 59, 999999)


def test_finer_covariates_become_three_of_a_day():
    text = "day,temp\n2024-01-05 00:00,1\n2024-01-05 12:00,8\n2024-01-06 00:00,5\n"
    rows = read_covariates(text).filter(pl.col("valid_date") == pl.date(2024, 1, 5))
    found = dict(zip(rows["name"], rows["value"], strict=True))
    assert found == {"temp_mean": 4.5, "temp_min": 1.0, "temp_max": 8.0}


def test_a_day_twice_is_refused():
    with pytest.raises(DataError, match=r"weather\.csv, row 3"):
        read_covariates("day,temp\n2024-01-05,1\n2024-01-05,2\n")


def read_articles(*rows, names="published_at,title", **news):
    return parse_articles(wrap("\n".join([names, *rows, ""]), "a.csv"), declare_news(**news))


def test_an_article_of_a_date_is_known_afterwards():
    rows = ("2024-01-05 08:00,Plant closes for repairs", "2024-01-05,Plant closes for repairs")
    known = [read_articles(row)[0]["available_at"].item() for row in rows]
    assert known == [utc(2024, 1, 5, 7), utc(2024, 1, 5, 23)]


def test_keywords_choose_articles_of_one_data_set():
    text = "published_at,title,url\n2024-01-05 08:00,Plant closes,https://a.org/1\n"
    raw = wrap(text + "2024-01-05 09:00,Football,https://a.org/2\n", "a.csv")
    kept, _ = parse_articles(raw, declare_news(keywords=["plant"], url="url"))
    assert kept["title"].to_list() == ["Plant closes"]

    other = declare_news(url="url").model_copy(update={"name": "other"})
    assert kept["article_id"].item() not in parse_articles(raw, other)[0]["article_id"].to_list()


@pytest.mark.parametrize("url", ["", "https://a.org/warnings", "desk"])
def test_repeated_warnings_stay_and_rows_are_counted(url):
    rows = (f"2024-01-0{day} 18:00,Storm warning for the whole coast,{url}" for day in (5, 6, 6))
    kept, counts = read_articles(*rows, names="published_at,title,url", url="url")
    assert kept["available_at"].dt.day().to_list() == [5, 6]
    assert (counts, deduplicate_articles(kept).height) == ({"repeated": 1}, 2)
    assert url in kept["url"][0]


def test_an_article_needs_a_headline():
    with pytest.raises(DataError, match=r"a\.csv, row 2"):
        read_articles("2024-01-05 08:00,")


def test_a_total_needs_all_its_parts():
    text = "stamp,a,b,c\n2024-01-01,1,2,4\n2024-01-02,1,,4\n2024-01-03,1,3,4\n"
    sections = {"totals": {"all": ["*"], "a and b": ["a", "b"]}}
    sections["evaluation"] = {"reconciliation": "mint"}
    declaration = declare(sections, values=["a", "b", "c"], step="1d")
    frame, _ = parse_series(wrap(text), declaration)
    values = dict(frame.sort("start_utc").group_by("series_id").agg("value").rows())
    assert values["OWN/all"] == [7.0, None, 8.0]
    assert values["OWN/a-and-b"] == [3.0, None, 4.0]
    assert validate_series(frame).height == 15
    assert make_spec(declaration).totals == {"all": ("*",), "a-and-b": ("a", "b")}
    assert make_dataset(declaration, Path("own.toml")).reconciliation == "mint"

    # A part that begins later, or ends, is in the sum as far as it reaches: as in Forecaster.
    later = declaration.model_copy(update={"totals": {"all": ["*"]}})
    frame, _ = parse_series(wrap(text.replace("01,1,2,4", "01,1,,4")), later)
    assert frame.filter(series_id="OWN/all").sort("start_utc")["value"].to_list() == [5, 5, 8]

    for totals in ({"t": ["z"]}, {"a": ["b"]}):
        with pytest.raises(DataError):
            parse_series(wrap(text), declaration.model_copy(update={"totals": totals}))


@pytest.mark.parametrize(
    ("zone", "offset", "place"),
    [
        ("America/Los_Angeles", "-08:00", "America/Los_Angeles"),
        ("America/St_Johns", "-03:30", "America/St_Johns"),
        ("-08:00", "-08:00", "Etc/GMT+8"),
        ("UTC", "+00:00", "UTC"),
        ("+0530", "+05:30", "UTC"),
    ],
)
def test_a_zone_has_an_offset_and_a_place(zone, offset, place):
    assert text_stamps.name_standard_offset(zone) == offset
    noon = datetime(2024, 1, 1, 12, tzinfo=text_stamps.read_zone(offset))
    assert noon.utcoffset() == text_stamps.find_standard_offset(zone)
    assert text_stamps.find_place_zone(zone) == place


def look(text, **said):
    keys = {"name": "demand", "file": Path("demand.csv"), "unit": "MW"}
    return draft_declaration(Request(**(keys | said)), wrap(text), {})


def write_hours(**odd):
    rows = [f"{FIRST + timedelta(hours=i)},{i % 24},{200 + i % 24}" for i in range(24 * 60)]
    for row, line in odd.items():
        rows[int(row[1:])] = line
    return "when,temperature,load\n" + "\n".join(rows) + "\n"


def write_days(head, count, row="{t:%Y-%m-%d},{i}", step=timedelta(days=1)):
    return head + "".join(row.format(t=FIRST + i * step, i=i) + "\n" for i in range(count))


MINUTE = timedelta(minutes=1)
CYCLE = [5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6]
SEASONAL = "when,load\n" + "".join(
    f"{FIRST + timedelta(hours=i)},{CYCLE[i % 10] + i % 3 / 9}\n" for i in range(2000)
)
WITH_OFFSET = write_days("t,sales_mw\n", 90, "{t:%F}T00:00+02:00,{t.day}")
QUARTERS_OF_HOURS = write_days("stamp,load_mw\n", 30 * 96, "{t},{t.hour}", 15 * MINUTE)
DRAFTS = [
    # A file, what is said of it, what its declaration holds, and what a guess says.
    (write_hours(), {}, ['time = "when"', 'values = ["load"]'], "'when'.*--time"),
    (write_hours(), {}, [], "'temperature'.*--value"),
    (write_hours().replace("when", "End of Hour"), {}, ['stamps = "end"'], ""),
    (write_hours(), {"values": ("all",)}, ['values = ["temperature", "load"]'], ""),
    (write_hours(), {}, [], "no offset.*--zone"),
    (WITH_OFFSET, {"unit": ""}, [], "'MW'.*--unit"),
    (WITH_OFFSET, {}, [], "follow UTC.*--zone"),
    (write_days("when,load\n", 90), {}, ["horizon = 11 "], "11 steps.*48|48.*11 steps"),
    (SEASONAL, {}, ["season_steps = 10 "], ""),
    (write_days("t,y\n", 99, "{t:%d*%m*%Y},{i}"), {"time_format": "%d*%m*%Y"}, ['time = "t"'], ""),
    (QUARTERS_OF_HOURS, {}, ['step = "15min"', "horizon = 96", "lookback = 672"], ""),
    (write_days("t,y\n", 9 * 1440, "{t},{t.hour}", MINUTE), {}, ['step = "30min"'], "half-hours"),
]


@pytest.mark.parametrize(("text", "said", "declared", "guess"), DRAFTS)
def test_a_file_is_described_and_guesses_said(text, said, declared, guess):
    draft = look(text, **said)
    assert [line for line in declared if line not in draft.text] == []
    assert any(re.search(guess, line) for line in draft.guesses)


def test_columns_are_known_by_their_names_and_values():
    ends = ("End of Hour", "GMTIntervalEnd", "INTERVALENDTIME", "period_end", "Tot (datum)")
    for name in (*ends, "Trend", "weekend", "Totals"):
        text = look(write_hours().replace("when", name)).text
        assert ('stamps = "end"' in text) == (name in ends)

    # The number of a row, or a code of a place, is not measured.
    for codes in (range(1440), [104437] * 1440):
        rows = zip(["y", *codes], write_hours().splitlines(), strict=True)
        assert 'values = ["load"]' in look("\n".join(f"{code},{row}" for code, row in rows)).text

    # A start comes before other times, UTC before other clocks, and a forecast is not measured.
    rows = [line.split(",") for line in write_hours().splitlines()[1:]]
    both = ["publishTime,startTime,periodNumber,MW Forecast,totalLoad"]
    both += [f"{t},{t},{number},{load},{load}" for t, number, load in rows]
    text = look("\n".join(both)).text
    assert 'time = "startTime"' in text and 'values = ["totalLoad"]' in text
    assert 'time = "Time UTC"' in look("\n".join(both).replace("startTime", "Time UTC")).text


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("sales_mw", "MW"),
        ("mw", "MW"),
        ("Verbrauch [kWh]", "kWh"),
        ("GrossMWh", "MWh"),
        ("t (°C) min", "°C"),
        ("OBS_VALUE", "units"),
    ],
)
def test_a_unit_is_read_from_the_columns_name(name, unit):
    draft = look(WITH_OFFSET.replace("sales_mw", name), unit="")
    assert any(f"'{unit}'" in line and "--unit" in line for line in draft.guesses)


def test_a_column_that_parts_stamps_names_series():
    def write(stores, days):
        rows = [(FIRST + timedelta(days=day), store) for store in stores for day in range(days)]
        lines = [f"{day:%Y-%m-%d},{store},{day.day % 7 + store}" for day, store in rows]
        return "date,store,sales\n" + "\n".join(lines) + "\n"

    with pytest.raises(CompEvoError, match=r"'store'.*'date'"):
        look(write(range(1, 25), 60))
    draft = look(write((1, 2), 700))
    assert 'id = "store"' in draft.text and 'values = ["sales"]' in draft.text
    assert "horizon = 48" in draft.text and "lookback = 77" in draft.text


def test_odd_values_and_constants_are_warned_of():
    draft = look(write_hours(n100=f"{FIRST + timedelta(hours=100)},1,8888888"))
    (warning,) = draft.warnings
    assert "OWN/load: 1 " in warning and "8,888,888" in warning and warning in draft.text
    assert look(write_hours()).warnings == []

    fillers = {f"n{i}": f"{FIRST + timedelta(hours=i)},1,-9999" for i in range(0, 1440, 12)}
    assert "120 code(s) of a missing value, -9999" in look(write_hours(**fillers)).warnings[0]
    zeros = {name: row.replace("-9999", "0") for name, row in fillers.items()}
    assert "OWN/load: 120 " in look(write_hours(**zeros)).warnings[0]
    nines = write_days("when,a,b,c,d,e,f,g,h,i\n", 700, "{t:%F}" + 9 * ",9")
    same = look(nines, values=("all",)).warnings
    assert len(same) == 9 and "OWN/a" in same[0] and same[-1] == "1 more of the same kind"


def test_a_sheet_of_excel_is_a_table():
    pytest.importorskip("fastexcel")
    table = read_text_table(Path(__file__).with_name("sheet.xlsx").read_bytes(), "a.xlsx")
    assert table.row(0, named=True) == {"line": 2, "when": "2024-01-01 01:00", "load": "1.5"}
    with pytest.raises(CompEvoError, match=r"demand\.xlsx"):
        read_text_table(b"PK\x03\x04 nothing", "demand.xlsx")


@pytest.mark.parametrize("names", ["123", "abc"])
def test_sheets_with_the_same_columns_are_one_table(names):
    pytest.importorskip("fastexcel")
    one, content = Path(__file__).with_name("sheet.xlsx"), io.BytesIO()
    with zipfile.ZipFile(one) as book, zipfile.ZipFile(content, "w") as copy:
        parts = {name: book.read(name).decode() for name in book.namelist()}
        page = parts["xl/worksheets/sheet1.xml"]
        cover = re.sub("<row>.*</row>", "", page)
        at_noon = page.replace("01:00", "12:00").replace("<v>1.5", '<v>2.5</v></c><c s="1"><v>0.5')
        for number, text in enumerate((cover, page, at_noon), start=1):
            parts[f"xl/worksheets/sheet{number}.xml"] = text.replace(
                "load</t></is></c>", 'load</t></is></c><c t="inlineStr"><is><t>time</t></is></c>'
            )
        for name in ("xl/workbook.xml", "xl/_rels/workbook.xml.rels"):
            entry = re.search(r"<(sheet|Relationship) [^>]*/>", parts[name])[0]
            entries = [
                re.sub(r'1(?=["\.])', str(number), entry).replace('"a"', f'"{sheet}"')
                for number, sheet in enumerate(names, start=1)
            ]
            parts[name] = parts[name].replace(entry, "".join(entries))
        space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        parts["xl/styles.xml"] = (
            f'<styleSheet xmlns="{space}"><cellXfs><xf/><xf numFmtId="20"/></cellXfs></styleSheet>'
        )
        for name, text in parts.items():
            copy.writestr(name, text)
    rows = [("2024-01-01 01:00", "1.5", None), ("2024-01-01 12:00", "2.5", "12:00:00")]
    if names.isalpha():
        rows = [(*row, name) for row, name in zip(rows, names[1:], strict=True)]
    assert read_text_table(content.getvalue(), "a.xlsx").drop("line").rows() == rows


def test_whole_numbers_of_a_typed_file_are_integers():
    content = io.BytesIO()
    columns = {"Year": [2024.0] * 2, "Month": [1.0, 2.0], "load": [1.5, 2.0], "shop": [7.0, None]}
    pl.DataFrame(columns).write_parquet(content)

    table = read_text_table(content.getvalue(), "a.parquet")

    assert table.rows() == [(1, "1.5", "7", "2024-01"), (2, "2.0", None, "2024-02")]


def test_lists_in_the_cells_of_a_typed_file_are_named():
    content = pl.DataFrame({"day": ["2024-01-01"], "load": [[1.0, 2.0]]}).write_ipc(None)
    with pytest.raises(DataError, match=r"one cell each, in 'day'.* write a list in a cell as a"):
        guess_time(read_text_table(content.getvalue(), "a.arrow"), "a.arrow")


@pytest.mark.parametrize(
    ("text", "said", "message"),
    [
        ("a,b\n1,2\n3,4\n", {}, "stamps"),
        ("when,name\n2024-01-01,x\n2024-01-02,y\n", {}, "numbers.*'when'"),
        (write_days("when,load\n", 8), {}, "too few"),
        (write_days("when,load\n", 300), {"step": "1h"}, "no rows are 1h apart.*--step.*1 day"),
        (write_days("", 90), {}, "row 1: '2024-01-01'"),
        (UNITS + write_days("", 60, "{t:%Y-%m-%d},1,{i}"), {}, "row 5, column 'when': 'UTC'"),
        (morning("00:00,1", "00:30,x", "01:00,3"), {}, "row 3, .*'x'"),
        (write_days("stamp,load_mw\n", 60), {"country": "XX"}, "holidays"),
        (write_days("stamp,load_mw\n", 9) + "5 January,1\n", NAMED, "'5 January'"),
        (write_days("stamp,load_mw\n", 9), OTHER, "'power'.*'stamp', 'load_mw'"),
        # Only even steps distinguish days from months.
        ("stamp,load_mw\n01/01/2024,1\n02/01/2024,1\n", NAMED, "--time-format"),
    ],
)
def test_what_cannot_be_decided_is_refused(text, said, message):
    with pytest.raises(CompEvoError, match=message):
        look(text, **said)


@pytest.mark.parametrize(
    "above",
    [
        "# Source: a service\n# Units: MW, local\n",
        "Category: all\n\n",
        "A title;of two cells\n,\n",
        "latitude,a,b,zone\n52.5,38.0,0,GMT\n\nName,A B\nMeter,Main\n\n",
    ],
)
def test_notes_above_the_names_are_left_out(above):
    text = write_hours()
    plain, noted = look(text), look(above + text)
    lines = above.count("\n")
    assert noted.findings[0].startswith(f"{lines} line(s)")
    assert noted.findings[1:] == plain.findings


TEXT = "stamp,load_mw\n2024-01-01,1\n2024-01-02,2\n"
ROWS = [{"stamp": "2024-01-01", "load_mw": 1}, {"stamp": "2024-01-02", "load_mw": 2}]
COLUMNS = {"stamp": ["2024-01-01", "2024-01-02"], "load_mw": [1, 2]}


HOLDERS = {
    "gzip": ("a.csv.gz", gzip.compress(TEXT.encode())),
    "zip": ("a.csv.zip", zipped(("a.csv", TEXT))),
    "lines": ("a.jsonl", "\n".join(map(json.dumps, ROWS)).encode()),
    "list": ("a.json", json.dumps(ROWS).encode()),
    "object": ("a.json", json.dumps({"status": "ok", "data": ROWS}).encode()),
    "lists": ("a.json", json.dumps({"units": {"a": "MW"}, "hourly": COLUMNS}).encode()),
    "arrow": ("a.arrow", pl.DataFrame(ROWS).write_ipc(None).getvalue()),
    "utf-16": ("a.csv", TEXT.replace(",", "\t").encode("utf-16")),
    "joined": ("a.csv", TEXT.replace("2024-01-02", "stamp,load_mw\n2024-01-02").encode()),
    "notes": ("a.csv", f"{TEXT}\nSource: a service\nas of today\n\n".encode()),
    "broken name": ("a.csv", TEXT.replace("stamp", '"stamp\n"').encode()),
    "ends of rows": ("a.csv", TEXT.replace("1\n", "1,\n").replace("2\n", "2,\n").encode()),
    "unnamed": ("a.csv", ("#group,false,true\n" + re.sub("(?m)^(?=.)", ",", TEXT)).encode()),
}


@pytest.mark.parametrize(("name", "content"), HOLDERS.values(), ids=HOLDERS)
def test_a_table_is_read_whatever_holds_it(name, content):
    plain = read_text_table(TEXT.encode(), "a.csv").drop("line")
    assert read_text_table(content, name).drop("line").equals(plain)


def test_a_line_of_no_table_stays_untold():
    content = b"root:$6$secret:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n"
    with pytest.raises(CompEvoError, match="no column") as refused:
        read_columns(content, "shadow", ["stamp"])
    assert "root" not in str(refused.value)


def test_names_in_windows_1252_are_read():
    table = read_text_table("Zeit;Größe °C\n1;2\n".encode("cp1252"), "a.csv")
    assert table.columns == ["line", "Zeit", "Größe °C"]


@pytest.mark.parametrize(("step", "count"), [("1h", 4496), ("1d", 188), ("1w", 27)])
def test_events_are_added_up_by_step(step, count):
    declared = {"grid": {"step": step}, "splits": {"fractions": [0.6, 0.2, 0.2]}}
    keys = {"time": "at", "values": ["sold"], "aggregate": "sum", "fill": 0.0}
    frame, repairs = parse_series(wrap(EVENTS), declare(declared, **keys))

    assert frame["value"].sum() == sum(i % 5 for i in range(900))
    assert frame["value"].null_count() == 0 and frame.height == count
    assert repairs["stamps seconds off"] == 0
    by_shop, _ = parse_series(wrap(EVENTS), declare(declared, **keys, id="shop"))
    assert by_shop["series_id"].n_unique() == 2 and by_shop["value"].sum() == frame["value"].sum()
    with pytest.raises(CompEvoError, match=r"row \d+"):
        parse_series(wrap(EVENTS), declare(declared, **keys | {"aggregate": ""}))
