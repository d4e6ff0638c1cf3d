"""The terminal's view of a run: a bar where there is a terminal, plain lines elsewhere."""

import io
import logging

import dagster as dg
import pytest
from rich.console import Console

from compevo_pipeline.defs.jobs import describe_failure
from compevo_pipeline.defs.loggers import ProgressHandler, get_usual_seconds, progress_logger


class Ticks:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def make_view(steps, *, is_live=False, clock=None):
    console = Console(file=io.StringIO(), force_terminal=is_live, width=200)
    return ProgressHandler(steps, console, is_live=is_live, clock=clock or Ticks())


def text_of(view):
    return view._console.file.getvalue()


def test_the_time_left_follows_how_fast_the_finished_steps_were():
    left = []
    for slowness in (1, 2):
        clock = Ticks()
        view = make_view(["models__compevo", "report__site"], clock=clock)
        assert view.describe_time_left() == ""
        clock.now = slowness * get_usual_seconds("report__site")
        view.finish_step("report__site")
        left.append(view.describe_time_left())
    assert left == ["about 1m08s left", "about 2m16s left"]


def test_a_plain_line_begins_with_the_time_and_the_steps_done():
    clock = Ticks()
    view = make_view(["models__compevo", "report__site"], clock=clock)
    view.finish_step("report__site")
    clock.now = 65.0
    view.write("x [bold]y[/bold]")
    assert text_of(view) == "[ 1m05s  1/2] x [bold]y[/bold]\n"


def test_a_terminal_shows_one_bar_with_the_current_step_and_removes_it_at_the_end():
    view = make_view(["models__compevo", "report__site"], is_live=True)
    view._bar.update(view._task, description="models/compevo")
    view.write("round 1/2")
    view._bar.refresh()
    shown = text_of(view)
    assert "0/2 steps" in shown and "models/compevo" in shown and "round 1/2" in shown
    view._bar.stop()
    assert text_of(view).endswith("\x1b[?25h") or "\x1b[2K" in text_of(view)[len(shown) :]


def run(view, fails=False):
    @dg.asset(check_specs=[dg.AssetCheckSpec("sane", asset="thing")])
    def thing(context: dg.AssetExecutionContext):
        context.log.info("halfway")
        context.log.debug("detail")
        if fails:
            raise dg.Failure("SchemaDrift: x.csv, line 3: header", allow_retries=False)
        return dg.MaterializeResult(
            check_results=[dg.AssetCheckResult(passed=False, description="odd")]
        )

    @dg.logger
    def collecting(_):
        logger = logging.Logger("collecting", logging.DEBUG)
        logger.addHandler(view)
        return logger

    defs = dg.Definitions(assets=[thing], loggers={"progress": collecting})
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(run_config={"loggers": {"progress": {}}}, raise_on_error=False)


def test_a_log_gets_failed_checks_at_once_and_what_went_well_now_and_then():
    view = make_view(["thing"])
    run(view)
    assert text_of(view) == "[    0s  0/1]   check failed, thing: sane: odd\n"

    clock = Ticks()
    view = make_view(["thing"], clock=clock)
    for clock.now in range(0, 95, 5):
        view.show(f"round {clock.now}")
    assert text_of(view).split() == [
        *("[", "30s", "0/1]", "round", "30"),
        *("[", "1m00s", "0/1]", "round", "60"),
        *("[", "1m30s", "0/1]", "round", "90"),
    ]


def test_a_terminal_rewrites_one_line_of_messages():
    view = make_view(["thing"], is_live=True)
    for number in range(50):
        view.show(f"round {number} [bold]")
    view._bar.refresh()
    shown = text_of(view)
    assert "round 49 [bold]" in shown and "round 7 " not in shown and shown.count("\n") <= 1


@dg.asset
def interrupted():
    raise dg.DagsterExecutionInterruptedError


def test_a_failed_step_is_shown_with_its_innermost_reason():
    view = make_view(["thing"])
    result = run(view, fails=True)
    (event,) = result.filter_events(lambda e: e.is_step_failure)
    assert describe_failure(event) == "SchemaDrift: x.csv, line 3: header"
    assert "thing: step failed" in text_of(view)


def test_a_step_that_somebody_interrupted_is_not_called_faulty():
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            dg.materialize([interrupted], instance=instance)
        (run,) = instance.get_runs()
        logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [describe_failure(entry.dagster_event) for entry in logs] == ["it was interrupted"]


@pytest.mark.parametrize("variable", ["", "true"])
def test_a_ci_log_gets_lines_even_where_it_claims_to_be_a_terminal(monkeypatch, variable):
    monkeypatch.setenv("CI", variable)
    monkeypatch.setenv("FORCE_COLOR", "1")
    context = dg.build_init_logger_context(logger_config={"steps": ["thing"]})
    (handler,) = progress_logger.logger_fn(context).handlers
    assert handler._is_live is (variable == "")
    handler._bar.stop()
