"""A user's tables: what is guessed, repaired and counted, and what is refused with its row."""

import gzip
import io
import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compevo_core.data.news import deduplicate_articles
from compevo_core.data.series import validate_series
from compevo_core.errors import CompEvoError, DataError
from compevo_core.table.text_stamps import (
    find_place_zone,
    find_standard_offset,
    list_zones,
    name_standard_offset,
    read_zone,
)
from compevo_pipeline.sources.own.declaration import (
    CovariateKeys,
    check_declaration,
    make_spec,
)
from compevo_pipeline.sources.own.draft import Request, draft_declaration
from compevo_pipeline.sources.own.frames import parse_articles, parse_covariates, parse_series
from compevo_pipeline.sources.own.table import read_text_table
from tests.support.nemweb import pack as zipped
from tests.support.own_tables import declare, wrap, write_demand


def parse(text, **series):
    return parse_series(wrap(text), declare(**series))[0]


def read(text, **series):
    frame = parse(text, **series)
    return dict(zip(frame["start_utc"], frame["value"], strict=True))


def morning(*rows):
    return "stamp,load_mw\n" + "".join(f"2024-01-01 {row}\n" for row in rows)


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def refusal(text, **series):
    with pytest.raises(CompEvoError) as error:
        parse(text, **series)
    return str(error.value)


def test_units_thousands_a_mark_and_empty_cells_are_read_and_counted():
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
        ("21.5 °C|-3 °C", [21.5, -3.0]),
        ("1'234 kWh/m2|12 kWh/m2", [1234.0, 12.0]),
        *((cells, None) for cells in ("950|1.05k", "0.5|50%", "01:00|02:00", "1/2|3/2", "12|13*")),
        *((cells, None) for cells in ("5+|6", "1.5D+03|2D+03", "5x10^3", "5 W-|6 W-", "5-7")),
    ],
)
def test_a_sign_may_stand_behind_a_number_and_a_unit_in_all_cells_or_in_none(cells, values):
    text = morning(*(f"0{h}:00,{cell}" for h, cell in enumerate(cells.split("|"))))
    if values is None:
        assert "column 'load_mw'" in refusal(text, step="1h")
    else:
        assert list(read(text, step="1h").values()) == values


def test_a_decimal_comma_is_read_where_it_is_declared_and_refused_where_not():
    text = "stamp;load_mw\n2024-01-01 00:00;1.234,5\n2024-01-01 00:30;7,25\n"
    assert list(read(text, decimal=",").values()) == [1234.5, 7.25]
    message = refusal(text)
    assert "demand.csv, row 2, column 'load_mw': '1.234,5'" in message
    assert "set decimal" in message


def test_equal_duplicates_and_another_order_are_repaired_and_counted():
    text = morning("00:30,2", "00:00,1", "00:30,2", "01:00,3")
    frame, repairs = parse_series(wrap(text), declare())
    assert frame["value"].to_list() == [1.0, 2.0, 3.0]
    assert (repairs["equal duplicates"], repairs["out of order"]) == (1, 1)


def test_contradicting_duplicates_are_refused_with_both_rows_unless_one_is_declared():
    text = morning("00:00,1", "00:30,2", "00:00,4", "01:00,3")
    message = refusal(text)
    assert "row 4, column 'load_mw': the stamp of row 2 again, with 4 where that has 1" in message
    kept = [read(text, duplicates=rule)[utc(2024, 1, 1)] for rule in ("first", "last", "mean")]
    assert kept == [1.0, 4.0, 2.5]


HOURS = "stamp,load_mw\n2024-10-27 01:00,1\n2024-10-27 02:00,2\n{again}2024-10-27 03:00,4\n"


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_hour_that_comes_twice_is_two_hours_in_the_order_of_the_rows(newest_first):
    lines = HOURS.format(again="2024-10-27 02:00,3\n").splitlines()
    if newest_first:
        lines = [lines[0], *lines[:0:-1]]
    values = read("\n".join(lines) + "\n", time_zone="Europe/Paris", step="1h")
    first = utc(2024, 10, 26, 23)
    assert values == {first + timedelta(hours=h): 1.0 + h for h in range(4)}


