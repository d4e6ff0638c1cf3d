"""Count lines, files and words by folder, and fail when a budget is passed or was raised.

    python .ci/budgets.py           # print the counts, and what is wrong
    python .ci/budgets.py --lower   # write the counts into budgets.toml where they are lower

``budgets.toml`` has the numbers. From commit to commit, the sum of the tops of a unit may only
fall: what grows somewhere is paid for elsewhere in the same commit.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
BUDGETS = Path(__file__).with_name("budgets.toml")
PACKAGES = ("compevo_core", "compevo_pipeline")
WING = tuple(f"{package}/paper" for package in PACKAGES)
TOPS = {
    "lines": (*PACKAGES, "wing", "tests", ".ci", "benchmarks", "tools"),
    "files": ("both packages",),
    "words": ("docs",),
}


def list_files(folder: str, suffix: str) -> list[Path]:
    """Return the files below a folder that git tracks or would add."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", folder)
    files = {REPO / name for name in listed.splitlines() if name.endswith(suffix)}
    return sorted(path for path in files if path.is_file())


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPO), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - git
    return done.stdout


def count_lines(folder: str) -> int:
    """Return the lines of a folder's Python files; a package is counted without its wing."""
    folders = WING if folder == "wing" else (folder,)
    left_out = WING if folder in PACKAGES else ()
    suffix = "" if folder == ".ci" else ".py"  # lists of faults and scripts count there
    return sum(
        path.read_text("utf-8").count("\n")
        for name in folders
        for path in list_files(name, suffix)
        if not path.relative_to(REPO).as_posix().startswith(left_out or " ")
    )


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


def find_rises() -> list[str]:
    """Return the commits that raised the sum of a unit's tops, the working tree's among them.

    Merges count as one step of the branch they are merged into. History ends where the numbers had
    another meaning (before ``.ci`` was counted), or where a shallow clone ends.
    """
    path = BUDGETS.relative_to(REPO).as_posix()
    commits = _git("log", "--first-parent", "--format=%h", "--", path).split()
    versions = [("the working tree", BUDGETS.read_text("utf-8"))]
    versions += [(commit, _git("show", f"{commit}:{path}")) for commit in commits]

    sums = []
    for name, text in versions:
        budgets = tomllib.loads(text)
        if ".ci" not in budgets["lines"]:
            break
        sums.append(
            (name, {unit: sum(budgets[unit][top] for top in tops) for unit, tops in TOPS.items()})
        )
    return [
        f"{name}: {unit} rose from {before[unit]:,} to {after[unit]:,}; what is added is paid for"
        for (name, after), (_, before) in pairwise(sums)
        for unit in TOPS
        if after[unit] > before[unit]
    ]


def main(arguments: list[str]) -> int:
    """Print every count next to its budget; return 1 when one is passed or was raised."""
    text = BUDGETS.read_text("utf-8")
    wrong = []
    for unit, limits in tomllib.loads(text).items():
        for folder, limit in limits.items():
            count = COUNTS[unit](folder)
            sys.stdout.write(f"{unit:8} {folder:28} {count:7,} of {limit:7,}\n")
            if count > limit:
                wrong.append(f"{folder}: {count:,} {unit} where {limit:,} are budgeted")
            elif "--lower" in arguments:
                begin, end = re.escape(f'"{folder}" = '), re.escape(f"{limit:_}")
                text = re.sub(rf"(\[{unit}\][^\[]*{begin}){end}", rf"\g<1>{count:_}", text)

    if "--lower" in arguments:
        BUDGETS.write_text(text, encoding="utf-8")
    wrong += find_rises()
    sys.stdout.writelines(f"over budget: {line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
