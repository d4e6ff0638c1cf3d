"""A file is on disk before it gets its name."""

import os
from pathlib import Path

import pytest

from compevo_core.runtime.files import write_bytes


@pytest.fixture
def calls(monkeypatch):
    made = []
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda _: made.append("flush"))
    monkeypatch.setattr(Path, "replace", lambda a, b: (made.append("rename"), rename(a, b))[1])
    return made


def test_a_durable_file_is_flushed_before_it_is_renamed(tmp_path, calls):
    write_bytes(tmp_path / "x", b"1")
    assert calls == ["flush", "rename"]


def test_a_file_that_can_be_fetched_again_is_not_flushed(tmp_path, calls):
    write_bytes(tmp_path / "x", b"1", is_durable=False)
    assert calls == ["rename"]
