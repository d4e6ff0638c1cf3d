"""The documentation keeps what it promises: current pages, links and names that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from compevo_core import WindowSet
from compevo_core.evaluation.result_rows import RESULT_SCHEMA
from compevo_pipeline.settings import VARIABLES
from tests.support.population import news_pool
from tests.support.population import windows as make_windows

REPO = Path(__file__).resolve().parents[1]
COPIES = {"contribute.md", "changelog.md"}  # of pages at the root
PAGES = sorted(
    page for page in [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")] if page.name not in COPIES
)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
DANGLING = re.compile(
    r"\bdesign (?:decision )?\d|style(?:\.md)?,? rules? \d|PROVENANCE(?:\.md| \d)|house\.md"
)
SOURCES = sorted(
    path
    for folder in ("compevo_core", "compevo_pipeline", "benchmarks", "docs", "tests")
    for path in (REPO / folder).rglob("*.py")
    if path != Path(__file__).resolve()
)


def test_the_reference_pages_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, str(REPO / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(REPO).as_posix())
def test_every_relative_link_leads_to_a_file(page):
    missing = [
        link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()
    ]
    assert missing == []


def test_the_readme_is_short():
    assert len((REPO / "README.md").read_text("utf-8").splitlines()) <= 150


def test_every_column_of_a_result_row_is_described():
    page = (REPO / "docs" / "reference" / "result-rows.md").read_text("utf-8")
    assert [name for name in RESULT_SCHEMA if f"| `{name}` |" not in page] == []


def test_every_variable_that_the_code_reads_is_described():
    text = "\n".join(path.read_text("utf-8") for path in (REPO / "compevo_pipeline").rglob("*.py"))
    read = set(re.findall(r"\bCOMPEVO_[A-Z]+(?:_[A-Z]+)*\b", text))
    assert read == set(VARIABLES)


def test_decisions_are_numbered_without_gaps_and_have_status_and_date():
    pages = sorted((REPO / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        heading, _, status = page.read_text("utf-8").splitlines()[:3]
        assert heading.startswith(f"# {int(page.name[:4])}. ")
        day = r"\d{4}-\d\d-\d\d"
        assert re.fullmatch(rf"Status: \w[\w ]* · {day}(, amended {day})?", status)


def test_no_file_cites_a_page_that_is_not_in_the_repository():
    citing = [
        f"{path.relative_to(REPO)}: {found[0]}"
        for path in [*SOURCES, *PAGES]
        if (found := DANGLING.search(path.read_text("utf-8")))
    ]
    assert citing == []


def test_every_decision_that_is_cited_exists():
    last = len(list((REPO / "docs" / "decisions").glob("[0-9]*.md")))
    cited = {
        int(number)
        for path in SOURCES
        for number in re.findall(r"\bdecisions? (\d+)", path.read_text("utf-8"))
    }
    assert {number for number in cited if not 1 <= number <= last} == set()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/train-and-predict.md"])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    windows = [
        *make_windows("train", 8),
        *make_windows("val", 2, first_day=20),
        *make_windows("test", 2, first_day=40),
    ]
    WindowSet(windows, dataset="electricity").write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")

    blocks = re.findall(r"```python\n(.*?)```", (REPO / page).read_text("utf-8"), flags=re.DOTALL)
    code = "\n".join(blocks)
    for shown, here in (
        (".compevo/sample/windows/electricity", str(tmp_path / "windows")),
        (".compevo/sample/news/electricity", str(tmp_path / "news")),
        ('preset("demo")', 'preset("tiny")'),
    ):
        assert shown in code
        code = code.replace(shown, here)

    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, page, "exec"), names)  # noqa: S102 - the page's own code
    assert names["forecast_NH"].shape == (4, 48)


def test_every_row_of_the_page_on_bad_input_names_a_test_that_is_there():
    page = (REPO / "docs" / "explanation" / "bad-input.md").read_text(encoding="utf-8")
    rows = [
        line for line in page.splitlines() if line.startswith("| ") and "| Shown by" not in line
    ]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(rows) >= 20
    assert all("::test_" in row for row in rows)
    for path, test in named:
        assert f"def {test}(" in (REPO / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_the_page_on_bad_input_states_the_campaign_that_is_committed():
    page = (REPO / "docs" / "explanation" / "bad-input.md").read_text(encoding="utf-8")
    lines = (REPO / "tests" / "fuzz" / "results.csv").read_text(encoding="utf-8").splitlines()[1:]
    cases = sum(int(line.split(",")[1]) for line in lines)
    assert f"{cases:,} together" in page
