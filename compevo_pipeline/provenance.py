"""Which version of the code made a number.

What belongs here: the commit of the checkout. What does not: hashes of data, configuration or
models, the version of an asset's code (``assets.definition``).
"""

import subprocess
from functools import cache
from pathlib import Path

from compevo_pipeline.settings import REPOSITORY

UNKNOWN_COMMIT = "unknown"

_COMMIT_DIGITS = 12
_TIMEOUT_SECONDS = 20


@cache
def read_commit(repository: Path = REPOSITORY) -> str:
    """Return the short hash of the checked-out commit, as it was when first asked.

    The code of a process does not change when the checkout moves on under it.

    A ``+`` follows it where tracked files differ from the commit: such a number cannot be
    reproduced from the hash alone. Without git, or outside a checkout, it is ``unknown``.
    """
    head = _run_git(repository, "rev-parse", f"--short={_COMMIT_DIGITS}", "HEAD")
    if not head:
        return UNKNOWN_COMMIT

    # Untracked files are ignored: notes and results do not change the code.
    changes = _run_git(repository, "status", "--porcelain", "--untracked-files=no")
    return f"{head}+" if changes else head


def _run_git(repository: Path, *arguments: str) -> str:
    """Return what a git command prints; empty where it fails."""
    try:
        done = subprocess.run(  # noqa: S603 -- fixed arguments
            ["git", *arguments],  # noqa: S607 -- the git of the user's PATH
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
