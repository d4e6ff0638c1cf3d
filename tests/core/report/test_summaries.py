"""Who won, said plainly, also when it is not CompEvo."""

from dataclasses import replace

import polars as pl

from compevo_core.config import RunConfig
from compevo_core.evaluation.configs import write_config
from compevo_core.report.inputs import read_inputs
from compevo_core.report.markdown import format_results
from compevo_core.report.summaries import (
    IMPROVES_ON_PRIOR,
    LOWER_THAN_PRIOR,
    NO_BETTER_THAN_PRIOR,
    WITHOUT_PRIOR,
    summarize_results,
)
from tests.support.report_samples import NOW, make_frame, make_inputs, make_row, make_rows


def make_scores(**errors):
    rows = [make_row(name.replace("_", "-"), mae) for name, mae in errors.items()]
    return make_inputs(rows=make_frame(*rows))


def outcomes(summary):
    return [comparison.outcome for comparison in summary.comparisons]


def test_every_rival_gets_one_comparison():
    test_set, later = summarize_results(make_inputs())
    # The pair with the calendar ridge has an interval that holds zero; no other was compared.
    assert outcomes(test_set) == ["lower", "unclear", "higher"]
    assert outcomes(later) == ["lower", "equal", "higher"]


def test_a_lower_error_that_days_may_have_made_is_counted_and_not_called_better():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0, gbm=210.0, film=190.0)
    told, chance = _paired_with_prior(-12.0, -1.0)[0], _paired_with_prior(-12.0, 0.5)[0]
    lost = told | {"method_b": "film", "interval_low": 1.0, "interval_high": 9.0}
    tests = [told | {"method_b": "gbm"}, chance, lost]
    (result,) = summarize_results(replace(scores, paired=tests))
    assert (
        "a lower error than 2 of 3 other methods; the interval says so for 1 of" in result.summary
    )
    assert outcomes(result) == ["unclear", "better", "worse"]
    assert "lies between -12.00 MW and 0.5000 MW" in result.comparisons[0].sentence

    few = [chance | {"interval_low": None, "interval_high": None, "n_blocks": 3}]
    (result,) = summarize_results(replace(scores, paired=few))
    assert result.comparisons[0].sentence.endswith("these are too few days.")


def test_a_population_that_loses_to_its_prior_has_added_nothing():
    scores = make_scores(compevo=210.0, persistence=291.0, calendar_ridge=205.0)
    (result,) = summarize_results(replace(scores, paired=()))
    assert result.summary.endswith(NO_BETTER_THAN_PRIOR)
    assert result.comparisons[1].sentence.startswith(
        "Its error is 2.4 % above that of its own prior (calendar ridge)"
    )


def test_a_tie_with_the_prior_is_not_an_improvement():
    (result,) = summarize_results(make_scores(compevo=205.0, calendar_ridge=205.01))
    assert result.comparisons[0].outcome == "equal"
    assert NO_BETTER_THAN_PRIOR in result.summary


def _paired_with_prior(low, high):
    return [dict(make_inputs().paired[0], interval_low=low, interval_high=high)]


def test_a_population_that_beats_its_prior_may_say_so():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0)
    (result,) = summarize_results(replace(scores, paired=_paired_with_prior(-12.0, -1.0)))
    assert result.summary.endswith(IMPROVES_ON_PRIOR)

    # Errors alone are no more than that.
    (result,) = summarize_results(replace(scores, paired=()))
    assert result.summary.endswith(LOWER_THAN_PRIOR)


def test_a_lower_error_that_may_be_chance_is_not_called_an_improvement():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0)
    (result,) = summarize_results(replace(scores, paired=_paired_with_prior(-12.0, 0.5)))
    assert "cannot be told here" in result.summary
    assert "between -12.00 MW and 0.5000 MW" in result.summary

    other = [dict(_paired_with_prior(-12.0, 0.5)[0], subset="aemo-2021")]
    (result,) = summarize_results(replace(scores, paired=other))
    assert result.summary.endswith(LOWER_THAN_PRIOR)


