"""Who won: said plainly, also when it is not us."""

import polars as pl
import pytest

from compevo_core.config import RunConfig
from compevo_core.errors import DataError
from compevo_core.evaluation.configs import write_config
from compevo_core.report.inputs import read_inputs
from compevo_core.report.markdown import END, NO_ROWS, START, headline_markdown, main, with_table
from compevo_core.report.rows import RESULT_SCHEMA, empty_rows
from compevo_core.report.verdict import verdicts
from tests.support.report_samples import NOW, inputs, row, rows


def scored(**errors):
    made = [row(name.replace("_", "-"), mae) for name, mae in errors.items()]
    return inputs(rows=pl.DataFrame(made, schema=RESULT_SCHEMA))


def test_every_rival_gets_one_comparison():
    test_set, later = verdicts(inputs())
    assert [one.outcome for one in test_set.comparisons] == ["better", "better", "worse"]
    assert [one.outcome for one in later.comparisons] == ["better", "equal", "worse"]


def test_a_population_that_loses_to_its_prior_has_shown_nothing():
    (verdict,) = verdicts(scored(compevo=210.0, persistence=291.0, calendar_ridge=205.0))
    assert "does not improve on its own prior" in verdict.summary
    assert verdict.comparisons[1].sentence.startswith(
        "Does not beat its own prior (calendar ridge); it is 2.4 % worse"
    )


def test_a_tie_with_the_prior_is_not_an_improvement():
    (verdict,) = verdicts(scored(compevo=205.0, calendar_ridge=205.01))
    assert verdict.comparisons[0].outcome == "equal"
    assert "does not improve" in verdict.summary


def test_a_population_that_beats_its_prior_may_say_so():
    (verdict,) = verdicts(scored(compevo=195.0, calendar_ridge=205.0))
    assert "The population improves on its own prior." in verdict.summary


def test_an_unknown_configuration_claims_no_prior():
    verdict, _ = verdicts(inputs(configs={}))
    assert "prior" not in verdict.summary and verdict.comparisons[1].sentence.startswith(
        "Beats calendar ridge"
    )


def test_two_configurations_get_a_verdict_each():
    made = [row("compevo", 200.0), row("compevo", 210.0, config_hash="other"), row("gbm", 205.0)]
    found = verdicts(inputs(rows=pl.DataFrame(made, schema=RESULT_SCHEMA)))
    assert [one.comparisons[0].outcome for one in found] == ["better", "worse"]
    assert found[1].scope.endswith("configuration other")


def test_synthetic_data_is_called_so_in_every_verdict():
    made = rows().with_columns(pl.lit(value=True).alias("synthetic"))
    assert all("synthetic stand-in" in one.scope for one in verdicts(inputs(rows=made)))
    assert headline_markdown(inputs(rows=made)).count("synthetic stand-in") >= 3


def test_the_readme_learns_the_prior_from_the_configuration_beside_the_rows(tmp_path):
    config = RunConfig.preset("default")
    made = [row("compevo", 210.0, config_hash=config.hash), row(config.forecast.prior, 205.0)]
    pl.DataFrame(made, schema=RESULT_SCHEMA).write_csv(tmp_path / "main.csv")
    write_config(tmp_path, config)
    read = read_inputs(tmp_path, [], mode="archive", generated_at=NOW)
    assert "does not improve on its own prior" in headline_markdown(read)


def test_without_rows_of_compevo_there_is_no_verdict():
    assert verdicts(scored(gbm=180.0)) == []


def test_the_readme_table_holds_the_numbers_of_the_rows():
    text = headline_markdown(inputs())
    assert (
        "| CompEvo | 198.4 |" in text
        and "**180.1**" in text
        and "does not improve on its own prior" in text
    )


def test_without_rows_the_readme_says_so():
    assert headline_markdown(inputs(rows=empty_rows())) == NO_ROWS


def test_only_what_stands_between_the_markers_changes():
    text = with_table(f"# Title\n{START}\nold\n{END}\ntail\n", "new")
    assert text == f"# Title\n{START}\nnew\n{END}\ntail\n"


def test_a_readme_without_markers_is_refused():
    with pytest.raises(DataError, match="missing"):
        with_table("# Title", "new")


def test_the_command_writes_the_table_and_then_agrees_with_itself(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    results.mkdir()
    rows().write_csv(results / "main.csv")
    readme.write_text(f"a\n{START}\n{END}\nb\n")
    assert main([str(readme), str(results), "--check"]) == 1
    assert main([str(readme), str(results)]) == 0
    assert main([str(readme), str(results), "--check"]) == 0
    assert "| CompEvo |" in readme.read_text()
