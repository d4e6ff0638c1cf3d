"""The page: complete, self-contained, escaped, the same each time."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

from compevo_core.report.inputs import TrainingRun
from compevo_core.report.page import (
    render_forecasts,
    render_research,
    template_environment,
    write_report,
)
from compevo_core.report.rows import empty_rows
from tests.support.report_samples import (
    HOSTILE,
    LUD,
    make_check,
    make_frame,
    make_inputs,
    make_panel,
    make_rounds,
    make_row,
    make_rows,
    make_run,
    render_undrawn,
)

VOID = {"meta", "img", "br"}


class ParsedPage(HTMLParser):
    """Collects tags with their attributes and the visible text, and checks that tags close."""

    def __init__(self, page):
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


@cache
def render_whole():
    return render_undrawn(make_inputs())


def test_every_tag_closes_in_order():
    assert len(ParsedPage(render_whole()).tags) > 100


def test_nothing_is_fetched_and_nothing_can_run():
    page = ParsedPage(render_whole())
    assert not any(page.attributes_of(tag) for tag in ("script", "link", "iframe"))
    assert all(image["src"].startswith("data:image/") for image in page.attributes_of("img"))
    assert not re.search(r"(src|href)=\"(https?:)?//", render_whole())
    assert "default-src 'none'" in render_whole()


def test_hostile_news_and_logics_are_shown_as_text():
    assert HOSTILE not in render_whole()
    assert sum(text.strip() == HOSTILE for text in ParsedPage(render_whole()).texts) >= 2


def test_hostile_text_from_any_file_is_shown_as_text():
    attack = '"><script>x</script>'
    page = render_undrawn(
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
            checks=[make_check(attack, False, attack)],
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


def test_every_entry_of_the_contents_leads_to_a_section():
    page = ParsedPage(render_whole())
    links = [link["href"] for link in page.attributes_of("a")]
    anchors = [link[1:] for link in links if link.startswith("#")]
    assert set(links) - {f"#{anchor}" for anchor in anchors} == {"forecast.html"}
    assert len(anchors) == len(set(anchors)) > 8
    assert set(anchors) <= {attrs["id"] for _, attrs in page.tags if "id" in attrs}


def test_one_round_is_enough_for_every_plot():
    single = TrainingRun(
        name="a", config={}, summary={}, rounds=make_rounds(1), panels=(make_panel(),)
    )
    assert "What the logics became" in render_undrawn(
        make_inputs(runs=(single,), rows=empty_rows())
    )


def test_pages_replace_the_old_ones_and_leave_no_other_file(tmp_path):
    target = tmp_path / "report"
    target.mkdir()
    (target / "forecast.html").write_text("old")
    small = make_inputs(rows=make_rows().head(2), runs=())
    assert write_report(small, target) == target / "forecast.html"
    assert (target / "forecast.html").read_text(encoding="utf-8") == render_forecasts(small)
    assert (target / "research.html").read_text(encoding="utf-8") == render_research(small)
    assert sorted(path.name for path in target.iterdir()) == ["forecast.html", "research.html"]
