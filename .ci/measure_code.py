"""Measure how readable the code is, and fail when a measure is missed.

Prints, for each package: file and function lengths, the share of longer functions without a
paragraph, comments per 100 lines and the share of lines over 100 columns. With folder names as
arguments it prints the same for those folders and names the tight functions; it fails on the whole
packages alone.

    python .ci/measure_code.py
    python .ci/measure_code.py compevo_core/data
"""

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("compevo_core", "compevo_pipeline")
COLUMNS = 100
LONGER_FUNCTION = 15
PRAGMAS = ("# noqa", "# type:", "# fmt:", "# pragma")

MOST_TIGHT_FUNCTIONS = 0.25
FEWEST_COMMENTS = {"compevo_core": 3.0, "compevo_pipeline": 0.0}
MOST_WIDE_LINES = 0.02
LONGEST_FILE = 400
LONGEST_FUNCTION = 80


@dataclass
class Measures:
    """Counts over the files of one folder."""

    files: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    tight: list[str] = field(default_factory=list)
    longer: int = 0
    comments: int = 0
    wide: int = 0

    @property
    def lines(self) -> int:
        """All lines."""
        return sum(self.files)

    @property
    def tight_share(self) -> float:
        """Share of longer functions without one blank or comment line."""
        return len(self.tight) / self.longer if self.longer else 0.0

    @property
    def comments_per_100(self) -> float:
        """Comments that are no pragma, per 100 lines."""
        return 100 * self.comments / self.lines if self.lines else 0.0

    @property
    def wide_share(self) -> float:
        """Share of lines over 100 columns."""
        return self.wide / self.lines if self.lines else 0.0


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_tight(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> bool:
    """Whether the body after the docstring has neither a blank nor a comment line."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if not body or node.end_lineno is None:
        return False

    inside = (line.strip() for line in lines[body[0].lineno - 1 : node.end_lineno])
    return all(line and not line.startswith("#") for line in inside)


def measure(folder: Path) -> Measures:
    """Measure all Python files below a folder."""
    found = Measures()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        found.files.append(len(lines))
        found.wide += sum(len(line) > COLUMNS for line in lines)

        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and not token.string.startswith(PRAGMAS):
                found.comments += 1

        for node in functions_of(ast.parse(text)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            found.functions.append(length)
            if length >= LONGER_FUNCTION:
                found.longer += 1
                if is_tight(node, lines):
                    name = path.relative_to(REPO)
                    found.tight.append(f"{name}:{node.lineno} {node.name} ({length} lines)")
    return found


def describe(name: str, found: Measures) -> str:
    """Format the measures of one folder as one line."""
    return (
        f"{name}: {len(found.files)} files, {found.lines} lines; "
        f"file median {statistics.median(found.files):.0f}, longest {max(found.files)}; "
        f"function median {statistics.median(found.functions or [0]):.0f}, "
        f"longest {max(found.functions, default=0)}; "
        f"without a paragraph {len(found.tight)} of {found.longer} ({found.tight_share:.0%}); "
        f"comments per 100 lines {found.comments_per_100:.1f}; "
        f"lines over {COLUMNS} columns {found.wide_share:.1%}"
    )


def missed(name: str, found: Measures) -> list[str]:
    """List the measures that a package misses."""
    limits = {
        "functions without a paragraph": found.tight_share <= MOST_TIGHT_FUNCTIONS,
        "comments per 100 lines": found.comments_per_100 >= FEWEST_COMMENTS.get(name, 0.0),
        "lines over 100 columns": found.wide_share < MOST_WIDE_LINES,
        "longest file": max(found.files) < LONGEST_FILE,
        "longest function": max(found.functions, default=0) < LONGEST_FUNCTION,
    }
    return [f"{name}: {what}" for what, is_met in limits.items() if not is_met]


def main(arguments: list[str]) -> int:
    """Print the measures; return 1 if a package misses one."""
    failures: list[str] = []
    for name in arguments or PACKAGES:
        found = measure(REPO / name)
        print(describe(name, found))
        failures += missed(name, found) if name in PACKAGES else []
        if arguments:
            print(*found.tight, sep="\n")

    print(*(f"missed: {failure}" for failure in failures), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
