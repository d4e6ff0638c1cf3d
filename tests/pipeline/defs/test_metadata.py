"""What the terminal and Dagster's pages show: progress, tables, drawings, text as text."""

import ast
import base64
import io
import itertools
import logging
import math
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import markdown
import polars as pl
import pytest
from rich.console import Console

from compevo_core.report.tables import Table
from compevo_core.runtime.usage import format_duration
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.defs import loggers, metadata
from compevo_pipeline.defs.assets.sources import build_articles_asset
from compevo_pipeline.defs.jobs import describe_failure
from compevo_pipeline.defs.resources import build_observation
from compevo_pipeline.sources.feeds import Feed, default_feeds
from tests.pipeline.sources.gdelt.test_parse import answer, article
from tests.support.deployment import SetClock, open_home, read_materialization
from tests.support.round_records import round_record
from tests.support.sources import raw

PIPELINE = Path(__file__).parents[3] / "compevo_pipeline"
HOSTILE = [
    "![x](http://host.example/p.png)",
    "[click](javascript:alert(1))",
    "<img src=http://host.example/p.png onerror=alert(1)>",
    "<script>alert(1)</script>",
    "see http://host.example/p.png and www.host.example",
    "![x][y]\n\n[y]: http://host.example/p.png",
    "# heading | cell | `code` **bold**",
    "\\![x](http://host.example/p.png)",
    "<http://host.example/>",
]
RENDERS_MARKDOWN = {
    "defs/assets/training.py": "the logics, escaped one by one",
    "defs/metadata.py": "drawings, whose names are escaped",
    "paper/assets.py": "the pooled result rows, whose names are the project's own",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_it_is(text):
    page = markdown.markdown(metadata.escape_markdown(text), extensions=["tables"])
    shown = page.removeprefix("<p>").removesuffix("</p>")
    assert "<" not in shown
    assert "http:" not in shown
    assert "www." not in shown

    drawing = markdown.markdown(metadata.render_sketch({text: [1.0, 2.0]}, ends=(text, "b")).value)
    assert drawing.count("<img") == drawing.count('src="data:image/') == 1
    assert "<script" not in drawing and "<a " not in drawing


def test_markdown_is_made_in_known_places():
    """A new place needs its own escape: read it, then add it here with the reason."""
    found = set()
    for path in PIPELINE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if "MetadataValue" in text else "")):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            names = {"MetadataValue.md", "MarkdownMetadataValue", "dg.MarkdownMetadataValue"}
            if is_call and any(ast.unparse(node.func).endswith(name) for name in names):
                found.add(path.relative_to(PIPELINE).as_posix())

    assert found == set(RENDERS_MARKDOWN)


def test_hostile_headlines_load_nothing(tmp_path):
    listed = [
        article(url=f"https://example.org/{number}", title=title, domain=title, language=title)
        for number, title in enumerate(HOSTILE)
    ]
    file = raw("answer.json", answer(*listed), "gdelt_doc")
    (gdelt,) = [feed for feed in default_feeds()["news"] if feed.name == "gdelt"]
    feed = Feed(name="gdelt", read_files=lambda *_: iter([file]), parsers=gdelt.parsers)
    resources = {"workspace": open_home(tmp_path, "archive")}
    result = dg.materialize([build_articles_asset([feed])], resources=resources)

    shown = read_materialization(result).metadata
    assert shown["dagster/row_count"].value == len(HOSTILE)
    drawn = [one for one in shown.values() if isinstance(one, dg.MarkdownMetadataValue)]
    pages = [markdown.markdown(one.value) for one in drawn]
    assert pages  # the drawing is one
    assert not any("host.example" in page or "<script" in page for page in pages)
    # Headlines are there all the same: as cells, which are text to the pages.
    cells = [str(record.data) for record in shown["newest"].records]
    assert any("host.example" in cell for cell in cells)


