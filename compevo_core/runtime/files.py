"""Files on disk: locks, atomic writes, appended lines, hashes, and what a disk raises.

A lock is an advisory ``flock`` on a file next to the data: the kernel frees it when its holder
dies, so a crash leaves no stale lock. Every reader and writer of this project takes it; a foreign
program does not. ``fasteners.InterProcessReaderWriterLock`` is not a replacement: its POSIX record
locks (``lockf``) belong to a process, so two threads both get the writer's lock, and closing any
handle of the file in one thread frees the locks of all.

A folder whose files belong together has a manifest that names each file by its hash. Writing puts
new files next to the old ones and then replaces the manifest, in one step: a reader follows either
the old manifest or the new one, and never sees a mix of both.

Where work begins and ends (an asset, a training, a command) is one block of
:func:`translate_storage_errors`, so that no raw error reaches whoever is on call.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from compevo_core.errors import ConfigError, DataError, SourceTransient, StorageError

WAIT_SECONDS = 60.0  # how long to wait for one other reader or writer before giving up

_MOST_TURNS = 10  # a waiter stays while the lock changes hands, for so many times its patience
_POLL_SECONDS = 0.02
_PUBLIC_MODE = 0o644  # results and reports are for everyone to read, unless a umask forbids it

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free space (compevo clean removes old runs)",
    errno.EDQUOT: "the quota is used up: free space (compevo clean removes old runs)",
    errno.EFBIG: "the file is larger than this process may write: raise its limit (ulimit -f)",
    errno.EROFS: "it is read-only: mount it for writing, or set COMPEVO_HOME elsewhere",
    errno.EACCES: "this user may not: correct the owner, or set COMPEVO_HOME elsewhere",
    errno.EPERM: "this user may not: correct the owner, or set COMPEVO_HOME elsewhere",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.EIO: "the disk reported an error: check it before anything else",
    errno.ENOLCK: "the file system has no locks: mount it with them (NFS 4), or take a local disk",
    errno.ESTALE: "the network file system lost the file: mount it again",
}
_PARQUET = "parquet:"
_TORN = (
    "the file is torn: restore it from a backup, or remove it and make it again (series and news "
    "with `compevo rebuild`)"
)
_ELSE = "correct the cause"
_ABSENT = "there is no such file or folder: name one that is there, or make it first"
_AGAIN = "then run it again: stored files are complete, and it continues from there"

# Libraries written in Rust hide the number in their text: polars, safetensors.
_NUMBER_IN_TEXT = re.compile(r"os error (\d+)")


class StoreBusy(SourceTransient):
    """Others used a store for longer than the caller would wait; another try may succeed."""


@contextlib.contextmanager
def file_lock(path: Path, *, exclusive: bool, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold a lock on ``path`` (created if absent) for the length of the block.

    It is exclusive for one writer, or shared by many readers. A caller waits ``wait_seconds`` while
    the lock does not change hands; ten times as long in all. StoreBusy if it was not free in time.
    """
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while True:
        # A handle of its own for every caller: flock belongs to the handle, so that threads of one
        # process exclude each other too. It is never inherited by a child that would keep the lock.
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PUBLIC_MODE)
        try:
            _acquire(handle, path, kind, wait_seconds)
            # Whoever held the lock may have removed the file: then others lock a new one.
            if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
                yield
                return
        finally:
            os.close(handle)


def _acquire(handle: int, path: Path, kind: int, wait_seconds: float) -> None:
    # Polling, because flock itself cannot wait for a limited time.
    started = time.monotonic()
    deadline, latest = started + wait_seconds, started + _MOST_TURNS * wait_seconds
    seen = os.fstat(handle).st_mtime_ns
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            # Many short turns show that others work; one long turn may hang.
            changed = os.fstat(handle).st_mtime_ns
            if changed != seen:
                seen, deadline = changed, min(now + wait_seconds, latest)
            if now >= deadline:
                raise StoreBusy(
                    f"{path} was held by another run for {wait_seconds:.0f} s; "
                    "wait for it to end and retry"
                ) from None

            time.sleep(_POLL_SECONDS)
        else:
            # The others see by this that it is another's turn.
            os.utime(handle)
            return


MANIFEST_FILE = "manifest.json"  # names the files of a folder by their hashes; written last
PART_SUFFIX = ".part"  # ending of a file that is being written, whose name begins with a dot

Read = TypeVar("Read")  # what a reader of a folder makes of its files

LOCK_FILE = ".lock"
_NAME_DIGITS = 16  # of a file's sha256, in its name


