"""Count lines, files and words by folder, and fail when a committed budget is passed.

    python .ci/budgets.py

The budgets are in ``budgets.toml`` beside this file.
"""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("compevo_core", "compevo_pipeline")


def list_files(folder: str, suffix: str) -> list[Path]:
    """Return the files below a folder that git tracks or would add."""
    command = ["git", "-C", str(REPO), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(  # noqa: S603 - a fixed command and a folder of the budgets
        [*command, folder], check=True, capture_output=True, text=True
    )
    files = {REPO / name for name in listed.stdout.splitlines() if name.endswith(suffix)}
    return sorted(path for path in files if path.is_file())


def count_lines(folder: str) -> int:
    """Return the lines of a folder's Python files."""
    return sum(path.read_text("utf-8").count("\n") for path in list_files(folder, ".py"))


def count_files(folder: str) -> int:
    """Return the number of a folder's Python files."""
    folders = PACKAGES if folder == "both packages" else (folder,)
    return sum(len(list_files(name, ".py")) for name in folders)


def count_words(folder: str) -> int:
    """Return the words of a folder's Markdown files."""
    return sum(len(path.read_text("utf-8").split()) for path in list_files(folder, ".md"))


def count_single_importers(_: str) -> int:
    """Return how many modules of both packages exactly one other module imports."""
    paths = {
        ".".join(path.relative_to(REPO).with_suffix("").parts): path
        for package in PACKAGES
        for path in list_files(package, ".py")
        if path.name != "__init__.py"
    }
    importers = Counter(
        target
        for module, path in paths.items()
        for target in _find_imports(path) & paths.keys() - {module}
    )
    return sum(1 for count in importers.values() if count == 1)


def _find_imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


COUNTS = {
    "lines": count_lines,
    "files": count_files,
    "words": count_words,
    "modules": count_single_importers,
}


def main() -> int:
    """Print every count beside its budget; return 1 when one is passed."""
    budgets = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text("utf-8"))
    over = []
    for unit, limits in budgets.items():
        for folder, limit in limits.items():
            count = COUNTS[unit](folder)
            sys.stdout.write(f"{unit:8} {folder:28} {count:7,} of {limit:7,}\n")
            if count > limit:
                over.append(f"{folder}: {count:,} {unit} where {limit:,} are budgeted")

    sys.stdout.writelines(f"over budget: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