def test_a_handful_of_days_proves_nothing():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0)
    few = [dict(_paired_with_prior(None, None)[0], n_blocks=5)]
    (result,) = summarize_results(replace(scores, paired=few))
    assert "cannot be told here: 5 block(s) of days are too few" in result.summary


def test_a_refitted_model_does_not_take_the_paired_test_of_the_first():
    rows = make_frame(
        make_row("compevo", 195.0),
        make_row("compevo", 190.0, config_hash="again", refit=True),
        make_row("calendar-ridge", 205.0),
    )
    first, again = summarize_results(make_inputs(rows=rows, paired=_paired_with_prior(-12.0, 0.5)))
    assert "cannot be told" in first.summary
    assert "cannot be told" not in again.summary


def test_an_unknown_configuration_claims_no_prior():
    result, _ = summarize_results(make_inputs(configs={}, paired=()))
    assert "prior" not in result.summary
    assert "below that of calendar ridge" in result.comparisons[1].sentence


def test_agents_without_a_prior_are_said_to_have_none():
    scores = make_scores(compevo=1_700.0, calendar_ridge=205.0)
    configs = {"ccompevo" * 2: {"forecast": {"prior": "none"}}}
    (result,) = summarize_results(replace(scores, configs=configs, paired=()))
    assert result.summary.endswith(WITHOUT_PRIOR)


def test_two_configurations_get_a_summary_each():
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("compevo", 210.0, config_hash="other"),
        make_row("gbm", 205.0),
    )
    results = summarize_results(make_inputs(rows=rows))
    assert [outcomes(result)[0] for result in results] == ["lower", "higher"]
    assert results[1].scope.endswith("configuration other")


def test_a_rival_without_any_error_is_not_divided_by():
    (result,) = summarize_results(make_scores(compevo=1.0, gbm=0.0))
    assert "100.0 % above" in result.comparisons[0].sentence


def test_synthetic_data_is_called_so_in_every_summary():
    rows = make_rows().with_columns(pl.lit(value=True).alias("synthetic"))
    inputs = make_inputs(rows=rows)
    assert all("synthetic stand-in" in result.scope for result in summarize_results(inputs))
    assert format_results(inputs).count("synthetic stand-in") >= 3


def test_the_prior_is_read_from_the_configuration_stored_with_the_rows(tmp_path):
    config = RunConfig.preset("default")
    rows = make_frame(
        make_row("compevo", 210.0, config_hash=config.hash), make_row(config.forecast.prior, 205.0)
    )
    rows.write_csv(tmp_path / "main.csv")
    write_config(tmp_path, config)

    inputs = read_inputs(tmp_path, [], mode="archive", generated_at=NOW)
    assert NO_BETTER_THAN_PRIOR in format_results(inputs)


def test_every_other_method_counts_once_and_parts_of_the_population_do_not():
    rows = make_frame(
        make_row("compevo", 200.0, config_hash="one"),
        make_row("compevo-equal", 190.0, config_hash="one"),
        make_row("compevo-agent-0", 190.0, config_hash="one"),
        make_row("gbm", 210.0),
        make_row("film", 190.0, budget="small"),
        # The larger budget stands for the method, though it errs more.
        make_row("film", 220.0, budget="tuned"),
        make_row("theta", 150.0),
    )
    (result,) = summarize_results(make_inputs(rows=rows))
    assert "a lower error than 2 of 3 other methods" in result.summary
    assert [one.sentence.split(":")[0] for one in result.comparisons[1:3]] == [
        "Its error is 4.8 % below that of boosted trees",
        "Its error is 9.1 % below that of FiLM",
    ]


def test_without_rows_of_compevo_there_is_no_summary():
    assert summarize_results(make_scores(gbm=180.0)) == []
