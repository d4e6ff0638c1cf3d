"""The page of forecasts: what was issued, what it adds up from, how earlier forecasts did."""

import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from compevo_core.data.quantiles import LEVELS
from compevo_core.data.window import WindowSet
from compevo_core.forecast.explain import explain, list_effects
from compevo_core.forecast.issued import IssuedForecast, write_issued
from compevo_core.paper.report.inputs import TrainingRun, empty_rows
from compevo_core.paper.report.page import research_environment
from compevo_core.report import forecast_page, tomorrow
from tests.support import report_samples as samples
from tests.support.issued_samples import (
    ORIGIN,
    TITLE,
    add_article_change,
    make_day,
    make_issued,
    make_mixture,
)
from tests.support.scored_samples import make_rows
from tests.support.window_samples import DAY, make_window

ATTACK = "</script><script>alert(1)</script>"


def render(*days):
    return forecast_page.render_forecasts(days, mode="sample", generated_at=ORIGIN)


def test_a_users_file_is_never_called_sample():
    day = make_day()
    own = replace(day.issued, facts={**day.issued.facts, "dataset": "load"})
    page, both = render(replace(day, issued=own)), render(day, replace(day, issued=own))
    assert "your own files." in page and "Sample data" not in page
    assert "Sample data" in both and "own files: load." in both


@cache
def render_tomorrow():
    return render(make_day())


def test_the_newest_day_comes_first_and_open():
    older = tomorrow.ForecastDay(issued=make_issued(origin=ORIGIN - 3 * DAY))
    empty, page = render(), render(older, make_day())

    sections = [re.findall(r"<section id=\"([^\"]+)\"", each) for each in (empty, page)]
    assert sections == [["tomorrow"], ["tomorrow", "day-1"]]
    assert "--day tomorrow" in empty
    assert page.index("Tuesday 31 March 2026") < page.index("Saturday 28 March 2026")
    assert page.index('<details class="section"') > page.index('id="day-1"')


