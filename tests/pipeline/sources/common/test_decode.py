"""Web pages, encodings and JSON that a publisher may send."""

import pytest

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.decode import (
    decode_lossy,
    decode_text,
    read_json,
    refuse_html,
)


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html>", b"\n  <HTML>", b"\xef\xbb\xbf<html>", b"<script>"]
)
def test_a_web_page_under_a_data_name_is_refused(page):
    with pytest.raises(SchemaDrift, match=r"x\.csv, line 1: a web page"):
        refuse_html(page, "x.csv")


def test_no_bytes_at_all_is_worth_another_try():
    with pytest.raises(SourceTransient, match="empty"):
        refuse_html(b"", "x.csv")


def test_a_byte_that_is_not_utf8_is_named_with_its_line():
    with pytest.raises(SchemaDrift, match=r"x\.csv, line 3: byte 0xe9 is not UTF-8"):
        decode_text(b"a\nb\ncaf\xe9\n", "x.csv")
    assert decode_text(b"\xef\xbb\xbfa\r\nb", "x.csv") == "a\nb"


def test_lossy_decoding_counts_only_what_it_replaced():
    assert decode_lossy("old � ".encode() + b"\xe9\xff") == ("old � ��", 2)


def test_json_that_is_cut_is_named_with_its_line():
    with pytest.raises(SchemaDrift, match=r"day\.json, line 2, column 10: not JSON"):
        read_json(b'{\n "a": [1,', "day.json")
