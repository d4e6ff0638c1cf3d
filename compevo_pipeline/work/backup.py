"""Backing up a deployment while it runs, and restoring it.

What belongs here: what is copied, how each kind of file is copied consistently, and checking a
copy. What does not: making series again from raw files (``work.ingest``), Postgres (``pg_dump``).

The ledger is copied first: data stored after it is asked for again, and stored only once. SQLite
itself copies databases; folders are copied under the lock of their writers, and links as the files
they lead to. A copy gets its name when it is complete; its hashes are checked before a restore.
"""

import contextlib
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from compevo_core import __version__
from compevo_core.errors import ConfigError, DataError
from compevo_core.runtime.files import (
    LOCK_FILE,
    PART_SUFFIX,
    file_lock,
    hash_file,
    read_json,
    write_json,
    write_text,
)

LIST_FILE = "backup.json"  # version, time and the hash of every file of a copy
_UNFINISHED = ".restoring"  # in a home that is being restored, with the hash of the list
LEFT_OUT = {"locks": 1, "run_locks": 1, "fits": 2, "stages": 2}
"""Folders of locks, or of files that are made again when missing, and their depth."""

_PARTS = ("home", "dagster")
_SQLITE = b"SQLite format 3\x00"
_LEFT_OUT_FILES = (LOCK_FILE, PART_SUFFIX, "-wal", "-shm", "-journal", ".yaml")
_RAW = "raw"  # its files never change, and are too many to keep their writers waiting
_LEDGER = "ledger.sqlite"
_RUNS = Path("history", "runs.db")  # Dagster's runs, in its own SQLite storage
_UNDER_WAY = "SELECT run_id FROM runs WHERE status IN ('STARTING', 'STARTED', 'CANCELING')"


def back_up(home: Path, dagster_home: Path, folder: Path, now: datetime) -> int:
    """Copy a deployment's home and Dagster's storage into a new folder; return the number of files.

    The settings in ``dagster_home`` are not copied. ConfigError if the folder exists or is inside a
    copied one, or a link leads nowhere; StoreBusy if a store was written for too long.
    """
    roots = dict(zip(_PARTS, (home.resolve(), dagster_home.resolve()), strict=True))
    folder = folder.resolve()
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder, so that no copy mixes two states")
    if any(folder.is_relative_to(root) for root in roots.values()):
        raise ConfigError(f"{folder} is inside a copied folder; name a folder on another disk")

    part = folder.with_name(f"{folder.name}{PART_SUFFIX}")
    shutil.rmtree(part, ignore_errors=True)
    with contextlib.ExitStack() as unless_whole:
        # Otherwise a full disk would stay full for all later copies.
        unless_whole.callback(shutil.rmtree, part, ignore_errors=True)
        for name, root in roots.items():
            (part / name).mkdir(parents=True)
            if root.is_dir():
                # A ledger that is older than the rows asks for them again; a newer one never would.
                for ledger in root.glob(f"*/raw/{_LEDGER}"):
                    _copy_file(ledger, part / name / ledger.relative_to(root))
                _copy_folder(root, part / name, root)

        files = {
            path.relative_to(part).as_posix(): hash_file(path)
            for path in sorted(part.rglob("*"))
            if path.is_file()
        }
        write_json(
            part / LIST_FILE, {"version": __version__, "made_at": now.isoformat(), "files": files}
        )
        part.replace(folder)
        unless_whole.pop_all()
    return len(files)


def list_unfinished(folder: Path) -> list[Path]:
    """Return the unfinished backups next to a copy: killed ones, and those still being made."""
    parts = sorted(folder.resolve().parent.glob(f"*{PART_SUFFIX}"))
    return [part for part in parts if (part / _PARTS[0]).is_dir()]


