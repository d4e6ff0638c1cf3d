"""Result tables in Markdown documents, between markers."""

import pytest
from typer.testing import CliRunner

from compevo_core.errors import DataError
from compevo_core.report import markdown
from compevo_core.report.markdown import (
    BLOCKS,
    NO_ROWS,
    app,
    format_results,
    format_short_results,
    replace_between,
)
from compevo_core.report.rows import empty_rows
from tests.support.report_samples import make_frame, make_inputs, make_row, make_rows

FULL, SHORT, PAPER, AUDIT, *_ = BLOCKS


@pytest.fixture(autouse=True)
def short_scope(monkeypatch):
    """The short scope of these tests is the scope of the sample rows."""
    monkeypatch.setattr(markdown, "SHORT_SCOPE", ("electricity", "n2f-test-100"))


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    make_rows().write_csv(folder / "main.csv")
    return folder


def run_command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document_of(path, *blocks):
    path.write_text("head\n" + "\n".join(f"{block.start}\n{block.end}" for block in blocks) + "\n")
    return path


def test_a_summary_stands_under_its_own_scope_only():
    # The name of a thinned test set begins with the name of the whole one.
    rows = make_frame(
        make_row("compevo", 200.0), make_row("compevo", 201.0, subset="n2f-test-100-every-5")
    )
    first, second = format_results(make_inputs(rows=rows)).split("one window in 5: pooled")
    assert "MAE 200.0 MW over" in first and "MAE 201.0 MW over" in second


def test_without_rows_the_documents_say_so():
    inputs = make_inputs(rows=empty_rows())
    assert format_results(inputs) == format_short_results(inputs) == NO_ROWS


@pytest.mark.parametrize("text", ["# Title", "# Title\n<a>\n", "# Title\n</a>\n<a>\n"])
def test_a_document_without_both_markers_is_refused_by_name(text):
    with pytest.raises(DataError, match=r"notes\.md: .* is missing"):
        replace_between(text, "new", "<a>", "</a>", document="notes.md")


def test_the_command_writes_the_tables_and_then_agrees_with_itself(tmp_path, results):
    readme = document_of(tmp_path / "README.md", SHORT)
    page = document_of(tmp_path / "results.md", FULL)

    check = run_command("--check", "--results", results, readme, page)
    assert check.exit_code == 1
    assert check.output.count("out of date: run `make readme`") == 2
    assert "| CompEvo |" not in readme.read_text(), "--check writes nothing"

    assert run_command("--results", results, readme, page).exit_code == 0
    assert run_command("--check", "--results", results, readme, page).exit_code == 0
    assert "| CompEvo | 198.4 | 307.4 | 4.96 | 100 | 1 |" in readme.read_text()
    assert "leakage check" not in readme.read_text()
    assert "**Electricity, leakage check, Feb-Mar 2026: pooled errors**" in page.read_text()


def test_a_document_without_any_block_is_an_error_and_stays_as_it_is(tmp_path, results):
    document = tmp_path / "notes.md"
    document.write_text("nothing here\n")
    result = run_command("--results", results, document)
    assert result.exit_code == 1
    assert "notes.md: no place for a result table" in result.output
    assert document.read_text() == "nothing here\n"
