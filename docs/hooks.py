"""Hooks of the documentation's build: source pages, long tables, links, docstring roles.

What belongs here: what settings of mkdocs and mkdocstrings cannot do. What does not: the text of a
page.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks.table import fill_tables  # noqa: E402
from compevo_core.paper.report.inputs import read_inputs  # noqa: E402
from compevo_core.paper.report.markdown import UNDATED, update_document  # noqa: E402
from docs.generate import BUILT_PAGES  # noqa: E402

PACKAGES = ("compevo_core", "compevo_pipeline")
PAPER_MAP = "paper-map.md"
FILLED_PAGES = (
    "explanation/results.md",
    "explanation/paper-tables.md",
    "explanation/paper-and-code.md",
    "explanation/does-news-help.md",
    "explanation/evidence.md",
)

_ROLE = re.compile(r":(?:class|meth|func|mod|attr|exc):<code>~?(?:[\w.]*\.)?(\w+)</code>")
_CODE_NAME = re.compile(r"<code>((?:[\w/]+/)?\w+\.py)(?::{1,2}([\w.]+))?</code>")


def on_files(files: Files, config: Any) -> Files:
    """Add a page with the source of every file that the paper map names."""
    text = (REPO / "docs" / PAPER_MAP).read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"`((?:[\w/]+/)?\w+\.py)", text))):
        path = locate(name)
        title = path.relative_to(REPO).as_posix()
        source = path.read_text(encoding="utf-8")
        # Four backticks: a docstring may hold a fence of three.
        content = f'---\nhide: [toc]\n---\n\n# {title}\n\n````python linenums="1"\n{source}````\n'
        files.append(File.generated(config, source_page(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what is made from the code or from committed rows when the site is built."""
    if page.file.src_uri in BUILT_PAGES:
        return BUILT_PAGES[page.file.src_uri]()
    markdown = fill_tables(markdown, page.file.src_uri)
    if page.file.src_uri not in FILLED_PAGES:
        return markdown
    inputs = read_inputs(REPO / "results", [], mode="archive", generated_at=UNDATED)
    return update_document(markdown, inputs, document=page.file.src_uri)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Link the names of the paper map to their lines, and show docstring roles as names."""
    if page.file.src_uri == PAPER_MAP:
        html = _CODE_NAME.sub(link_to_source, html)
    return _ROLE.sub(r"<code>\1</code>", html)


def link_to_source(match: re.Match[str]) -> str:
    """Return the link from a name in the paper map to the line that defines it."""
    path = locate(match[1])
    target = source_page(path).removesuffix(".md") + ".html"
    line = find_line(path, match[2]) if match[2] else 1
    return f'<a href="{target}#__codelineno-0-{line}">{match[0]}</a>'


def source_page(path: Path) -> str:
    """Return the name of the page that shows a file."""
    return f"source/{path.relative_to(REPO).with_suffix('.md').as_posix()}"


def locate(name: str) -> Path:
    """Return the file that the paper map names, by the rule at its top."""
    home = "tests/core" if Path(name).name.startswith("test_") else "compevo_core"
    inside = REPO / home / name
    return inside if inside.is_file() else REPO / name


@cache
def find_line(path: Path, dotted: str) -> int:
    """Return the line that defines a function, class or method; 1 if there is none."""
    nodes: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    line = 1
    for part in dotted.split("."):
        found = [node for node in nodes if getattr(node, "name", None) == part]
        if not found:
            return line
        line, nodes = found[0].lineno, getattr(found[0], "body", [])
    return line
