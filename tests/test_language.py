"""Plain English in what people read: pages, docstrings, messages.

``CLEAN`` lists what has been edited. A folder is added to it when it passes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
CLEAN = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "benchmarks",
    "compevo_core",
    "tools",
    "compevo_pipeline",
]
#: Sentences that a native speaker would not say, with an example of what to say instead.
PATTERNS = {
    r"\b(?:that|those) of\b": "repeat the noun: 'than the error of ...'",
    r"\bthe [a-z]\w+'s[.;)]": "'the name of the file', not 'the file's'",
    r"; else\b|, else the\b": "(default: ...)",
    r"\bcan(?:not| be) told\b|told (?:from|apart)|told nobody": "is (not) significant, differs",
    r"\bis of\b|\bare of\b": "belongs to, is measured in, comes from",
    r"\bmay know\b": "may use, can see",
    r"\bstands?\b(?! for\b| in for\b|-in\b)": "is",
    r"\b(?:and|that|which) (?:is|are) none\b": "is not a ...",
    r"\bwhat is (?:of|made of|asked)\b": "name the thing",
}
GENERATED = re.compile(r"<!-- ([\w-]+): made by .*?<!-- end of \1 -->", re.DOTALL)


def read_texts(path: Path) -> Iterator[str]:
    """Prose of a page without generated parts and code, or the strings of a module."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        nodes = ast.walk(ast.parse(text))
        yield from (n.value for n in nodes if isinstance(n, ast.Constant) if type(n.value) is str)
    elif "<!-- made by `make docs`" not in text:
        yield re.sub(r"```.*?```|`[^`\n]*`", "", GENERATED.sub("", text), flags=re.DOTALL)


def find_faults(text: str) -> list[str]:
    flat = " ".join(text.split())
    return [
        f"{flat[max(0, m.start() - 40) : m.end() + 30]!r}: {advice}"
        for pattern, advice in PATTERNS.items()
        for m in re.finditer(pattern, flat)
    ]


@pytest.mark.parametrize("name", CLEAN)
def test_what_people_read_is_plain_english(name):
    root = REPO / name
    files = [root] if root.is_file() else [*root.rglob("*.md"), *root.rglob("*.py")]
    assert files
    found = {
        str(path.relative_to(REPO)): [f for t in read_texts(path) for f in find_faults(t)]
        for path in files
    }
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    "text", ["The file's name; the file's.", "Seeds; else five.", "It is of the agent."]
)
def test_a_wrong_sentence_is_found(text):
    assert find_faults(text)