def test_a_chart_is_drawn_without_a_script():
    assert render_tomorrow().count("<svg") > 2 and "<script" not in render_tomorrow()
    metas = ParsedPage(render_tomorrow()).attributes_of("meta")
    (policy,) = [meta for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    assert "script-src" not in policy["content"]


def test_a_chart_has_every_line_and_number():
    chart = forecast_page.chart_series(make_day(), "NSW1")
    lines = [(line["colour"], line["is_band"]) for line in chart.lines]
    # Two bands, two agents, yesterday's forecast, measured, published, forecast.
    assert [is_band for _, is_band in lines] == [True, True] + [False] * 6
    forecast = chart.lines[-1]["d"]
    assert forecast.startswith(f"M{chart.border},")

    # Two days of half-hours can be pointed at; 18:30 of the second is the peak.
    assert len(chart.steps) == 96
    point, bands, agents = chart.steps[48 + 37]["texts"]
    assert point == "Tue 18:30 forecast 9,500, published 9,400"
    assert re.findall(r"[\d,]*\d", bands) == ["80", "9,000", "10,000", "95", "8,600", "10,400"]
    assert agents == "agent 0 9,470, agent 1 9,510"
    assert chart.steps[37]["texts"] == ["Mon 18:30 measured 9,400, forecast then 9,500"]
    heights = [y for y, _ in chart.y_ticks]
    assert heights == sorted(heights, reverse=True)


def test_yesterday_is_measured_or_as_known():
    starts, measured = make_day().list_measured("NSW1")
    assert (starts[0], measured[0], len(measured)) == (ORIGIN - DAY, 7400.0, 48)
    starts, known = make_day(truth={}).list_measured("NSW1")
    assert starts[0] == ORIGIN - DAY
    assert known[33] == 6000.0 and np.isnan(known[34:]).all()

    since = {("NSW1", ORIGIN): np.full(48, 5.0)}
    starts, both = make_day(truth=since).list_measured("NSW1")
    assert (starts[-1], both[-1], len(both)) == (ORIGIN + 47 * DAY / 48, 5.0, 96)


def test_a_year_of_months_meets_the_year_before():
    months = [datetime(2026, month, 1, tzinfo=UTC) for month in range(1, 13)]
    line = {"start_utc": months, "value": [1.0] * 12, "quantile": [None] * 12}
    names = {"entity": "NSW1", "method": "forecast", "unit": "MW"}
    rows = pl.DataFrame(line).with_columns(**{key: pl.lit(name) for key, name in names.items()})
    clock = {"clock_minutes": 0, "step_minutes": 43_830, "origin_utc": months[0].isoformat()}
    issued = IssuedForecast(rows=rows, facts=make_issued().facts | clock)

    first = datetime(2025, 1, 1, tzinfo=UTC)
    day = make_day(issued=issued, truth={("NSW1", first): np.arange(12.0)})
    starts, measured = day.list_measured("NSW1")
    assert (starts[0], measured.tolist()) == (first, list(range(12)))


def test_chosen_news_and_names_are_text():
    assert "<script>alert('storm')" not in render_tomorrow()
    assert any(TITLE in text for text in ParsedPage(render_tomorrow()).texts)

    issued = make_issued(entities=(ATTACK,))
    rows = issued.rows.with_columns(unit=pl.lit("<b>MW"))
    page = render(tomorrow.ForecastDay(issued=replace(issued, rows=rows)))
    assert ATTACK not in page and "<b>MW" not in page


def test_yesterdays_forecast_is_held_against_what_happened():
    table = tomorrow.before_table(make_day())
    # 100 MW too high everywhere, as high as the published one was right; all inside the band.
    assert table.rows[0] == ["NSW1", "+100.0", "100.0", "0.0", "100 %"]
    assert tomorrow.before_table(make_day(truth={})) is None
    assert tomorrow.before_table(make_day(before=None)) is None


def test_the_day_has_bands_and_changes():
    issued = make_issued()
    assert "80 % band" not in tomorrow.day_table(issued).header
    rows = tomorrow.day_table(add_day_facts(issued)).rows
    # 8,000 MW are 192 GWh a day; last week had 7,000 MW. The peak is the middle of its own band.
    assert rows[0][:6] == ["NSW1", "192.0", "189.6-194.4", "9520", "9400-9700", "18:30"]
    assert rows[0][6:] == ["+25.0%", "+14.3%", "189.6"]


def add_day_facts(issued):
    mean, peak = [0.0] * len(LEVELS), [0.0] * len(LEVELS)
    day = ((0.1, 7900.0, 9400.0), (0.5, 8000.0, 9520.0), (0.9, 8100.0, 9700.0))
    for level, *values in day:
        mean[LEVELS.index(level)], peak[LEVELS.index(level)] = values
    more = {"day_quantiles": {"mean": mean, "peak": peak}, "last_week": [7000.0] * 48}
    series = [one | more for one in issued.facts["series"]]
    return IssuedForecast(rows=issued.rows, facts={**issued.facts, "series": series})


def make_scores():
    errors = {"forecast": [400.0] * 12 + [100.0] * 28, "published": [200.0] * 40}
    coverage = [0.0] * 12 + [0.75] * 28
    return make_rows(errors | {"member-0": [80.0] * 40}, coverage=coverage)


def test_every_method_is_compared_over_28_days():
    table = tomorrow.method_table(make_day(scores=make_scores()))
    assert [row[0] for row in table.rows] == ["agent 0", "forecast", "published forecast"]
    published = table.rows[2]
    assert published[1:4] == ["200.0", "100.0", "+50.0 %"] and published[-2:] == ["28", "on time"]
    assert table.rows[1][5] == "75 %" and published[5] == "n/a"
    assert tomorrow.method_table(make_day()) is None

    recent = forecast_page.view_recent(make_scores())
    assert "28 days" in recent["caption"] and "30 March 2026" in recent["caption"]
    assert recent["held"].startswith("75.0 %")
    assert forecast_page.view_recent(make_scores().clear()) is None


def test_weights_stand_beside_errors_and_rules():
    table = tomorrow.weight_table(make_day(scores=make_scores()))
    of_agent = ["agent 0", "25 %", "80.0", "25 %", "25 %", "read the <b>weather</b>"]
    assert table.rows[0] == of_agent
    assert tomorrow.weight_table(make_day()).header[:3] == ["member", "weight", "NSW1"]


def test_joint_agents_have_no_own_error():
    issued = make_issued()
    prior = issued.rows.filter(method="equal").with_columns(method=pl.lit("prior"))
    facts, rows = issued.facts | {"fit": "joint"}, pl.concat([issued.rows, prior])
    day = make_day(issued=IssuedForecast(rows=rows, facts=facts), scores=make_scores())

    assert tomorrow.weight_table(day).header[:3] == ["member", "weight", "NSW1"]
    legend = [line.name for line in forecast_page.list_legend(day)]
    assert "without agents" in legend and "agent 0" not in legend


def test_members_are_named_by_their_methods():
    mixture = make_day(issued=make_mixture("calendar-ridge", "gbm"), scores=make_scores())
    table = tomorrow.weight_table(mixture)
    assert table.rows[0] == ["calendar-ridge", "25 %", "80.0", "25 %", "25 %"]
    parts = tomorrow.part_table(explain(mixture.issued, "NSW1"))
    assert parts.header[1:4] == ["weight", "forecast", "correction"] and parts.notes == []
    assert [row[-1] for row in parts.rows] == ["1992", "6008", "8000", "7900", "+100"]
    assert "calendar-ridge" in [row[0] for row in tomorrow.method_table(mixture).rows]
    assert {"calendar-ridge", "gbm"} < {line.name for line in forecast_page.list_legend(mixture)}

    single = make_day(issued=make_mixture("gbm"))
    assert (
        tomorrow.weight_table(single) is None
        and tomorrow.part_table(explain(single.issued, "NSW1")) is None
    )
    assert "agent" not in render(single) and "Who carried weight" not in render(single)


def test_a_large_effect_names_article_and_agents():
    plain = make_issued()
    issued = add_article_change(plain, -315.0)

    effects = list_effects(issued)

    told = [(effect.entity, effect.agents, effect.amount) for effect in effects]
    assert told == [(name, "agent 0, agent 1", "-315 MW") for name in ("NSW1", "SA1")]
    # 12 MW are less than a hundredth, and older records do not have changes by article.
    assert list_effects(plain) == []
    series = [entry.items() for entry in issued.facts["series"]]
    older = [{k: fact for k, fact in entry if k != "article_changes"} for entry in series]
    assert list_effects(replace(issued, facts=issued.facts | {"series": older})) == []

    # An article may be all that moves a forecast of zeros.
    still = replace(issued, rows=issued.rows.with_columns(value=0.0 * pl.col("value")))
    assert [effect.size for effect in list_effects(still)] == [-315.0, -315.0]

    page = render(make_day(issued=issued))
    assert "<b>NSW1 -315 MW</b>: &lt;script&gt;" in page and "agent 0, agent 1</span>" in page
    assert "the news changes" not in render_tomorrow()


def test_the_newest_forecast_meets_its_equals(tmp_path):
    name = "electricity-operational"
    issued, windows_root, scored = (tmp_path / part for part in ("issued", "windows", "scored"))
    for number in (0, 1, 2, 40):
        write_issued(issued / name, make_issued(origin=ORIGIN - number * DAY))
    # Knows more than the others: of another kind, so no match for the newest forecast.
    write_issued(issued / name, make_issued(origin=ORIGIN - 3 * DAY, known_steps=48))
    facts = {"dataset": name, "y": [5.0] * 48}
    windows = [make_window(day, origin=ORIGIN - day * DAY, **facts) for day in (1, 60)]
    WindowSet(windows, dataset=name).write(windows_root / name)
    scored.mkdir()
    kinds, errors = ("midnight", "issue-time"), {"forecast": [100.0]}
    rows = pl.concat(make_rows(errors, known_to=known) for known in kinds)
    rows.write_parquet(scored / f"{name}.parquet")

    (day,) = tomorrow.read_days(issued, windows_root, scored)
    (without,) = tomorrow.read_days(issued, windows_root)

    assert day.issued.origin == ORIGIN
    assert day.before is not None and day.before.origin == ORIGIN - DAY
    assert list(day.truth) == [("NSW1", ORIGIN - DAY)]
    assert day.scores["known_to"].to_list() == ["issue-time"]
    assert without.scores.is_empty()

    later = make_issued(origin=ORIGIN + 4 * DAY)
    write_issued(issued / name, later)
    write_issued(issued / name, make_issued(origin=ORIGIN + 3 * DAY, known_steps=48))
    (day,) = tomorrow.read_days(issued, windows_root)
    assert day.issued.hash == later.hash and day.before is None


class ParsedPage(HTMLParser):
    """Collects tags with their attributes and the visible text, and checks that tags close."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.unclosed = [], [], []
        self.feed(page)
        assert self.unclosed == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br"}:
            self.unclosed.append(tag)

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def attributes_of(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@cache
def render_whole():
    return samples.render_undrawn(samples.make_inputs())


def test_nothing_is_fetched_and_every_link_leads_somewhere():
    page = ParsedPage(render_whole())
    assert len(page.tags) > 100
    assert not any(page.attributes_of(tag) for tag in ("script", "link", "iframe"))
    assert all(image["src"].startswith("data:image/") for image in page.attributes_of("img"))
    assert not re.search(r"(src|href)=\"(https?:)?//", render_whole())
    assert "default-src 'none'" in render_whole()

    links = [link["href"] for link in page.attributes_of("a")]
    anchors = [link[1:] for link in links if link.startswith("#")]
    assert set(links) - {f"#{anchor}" for anchor in anchors} == {"forecast.html"}
    assert len(anchors) == len(set(anchors)) > 8
    assert set(anchors) <= {attrs["id"] for _, attrs in page.tags if "id" in attrs}


def test_hostile_text_from_files_is_text():
    attack = '"><script>x</script>'
    rows = samples.make_frame(
        samples.make_row("compevo", 200.0, backbone=attack, unit=attack, device=attack),
        samples.make_row(attack, 210.0),
        samples.make_row("gbm", 190.0, entity=attack, experiment=attack),
        samples.make_row("gbm", 190.0, entity="NSW1", subset=attack, dataset=attack),
        samples.make_row("no-grpo", 190.0, dataset=attack, experiment="ablation"),
    )
    panel = samples.make_panel(attack, unit=attack, news=[(attack, attack)])
    lud = samples.LUD | {"encoder": attack, "judges": [samples.LUD["judges"][0] | {"name": attack}]}
    facts = {"name": attack, "config": {"forecast": {"prior": attack}}, "panels": (panel,)}
    runs = (replace(samples.make_run(), lud=lud, **facts), samples.make_run())
    checks = [samples.make_check(attack, False, attack)]

    page = samples.render_undrawn(
        samples.make_inputs(mode=attack, rows=rows, runs=runs, checks=checks, unread=[attack])
    )

    parsed = ParsedPage(page)
    assert not parsed.attributes_of("script")
    shown = sum(attack.lower() in text.lower() for text in parsed.texts)
    assert shown > 15, "the attack must have reached every part to prove anything"


def test_no_template_marks_a_value_as_safe():
    environment = research_environment()
    for name in environment.list_templates(extensions=["html"]):
        source = environment.loader.get_source(environment, name)[0]
        assert not re.search(r"\|\s*safe\b|autoescape false", source), name


def test_one_round_is_enough_for_every_plot():
    seen = {"rounds": samples.make_rounds(1), "panels": (samples.make_panel(),)}
    single = TrainingRun(name="a", config={}, summary={}, **seen)
    page = samples.render_undrawn(samples.make_inputs(runs=(single,), rows=empty_rows()))
    assert "the logics became" in page


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
MARKUP = (
    "<p><img src='http://127.0.0.1:9/x.png'><script>document.title = 'run'</script>"
    "<base href='http://127.0.0.1:9/'><form action='http://127.0.0.1:9/'></form></p>"
)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
def test_injected_markup_is_stopped(tmp_path):
    page = render_tomorrow().replace('<main id="main">', f'<main id="main">{MARKUP}')
    path = tmp_path / "index.html"
    path.write_text(page, encoding="utf-8")

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom"]
    command = [CHROMIUM, *options, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert "<title>CompEvo forecast</title>" in done.stdout
    assert done.stderr.count("Content Security Policy") >= 3
