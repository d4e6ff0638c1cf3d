"""The page: complete, self-contained, escaped, the same each time."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl

from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lud.measure import measure_lud
from compevo_core.report.inputs import RunRecord, read_run
from compevo_core.report.page import render_page, write_report
from compevo_core.report.rows import empty_rows
from tests.support.lud import LOGICS, Scripted, finished_run
from tests.support.report_samples import HOSTILE, LUD, inputs, panel, rounds, rows, run

VOID = {"meta", "img", "br"}


class Tags(HTMLParser):
    """Collects tags, their attributes and whether they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def of(self, name):
        return [attrs for tag, attrs in self.found if tag == name]


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


PAGE = render_page(inputs())


def test_every_tag_closes_in_order():
    assert len(parsed(PAGE).found) > 100


def test_nothing_is_fetched_and_nothing_can_run():
    tags = parsed(PAGE)
    assert not tags.of("script") and not tags.of("link") and not tags.of("iframe")
    assert all(image["src"].startswith("data:image/") for image in tags.of("img"))
    assert not re.search(r"(src|href)=\"(https?:)?//", PAGE)
    assert "default-src 'none'" in PAGE


def test_hostile_news_and_logics_are_shown_as_text():
    assert HOSTILE not in PAGE
    assert PAGE.count("&lt;script&gt;alert(&#x27;news&#x27;)&lt;/script&gt;") >= 2


def test_every_picture_says_in_words_what_it_shows():
    assert all(len(image["alt"]) > 30 for image in parsed(PAGE).of("img"))


def test_every_entry_of_the_contents_leads_to_a_section():
    tags = parsed(PAGE)
    anchors = [one["href"][1:] for one in tags.of("a")]
    assert len(anchors) == len(set(anchors)) > 8
    assert set(anchors) <= {attrs["id"] for _, attrs in tags.found if "id" in attrs}


def test_all_parts_are_there():
    for title in (
        "What came out",
        "Results",
        "By region",
        "Forecasts against what happened",
        "Training",
        "Logics by round",
        "Theory instruments",
        "Ablation",
        "Leakage check",
        "Where the numbers come from",
    ):
        assert f"<h2>{title}</h2>" in PAGE


def test_the_same_inputs_give_the_same_page():
    assert render_page(inputs()) == PAGE


def test_sample_mode_says_that_the_data_is_synthetic():
    assert "Sample data." in render_page(inputs(mode="sample", rows=empty_rows(), runs=()))
    assert "Sample data." not in PAGE


def test_synthetic_rows_in_another_mode_are_pointed_out():
    mixed = rows().with_columns(pl.lit(value=True).alias("synthetic"))
    assert "Some rows below come from synthetic data" in render_page(
        inputs(rows=mixed.head(2), runs=())
    )
    assert "Some rows below come from synthetic data" not in PAGE


def test_a_failed_check_is_shown_as_failed():
    assert "FAILED" in PAGE and "1 of 2 checks passed." in PAGE


def test_a_report_without_rows_or_runs_still_says_so():
    page = render_page(inputs(rows=empty_rows(), runs=(), checks=(), paired=()))
    assert "No scored forecast of CompEvo is among the rows." in page
    parsed(page)


def page_of(**changes: object) -> str:
    return render_page(inputs(runs=(replace(run(), **changes),), rows=empty_rows()))


def test_the_growth_of_regret_is_said_in_words_with_its_interval_or_its_reason():
    assert "<td>0.31 to 0.74</td>" in PAGE
    assert "below 1: sublinear over the 21 rounds fitted; not a proof" in PAGE
    assert "the interval holds 1: sublinear growth is not shown" in PAGE
    assert "no fit: fewer than 8 rounds" in PAGE
    assert "above 1: faster than in proportion" in PAGE


def test_a_run_without_fixed_logics_says_that_regret_was_not_measured():
    unmeasured = [
        one | {"regret": None, "fixed_rewards": None, "played_rewards": None} for one in rounds(3)
    ]
    page = page_of(rounds=unmeasured, summary={"regret_exponent": None})
    assert "was not measured in this run" in page and "Growth of regret" not in page
    assert "was not measured in this run" not in PAGE
    older = [{k: v for k, v in one.items() if k != "fixed_rewards"} for one in rounds(3)]
    assert "was not measured in this run" in page_of(rounds=older)


def test_lud_is_shown_by_agent_and_judge_with_agreement_and_the_caveat_of_a_small_judge():
    for part in ("Logic update degree</h2>", "<td>0.1234</td>", "8 of 23 updates an agent", "2 of 18 by endpoint:m-1",
                 "<td>0.6100</td>", "135 million parameters, too few", "Encoder: packaged:minilm"):  # fmt: skip
        assert part in PAGE, part
    only_endpoint = LUD | {"judges": LUD["judges"][1:], "agreement": []}
    page = page_of(lud=only_endpoint)
    assert "too few" not in page and "Agreement of judges" not in page


def test_lud_is_shown_only_where_it_was_measured_and_of_this_very_model():
    assert "Logic update degree</h2>" not in page_of(lud={}, lud_rows=())
    stale = page_of(lud=LUD | {"artifact_hash": "other"})
    assert "of an earlier training" in stale and "Judged updates" not in stale


def test_lud_files_of_a_run_folder_reach_the_page(tmp_path):
    found = measure_lud(finished_run(tmp_path / "run"), [Scripted()], HashingEncoder())
    entries = zip(rounds(len(LOGICS), agents=2), LOGICS, strict=True)
    lines = [json.dumps(entry | {"logics": list(logics)}) + "\n" for entry, logics in entries]
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(lines))
    record = read_run(tmp_path / "run")
    assert record.lud == found
    page = render_page(inputs(runs=(record,), rows=empty_rows()))
    assert "Judged updates" in page and ">scripted</td>" in page
    parsed(page)


def test_a_result_table_stays_in_its_section_on_a_narrow_screen():
    assert re.search(r'<th scope="col" class="wrap">Seeds</th>', PAGE)
    assert all(
        one["class"] == "scroll" for one in parsed(PAGE).of("div") if one.get("role") == "region"
    )
    style = PAGE[PAGE.index("<style>") : PAGE.index("</style>")]
    assert re.search(r"\.scroll \{ overflow-x: auto", style)
    assert re.search(r"td\.wrap \{ white-space: normal", style)


def test_one_round_is_enough_for_every_plot():
    single = RunRecord(name="a", config={}, summary={}, rounds=rounds(1), panels=(panel(),))
    assert "Round 0" in render_page(inputs(runs=(single,), rows=empty_rows()))


def test_two_runs_are_told_apart():
    other = RunRecord(name="exchange", config={}, summary={}, rounds=rounds(2, agents=12))
    page = render_page(inputs(runs=(run(), other), rows=empty_rows()))
    assert "<h2>Training: electricity</h2>" in page and "<h2>Training: exchange</h2>" in page


def test_the_page_replaces_the_old_one_and_leaves_no_part(tmp_path):
    target = tmp_path / "report" / "index.html"
    target.parent.mkdir()
    target.write_text("old")
    small = inputs(rows=rows().head(2), runs=())
    assert write_report(small, target) == target
    assert target.read_text(encoding="utf-8") == render_page(small)
    assert [path.name for path in target.parent.iterdir()] == ["index.html"]
