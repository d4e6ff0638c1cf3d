from datetime import timedelta

import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.delimited import (
    refuse_duplicates,
    require_regular,
    split_table,
    to_number,
    to_stamp,
)

GOOD = "day,value\n2020-01-01,1.5\n2020-01-02,\n2020-01-03,2e3\n"


def table(text=GOOD):
    return split_table(text, "t.csv", ("day", "value"), header=True)


def test_a_plain_table_keeps_its_line_numbers():
    assert table()["line"].to_list() == [2, 3, 4]


def test_a_blank_number_is_null_and_is_not_zero():
    assert to_number(table(), "value", "t.csv")["value"].to_list() == [1.5, None, 2000.0]


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
    frame = split_table(
        f"day;value\n2020-01-01;1\n2020-01-02;{cell}",
        "t.csv",
        ("day", "value"),
        separator=";",
        header=True,
    )
    with pytest.raises(
        SchemaDrift, match=rf"t.csv, line 3, column 'value': '{cell}' is not a number"
    ):
        to_number(frame, "value", "t.csv")


def test_a_stamp_that_is_none_names_its_line():
    frame = table(GOOD.replace("2020-01-03", "03.01.2020"))
    with pytest.raises(
        SchemaDrift, match=r"line 4, column 'day': '03.01.2020' is not a time like %Y-%m-%d"
    ):
        to_stamp(frame, "day", ("%Y-%m-%d",), "t.csv")


def test_a_repeated_stamp_names_the_second_line():
    frame = table(GOOD.replace("2020-01-03", "2020-01-01"))
    with pytest.raises(SchemaDrift, match=r"line 4: 2020-01-01 was given before"):
        refuse_duplicates(frame, ("day",), "t.csv")


def test_a_missing_stamp_names_the_line_after_the_gap():
    frame = to_stamp(table(GOOD.replace("2020-01-03", "2020-01-05")), "day", ("%Y-%m-%d",), "t.csv")
    with pytest.raises(SchemaDrift, match=r"line 4: .*rows are missing or out of order"):
        require_regular(frame, "day", timedelta(days=1), "t.csv")
