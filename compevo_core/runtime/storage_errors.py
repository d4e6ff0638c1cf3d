"""What the operating system and file formats raise, as errors that say what to do.

Where work begins and ends (an asset, a training, a command) is one block of
:func:`translate_storage_errors`, so that no raw error reaches whoever is on call.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from compevo_core.errors import StorageError

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free space (compevo clean removes old runs)",
    errno.EDQUOT: "the quota is used up: free space (compevo clean removes old runs)",
    errno.EFBIG: "the file is larger than this process may write: raise its limit (ulimit -f)",
    errno.EROFS: "it is read-only: mount it for writing, or set COMPEVO_HOME elsewhere",
    errno.EACCES: "this user may not: correct the owner, or set COMPEVO_HOME elsewhere",
    errno.EPERM: "this user may not: correct the owner, or set COMPEVO_HOME elsewhere",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.EIO: "the disk reported an error: check it before anything else",
    errno.ESTALE: "the network file system lost the file: mount it again",
}
_PARQUET = "parquet:"
_TORN = (
    "the file is torn: restore it from a backup, or remove it and make it again (series and news "
    "with `compevo rebuild`)"
)
_ELSE = "correct the cause"
_ABSENT = "there is no such file or folder: name one that is there, or make it first"
_AGAIN = "then run it again: what is stored is whole, and it goes on from there"

# Libraries written in Rust hide the number in their text: polars, safetensors.
_NUMBER_IN_TEXT = re.compile(r"os error (\d+)")


@contextmanager
def translate_storage_errors(doing: str = "") -> Iterator[None]:
    """Turn errors of disk and file formats inside the block into :class:`StorageError`.

    They are an ``OSError`` of the disk, a ``SafetensorError``, and a file that polars cannot read
    or write; errors of the network pass unchanged. The message says what the block was ``doing``;
    without that, it is the error alone.
    """
    try:
        yield
    except (ConnectionError, TimeoutError):
        # They are OSErrors too, and no matter of storage.
        raise
    except OSError as error:
        raise describe_storage_error(error, doing) from error
    except _list_format_errors() as error:
        if _is_of_a_torn_file(error):
            raise describe_storage_error(error, doing) from error
        raise


def describe_storage_error(error: Exception, doing: str = "") -> StorageError:
    """Return the error of this project: what, where, what to do."""
    name = getattr(error, "filename", None)
    where = f"{name}: " if name and str(name) not in str(error) else ""
    prefix = f"{doing}: " if doing else ""
    if isinstance(error, FileNotFoundError):
        # Nothing is stored there that could go on.
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
    # DuckDB gives the words alone.
    return next((known for known in _REMEDIES if os.strerror(known) in str(error)), 0)
