"""The page: complete, self-contained, escaped, the same each time."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest
from jinja2 import UndefinedError

from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lud.measure import measure_lud
from compevo_core.report.inputs import LeakageCheck, TrainingRun, read_run
from compevo_core.report.page import render_page, write_report
from compevo_core.report.rendering import render, template_environment
from compevo_core.report.rows import empty_rows
from compevo_core.training.run_folder import RunFolder
from tests.support.lud import LOGICS, ScriptedJudge, finished_run
from tests.support.report_samples import (
    GAINS,
    HOSTILE,
    LUD,
    make_frame,
    make_inputs,
    make_panel,
    make_rounds,
    make_row,
    make_rows,
    make_run,
)

VOID = {"meta", "img", "br"}


class ParsedPage(HTMLParser):
    """Collects tags with their attributes and the visible text, and checks that tags close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.texts, self.unclosed = [], [], []
        self.feed(page)
        assert self.unclosed == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.unclosed.append(tag)

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def attributes_of(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


PAGE = render_page(make_inputs())


def render_run(**changes: object) -> str:
    """Render a page that holds nothing but one run."""
    return render_page(make_inputs(runs=(replace(make_run(), **changes),), rows=empty_rows()))


def test_every_tag_closes_in_order():
    assert len(ParsedPage(PAGE).tags) > 100


def test_nothing_is_fetched_and_nothing_can_run():
    page = ParsedPage(PAGE)
    assert not any(page.attributes_of(tag) for tag in ("script", "link", "iframe"))
    assert all(image["src"].startswith("data:image/") for image in page.attributes_of("img"))
    assert not re.search(r"(src|href)=\"(https?:)?//", PAGE)
    assert "default-src 'none'" in PAGE


def test_hostile_news_and_logics_are_shown_as_text():
    assert HOSTILE not in PAGE
    assert sum(text.strip() == HOSTILE for text in ParsedPage(PAGE).texts) >= 2


def test_hostile_text_from_any_file_is_shown_as_text():
    attack = '"><script>x</script>'
    page = render_page(
        make_inputs(
            mode=attack,
            rows=make_frame(
                make_row("compevo", 200.0, backbone=attack, unit=attack, device=attack),
                make_row(attack, 210.0),
                make_row("gbm", 190.0, entity=attack, experiment=attack),
                make_row("gbm", 190.0, entity="NSW1", subset=attack, dataset=attack),
                make_row("no-grpo", 190.0, dataset=attack, experiment="ablation"),
            ),
            runs=(
                replace(
                    make_run(),
                    name=attack,
                    config={"forecast": {"prior": attack}},
                    panels=(make_panel(attack, unit=attack, news=[(attack, attack)]),),
                    lud=LUD | {"encoder": attack, "judges": [LUD["judges"][0] | {"name": attack}]},
                ),
                make_run(),
            ),
            checks=[LeakageCheck(attack, False, attack)],
            unread=[attack],
        )
    )
    parsed = ParsedPage(page)
    assert not parsed.attributes_of("script")
    shown = sum(attack.lower() in text.lower() for text in parsed.texts)
    assert shown > 15, "the attack must have reached every part to prove anything"


def test_no_template_marks_a_value_as_safe():
    environment = template_environment()
    for name in environment.list_templates(extensions=["html"]):
        source = environment.loader.get_source(environment, name)[0]
        assert not re.search(r"\|\s*safe\b|autoescape false", source), name


def test_a_value_that_the_view_lacks_is_an_error():
    with pytest.raises(UndefinedError):
        render("summary.html", view={})


def test_every_picture_says_in_words_what_it_shows():
    assert all(len(image["alt"]) > 30 for image in ParsedPage(PAGE).attributes_of("img"))


def test_every_entry_of_the_contents_leads_to_a_section():
    page = ParsedPage(PAGE)
    anchors = [link["href"][1:] for link in page.attributes_of("a")]
    assert len(anchors) == len(set(anchors)) > 8
    assert set(anchors) <= {attrs["id"] for _, attrs in page.tags if "id" in attrs}


@pytest.mark.parametrize(
    "title",
    [
        "Summary",
        "Results",
        "Results by region",
        "Forecasts and actual values",
        "Training",
        "Logics by round",
        "Theory diagnostics",
        "Logic update degree",
        "Ablation and controls",
        "Leakage check",
        "Where the numbers come from",
        "Glossary",
    ],
)
def test_all_sections_are_there(title):
    assert f"<h2>{title}</h2>" in PAGE


def test_equal_inputs_give_an_equal_page():
    assert render_page(make_inputs()) == PAGE


def test_sample_mode_says_that_the_data_is_synthetic():
    sample = render_page(make_inputs(mode="sample", rows=empty_rows(), runs=()))
    assert "Sample data." in sample
    assert "Sample data." not in PAGE


def test_synthetic_rows_in_another_mode_are_pointed_out():
    mixed = make_rows().with_columns(pl.lit(value=True).alias("synthetic"))
    warning = "Some rows below come from synthetic data"
    assert warning in render_page(make_inputs(rows=mixed.head(2), runs=()))
    assert warning not in PAGE


def test_a_failed_check_is_shown_as_failed():
    assert "FAILED" in PAGE
    assert "1 of 2 checks passed." in PAGE


def test_a_report_without_rows_or_runs_says_so():
    page = render_page(make_inputs(rows=empty_rows(), runs=(), checks=(), paired=()))
    assert "The result rows hold no scored forecast of CompEvo." in page
    ParsedPage(page)


@pytest.mark.parametrize(
    "text",
    [
        "<td>0.31 to 0.74</td>",
        "below 1: sublinear over the 21 rounds fitted; not a proof",
        "the interval holds 1: sublinear growth is not shown",
        "no fit: fewer than 8 rounds",
        "above 1: faster than in proportion",
    ],
)
def test_the_growth_of_regret_is_described_with_its_interval_or_its_reason(text):
    assert text in PAGE


def test_a_run_without_fixed_logics_says_that_regret_was_not_measured():
    missing = "was not measured in this run"
    unmeasured = make_rounds(3, regret=None, fixed_rewards=None, played_rewards=None)
    page = render_run(rounds=unmeasured, summary={"regret_exponent": None})
    assert missing in page
    assert "Growth of regret" not in page
    assert missing not in PAGE
    # Older versions wrote another measure under the key "regret", without fixed rewards.
    assert missing in render_run(rounds=make_rounds(3, fixed_rewards=None))


def test_a_run_that_has_not_ended_says_that_nothing_is_fitted_yet():
    page = render_run(summary={})
    assert "this run has not ended" in page
    assert "Growth of regret against" not in page


@pytest.mark.parametrize(
    "text",
    [
        "Logic update degree</h2>",
        "<td>0.1234</td>",
        "8 of 23 updates of each agent",
        "2 of 18 by endpoint:m-1",
        "<td>0.6100</td>",
        "135 million parameters, too few",
        "Encoder: packaged:minilm",
    ],
)
def test_lud_is_shown_by_agent_and_judge_with_agreement_and_the_limits_of_a_small_judge(text):
    assert text in PAGE


def test_what_updates_saved_is_shown_by_regime_with_its_correlation():
    assert "Error saved by an update, by its LUD" in PAGE
    cells = ("medium", "0.265 to 0.6")
    assert all(f'<td class="text">{cell}</td>' in PAGE for cell in cells)
    assert "<td>7</td>\n<td>0.3819</td>\n<td>0.0172</td>" in PAGE
    assert "<td>0</td>\n<td>n/a</td>\n<td>n/a</td>" in PAGE, "an empty regime has no means"
    assert "0.4600 by endpoint:m-1 (p 0.0520, 18 updates)" in PAGE


@pytest.mark.parametrize("gains", [{}, {"gains": GAINS | {"n": 0}}])
def test_a_run_whose_updates_were_not_scored_says_so(gains):
    missing = "What the updates saved is not shown"
    judge = {key: value for key, value in LUD["judges"][1].items() if key != "gains"} | gains
    page = render_run(lud=LUD | {"judges": [judge], "agreement": []})
    assert missing in page
    assert "Error saved by an update" not in page
    assert missing not in PAGE


def test_a_capable_judge_alone_has_no_warning_and_no_agreement():
    page = render_run(lud=LUD | {"judges": LUD["judges"][1:], "agreement": []})
    assert "too few" not in page
    assert "Agreement of judges" not in page


def test_lud_is_shown_only_where_it_was_measured_and_of_this_very_model():
    assert "Logic update degree</h2>" not in render_run(lud={}, lud_rows=())
    stale = render_run(lud=LUD | {"artifact_hash": "other"})
    assert "belong to an earlier training" in stale
    assert "Judged updates" not in stale


def test_lud_files_of_a_run_folder_reach_the_page(tmp_path):
    folder = RunFolder(tmp_path / "run")
    measured = measure_lud(finished_run(folder.path), [ScriptedJudge()], HashingEncoder())
    folder.rounds_file.unlink()
    for record, logics in zip(make_rounds(len(LOGICS), agents=2), LOGICS, strict=True):
        folder.append_round(record.model_copy(update={"logics": list(logics)}))

    run = read_run(folder.path)
    assert run.lud == measured
    page = render_page(make_inputs(runs=(run,), rows=empty_rows()))
    assert "Judged updates" in page
    assert ">scripted</td>" in page
    ParsedPage(page)


def test_a_result_table_stays_in_its_section_on_a_narrow_screen():
    assert re.search(r'<th scope="col" class="wrap">Seeds</th>', PAGE)
    regions = [div for div in ParsedPage(PAGE).attributes_of("div") if div.get("role") == "region"]
    assert regions
    assert all(div["class"] == "scroll" for div in regions)

    style = PAGE[PAGE.index("<style>") : PAGE.index("</style>")]
    assert re.search(r"\.scroll \{ overflow-x: auto", style)
    assert re.search(r"td\.wrap \{ white-space: normal", style)


def test_plots_stack_on_a_narrow_screen():
    # Four images in two columns: as one wide image their text is too small on a phone.
    assert re.search(r'<div class="plots" style="--columns: 2">\s*(<img [^>]*>\s*){4}</div>', PAGE)
    narrow = PAGE[PAGE.index("@media (max-width: 640px)") : PAGE.index("</style>")]
    assert re.search(r"\.plots \{ grid-template-columns: minmax\(0, 1fr\)", narrow)


def test_one_round_is_enough_for_every_plot():
    single = TrainingRun(
        name="a", config={}, summary={}, rounds=make_rounds(1), panels=(make_panel(),)
    )
    assert "Round 0" in render_page(make_inputs(runs=(single,), rows=empty_rows()))


def test_two_runs_are_told_apart():
    other = TrainingRun(name="exchange", config={}, summary={}, rounds=make_rounds(2, agents=12))
    page = render_page(make_inputs(runs=(make_run(), other), rows=empty_rows()))
    assert "<h2>Training: electricity</h2>" in page
    assert "<h2>Training: exchange</h2>" in page


def test_the_page_replaces_the_old_one_and_leaves_no_other_file(tmp_path):
    target = tmp_path / "report" / "index.html"
    target.parent.mkdir()
    target.write_text("old")
    small = make_inputs(rows=make_rows().head(2), runs=())
    assert write_report(small, target) == target
    assert target.read_text(encoding="utf-8") == render_page(small)
    assert [path.name for path in target.parent.iterdir()] == ["index.html"]