def test_that_hour_once_is_refused_with_its_row_unless_it_is_declared_which_it_is():
    text = HOURS.format(again="")
    message = refusal(text, time_zone="Europe/Paris", step="1h")
    assert "row 3, column 'stamp': '2024-10-27 02:00' comes once" in message
    assert "repeated_hour" in message
    later = read(text, time_zone="Europe/Paris", step="1h", repeated_hour="second")
    assert later[utc(2024, 10, 27, 1)] == 2.0


def test_an_hour_that_does_not_exist_is_refused_with_the_likely_cause():
    text = "stamp,load_mw\n2024-03-31 01:00,1\n2024-03-31 02:00,2\n2024-03-31 03:00,3\n"
    message = refusal(text, time_zone="Europe/Paris", step="1h")
    assert "row 3, column 'stamp': '2024-03-31 02:00' does not exist in Europe/Paris" in message
    assert "+01:00" in message
    starts = list(read(text, time_zone="+01:00", step="1h"))
    assert starts == [utc(2024, 3, 31, hour) for hour in (0, 1, 2)]


def test_offsets_that_change_are_instants_and_some_without_one_are_refused():
    text = "stamp,load_mw\n2024-10-27T02:30+02:00,1\n2024-10-27T02:00+01:00,2\n"
    assert list(read(text)) == [utc(2024, 10, 27, 0, 30), utc(2024, 10, 27, 1)]
    mixed = text + "2024-10-27T02:30,3\n"
    assert "row 4, column 'stamp': '2024-10-27T02:30' has no offset, and 2 other" in refusal(mixed)


def test_stamps_at_the_end_of_their_interval_become_its_start():
    text = "stamp,load_mw\n2024-01-01 00:30,1\n2024-01-01 01:00,2\n"
    assert list(read(text, stamps="end")) == [utc(2024, 1, 1), utc(2024, 1, 1, 0, 30)]


def test_stamps_are_read_as_they_are_written_elsewhere():
    written = {"2024-01-01 24:00": utc(2024, 1, 2), "2005M03": utc(2005, 3, 1)}
    written |= {"2024-01-01 03:00:00+00": utc(2024, 1, 1, 3), "1995-Q4": utc(1995, 10, 1)}
    written |= {"2024-01-01 03:00 UTC": utc(2024, 1, 1, 3), "2005-04": utc(2005, 4, 1)}
    for stamp, start in written.items():
        assert list(read(f"stamp,load_mw\n{stamp},1\n")) == [start]
    interval = "stamp,load_mw\n01.02.2024 03:00 - 01.02.2024 04:00,1\n"
    assert list(read(interval, time_format="%d.%m.%Y %H:%M")) == [utc(2024, 2, 1, 3)]


def test_days_keep_their_date_on_the_clock_without_daylight_saving():
    text = "stamp,load_mw\n2024-03-30,1\n2024-03-31,2\n2024-04-01,3\n"
    starts = list(read(text, time_zone="Europe/Paris", step="1d"))
    assert starts == [utc(2024, 3, 29, 23), utc(2024, 3, 30, 23), utc(2024, 3, 31, 23)]


def test_finer_rows_are_averaged_to_steps_that_begin_at_midnight_of_the_clock():
    text = morning(*(f"0{i // 4}:{i % 4 * 15:02d},{i}" for i in range(8)))
    values = read(text, time_zone="+05:45", step="1h")
    assert values == {utc(2023, 12, 31, 18, 15): 1.5, utc(2023, 12, 31, 19, 15): 5.5}