def restore(folder: Path, home: Path, dagster_home: Path) -> int:
    """Restore a copy to where none of its files exists; return the number of files.

    After a kill, restore the same copy again to continue. ConfigError if there is no copy, or a
    file of it exists already; DataError if the list is torn or names a file outside the copy or the
    homes, or a file of the copy is missing or not what was copied.
    """
    if not (folder / LIST_FILE).exists():
        raise ConfigError(f"{folder} has no {LIST_FILE}: name a folder of `compevo backup`")
    files = read_json(folder / LIST_FILE, "take another copy").get("files")
    if not isinstance(files, dict):
        raise DataError(f"{folder / LIST_FILE} is torn: it lists no files; take another copy")
    roots = dict(zip(_PARTS, (home, dagster_home), strict=True))

    # Everything is checked before the first file is written.
    targets: dict[Path, Path] = {}
    for name, digest in files.items():
        part, _, inner = name.partition("/")
        root, path = roots.get(part), _locate(folder, name)
        target = _locate(root, inner) if root else None
        if path is None or target is None:
            raise DataError(
                f"{folder / LIST_FILE}: {name!r} leads out of the copy or the homes, or through a "
                "link; take another copy, or remove the links in the homes"
            )
        if not path.is_file() or hash_file(path) != digest:
            raise DataError(f"{path} is missing or altered; take another copy")
        targets[path] = target
    mark, digest = home / _UNFINISHED, hash_file(folder / LIST_FILE)
    is_begun = mark.exists() and mark.read_text(encoding="utf-8") == digest
    there = next((target for target in targets.values() if target.exists()), None)
    if there is not None and not is_begun:
        raise ConfigError(f"{there} exists; move {home} and Dagster's storage away, then restore")

    write_text(mark, digest)
    for path, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    runs = dagster_home / _RUNS
    if runs in targets.values():
        # A lock that no process holds shows that a run is dead (``defs.dead_runs``). Without one,
        # the run would never end, and runs in the queue would wait for it.
        locks = dagster_home / "run_locks"
        locks.mkdir(exist_ok=True)
        with closing(sqlite3.connect(runs)) as database:
            for (run_id,) in database.execute(_UNDER_WAY):
                (locks / f"{run_id}.lock").touch()
    mark.unlink()
    return len(targets)


def _locate(root: Path, name: str) -> Path | None:
    """Return the path of a file below a folder; None if its name or a link leads elsewhere."""
    try:
        path = root.resolve() / name
        return path if path.resolve() == path and root.resolve() in path.parents else None
    except (OSError, RuntimeError, ValueError):
        return None  # a loop of links, or not the name of a file


def _copy_folder(folder: Path, target: Path, root: Path) -> None:
    """Copy the contents of a folder, under the lock of its writers if there is one."""
    lock = folder / LOCK_FILE
    is_locked = lock.exists() and _RAW not in folder.parts
    with file_lock(lock, exclusive=False) if is_locked else contextlib.nullcontext():
        entries: list[Path] = []
        # A running process may remove folders, too.
        with contextlib.suppress(FileNotFoundError):
            entries = sorted(folder.iterdir())
        for path in entries:
            # A data set may have such a name, too, but its folders are deeper.
            depth = len(path.relative_to(root).parts)
            # A file that vanishes meanwhile was temporary. Dagster's settings come with the code.
            is_left_out = path.name.endswith(_LEFT_OUT_FILES)
            if path.is_dir() and LEFT_OUT.get(path.name) != depth:
                (target / path.name).mkdir(exist_ok=True)
                _copy_folder(path, target / path.name, root)
            elif path.is_file() and not is_left_out and not (target / path.name).exists():
                _copy_file(path, target / path.name)
            elif path.is_symlink() and not path.exists():
                raise ConfigError(f"{path} leads nowhere; mount its disk, or remove the link")


def _copy_file(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Some files, such as the news database, have a lock next to them.
    lock = path.with_name(f"{path.name}.lock")
    held = file_lock(lock, exclusive=False) if lock.exists() else contextlib.nullcontext()
    with contextlib.suppress(FileNotFoundError), held:
        with path.open("rb") as stream:
            is_database = stream.read(len(_SQLITE)) == _SQLITE
        if not is_database:
            shutil.copy2(path, target)
            return
        with (
            closing(sqlite3.connect(path, timeout=60)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
