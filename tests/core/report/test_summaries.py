"""Who won, said plainly, also when it is not CompEvo."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.evaluation.score_files import write_config
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
    return [rival.outcome for rival in summary.rivals]


def test_a_lower_error_that_days_may_have_made_is_counted_and_not_called_better():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0, gbm=210.0, film=190.0)
    told, chance = _paired_with_prior(-12.0, -1.0)[0], _paired_with_prior(-12.0, 0.5)[0]
    lost = told | {"method_b": "film", "interval_low": 1.0, "interval_high": 9.0}
    tests = [told | {"method_b": "gbm"}, chance, lost]
    (result,) = summarize_results(replace(scores, paired=tests))
    assert "a lower error than 2 of 3 other methods; significant for 1 of" in result.summary
    assert outcomes(result) == ["unclear", "better", "worse"]
    assert np.allclose(result.rivals[0].bounds, (-12.0 / 205.0, 0.5 / 205.0))
    assert "one training; how trainings vary is unknown" in result.summary

    # The interval decides, also where a mean over points lies on the other side of zero.
    (result,) = summarize_results(replace(scores, paired=[lost | {"method_b": "gbm"}]))
    assert outcomes(result) == ["lower", "unclear", "higher"]

    few = [chance | {"interval_low": None, "interval_high": None, "n_blocks": 3}]
    (result,) = summarize_results(replace(scores, paired=few))
    assert outcomes(result)[0] == "unclear"


def _paired_with_prior(low, high):
    return [dict(make_inputs().paired[0], interval_low=low, interval_high=high)]


def test_a_refitted_model_does_not_take_the_paired_test_of_the_first():
    rows = make_frame(
        make_row("compevo", 195.0),
        make_row("compevo", 190.0, config_hash="again", refit=True),
        make_row("calendar-ridge", 205.0),
    )
    first, again = summarize_results(make_inputs(rows=rows, paired=_paired_with_prior(-12.0, 0.5)))
    assert [rival.test is not None for rival in (*first.rivals, *again.rivals)] == [True, False]


def test_an_unknown_configuration_claims_no_prior():
    result, _ = summarize_results(make_inputs(configs={}, paired=()))
    assert "prior" not in result.summary
    assert not any(rival.is_prior for rival in result.rivals)


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
    assert [round(rival.difference, 3) for rival in result.rivals[1:3]] == [-0.048, -0.091]


def test_without_rows_of_compevo_there_is_no_summary():
    assert summarize_results(make_scores(gbm=180.0)) == []


OWN = {"config_hash": "c1"}
PARTS = make_frame(
    make_row("compevo", 126.0, **OWN),
    make_row("compevo-equal", 127.0, **OWN),
    make_row("compevo-prior", 133.0, **OWN),
    make_row("gbm", 141.0),
    make_row("gbm-recalibrated", 133.4),
    make_row("blend", 138.0),
)


def test_the_summary_compares_the_whole_with_its_parts_and_with_what_known_errors_are_worth():
    (result,) = summarize_results(make_inputs(rows=PARTS))
    assert [rival.row["method"] for rival in result.rivals] == [
        *("compevo-equal", "compevo-prior", "gbm", "gbm-recalibrated", "blend")
    ]
    assert [round(rival.difference, 3) for rival in result.rivals[:2]] == [-0.008, -0.053]
    assert LOWER_THAN_PRIOR in result.summary
    assert [rival.is_prior for rival in result.rivals].count(True) == 1


def test_parts_of_another_configuration_are_no_rivals():
    other = make_frame(make_row("compevo", 150.0, config_hash="c9"))
    results = summarize_results(make_inputs(rows=pl.concat([PARTS, other])))
    compared = {result.scope[-2:]: len(result.rivals) for result in results}
    assert compared == {"c1": 5, "c9": 3}


@pytest.mark.parametrize(
    ("mae", "interval", "outcome", "verdict"),
    [
        (210.0, None, "higher", NO_BETTER_THAN_PRIOR),
        (204.99, None, "equal", NO_BETTER_THAN_PRIOR),
        (195.0, None, "lower", LOWER_THAN_PRIOR),
        (195.0, (-12.0, -1.0), "better", IMPROVES_ON_PRIOR),
        (195.0, (-12.0, 0.5), "unclear", "between -12.00 MW and 0.5000 MW (95 %"),
        (195.0, (None, None), "unclear", "20 block(s) of days"),
    ],
)
def test_a_population_improves_on_its_prior_only_by_more_than_chance(
    mae, interval, outcome, verdict
):
    paired = [] if interval is None else _paired_with_prior(*interval)
    # A comparison on other windows says nothing here.
    other = dict(_paired_with_prior(-12.0, -1.0)[0], subset="aemo-2021")
    scores = replace(make_scores(compevo=mae, calendar_ridge=205.0), paired=[*paired, other])
    (result,) = summarize_results(scores)
    assert outcomes(result) == [outcome] and result.rivals[0].is_prior
    assert verdict in result.summary


def test_a_rival_without_any_error_is_not_divided_by():
    (result,) = summarize_results(make_scores(compevo=1.0, gbm=0.0))
    assert result.rivals[0].difference == 1.0


def test_agents_without_a_prior_are_said_to_have_none():
    configs = {"ccompevo" * 2: {"forecast": {"prior": "none"}}}
    scores = make_scores(compevo=1_700.0, calendar_ridge=205.0)
    (result,) = summarize_results(replace(scores, configs=configs, paired=()))
    assert result.summary.endswith(WITHOUT_PRIOR)
