"""What something was made by and of: the version of its code, and receipts of its inputs.

What belongs here: the commit, a hash of statements, the folders of fitted baselines and of
supervised stages, which hold for one version of the code; receipts, so that what would come out the
same is not made again. What does not: which code decides an asset (its module says so), the version
that a run was trained by (``storage.runs``).
"""

import ast
import contextlib
import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from compevo_core.runtime.files import hash_text, write_json
from compevo_pipeline.config.settings import REPOSITORY, Layout, Settings

TRAINING_CODE = tuple(
    f"compevo_core/{folder}"
    for folder in ("agents", "baselines", "data", "lora", "config", "lm", "runtime", "training")
)
"""What decides a trained population; priors and their levels are a part of it."""

UNKNOWN_COMMIT = "unknown"

_MOST_KEPT = 2_000  # hashes of modules, of this version and earlier ones
_FITTING_CODE = ("compevo_core/baselines", "compevo_core/data")


@cache
def read_commit(repository: Path = REPOSITORY) -> str:
    """Return the short hash of the checked-out commit, as it was when first asked.

    The code of a process does not change when the checkout moves on under it. A ``+`` follows it
    where tracked files differ from the commit: such a number cannot be reproduced from the hash.
    Without git, or outside a checkout, it is what the settings say, else ``unknown``.
    """
    head = _run_git(repository, "rev-parse", "--short=12", "HEAD")
    if not head:
        return Settings.from_environment().commit or UNKNOWN_COMMIT

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
            timeout=20,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@cache
def code_version(*sources: str, data_release: str = "") -> str:
    """Return a version of the code that decides an asset's content.

    It changes when a statement changes, and stays when a comment, a docstring or the layout of the
    code does: otherwise a corrected sentence would mark every trained model as outdated.

    ``sources`` are modules, TOML files and folders of modules below the repository, and must exist.
    Data of a library with the release ``data_release``, such as public holidays, decide as well.
    """
    digest = hashlib.sha256(data_release.encode())
    modules: dict[str, list[Path]] = {}
    for source in sources:
        path = REPOSITORY / source
        if not path.exists():
            raise FileNotFoundError(f"{path}: a code version names it, but there is no such module")
        # What modules declare in TOML files next to them decides as their statements do.
        inside = sorted([*path.rglob("*.py"), *path.glob("*.toml")])
        modules[source] = inside if path.is_dir() else [path]
    hashes = _hash_statements(path for paths in modules.values() for path in paths)

    for source, paths in modules.items():
        # The name counts: moving a module may change what imports it.
        digest.update(source.encode())
        for path in paths:
            digest.update(hashes[path].encode())

    return digest.hexdigest()[:12]


def fits_folder(layout: Layout) -> Path:
    """Return the folder of fitted baselines that assets share, one a version of their code."""
    return layout.fits / fitting_version()


def fitting_version() -> str:
    """Return the version of what fits baselines."""
    return code_version(*_FITTING_CODE)


def stages_folder(layout: Layout, label: str) -> Path:
    """Return where supervised stages are kept until all who share them are trained.

    One per version of the code. A launch that was interrupted continues with them.
    """
    return layout.stages / f"{label}-{code_version(*TRAINING_CODE)}"


def _hash_statements(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a hash of each module's statements.

    Parsing all modules takes two seconds of every process, so the hashes are stored with Python's
    own compiled modules, each with the hash of the file that it was made from.
    """
    store = REPOSITORY / "compevo_pipeline" / "__pycache__"
    store /= f"statements.{sys.implementation.cache_tag}.json"
    cached = _read_kept(store)
    hashes, count = {}, len(cached)

    for path in paths:
        text = path.read_text(encoding="utf-8")
        key = hash_text(text)
        if key not in cached:
            # What a TOML file says without its comments.
            said = _dump_statements(text) if path.suffix == ".py" else str(tomllib.loads(text))
            cached[key] = hash_text(said)
        hashes[path] = cached[key]

    if len(cached) > count:
        # An installation that is read-only parses in each process.
        with contextlib.suppress(OSError):
            store.parent.mkdir(parents=True, exist_ok=True)
            write_json(store, dict(list(cached.items())[-_MOST_KEPT:]))
    return hashes


@cache
def _read_kept(store: Path) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        cached: dict[str, str] = json.loads(store.read_text(encoding="utf-8"))
        return cached
    return {}


def _dump_statements(text: str) -> str:
    """Return the syntax tree of a module without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A bare string is a docstring of a module, class, function or of the name above it.
            node.body = [  # type: ignore[attr-defined]  # statements with a body
                item
                for item in body
                if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
                or not isinstance(item.value.value, str)
            ]

    return ast.dump(tree)


def hash_parts(parts: Iterable[object]) -> str:
    """Return a hash of what something is made of; the order counts."""
    return hash_text(json.dumps([str(part) for part in parts]))


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts in a folder, one file a product, with a hash of all that it was made of.

    One that is lost or damaged only costs the work once more: the folder may be removed.
    """

    folder: Path

    def find(self, name: str, made_of: str) -> Any | None:  # noqa: ANN401 - as it was kept
        """Return what was kept of a product, or None where it was made of something else."""
        try:
            receipt = json.loads(self._file(name).read_text(encoding="utf-8"))
            digest = receipt.pop("sha256")
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        is_whole = digest == _hash_receipt(receipt)
        return receipt["kept"] if is_whole and receipt["made_of"] == made_of else None

    def keep(self, name: str, made_of: str, kept: object = True) -> None:
        """Keep what a product was made of, and what its maker wants to find again."""
        receipt = {"made_of": made_of, "kept": kept}
        write_json(self._file(name), receipt | {"sha256": _hash_receipt(receipt)})

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '__')}.json"


def _hash_receipt(receipt: Mapping[str, Any]) -> str:
    return hash_parts([json.dumps(receipt, sort_keys=True)])
