from datetime import timedelta

import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.tables import (
    BLANK,
    read_table,
    refuse_duplicates,
    refuse_irregular_rows,
    to_number,
    to_stamp,
)

GOOD = "day,value\n2020-01-01,1.5\n2020-01-02,\n2020-01-03,2e3\n"


def table(text=GOOD):
    return read_table(text, "t.csv", ("day", "value"))


def test_a_plain_table_keeps_its_line_numbers():
    assert table()["line"].to_list() == [2, 3, 4]


def test_a_blank_number_is_null_and_is_not_zero():
    assert to_number(table(), "t.csv", ["value"], missing=BLANK)["value"].to_list() == [
        1.5,
        None,
        2000.0,
    ]


def test_a_changed_header_names_what_is_missing_and_what_is_new():
    with pytest.raises(
        SchemaDrift,
        match=r"t.csv, line 1: the header changed: missing \['value'\], new \['price'\]",
    ):
        table(GOOD.replace("value", "price"))


def test_a_short_line_is_named():
    with pytest.raises(SchemaDrift, match=r"t.csv, line 3: 1 cells, not 2; the file is cut"):
        table("day,value\n2020-01-01,1\n2020-01-\n")


def test_a_blank_line_inside_is_an_error_and_blank_lines_at_the_end_are_not():
    assert table(GOOD + "\n\n").height == 3
    with pytest.raises(SchemaDrift, match="line 3"):
        table("day,value\n2020-01-01,1\n\n2020-01-02,2\n")


@pytest.mark.parametrize("text", ["", "day,value\n"])
def test_a_table_without_rows_is_an_error(text):
    with pytest.raises(SchemaDrift, match=r"t.csv"):
        table(text)


@pytest.mark.parametrize("cell", ["n/a", "nan", "inf", "1,5", "0x10"])
def test_text_for_a_number_names_line_and_cell(cell):
    frame = read_table(
        f"day;value\n2020-01-01;1\n2020-01-02;{cell}",
        "t.csv",
        ("day", "value"),
        separator=";",
    )
    with pytest.raises(SchemaDrift, match=rf"t.csv, line 3: value is '{cell}', not a number"):
        to_number(frame, "t.csv", ["value"])


def test_a_stamp_that_is_none_names_its_line():
    frame = table(GOOD.replace("2020-01-03", "03.01.2020"))
    with pytest.raises(
        SchemaDrift, match=r"line 4: day is '03.01.2020', not a timestamp like %Y-%m-%d"
    ):
        to_stamp(frame, "t.csv", "day", ("%Y-%m-%d",))


def test_a_repeated_stamp_names_the_second_line():
    frame = table(GOOD.replace("2020-01-03", "2020-01-01"))
    with pytest.raises(SchemaDrift, match=r"line 4: day 2020-01-01 is a duplicate"):
        refuse_duplicates(frame, "t.csv", ["day"])


def test_a_missing_stamp_names_the_line_after_the_gap():
    frame = to_stamp(table(GOOD.replace("2020-01-03", "2020-01-05")), "t.csv", "day", ("%Y-%m-%d",))
    with pytest.raises(SchemaDrift, match=r"line 4: .*rows are missing or out of order"):
        refuse_irregular_rows(frame, "t.csv", "day", timedelta(days=1))