def write_atomically(
    path: Path, write: Callable[[Path], object], *, is_durable: bool = True
) -> Path:
    """Write a file so that a reader sees the old one or the whole new one; return its path.

    ``write`` fills the temporary file that it is called with. Without ``is_durable`` it is not
    flushed to disk first: that takes milliseconds, too much for hundreds of files that can be
    fetched again.
    """
    with _filled_part(path, write, is_durable=is_durable) as part:
        return part.replace(path)


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes, *, is_durable: bool = True) -> Path:
    """Write bytes atomically; see :func:`write_atomically` for ``is_durable``."""
    return write_atomically(path, lambda part: part.write_bytes(content), is_durable=is_durable)


def write_json(path: Path, value: object) -> Path:
    """Write indented JSON with sorted keys atomically."""
    return write_text(path, json.dumps(value, indent=1, sort_keys=True))


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object of a file; DataError with a remedy where it holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds a {type(value).__name__}, not an object; {remedy}")
    return value


def ask_once(
    file: Path,
    questions: Iterable[str],
    answer: Callable[[list[str]], Iterable[Any]],
    size: int = 1,
) -> dict[str, Any]:
    """Return what models answered to questions; a JSON file keeps it, so that none is asked twice.

    New questions are asked in order, ``size`` at a time; what was answered before an error is kept.
    An answer None is none: the next call asks again. Two processes that write at the same instant
    can lose the newer answer, never damage the file. DataError if it is torn.
    """

    def read() -> dict[str, Any]:
        remedy = "delete it: what it answered is asked again"
        return read_json(file, remedy) if file.exists() else {}

    kept = read()
    found = {question: kept.get(question) for question in questions}
    unknown = [question for question, known in found.items() if known is None]
    for start in range(0, len(unknown), size):
        batch = unknown[start : start + size]
        found |= zip(batch, answer(batch), strict=True)
        # Another process may have asked meanwhile.
        write_json(file, read() | {it: found[it] for it in batch if found[it] is not None})
    return found


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """Return the tables of a file; ConfigError, with the remedy, if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML ({error}); put texts in double quotes") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error


def read_packaged(module: str, name: str) -> dict[str, Any]:
    """Return the tables of a file that is installed next to a module, given by its ``__file__``."""
    return read_toml(Path(module).with_name(f"{name}.toml"), "install the package again")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """What one manifest names."""

    facts: Mapping[str, Any]  # written with the files
    paths: Mapping[str, Path]  # by name, as the files are called on disk
    hashes: Mapping[str, str]  # by name, of what was written


def fill_folder_atomically(target: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a temporary folder and rename it to ``target``; DataError if that cannot be written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename does not cross file systems.
    part = Path(tempfile.mkdtemp(prefix=target.name, dir=target.parent))
    try:
        fill(part)
        # Another process may have been faster; its folder holds the same.
        with contextlib.suppress(OSError):
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)

    if not target.is_dir():
        raise DataError(
            f"{target} could not be written; check free disk space and permissions of "
            f"{target.parent}"
        )
    return target


def replace_together(
    folder: Path,
    files: Mapping[str, Callable[[Path], object]],
    facts: Mapping[str, Any],
    *,
    keeps_others: bool = False,
) -> None:
    """Replace the files of a folder so that a reader sees all old ones or all new ones.

    One writer at a time; what a killed one left is removed. ``files`` fill the path that they are
    called with; ``facts`` are values for the manifest. With ``keeps_others``, files of other names,
    which the present manifest names, stay. DataError if files stay, and the manifest that names
    them is torn; StoreBusy if another process writes the folder for longer than a minute.
    """
    with file_lock(folder / LOCK_FILE, exclusive=True):
        manifest = folder / MANIFEST_FILE
        before: dict[str, str] = {}
        if manifest.exists():
            try:
                before |= json.loads(manifest.read_text(encoding="utf-8")).get("files", {})
            except ValueError as error:
                if keeps_others:
                    remedy = "restore it: it names the files that stay"
                    raise DataError(f"{manifest} is torn; {remedy}") from error

        written: dict[str, str] = {}
        for name, write in files.items():
            with _filled_part(folder / name, write, is_durable=True) as part:
                written[name] = hash_file(part)
                part.replace(_path_by_hash(folder / name, written[name]))
        hashes = before | written if keeps_others else written
        write_json(manifest, {**facts, "files": hashes})

        # Whoever follows the manifest before this one has its files open, or looks again.
        current = {_path_by_hash(folder / name, digest) for name, digest in hashes.items()}
        hexes = "[0-9a-f]" * _NAME_DIGITS
        for path in (folder / name for name in before | written):
            for old in set(path.parent.glob(f"{path.stem}-{hexes}{path.suffix}")) - current:
                old.unlink(missing_ok=True)


def read_together(
    folder: Path, read: Callable[[FileSet], Read], *, remedy: str, is_verified: bool = True
) -> Read:
    """Read the files of a folder that one call of :func:`replace_together` wrote.

    Takes no lock, so that it works in a folder that may not be written. ``read`` is called with the
    files; again, with others, if they were replaced meanwhile. With ``is_verified`` every file is
    first compared with its hash, which reads it whole. ``remedy`` says what to do where the folder
    is incomplete. DataError if there is no manifest, or a file that it names is missing or altered.
    """
    while True:
        text = _read_manifest(folder, remedy)
        try:
            facts: dict[str, Any] = json.loads(text)
            hashes: dict[str, str] = facts.pop("files")
        except (ValueError, KeyError) as error:
            raise DataError(f"{folder / MANIFEST_FILE} is torn; {remedy}") from error

        paths = {name: _path_by_hash(folder / name, digest) for name, digest in hashes.items()}
        try:
            for name, path in paths.items():
                if is_verified and hash_file(path) != hashes[name]:
                    raise DataError(f"{path} differs from its manifest; {remedy}")
            return read(FileSet(facts=facts, paths=paths, hashes=hashes))
        except FileNotFoundError as error:
            # Replaced while it was read; the manifest of now names files that are there.
            if _read_manifest(folder, remedy) == text:
                raise DataError(f"{error.filename} is missing; {remedy}") from error


def _read_manifest(folder: Path, remedy: str) -> str:
    try:
        return (folder / MANIFEST_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise DataError(f"no folder {folder}; {remedy}") from error
        raise DataError(f"{folder} is incomplete ({MANIFEST_FILE} is missing); {remedy}") from error


def _path_by_hash(path: Path, digest: str) -> Path:
    return path.with_name(f"{path.stem}-{digest[:_NAME_DIGITS]}{path.suffix}")


def is_named_by_hash(path: Path) -> bool:
    """Whether a file that a manifest names holds what was written."""
    return path.stem.endswith(f"-{hash_file(path)[:_NAME_DIGITS]}")


def hash_file(path: Path) -> str:
    """Return the sha256 of a file as hex digits, reading it in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_text(text: str) -> str:
    """Return the sha256 of UTF-8 text as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _filled_part(
    path: Path, write: Callable[[Path], object], *, is_durable: bool
) -> Iterator[Path]:
    """Yield a written file in the folder of ``path``, to be renamed; remove it if it was not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PUBLIC_MODE))
    mode = part.stat().st_mode  # as this user's umask allows

    try:
        write(part)
        if is_durable:
            # Without this, a power cut after the rename can leave an empty file under its name.
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
        part.chmod(mode)
        yield part
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def translate_storage_errors(doing: str = "") -> Iterator[None]:
    """Turn errors of disk and file formats inside the block into :class:`StorageError`.

    They are an ``OSError`` of the disk, a ``SafetensorError``, and a file that polars cannot read
    or write; errors of the network pass unchanged. The message says what the block was ``doing``,
    if given, and repeats the error.
    """
    try:
        yield
    except (ConnectionError, TimeoutError):
        # They are OSErrors too, and no matter of storage.
        raise
    except (OSError, *_list_format_errors()) as error:
        if isinstance(error, OSError) or _is_of_a_torn_file(error):
            raise describe_storage_error(error, doing) from error
        raise


