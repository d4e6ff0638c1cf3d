"""The terminal's view of a run."""

import dagster as dg
import pytest

from compevo_pipeline.cli.demo import reason
from compevo_pipeline.loggers import PlainHandler, Progress, plain_logger, usual_seconds


class Ticks:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_time_left_follows_how_fast_the_finished_steps_were():
    clock = Ticks()
    progress = Progress(["models__compevo", "report__site"], clock)
    before = progress.left()
    progress.done("report__site", 2 * usual_seconds("report__site"))
    assert progress.number == 1 and before != progress.left()
    clock.now = 65.0
    assert progress.line("x") == "[ 1m05s  1/2] x"


def test_the_longest_prefix_names_a_steps_usual_duration():
    assert (
        usual_seconds("news__embeddings")
        != usual_seconds("news__articles")
        != usual_seconds("news_articles_checks")
    )
    assert usual_seconds("something else") == 1.0


@pytest.fixture
def lines():
    return []


def run(lines, fails=False):
    @dg.asset(check_specs=[dg.AssetCheckSpec("sane", asset="thing")])
    def thing(context: dg.AssetExecutionContext):
        context.log.info("halfway")
        context.log.debug("detail")
        if fails:
            raise dg.Failure("SchemaDrift: x.csv, line 3: header", allow_retries=False)
        return dg.MaterializeResult(
            check_results=[dg.AssetCheckResult(passed=False, description="odd")]
        )

    @dg.logger(config_schema={"steps": dg.Field([str], default_value=[])})
    def collecting(context):
        found = plain_logger.logger_fn(context)
        for handler in list(found.handlers):
            found.removeHandler(handler)
        found.addHandler(PlainHandler(Progress(context.logger_config["steps"]), lines.append))
        return found

    defs = dg.Definitions(assets=[thing], loggers={"plain": collecting})
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        run_config={"loggers": {"plain": {"config": {"steps": ["thing"]}}}}, raise_on_error=False
    )


def test_steps_messages_and_failed_checks_become_lines_and_debug_does_not(lines):
    run(lines)
    text = "".join(lines)
    assert "0/1] thing\n" in text and "halfway" in text and "1/1] thing done in" in text
    assert "check failed, thing: sane: odd" in text
    assert "detail" not in text and "STEP_INPUT" not in text


def test_a_failed_step_is_told_with_its_innermost_reason(lines):
    result = run(lines, fails=True)
    (event,) = result.filter_events(lambda e: e.is_step_failure)
    assert reason(event) == "SchemaDrift: x.csv, line 3: header"
    assert "thing: step failure" in "".join(lines)
