"""Atomic writes, appended lines and file hashes.

What belongs here: how this project puts any file on disk. What does not: what the files hold.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_TEMPORARY_SUFFIX = ".part"
_PUBLIC_MODE = 0o644  # mkstemp makes private files; results and reports are for everyone to read


def write_atomically(
    path: Path, write: Callable[[Path], object], *, is_durable: bool = True
) -> Path:
    """Write a file so that a reader sees the old one or the whole new one, never a part.

    Args:
        path: the file to write; missing parent folders are made.
        write: called with the path of a temporary file in the same folder, which it fills.
        is_durable: whether to flush the file to disk first, which takes milliseconds; for
            hundreds of files that can be fetched again it is not worth them.

    Returns:
        ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY_SUFFIX
    )
    os.close(handle)
    temporary = Path(name)

    try:
        write(temporary)
        if is_durable:
            _flush_to_disk(temporary)
        temporary.chmod(_PUBLIC_MODE)
        return temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes, *, is_durable: bool = True) -> Path:
    """Write bytes atomically; see :func:`write_atomically` for ``is_durable``."""
    return write_atomically(path, lambda part: part.write_bytes(content), is_durable=is_durable)


def write_json(path: Path, value: object) -> Path:
    """Write indented JSON with sorted keys atomically."""
    return write_text(path, json.dumps(value, indent=1, sort_keys=True))


def append_line(path: Path, line: str) -> None:
    """Append one line of UTF-8 text."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def hash_file(path: Path) -> str:
    """Return the sha256 of a file as hex digits, reading it in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_text(text: str) -> str:
    """Return the sha256 of UTF-8 text as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _flush_to_disk(path: Path) -> None:
    # Without this, a power cut after the rename can leave an empty file under the final name.
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