def test_a_column_of_names_gives_a_series_each():
    text = "stamp,load_mw,site\n2024-01-01,1,A 1\n2024-01-01,2,B\n2024-01-02,3,A 1\n"
    rows = parse(text, id="site", step="1d").select("series_id", "value").rows()
    assert rows == [("OWN/A-1", 1.0), ("OWN/A-1", 3.0), ("OWN/B", 2.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "demand.csv has no rows below its header"),
        ("stamp,load_mw\n", "demand.csv has no rows below its header"),
        ("time,load_mw\n2024-01-01,1\n", "no column 'stamp'; the columns are 'time', 'load_mw'"),
        ("stamp,load_mw\n2024-01-01,1\n2024-01-02,1,2\n", "line 3: 3 cells, not 2"),
        ("stamp,load_mw\n2024-01-01,x\n", "row 2, column 'load_mw': 'x' is not a number"),
        ("stamp,load_mw\n2024-01-01,1e999\n", "row 2, column 'load_mw': '1e999' is not a finite"),
        (
            "stamp,load_mw\n01.02.2024,1\n",
            "row 2, column 'stamp': '01.02.2024' is not a stamp as ISO",
        ),
        (b"stamp,load_mw\n2024-01-01,\xff\n", "line 2: byte 0xff is not UTF-8"),
        (
            morning("00:00,5 MW", "00:30,5000 kW"),
            "row 3, column 'load_mw': '5000 kW' is in 'kW', rows before it in 'MW'",
        ),
        (
            morning("00:00,1", "01:07,3"),
            "row 3, column 'stamp': '2024-01-01 01:07' is off the grid of 0:30:00",
        ),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_row_column_and_remedy(text, said):
    assert said in refusal(text)


def test_names_that_become_one_label_are_refused():
    text = "stamp,Zürich 1,Zürich-1\n2024-01-01,1,2\n"
    assert set(parse(text, values=["Zürich 1"], step="1d")["series_id"]) == {"OWN/Zürich-1"}
    with pytest.raises(DataError, match="have the same letters and digits"):
        parse(text, values=["Zürich 1", "Zürich-1"], step="1d")


def read_covariates(text, known="after"):
    keys = CovariateKeys(file="weather.csv", time="day", values=["temp"], known=known)
    declaration = declare(time_zone="Europe/Paris")
    return parse_covariates(wrap(text, "weather.csv"), declaration, keys, ["load_mw"])


def declare_news(**news):
    raw = declare(time_zone="Europe/Paris").model_dump(exclude_none=True)
    return check_declaration({**raw, "news": {"articles": "a.csv", **news}}, "test")


def test_a_measured_day_is_known_when_it_is_over_and_a_plan_when_it_begins():
    text = "day,temp\n2024-01-05,4.5\n"
    measured = read_covariates(text)["available_at"].item()
    planned = read_covariates(text, known="before")["available_at"].item()
    # Midnights of Paris, an instant before: what is known at the origin itself is too late.
    assert measured == datetime(2024, 1, 5, 22, 59, 59, 999999, tzinfo=UTC)
    assert planned == datetime(2024, 1, 4, 22, 59, 59, 999999, tzinfo=UTC)


def test_finer_rows_become_mean_lowest_and_highest_of_the_local_day():
    text = "day,temp\n2024-01-05 00:00,1\n2024-01-05 12:00,8\n2024-01-06 00:00,5\n"
    rows = read_covariates(text).filter(pl.col("valid_date") == pl.date(2024, 1, 5))
    found = dict(zip(rows["name"], rows["value"], strict=True))
    assert found == {"temp_mean": 4.5, "temp_min": 1.0, "temp_max": 8.0}


def test_a_day_twice_is_refused_with_its_row():
    with pytest.raises(DataError, match=r"weather\.csv, row 3, column 'day': '2024-01-05' comes"):
        read_covariates("day,temp\n2024-01-05,1\n2024-01-05,2\n")


def test_an_article_is_known_at_its_time_and_a_date_alone_at_the_end_of_its_day():
    timed = wrap("published_at,title\n2024-01-05 08:00,Plant closes for repairs\n", "a.csv")
    dated = wrap("published_at,title\n2024-01-05,Plant closes for repairs\n", "a.csv")
    read = [parse_articles(raw, declare_news())[0] for raw in (timed, dated)]
    known = [articles["available_at"].item() for articles in read]
    assert known == [datetime(2024, 1, 5, 7, tzinfo=UTC), datetime(2024, 1, 5, 23, tzinfo=UTC)]


def test_words_keep_articles_and_a_page_of_another_data_set_is_another_article():
    text = "published_at,title,url\n2024-01-05 08:00,Plant closes,https://a.org/1\n"
    text += "2024-01-05 09:00,Football,https://a.org/2\n"
    raw = wrap(text, "a.csv")
    kept, _ = parse_articles(raw, declare_news(keywords=["plant"], url="url"))
    assert kept["title"].to_list() == ["Plant closes"]

    other = declare_news(url="url").model_copy(update={"name": "other"})
    assert kept["article_id"].item() not in parse_articles(raw, other)[0]["article_id"].to_list()


@pytest.mark.parametrize("url", ["", "https://a.org/warnings", "desk"])
def test_warnings_that_repeat_are_articles_of_their_own_and_a_row_given_twice_is_counted(url):
    rows = [f"2024-01-0{day} 18:00,Storm warning for the whole coast,{url}\n" for day in (5, 6, 6)]
    raw = wrap("published_at,title,url\n" + "".join(rows), "a.csv")
    kept, counts = parse_articles(raw, declare_news(url="url"))
    assert kept["available_at"].dt.day().to_list() == [5, 6]
    assert (counts, deduplicate_articles(kept).height) == ({"repeated": 1}, 2)
    assert url in kept["url"][0]


def test_an_article_without_a_headline_is_refused_with_its_row():
    raw = wrap("published_at,title\n2024-01-05 08:00,\n", "a.csv")
    with pytest.raises(DataError, match=r"a\.csv, row 2, column 'title': .* is not a headline"):
        parse_articles(raw, declare_news())


def test_a_total_is_the_sum_where_all_of_its_parts_are_known():
    text = "stamp,a,b,c\n2024-01-01,1,2,4\n2024-01-02,1,,4\n2024-01-03,1,3,4\n"
    declaration = declare(values=["a", "b", "c"], step="1d").model_copy(
        update={"totals": {"all": ["*"], "a and b": ["a", "b"]}}
    )
    frame, _ = parse_series(wrap(text), declaration)
    values = dict(frame.sort("start_utc").group_by("series_id").agg("value").rows())
    assert values["OWN/all"] == [7.0, None, 8.0]
    assert values["OWN/a-and-b"] == [3.0, None, 4.0]
    assert validate_series(frame).height == 15
    assert make_spec(declaration).totals == {"all": ("*",), "a-and-b": ("a", "b")}

    for totals, message in (({"t": ["z"]}, "has no part OWN/z"), ({"a": ["b"]}, "is a series")):
        with pytest.raises(DataError, match=message):
            parse_series(wrap(text), declaration.model_copy(update={"totals": totals}))


NOON = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - wall clock


@pytest.mark.parametrize(
    ("zone", "offset"),
    [
        ("America/Los_Angeles", "-08:00"),
        ("Europe/Paris", "+01:00"),
        ("Australia/Adelaide", "+09:30"),
        ("America/St_Johns", "-03:30"),
        ("UTC", "+00:00"),
        ("+0530", "+05:30"),
    ],
)
def test_a_clock_without_daylight_saving_is_named_by_an_offset_that_reads_back(zone, offset):
    assert name_standard_offset(zone) == offset
    assert NOON.replace(tzinfo=read_zone(offset)).utcoffset() == find_standard_offset(zone)


@pytest.mark.parametrize("zone", ["-08:00", "+10:00", "+00:00"])
def test_weekdays_of_a_fixed_offset_are_those_of_that_offset(zone):
    place = ZoneInfo(find_place_zone(zone))
    assert NOON.replace(tzinfo=place).utcoffset() == find_standard_offset(zone)


def test_a_time_zone_is_its_own_place_and_half_an_hour_has_none():
    assert find_place_zone("Europe/Paris") == "Europe/Paris"
    assert find_place_zone("+09:30") == "UTC"


def test_the_zones_of_the_machine_are_looked_up_once_for_all_stamps():
    assert list_zones() is list_zones()


FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone


def look(text, **said):
    keys = {"name": "demand", "file": Path("demand.csv"), "unit": "MW"}
    return draft_declaration(Request(**(keys | said)), wrap(text), {})


def write_hours(**odd):
    rows = [f"{FIRST + timedelta(hours=i)},{i % 24},{200 + i % 24}" for i in range(24 * 60)]
    for row, line in odd.items():
        rows[int(row[1:])] = line
    return "when,temperature,load\n" + "\n".join(rows) + "\n"


def test_stamps_and_values_are_guessed_and_said_and_all_values_may_be_series():
    draft = look(write_hours())
    assert 'time = "when"' in draft.text and 'values = ["load"]' in draft.text
    assert "the stamps are in 'when'; if not, give --time" in draft.guesses
    others = "'load', not in 'temperature'; to change that, give --value"
    assert any(others in line for line in draft.guesses) and 'stamps = "start"' in draft.text
    assert 'stamps = "end"' in look(write_hours().replace("when", "End of Hour")).text
    of_all = look(write_hours(), values=("all",))
    assert 'values = ["temperature", "load"]' in of_all.text


def test_a_column_that_tells_repeated_stamps_apart_names_the_series():
    def write(stores, days):
        rows = [(FIRST + timedelta(days=day), store) for store in stores for day in range(days)]
        lines = [f"{day:%Y-%m-%d},{store},{day.day % 7 + store}" for day, store in rows]
        return "date,store,sales\n" + "\n".join(lines) + "\n"

    with pytest.raises(CompEvoError, match="'store' may number the parts of the days of 'date'"):
        look(write(range(1, 25), 60))
    draft = look(write((1, 2), 700))
    assert 'id = "store"' in draft.text and 'values = ["sales"]' in draft.text
    assert "horizon = 48" in draft.text and "lookback = 77" in draft.text


@pytest.mark.parametrize(
    ("month", "message"),
    [(10, r"2024-10-27 02:00, a Sunday, comes twice"), (3, r"2024-03-31 03:00.*missing hour")],
)
def test_clocks_that_change_in_a_file_are_asked_for(month, message):
    zone = ZoneInfo("Europe/Paris")
    first = datetime(2024, month, 1, tzinfo=ZoneInfo("UTC"))
    stamps = [(first + timedelta(hours=i)).astimezone(zone) for i in range(24 * 60)]
    text = "when,load\n" + "".join(f"{at:%Y-%m-%d %H:%M},{at.hour}\n" for at in stamps)
    with pytest.raises(CompEvoError, match=rf"{message}.*--zone Europe/Paris"):
        look(text)
    assert 'time_zone = "Europe/Paris"' in look(text, zone="Europe/Paris").text


def test_values_far_from_all_others_and_constants_are_warned_of():
    draft = look(write_hours(n100=f"{FIRST + timedelta(hours=100)},1,9999999"))
    (warning,) = draft.warnings
    assert warning.startswith("OWN/load: 1 value(s) are far from the others, first 9,999,999 at ")
    assert f"# Warning: {warning}" in draft.text
    assert look(write_hours()).warnings == []
    fillers = {f"n{i}": f"{FIRST + timedelta(hours=i)},1,-9999" for i in range(0, 1440, 12)}
    assert "OWN/load: 120 value(s) are far" in look(write_hours(**fillers)).warnings[0]

    constant = "when,load\n" + "".join(f"{FIRST + timedelta(days=i)},5\n" for i in range(700))
    (warning,) = look(constant).warnings
    assert "all values of OWN/load are equal" in warning


def test_months_and_short_files_are_guessed():
    months = [f"{2010 + i // 12}-{i % 12 + 1:02d}-01,{i % 12}" for i in range(120)]
    draft = look("when,load\n" + "\n".join(months) + "\n")
    assert 'step = "1mo"' in draft.text and "horizon = 12 " in draft.text
    assert "\nseason_steps" not in draft.text
    days = "when,load\n" + "".join(f"{FIRST + timedelta(days=i)},{i % 7}\n" for i in range(90))
    short = look(days)
    assert "horizon = 11 " in short.text
    assert any("forecasts have 11 steps in place of 48" in guess for guess in short.guesses)


def test_a_season_that_the_step_does_not_suggest_is_said():
    cycle = [5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6]
    rows = [f"{FIRST + timedelta(hours=i)},{cycle[i % 10] + i % 3 / 9}" for i in range(2000)]
    draft = look("when,load\n" + "\n".join(rows) + "\n")
    assert "season_steps = 30 " in draft.text or "season_steps = 10 " in draft.text
    assert any("the values repeat after" in guess for guess in draft.guesses)


def test_a_sheet_of_excel_reads_as_the_same_table_and_a_broken_one_is_named():
    pytest.importorskip("fastexcel")
    table = read_text_table(Path(__file__).with_name("sheet.xlsx").read_bytes(), "a.xlsx")
    assert table.row(0, named=True) == {"line": 1, "when": "2024-01-01 01:00", "load": "1.5"}
    with pytest.raises(CompEvoError, match=r"demand\.xlsx is not an Excel file"):
        read_text_table(b"PK nothing", "demand.xlsx")


def look_at(text, **said):
    """Look at a table whose columns are named."""
    return look(text, **NAMED | said)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "demand.csv"
    write_demand(path, days=60)
    return path.read_text(encoding="utf-8")


def test_what_is_assumed_for_want_of_a_name_or_a_clock_is_said_as_such(table):
    days = [f"{date(2024, 1, 1) + timedelta(days=n)}" for n in range(90)]
    rows = "".join(f"{day}T00:00+02:00,{n % 9}\n" for n, day in enumerate(days))
    guesses = look_at("stamp,sales\n" + rows, values=("sales",)).guesses
    assert "the unit is 'units', as nothing names one; if not, give --unit" in guesses
    assert "days and weekdays follow UTC; to follow a place, give --zone" in guesses
    assert "the unit is 'MW', from the column's name; if not, give --unit" in look_at(table).guesses


def test_finer_rows_and_business_days_are_seen_and_said():
    def write(every):
        stamps = (FIRST + timedelta(minutes=i) for i in range(0, 30 * 24 * 60, every))
        return "stamp,load_mw\n" + "".join(f"{stamp},{stamp.hour}\n" for stamp in stamps)

    quarters = write(every=15)
    draft = look_at(quarters, zone="UTC", unit="MW")
    assert 'step = "15min"' in draft.text
    assert "horizon = 96" in draft.text
    assert "lookback = 672" in draft.text
    assert 'step = "1h"' in look_at(quarters, zone="UTC", unit="MW", step="1h", lookback=48).text

    draft = look_at(write(every=1), zone="UTC", unit="MW")
    assert 'step = "30min"' in draft.text
    assert any("averaged to half-hours" in line for line in draft.guesses)


def write_days(head, count, cell="{0}"):
    rows = (f"{FIRST + timedelta(days=i):%Y-%m-%d},{cell.format(i)}\n" for i in range(count))
    return head + "".join(rows)


NAMED = {"unit": "", "time": "stamp", "values": ("load_mw",)}
UNITS = "when,temperature,load\nUTC,MW,MW\n"


@pytest.mark.parametrize(
    ("text", "said", "message"),
    [
        ("a,b\n1,2\n3,4\n", {}, "no column holds stamps"),
        ("when,name\n2024-01-01,x\n2024-01-02,y\n", {}, "no column of numbers beside 'when'"),
        (write_days("when,load\n", 8), {}, "too few"),
        (write_days("", 90), {}, "row 1: '2024-01-01' is a stamp and not a name"),
        (UNITS + write_days("", 60, "1,{0}"), {}, "row 2, column 'when': 'UTC' is not a stamp"),
        (
            morning("00:00,1", "00:30,x", "01:00,3"),
            {},
            r"row 3, .*'x' is not a number; correct the cell",
        ),
        (write_days("stamp,load_mw\n", 9), {"zone": "Paris"}, "--zone: 'Paris' is not a time zone"),
        (write_days("stamp,load_mw\n", 60), {"country": "XX"}, "no public holidays are known"),
        (
            write_days("stamp,load_mw\n", 9) + "5 January,1\n",
            NAMED,
            "'5 January' is not a stamp in a format",
        ),
        (
            write_days("stamp,load_mw\n", 9),
            NAMED | {"values": ("power",)},
            "no column 'power'; the columns are 'stamp', 'load_mw'",
        ),
        # Days and months are told apart by even steps only.
        ("stamp,load_mw\n01/01/2024,1\n02/01/2024,1\n", NAMED, "say which with --time-format"),
        (
            write_days("stamp;load_mw\n", 28, "{0:03d}").replace(",", ";1,"),
            NAMED,
            r"row 2.*'1,000' may be 1000 or 1\.000.*--decimal",
        ),
    ],
)
def test_what_cannot_be_decided_is_refused_in_words(text, said, message):
    with pytest.raises(CompEvoError, match=message):
        look(text, **said)


def test_numbered_parts_of_days_are_steps_where_clocks_change_too():
    # As the market of London publishes them.
    zone, lines, numbers = ZoneInfo("Europe/London"), ["date,period,load"], Counter()
    for half_hour in range(48 * 254):
        at = utc(2024, 3, 1) + half_hour * timedelta(minutes=30)
        day = at.astimezone(zone).date()
        numbers[day] += 1
        lines.append(f"{day},{numbers[day]},{len(lines) % 48}")
    text = "\n".join(lines) + "\n"
    draft = look(text, zone="Europe/London")
    assert 'period = "period"' in draft.text and 'step = "30min"' in draft.text
    (found,) = [line for line in draft.findings if "steps of" in line]
    assert ", 0 of them without a value" in found
    with pytest.raises(CompEvoError, match=r"'period' numbers more parts of a day than 48.*--zone"):
        look(text)


def test_clock_times_beside_days_are_stamps_that_end_as_their_name_says():
    days = [FIRST + timedelta(days=day) for day in range(60)]
    lines = [f"{day:%m/%d/%Y},{hour:02}:00,{hour}" for day in days for hour in range(1, 25)]
    draft = look("OperDay,HourEnding,COAST\n" + "\n".join(lines) + "\n")
    assert 'period = "HourEnding"' in draft.text and 'stamps = "end"' in draft.text
    assert "1,440 steps of 1h from 2024-01-01 00:00 to 2024-02-29 23:00" in " ".join(draft.findings)


@pytest.mark.parametrize(
    "above",
    ["# Source: a service\n# Units: MW, local\n", "Category: all\n\n", "A title;of two cells\n,\n"],
)
def test_notes_above_the_column_names_are_left_out_and_said(above):
    text = write_hours()
    plain, noted = look(text), look(above + text)
    lines = above.count("\n")
    assert noted.findings[0] == f"{lines} line(s) above the column names are left out"
    assert noted.findings[1:] == plain.findings


TEXT = "stamp,load_mw\n2024-01-01,1\n2024-01-02,2\n"
ROWS = [{"stamp": "2024-01-01", "load_mw": 1}, {"stamp": "2024-01-02", "load_mw": 2}]


def pack(write, *arguments):
    """Return what a call writes into a file."""
    file = io.BytesIO()
    write(file, *arguments)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.gz", gzip.compress(TEXT.encode())),
        ("a.csv.zip", zipped(("a.csv", TEXT))),
        ("a.jsonl", "\n".join(map(json.dumps, ROWS)).encode()),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", json.dumps({"status": "ok", "data": ROWS}).encode()),
        ("a.arrow", pack(pl.DataFrame(ROWS).write_ipc)),
        ("a.csv", TEXT.replace(",", "\t").encode("utf-16")),
        ("a.csv", TEXT.replace("2024-01-02", "stamp,load_mw\n2024-01-02").encode()),
        ("a.csv", f"{TEXT}\nSource: a service\nas of today\n\n".encode()),
    ],
    # Packed bytes hold the time, and processes must collect tests of the same names.
    ids=["gzip", "zip", "lines", "list", "object", "arrow", "utf-16", "joined", "notes"],
)
def test_a_table_is_read_whatever_holds_it(name, content):
    plain = read_text_table(TEXT.encode(), "a.csv").drop("line")
    assert read_text_table(content, name).drop("line").equals(plain)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.ndjson", b"[1, 2", "is not one JSON object a line"),
        ("a.json", b'{"a": [1], "b": [2]}', "is no list of JSON objects"),
        ("a.csv", f"{TEXT}2024-01-0".encode(), "line 4: 1 cells, not 2"),
        ("a.csv", "Время,load\n2024-01-01,1\n".encode("cp1251"), "is not UTF-8"),
    ],
)
def test_what_is_no_table_is_refused(name, content, said):
    with pytest.raises(CompEvoError, match=said):
        read_text_table(content, name)