def decode(sketch):
    return base64.b64decode(re.search(r"base64,([A-Za-z0-9+/=]+)\)", sketch.value)[1]).decode()


def polylines(sketch):
    return [
        [tuple(map(int, corner.split(","))) for corner in points.split()]
        for points in re.findall(r'points="([^"]*)"', decode(sketch))
    ]


def test_a_table_for_a_terminal_cuts_only_names():
    rows = [["store-north-1" + 60 * "x", "198,994-202,500"], ["store-north-2", "1"]]
    lines = Table(header=["series", "80 % band"], rows=rows).to_text(80, longest=12).splitlines()

    assert 76 < max(map(len, lines)) <= 80
    assert "store-north-1xx" in lines[1] and lines[1].endswith("…  198,994-202,500")


@pytest.mark.parametrize("grad_norm", [0.0, 0.5])
def test_a_round_without_a_gradient_step_shows_no_loss(tmp_path, grad_norm):
    context, record = SimpleNamespace(asset_key="model"), round_record(0, grad_norm=grad_norm)
    shown = build_observation(context, record, RunFolder(tmp_path)).metadata
    assert ("loss" in shown) == ("grad_norm" in shown) == (grad_norm > 0)


def test_a_wide_table_is_shown_in_parts():
    table = Table(header=("series", "energy", "peak", "at"), rows=[("A", "1", "2", "9:00")])
    shown = metadata.render_columns(table, {"at", "peak", "none"})
    assert [column.name for column in shown.schema.columns] == ["series", "peak", "at"]
    assert [record.data for record in shown.records] == [{"series": "A", "peak": "2", "at": "9:00"}]

    frame = pl.DataFrame({"id": ["a", "b", "c", "d"], "value": [1.0, 2.0, None, 4.0]})
    rows = [record.data for record in metadata.render_preview(frame).records]
    assert rows[1] == {"column": "value", "row 1": "1", "row 2": "2", "row 3": ""}


@pytest.mark.parametrize(("lines", "length"), [(1, 1), (3, 48), (3, 5000)])
def test_a_drawing_is_short_and_has_every_line(lines, length):
    values = [math.sin(i / 9) * 12345 for i in range(length)]
    drawn = {f"line {i}": [v + i for v in values] for i in range(lines)}
    sketch = metadata.render_sketch(drawn, ends=("2026-01-01", "2026-03-31"))
    assert len(sketch.value) < 1000
    assert [len(line) >= min(length, 10) for line in polylines(sketch)] == [True] * lines


def test_a_drawing_has_axes():
    svg = decode(metadata.render_sketch({"a": [1.25, None, 30.5]}, ends=(date(2026, 1, 1), "<b>")))
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert labels == ["30.5", "1.25", "2026-01-01", "&lt;b&gt;"]
    assert 'd="M0 0V' in svg


def test_larger_values_are_drawn_higher():
    ((first, second, last),) = polylines(metadata.render_sketch({"a": [1, 3, 2]}, ends=(1, 3)))
    assert first[0] == 0 < second[0] < last[0] == 240
    assert first[1] > last[1] > second[1]

    lines = {"a": [1.0, None, 1.0], "b": [2.0, math.nan, 2.0]}
    low, high = polylines(metadata.render_sketch(lines, ends=(1, 3)))
    assert len(low) == len(high) == 2 and low[0][1] > high[0][1]


def make_view(steps, *, is_live=False, clock=None):
    console = Console(file=io.StringIO(), force_terminal=is_live, width=200)
    return loggers.ProgressHandler(steps, console, is_live=is_live, clock=clock or SetClock(0.0))


def text_of(view):
    return view._console.file.getvalue()


