"""Atomic writes and hashes."""

import hashlib
import os
from pathlib import Path

import pytest

from compevo_core.runtime.files import (
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


def test_a_file_in_a_new_folder_is_for_everybody_and_equal_values_are_equal_bytes(tmp_path):
    path = write_json(tmp_path / "a" / "b" / "file.json", {"b": "é", "a": [2]})
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_bytes() == write_json(tmp_path / "x", {"a": [2], "b": "é"}).read_bytes()
    text = path.read_text(encoding="utf-8")
    assert hash_file(path) == hash_text(text) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_durable_file_is_flushed_before_it_is_renamed(is_durable, tmp_path, monkeypatch):
    calls = []
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("flush"))
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append("rename"), rename(a, b))[1])
    write_bytes(tmp_path / "x", b"1", is_durable=is_durable)
    assert calls == (["flush", "rename"] if is_durable else ["rename"])
