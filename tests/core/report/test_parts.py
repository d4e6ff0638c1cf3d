"""Rows of a population's parts, recalibrated baselines, controls and paired tests are readable."""

import polars as pl

from compevo_core.report.inputs import read_inputs
from compevo_core.report.markdown import format_results
from compevo_core.report.page import render_page
from compevo_core.report.provenance_tables import (
    identity_table,
    paired_table,
    variant_test_table,
)
from compevo_core.report.result_tables import (
    ablation_table,
    agent_table,
    control_table,
    headline_table,
    region_table,
    short_table,
)
from compevo_core.report.summaries import LOWER_THAN_PRIOR, summarize_results
from compevo_core.report.variant_tables import list_variant_tables
from compevo_core.report.wording import method_name
from tests.support.report_samples import NOW, make_frame, make_inputs, make_row, make_rows

SCOPE = ("electricity", "n2f-test-100")
OWN = {"config_hash": "c1", "news_choice_share": 0.07, "refit": False}
ROWS = make_frame(
    make_row("compevo", 126.0, **OWN),
    make_row("compevo-equal", 127.0, **OWN),
    make_row("compevo-prior", 133.0, **OWN),
    *(make_row(f"compevo-agent-{i}", 128.0 + i, **OWN) for i in (10, 2, 0)),
    make_row("compevo-agent-0", 90.0, entity="NSW1", **OWN),
    make_row("compevo", 126.0, entity="NSW1", **OWN),
    make_row("compevo", 126.0, entity="SA1", **OWN),
    make_row("gbm", 141.0),
    make_row("gbm-recalibrated", 133.4),
    make_row("blend", 138.0),
)


def names(table):
    return [row[0] for row in table.rows]


def test_agents_have_a_table_of_their_own_in_the_order_of_their_numbers():
    assert names(headline_table(ROWS, *SCOPE)) == [
        "CompEvo",
        "CompEvo, equal weights",
        "CompEvo's best prior alone",
        "Boosted trees, known errors added",
        "Ridge and trees blended",
        "Boosted trees",
    ]
    table = agent_table(ROWS, *SCOPE)
    assert names(table) == ["Agent 0 alone", "Agent 2 alone", "Agent 10 alone"]
    assert agent_table(make_rows(), *SCOPE) is None
    assert "Agent 0" not in str(region_table(ROWS, *SCOPE, "mae", "MAE").rows)


def test_parts_repeat_neither_identities_nor_places_of_the_short_table():
    assert [row[0] for row in identity_table(ROWS).rows] == [
        "CompEvo",
        "Boosted trees",
        "Boosted trees, known errors added",
        "Ridge and trees blended",
    ]
    assert "CompEvo, equal weights" not in names(short_table(ROWS, *SCOPE))


def test_the_page_folds_the_agents_and_markdown_has_them_in_one_line():
    inputs = make_inputs(rows=ROWS, runs=())
    assert "<details><summary>Each agent alone</summary>" in render_page(inputs)
    line = "Agents alone, MAE MW: Agent 0 128.0, Agent 2 130.0 and Agent 10 138.0."
    assert line in format_results(inputs)


def test_a_table_says_in_how_many_windows_a_logic_could_choose():
    sentence = "In 7.0 % of these windows a logic had more articles than it may read."
    assert sentence in headline_table(ROWS, *SCOPE).notes
    assert not any("articles" in note for note in headline_table(make_rows(), *SCOPE).notes)

    more = make_frame(make_row("no-news", 130.0, config_hash="c2", news_choice_share=0.5))
    notes = headline_table(pl.concat([ROWS, more]), *SCOPE).notes
    assert (
        "In 50.0 % of these windows a logic had more articles than it may read: No news." in notes
    )


def test_a_model_that_was_refitted_is_named_and_explained():
    rows = make_frame(make_row("compevo", 126.0, **OWN | {"refit": True}), make_row("gbm", 141.0))
    table = headline_table(rows, *SCOPE)
    assert names(table) == ["CompEvo, refit", "Boosted trees"]
    assert any(note.startswith("Refit: trained once more") for note in table.notes)
    assert not any("Refit" in note for note in headline_table(ROWS, *SCOPE).notes)


def test_the_summary_compares_the_whole_with_its_parts_and_with_what_known_errors_are_worth():
    (result,) = summarize_results(make_inputs(rows=ROWS))
    sentences = [comparison.sentence for comparison in result.comparisons]
    assert sentences[0].startswith("Its error is 0.8 % below that of the equally weighted mean")
    assert sentences[1].startswith("Its error is 5.3 % below that of its own prior")
    assert any("boosted trees, known errors added" in sentence for sentence in sentences)
    assert LOWER_THAN_PRIOR in result.summary
    assert [c.is_prior for c in result.comparisons].count(True) == 1


