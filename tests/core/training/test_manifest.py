"""A sealed folder is what it was when it was sealed, in all of its sub-folders."""

from pathlib import Path

import pytest

from compevo_core.errors import CheckpointMismatch
from compevo_core.training.manifest import verify_manifest, write_manifest


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "agent" / "adapter").mkdir(parents=True)
    (tmp_path / "head.txt").write_text("1", encoding="utf-8")
    (tmp_path / "agent" / "adapter" / "weights.txt").write_text("2", encoding="utf-8")
    write_manifest(tmp_path, {"rounds": 3})
    return tmp_path


def test_a_sealed_folder_verifies_and_names_all_files(sealed: Path) -> None:
    manifest = verify_manifest(sealed)
    assert sorted(manifest["files"]) == ["agent/adapter/weights.txt", "head.txt"]
    assert manifest["rounds"] == 3


@pytest.mark.parametrize("name", ["head.txt", "agent/adapter/weights.txt"])
def test_an_altered_file_and_a_missing_one_are_refused_by_name(sealed: Path, name: str) -> None:
    (sealed / name).write_text("3", encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match=f"{name} is altered"):
        verify_manifest(sealed)

    (sealed / name).unlink()
    with pytest.raises(CheckpointMismatch, match=f"{name} is missing"):
        verify_manifest(sealed)


def test_the_hash_is_that_of_the_files_and_not_of_the_facts(sealed: Path) -> None:
    first = verify_manifest(sealed)["hash"]
    assert write_manifest(sealed, {"rounds": 4}) == first
    (sealed / "head.txt").write_text("4", encoding="utf-8")
    assert write_manifest(sealed, {"rounds": 4}) != first
