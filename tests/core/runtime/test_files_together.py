"""Folders whose files are replaced together: a reader sees all old files or all new ones."""

import json
import threading
from pathlib import Path

import pytest

from compevo_core.errors import DataError
from compevo_core.runtime import files
from compevo_core.runtime.files import read_together, replace_together

REMEDY = "build it again"


class Killed(BaseException):
    """A kill, which no code catches by accident."""


def write_pair(folder, text):
    """Write two files of one text."""
    writers = {name: lambda part: part.write_text(text) for name in ("a.txt", "b.txt")}
    replace_together(folder, writers, {"text": text})


def read_pair(folder):
    """Return the texts that one reading sees."""

    def read(found):
        return {found.facts["text"], *(path.read_text() for path in found.paths.values())}

    return read_together(folder, read, remedy=REMEDY)


@pytest.fixture
def folder(tmp_path):
    write_pair(tmp_path, "old")
    return tmp_path


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("at", range(6))
def test_a_writer_killed_at_any_rename_leaves_the_old_set_or_the_new_one(at, folder, monkeypatch):
    rename, done = Path.replace, iter(range(100))

    def kill(source, target):
        before = next(done) * 2
        if before == at:
            raise Killed
        result = rename(source, target)
        if before + 1 == at:
            raise Killed
        return result

    monkeypatch.setattr(Path, "replace", kill)
    with pytest.raises(Killed):
        write_pair(folder, "new")
    monkeypatch.undo()

    assert read_pair(folder) == {"new" if at == 5 else "old"}
    write_pair(folder, "last")
    assert read_pair(folder) == {"last"}
    assert len(visible(folder)) == 3


def test_a_reader_whose_files_are_replaced_meanwhile_reads_the_new_ones(folder):
    seen = []

    def read(found):
        seen.append(found.facts["text"])
        if len(seen) == 1:
            write_pair(folder, "new")
        return "".join(path.read_text() for path in found.paths.values())

    assert read_together(folder, read, remedy=REMEDY) == "newnew"
    assert seen == ["old", "new"]


def test_readers_beside_writers_never_see_a_mix(folder):
    writers = [
        threading.Thread(target=lambda i=i: [write_pair(folder, f"{i}-{n}") for n in range(10)])
        for i in range(2)
    ]
    for writer in writers:
        writer.start()
    sizes = {len(read_pair(folder)) for _ in range(50)}
    for writer in writers:
        writer.join()
    assert sizes == {1}
    assert len(visible(folder)) == 3


def test_a_missing_manifest_a_missing_file_and_an_altered_one_say_what_to_do(folder):
    altered, missing = sorted(folder.glob("*.txt"))
    kept = altered.read_text()
    altered.write_text("other")
    with pytest.raises(DataError, match=f"{altered.name} differs from its manifest; {REMEDY}"):
        read_pair(folder)

    altered.write_text(kept)
    missing.unlink()
    with pytest.raises(DataError, match=f"{missing.name} is missing; {REMEDY}"):
        read_pair(folder)

    (folder / files.MANIFEST_FILE).write_text(json.dumps({"text": "old"}))
    with pytest.raises(DataError, match=f"torn; {REMEDY}"):
        read_pair(folder)
    (folder / files.MANIFEST_FILE).unlink()
    with pytest.raises(DataError, match=f"is missing\\); {REMEDY}"):
        read_pair(folder)