@pytest.mark.parametrize(
    ("usual", "seconds", "left"),
    # The imports before a step of a second make no half hour of what is left.
    [(30.0, 30.0, "1m30s"), (30.0, 120.0, "3m00s"), (1.0, 20.0, "1m58s")],
)
def test_the_time_left_follows_finished_steps(monkeypatch, usual, seconds, left):
    monkeypatch.setattr(loggers, "USUAL_SECONDS", {"first": usual, "second": 90.0})
    clock = SetClock(0.0)
    view = make_view(["first", "second"], clock=clock)
    assert view.describe_time_left() == f"about {format_duration(usual + 90)} left"
    clock.now = seconds
    view.finish_step("first")
    assert view.describe_time_left() == f"about {left} left"


def test_a_terminal_shows_a_bar_and_one_message():
    view = make_view(["models__compevo", "report__site"], is_live=True)
    view._bar.update(view._task, description="models/compevo")
    view._bar.refresh()
    assert "0/2 steps" in text_of(view) and "models/compevo" in text_of(view)

    for number in range(50):
        view.show(f"round {number} [bold]")
    view._bar.refresh()
    shown = text_of(view)
    assert "round 49 [bold]" in shown and "round 7 " not in shown and shown.count("\n") <= 1
    view._bar.stop()
    assert text_of(view).endswith("\x1b[?25h") or "\x1b[2K" in text_of(view)[len(shown) :]


def run(view, fails=False):
    @dg.asset(check_specs=[dg.AssetCheckSpec("sane", asset="thing")])
    def thing(context: dg.AssetExecutionContext):
        context.log.info("halfway")
        context.log.debug("detail")
        if fails:
            raise dg.Failure("SchemaDrift: x.csv, line 3: header", allow_retries=False)
        check = dg.AssetCheckResult(passed=False, description="odd")
        return dg.MaterializeResult(check_results=[check])

    @dg.logger
    def collecting(_):
        logger = logging.Logger("collecting", logging.DEBUG)
        logger.addHandler(view)
        return logger

    defs = dg.Definitions(assets=[thing], loggers={"progress": collecting})
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(run_config={"loggers": {"progress": {}}}, raise_on_error=False)


def test_a_log_gets_failed_checks_and_finished_steps():
    view = make_view(["thing"])
    run(view)
    assert text_of(view) == "[    0s  0/1]   check failed, thing: sane: odd\n"

    # A minute passes whenever somebody looks, so that every message is a line.
    view = make_view(["thing"], clock=itertools.count(0, 60).__next__)
    run(view)
    assert re.search(r"thing done in [0-9]s,", text_of(view))

    clock = SetClock(0.0)
    view = make_view(["thing"], clock=clock)
    for clock.now in range(0, 95, 5):
        view.show(f"round {clock.now}")
    shown = "[ 30s 0/1] round 30 [ 1m00s 0/1] round 60 [ 1m30s 0/1] round 90"
    assert " ".join(text_of(view).split()) == shown


def test_a_failed_step_shows_its_reason():
    view = make_view(["thing"])
    (event,) = run(view, fails=True).filter_events(lambda e: e.is_step_failure)
    assert describe_failure(event) == "SchemaDrift: x.csv, line 3: header"
    assert "thing: step failed" in text_of(view)


@pytest.mark.parametrize(
    "error",
    [dg.DagsterExecutionInterruptedError(), RuntimeError("Query interrupted")],  # of DuckDB
)
def test_an_interrupted_step_is_not_called_faulty(error):
    @dg.asset
    def interrupted():
        raise error

    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(type(error)):
            dg.materialize([interrupted], instance=instance)
        (run,) = instance.get_runs()
        logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [describe_failure(entry.dagster_event) for entry in logs] == ["it was interrupted"]


@pytest.mark.parametrize("variable", ["", "true"])
def test_a_ci_log_gets_lines(monkeypatch, variable):
    monkeypatch.setenv("CI", variable)
    monkeypatch.setenv("FORCE_COLOR", "1")
    context = dg.build_init_logger_context(logger_config={"steps": ["thing"]})
    (handler,) = loggers.progress_logger.logger_fn(context).handlers
    assert handler._is_live is (variable == "")
    handler._bar.stop()
