"""Web pages, encodings and JSON that a publisher may send."""

import pytest

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.decode import (
    decode_lossy,
    decode_text,
    parse_json,
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


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"mw": ' + b"9" * 5_000 + b"}", "a number that is none"),
        (b'{"region": "NSW\\ud83d"}', "half a surrogate pair"),
    ],
)
def test_json_that_breaks_the_decoder_is_refused_by_name(content, reason):
    with pytest.raises(SchemaDrift, match=rf"day\.json: .*{reason}.*fetch the file again"):
        read_json(content, "day.json")


def test_half_a_surrogate_pair_is_replaced_and_counted_and_a_whole_one_is_kept():
    text = r'{"a\udc00": ["cut \ud83d", "whole \ud83d\ude00", 1]}'
    mark = "\N{REPLACEMENT CHARACTER}"
    expected = {f"a{mark}": [f"cut {mark}", "whole \N{GRINNING FACE}", 1]}
    assert parse_json(text, "x") == (expected, 2)
