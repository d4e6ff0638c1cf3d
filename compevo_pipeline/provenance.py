"""Which version of the code made a number.

What belongs here: the commit of the checkout. What does not: hashes of data, configuration or models.
"""

import subprocess
from pathlib import Path

from compevo_pipeline.settings import REPOSITORY

UNKNOWN = "unknown"


def commit(repository: Path = REPOSITORY) -> str:
    """Short hash of the checked-out commit, with ``+`` where tracked files differ; ``unknown`` without git."""
    head = _git(repository, "rev-parse", "--short=12", "HEAD")
    if not head:
        return UNKNOWN
    return f"{head}+" if _git(repository, "status", "--porcelain", "--untracked-files=no") else head


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=repository, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