def describe_storage_error(error: Exception, doing: str = "") -> StorageError:
    """Return the error of this project: what, where, what to do."""
    name = getattr(error, "filename", None)
    where = f"{name}: " if name and str(name) not in str(error) else ""
    prefix = f"{doing}: " if doing else ""
    if isinstance(error, FileNotFoundError):
        # Nothing is stored there that could be continued.
        return StorageError(f"{prefix}{where}{error}; {_ABSENT}")

    remedy = _REMEDIES.get(_find_number(error), "")
    if not remedy and _is_of_a_torn_file(error):
        return StorageError(f"{prefix}{where}{error}; {_TORN}")
    return StorageError(f"{prefix}{where}{error}; {remedy or _ELSE}, {_AGAIN}")


def is_known_of_disk(error: Exception) -> bool:
    """Whether the disk is full, read-only or failing, and not a single file."""
    return _find_number(error) in _REMEDIES


def _list_format_errors() -> tuple[type[Exception], type[Exception]]:
    """Return what polars and safetensors raise of a torn file."""
    # Imported here: the command line answers --help without either library.
    from polars.exceptions import ComputeError
    from safetensors import SafetensorError

    return ComputeError, SafetensorError


def _is_of_a_torn_file(error: Exception) -> bool:
    of_polars, of_safetensors = _list_format_errors()
    # Polars has one class for a torn file and for a wrong expression.
    is_parquet = isinstance(error, of_polars) and str(error).startswith(_PARQUET)
    return is_parquet or isinstance(error, of_safetensors)


def _find_number(error: Exception) -> int:
    number = getattr(error, "errno", None)
    if number is not None:
        return int(number)
    match = _NUMBER_IN_TEXT.search(str(error))
    if match:
        return int(match[1])
    # DuckDB gives only the words.
    return next((known for known in _REMEDIES if os.strerror(known) in str(error)), 0)
