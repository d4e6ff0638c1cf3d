"""The same damages to a small valid file of every table parser: each ends in its class, named."""

import gzip
import re

import pytest

from compevo_core.errors import SchemaDrift, SourceTransient
from tests.fuzz.seeds import make_seeds
from tests.support.sources import raw

HEADED = ("aemo-price", "aemo-collected", "aud-usd", "bitcoin-table", "ecb", "ecb-sdmx", "weather")
TABLES = (*HEADED, "rba", "pems-hours", "pems-five-minutes")
REPORTS = ("aemo-histdemand", "aemo-mmsdm", "aemo-operational-report")
PAGE = b"<!DOCTYPE html><title>403</title>"


def cut_last_line(content):
    last = content.rstrip().rsplit(b"\n", 1)[-1]
    return content.rstrip()[: -len(last) // 2]


def repeat_last_row(content):
    return content.rstrip() + b"\n" + content.rstrip().rsplit(b"\n", 1)[-1] + b"\n"


def spoil_byte(content):
    lines = content.split(b"\n")
    return b"\n".join([*lines[:2], b"\xff" + lines[2], *lines[3:]])


def replace_letters_of_a_number(content):
    """Write a letter for the digits after the last decimal point."""
    return re.sub(rb"\.\d+(?=[^.]*$)", b".x", content)


DAMAGES = [
    *((name, "empty", lambda _: b"", SourceTransient, "empty") for name in (*TABLES, *REPORTS)),
    *((name, "page", lambda _: PAGE, SchemaDrift, "web page") for name in (*TABLES, *REPORTS)),
    *(
        (name, "byte", spoil_byte, SchemaDrift, "line 3: byte 0xff")
        for name in (*TABLES, *REPORTS)
        if name != "rba"  # its notes come in two encodings
    ),
    *(
        (name, "header", lambda content: b"a,b" + content, SchemaDrift, "line 1: the header")
        for name in HEADED
        if name != "ecb-sdmx"  # its columns are found by name
    ),
    *((name, "rows", lambda content: content.split(b"\n")[0] + b"\n", SchemaDrift, "no rows")
      for name in HEADED),
    *((name, "cut", cut_last_line, SchemaDrift, r"line \d+: ") for name in (*TABLES, *REPORTS)),
    *((name, "twice", repeat_last_row, SchemaDrift, r"line \d+: .* is a duplicate")
      for name in TABLES),
    *((name, "number", replace_letters_of_a_number, SchemaDrift, r"line \d+: .* not a number")
      for name in ("aemo-price", "aud-usd", "ecb-sdmx", "weather", "rba")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "damage", "expected", "match"),
    [pytest.param(*case[:1], *case[2:], id=f"{case[0]}-{case[1]}") for case in DAMAGES],
)
def test_a_damaged_table_ends_in_its_class_and_names_file_and_line(name, damage, expected, match):
    seed = make_seeds()[name]
    whole = seed.raw.content
    content = gzip.decompress(whole) if seed.raw.name.endswith(".gz") else whole
    file_name = seed.raw.name.removesuffix(".gz")
    assert damage(content) != content

    with pytest.raises(expected, match=f"{re.escape(file_name)}.*{match}"):
        seed.parse(raw(file_name, damage(content), seed.raw.source))