def test_parts_of_another_configuration_are_no_rivals():
    other = make_frame(make_row("compevo", 150.0, config_hash="c9"))
    results = summarize_results(make_inputs(rows=pl.concat([ROWS, other])))
    compared = {result.scope[-2:]: len(result.comparisons) for result in results}
    assert compared == {"c1": 5, "c9": 3}


def test_controls_stand_apart_from_the_ablation_with_the_full_method_in_both():
    rows = make_frame(
        *(
            make_row(name, mae, experiment="ablation", config_hash=name)
            for name, mae in (("compevo", 200.0), ("no-grpo", 201.0), ("no-news", 205.0))
        )
    )
    assert names(ablation_table(rows, *SCOPE)) == ["CompEvo", "No GRPO"]
    assert names(control_table(rows, *SCOPE)) == ["CompEvo", "No news"]
    assert control_table(make_rows(), *SCOPE) is None
    only_controls = rows.filter(pl.col("method") != "no-grpo")
    assert ablation_table(only_controls, *SCOPE) is None
    page = format_results(make_inputs(rows=pl.concat([ROWS, rows])))
    assert "controls under the same budget" in page


def test_paired_tests_show_side_interval_and_the_papers_test():
    table = paired_table(make_inputs().paired)
    assert table.rows[0][3:] == [
        *("100", "20", "-6.90", "-12.50 to 0.2500", "0.0620 (better)", "0.0310")
    ]


def test_the_ablation_shows_the_mean_over_seeds_and_their_range():
    rows = make_frame(
        *(
            make_row(name, mae, experiment="ablation", seed=seed, config_hash=f"{name}{seed}")
            | {"seedless_hash": name}
            for name, errors in (("compevo", (200.0, 204.0)), ("no-grpo", (201.0, 207.0)))
            for seed, mae in enumerate(errors)
        )
    )
    table = ablation_table(rows, *SCOPE)
    assert names(table) == ["CompEvo", "No GRPO"]
    assert [row[1] for row in table.rows] == ["202.0", "204.0"]
    assert [row[-1] for row in table.rows] == ["2 (MAE 200.0 to 204.0)", "2 (MAE 201.0 to 207.0)"]


def test_variants_are_paired_below_the_ablation_and_nowhere_else():
    ours = make_inputs().paired[0]
    variant = ours | {"method_a": "no-grpo", "method_b": "compevo"}
    elsewhere = variant | {"dataset": "exchange"}
    inputs = make_inputs(paired=[ours, variant, elsewhere])

    table = variant_test_table(inputs.paired, "electricity")
    assert [row[:2] for row in table.rows] == [["No GRPO", "CompEvo"]]
    assert any("how much the two may differ at most" in note for note in table.notes)
    assert variant_test_table([ours], "electricity") is None

    page = render_page(inputs)
    results, ablation = page.index('id="results"'), page.index('id="ablation"')
    place = page.index("variants and controls against the full method")
    assert results < page.index("Paired comparisons by window") < ablation < place
    # Among the results, with the variants, and in the paper's table of methods.
    assert page.count("-12.50 to 0.2500") == 3
    markdown = format_results(inputs)
    assert markdown.index("ablation under one") < markdown.index("against the full method")


def test_paired_tests_of_older_versions_are_read_without_what_they_lack(tmp_path):
    old = {
        name: [value]
        for name, value in make_inputs().paired[0].items()
        if name in ("dataset", "subset", "method_a", "method_b", "n", "p_value")
    }
    pl.DataFrame(old).write_csv(tmp_path / "paired.csv")
    inputs = read_inputs(tmp_path, [], mode="archive", generated_at=NOW)
    assert paired_table(inputs.paired).rows[0][4:] == ["n/a", "n/a", "n/a", "n/a", "0.0310"]


def test_a_name_with_known_errors_keeps_that_of_its_method():
    assert method_name("calendar-ridge-recalibrated") == "Calendar ridge, known errors added"
    assert method_name("compevo-agent-12") == "Agent 12 alone"


def test_variants_that_were_scored_on_two_sets_of_windows_get_a_table_for_each():
    rows = make_frame(
        *(
            make_row(name, mae, experiment="ablation", config_hash=name, subset=subset)
            for subset, shift in (("n2f-test-100", 0.0), ("aemo-2021", -50.0))
            for name, mae in (("compevo", 200.0 + shift), ("no-grpo", 201.0 + shift))
        )
    )
    tables = list_variant_tables(make_inputs(rows=rows, paired=()), "electricity")
    assert [names(table) for table in tables] == [["CompEvo", "No GRPO"]] * 2
    assert len({table.caption for table in tables}) == 2
    assert [table.rows[0][1] for table in tables] == ["200.0", "150.0"]