def test_names_in_windows_1252_are_read():
    assert read_text_table("Zeit;Größe °C\n1;2\n".encode("cp1252"), "a.csv").columns == [
        *("line", "Zeit", "Größe °C"),
    ]


def test_an_offset_of_no_whole_hour_in_parquet_is_an_instant():
    stamps = pa.array([0, 3_600_000_000], pa.timestamp("us", tz="+05:30"))
    file = io.BytesIO()
    pq.write_table(pa.table({"stamp": stamps, "load_mw": [1.0, 2.0]}), file)
    table = read_text_table(file.getvalue(), "a.parquet")
    assert table["stamp"].to_list() == ["1970-01-01T00:00:00Z", "1970-01-01T01:00:00Z"]


EVENTS = "at,shop,sold\n" + "\n".join(
    f"{FIRST + timedelta(hours=5 * i, minutes=7 * i % 60, seconds=i % 60)},{'ab'[i % 2]},{i % 5}"
    for i in range(900)
)


@pytest.mark.parametrize(("step", "count"), [("1h", 4496), ("1d", 188), ("1w", 27)])
def test_events_are_added_up_by_step_and_steps_without_one_are_filled(step, count):
    declared = {"grid": {"step": step}, "splits": {"fractions": [0.6, 0.2, 0.2]}}
    keys = {"time": "at", "values": ["sold"], "aggregate": "sum", "fill": 0.0}
    frame, repairs = parse_series(wrap(EVENTS), declare(declared, **keys))
    assert frame["value"].sum() == sum(i % 5 for i in range(900))
    assert frame["value"].null_count() == 0 and frame.height == count
    assert repairs["stamps seconds off"] == 0
    by_shop, _ = parse_series(wrap(EVENTS), declare(declared, **keys, id="shop"))
    assert by_shop["series_id"].n_unique() == 2 and by_shop["value"].sum() == frame["value"].sum()
    with pytest.raises(CompEvoError, match=r"off the grid|share|again"):
        parse_series(wrap(EVENTS), declare(declared, **keys | {"aggregate": ""}))


def test_the_last_or_mean_of_the_rows_of_a_step_may_be_its_value():
    text = "at,load\n2024-01-01 00:10:01,1\n2024-01-01 00:50:00,3\n2024-01-01 01:05:00,8\n"
    keys = {"step": "1h", "time": "at", "values": ["load"]}
    last = parse_series(wrap(text), declare(**keys, aggregate="last"))[0]
    mean = parse_series(wrap(text), declare(**keys, aggregate="mean"))[0]
    assert (last["value"].to_list(), mean["value"].to_list()) == ([3.0, 8.0], [2.0, 8.0])
