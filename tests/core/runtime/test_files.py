"""Atomic writes, hashes and JSON lines."""

import hashlib
import json

import pytest

from compevo_core.runtime.files import (
    append_line,
    hash_file,
    hash_text,
    write_atomically,
    write_bytes,
    write_json,
    write_text,
)


def test_a_write_that_fails_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path):
    path = write_text(tmp_path / "result.csv", "old")

    def fail_halfway(part):
        part.write_text("new, but not all of i")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail_halfway)

    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["result.csv"]


def test_missing_folders_are_made_and_everybody_may_read_the_file(tmp_path):
    path = write_bytes(tmp_path / "a" / "b" / "file.bin", b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert path.stat().st_mode & 0o777 == 0o644


def test_json_is_written_with_sorted_keys_so_equal_values_are_equal_bytes(tmp_path):
    first = write_json(tmp_path / "first.json", {"b": 1, "a": [2]})
    second = write_json(tmp_path / "second.json", {"a": [2], "b": 1})
    assert first.read_bytes() == second.read_bytes()


def test_json_lines_are_read_back_in_the_order_they_were_appended(tmp_path):
    records = [{"round": 1, "text": "line\nbreak"}, {"round": 2, "text": "é"}]
    for record in records:
        append_line(tmp_path / "rounds.jsonl", json.dumps(record))
    lines = (tmp_path / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == records


def test_a_file_and_its_text_have_the_hash_of_their_utf8_bytes(tmp_path):
    expected = hashlib.sha256("é".encode()).hexdigest()
    assert hash_text("é") == expected
    assert hash_file(write_text(tmp_path / "text", "é")) == expected
