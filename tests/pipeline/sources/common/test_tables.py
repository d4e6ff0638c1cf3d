"""The table reader: headers, cells, quotes, numbers, timestamps, each fault with its line."""

import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.tables import BLANK, LINE, read_table, to_number

GOOD = "day,value\n2020-01-01,1.5\n2020-01-02,\n2020-01-03,2e3\n"


def table(text=GOOD):
    return read_table(text, "t.csv", ("day", "value"))


def test_a_table_has_its_header_and_no_blank_rows():
    assert table(GOOD + "\n\n").height == 3
    with pytest.raises(SchemaDrift, match=r"line 1: .*'value'"):
        table(GOOD.replace("day,value", "value,day"))


def test_a_blank_number_is_null():
    values = to_number(table(), "t.csv", ["value"], missing=BLANK)["value"]
    assert values.to_list() == [1.5, None, 2000.0]

    with pytest.raises(SchemaDrift, match="line 3: value"):
        to_number(table(), "t.csv", ["value"])


QUOTED = 'day,value\n"2020-01-01","1,5"\n2020-01-02,2\n'


def read_quoted(text, spans_lines=False):
    return read_table(text, "t.csv", ("day", "value"), spans_lines=spans_lines)


def test_a_quoted_cell_may_hold_the_separator():
    assert read_quoted(QUOTED)["value"].to_list() == ["1,5", "2"]
    assert read_quoted(QUOTED)[LINE].to_list() == [2, 3]


def test_line_breaks_in_cells_are_counted():
    text = QUOTED.replace("1,5", "1\n5")
    assert read_quoted(text, spans_lines=True)[LINE].to_list() == [2, 4]
    with pytest.raises(SchemaDrift, match=r"t\.csv"):
        read_quoted(text)
