"""Raw files: kept once with their provenance, revisions beside each other, never outside."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.raw_store import RawStore

FETCHED = datetime(2026, 1, 1, tzinfo=UTC)


def raw(content=b"a,b\n1,2\n", name="x.csv"):
    return RawFile(
        source="aemo",
        name=name,
        content=content,
        url="file:x",
        fetched_at=FETCHED,
        mode=Mode.ARCHIVE,
    )


def tree(root):
    # A lock's time says who took it last; it holds nothing.
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_raw_bytes_are_kept_once_with_their_provenance(tmp_path):
    store = RawStore(tmp_path / "raw")
    path = store.write(raw())
    before = tree(tmp_path)
    assert store.write(replace(raw(), fetched_at=datetime(2030, 1, 1, tzinfo=UTC))) == path
    assert tree(tmp_path) == before
    assert path.read_bytes() == b"a,b\n1,2\n"
    sidecar = json.loads((path.parent / "x.csv.json").read_text())
    assert sidecar["sha256"] == raw().sha256
    assert sidecar["url"] == "file:x"


def test_a_revised_raw_file_does_not_erase_the_one_before(tmp_path):
    store = RawStore(tmp_path / "raw")
    old, new = raw(), raw(b"a,b\n1,3\n")
    store.write(old)
    path = store.write(new)
    assert path.read_bytes() == new.content
    kept = path.with_name(f"x.csv.{old.sha256[:8]}")
    assert kept.read_bytes() == old.content
    assert json.loads(kept.with_name(f"{kept.name}.json").read_text())["sha256"] == old.sha256


@pytest.mark.parametrize("name", ["../x.csv", "/etc/x.csv", "a/../../x.csv"])
def test_a_raw_file_cannot_be_stored_outside_its_folder(tmp_path, name):
    with pytest.raises(SchemaDrift, match="outside its folder"):
        RawStore(tmp_path / "home").write(raw(name=name))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
