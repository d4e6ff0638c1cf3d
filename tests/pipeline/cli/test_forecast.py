"""``compevo forecast`` and ``compevo explain``: a day whose truth is unknown, and its parts."""

import json
import shutil
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial

import polars as pl
import pytest

from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.explain import choose_decimals, format_start, summarise_day
from compevo_core.forecast.explain import explain as read_parts
from compevo_core.forecast.issued import read_chain, read_issued, write_issued
from compevo_core.report.tables import clean_text
from compevo_core.report.tomorrow import format_band
from compevo_pipeline.cli import forecast as command
from compevo_pipeline.storage.series_store import SeriesStore
from tests.core.report.test_tomorrow import add_day_facts
from tests.support.commands import invoke
from tests.support.issued_samples import ORIGIN, add_article_change, make_issued, make_mixture
from tests.support.operational import DATASET, make_deployment, make_frames
from tests.support.window_samples import from_nem

MIDNIGHT = from_nem(2026, 2, 24)
ISSUE_TIME = MIDNIGHT - timedelta(hours=7)
SAMPLE = "[sample: synthetic data]"
explain = partial(invoke, "explain")


@pytest.fixture(scope="module")
def layout(tmp_path_factory, operational_run):
    """A deployment at 17:00 of the day before."""
    return make_deployment(tmp_path_factory.mktemp("home"), ISSUE_TIME, operational_run)


@pytest.fixture
def forecast(layout):
    return partial(invoke, "forecast", "--day=2026-02-24", home=layout.root.parent)


def read(layout, known):
    day = layout.issued(DATASET) / f"{MIDNIGHT:%Y%m%dT%H%MZ}"
    return day / f"known-{known:%Y%m%dT%H%MZ}"


def test_later_data_change_no_forecast(layout, forecast, tmp_path):
    shown = forecast("--csv", str(tmp_path / "tomorrow.csv"))
    assert "24 February 2026" in shown and "2026 17:00" in shown
    assert "[sample: synthetic data]" in shown.splitlines()
    assert shown.splitlines()[-1].split()[0] == "NSW1"

    first = read_issued(read(layout, ISSUE_TIME))
    assert first.rows["start_utc"].min() == MIDNIGHT
    assert datetime.fromisoformat(first.facts["issued_at"]).utcoffset() == timedelta(0)
    rows = pl.read_csv(tmp_path / "tomorrow.csv")
    assert rows["start"][0] == "2026-02-24T00:00:00+10:00" and rows.height == 48
    assert rows["compevo"].to_list() == first.select_points("NSW1")["forecast"].tolist()
    said = json.loads(forecast("--json", "--page", str(tmp_path / "tomorrow.html")))
    assert said["record"] == str(read(layout, ISSUE_TIME)) and said["facts"] == first.facts
    assert [row["compevo"] for row in said["rows"]] == rows["compevo"].to_list()
    assert said["rows"][0]["start_utc"] == "2026-02-23T14:00:00Z"
    assert "24 February 2026" in (tmp_path / "tomorrow.html").read_text("utf-8")
    (facts,) = first.facts["series"]
    # Nothing is stored of a week before, and 7 days are too few for bands of the day.
    assert facts["last_week"] == [None] * 48 and facts["day_quantiles"] == {}

    # The whole of tomorrow becomes known: a backfill issues the very same forecast.
    series, _ = make_frames()
    SeriesStore(layout.root).write(DATASET, series)
    issued = layout.issued(DATASET)
    shutil.move(issued, tmp_path / "live")
    forecast()
    assert read_issued(read(layout, ISSUE_TIME)).hash == first.hash
    shutil.rmtree(issued)
    shutil.move(tmp_path / "live", issued)
    forecast()
    again = read_issued(read(layout, ISSUE_TIME))
    assert (again.hash, again.facts["issued_at"]) == (first.hash, first.facts["issued_at"])

    # Known to midnight it is another forecast, of a model that has seen one more day of errors.
    forecast("--known-to", "midnight")
    midnight = read_issued(read(layout, MIDNIGHT))
    assert midnight.hash != first.hash
    assert midnight.facts["series"][0]["unknown_inputs"] == 0


def test_a_superseded_day_is_verified(layout, forecast):
    forecast()
    assert "Supersedes" not in forecast("--supersede")

    first = read_issued(read(layout, ISSUE_TIME))
    store = SeriesStore(layout.root)
    stored = store.read(DATASET)
    at = ISSUE_TIME - timedelta(hours=3)
    is_revised = pl.col("start_utc") == at
    revised = stored.with_columns(pl.col("value") + pl.when(is_revised).then(50.0).otherwise(0.0))
    store.write(DATASET, revised)
    try:
        shown = forecast("--supersede")
    finally:
        store.write(DATASET, stored)
    assert f"Supersedes the issue of {first.facts['issued_at']}" in shown
    later = read(layout, ISSUE_TIME).with_name(f"{read(layout, ISSUE_TIME).name}-02")
    assert read_issued(later).facts["supersedes"] == first.hash
    # It represents the day from now on.
    assert str(later) in forecast() and read_issued(read(layout, ISSUE_TIME)).hash == first.hash

    head = read_chain(layout.issued(DATASET)).head
    assert f"of chain {head[:16]}" in shown
    for words in (["verify"], ["verify", DATASET]):
        assert head in invoke(*words, home=layout.root.parent)
    with pytest.raises(DataError, match="exchange"):
        invoke("verify", "exchange", home=layout.root.parent)


def test_an_empty_home_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="compevo fit") as caught:
        invoke("forecast", home=tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataError, match="synthetic data") as missing:
        invoke("forecast", DATASET, home=tmp_path)
    assert str(tmp_path) in str(missing.value).partition("COMPEVO_HOME")[2]


def test_a_day_is_a_date_or_word():
    now = datetime(2026, 2, 24, 23, 0)  # noqa: DTZ001 - of the market
    days = {"today": "2026-02-24", "tomorrow": "2026-02-25", "2026-03-01": "2026-03-01"}
    assert {text: str(command.read_day(text, now)) for text in days} == days
    assert command.read_day("", now) is None
    with pytest.raises(ConfigError, match="YYYY-MM-DD"):
        command.read_day("2026-02-30", now)


def test_what_cannot_be_forecast_is_refused(forecast):
    with pytest.raises(DataError, match=r"NSW1.*2026-02-2"):
        forecast("--day", "2026-03-05")
    for words in (["traffic"], ["electricity", "--known-to", "issue-time"], ["demand"]):
        with pytest.raises(ConfigError, match=words[0]):
            forecast(*words)


def read_line(shown, start):
    """The line that begins so, without its white space."""
    return " ".join(next(line for line in shown.splitlines() if line.startswith(start)).split())


def test_a_line_holds_energy_and_peak():
    shown = command.render_forecast(add_day_facts(make_issued()), SAMPLE)
    expected = "NSW1 192.0 189.6-194.4 9520 9400-9700 18:30 +25.0% +14.3% 189.6"
    assert read_line(shown, "NSW1") == expected
    lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines)
    # Made-up data is called so above the table, which is what stands last in a terminal.
    assert SAMPLE in lines[:3] and lines[-1].startswith("SA1")


def test_a_large_effect_of_news_is_shown():
    issued = add_article_change(make_issued(), -315.0)
    shown = command.render_explanation(issued, read_parts(issued, "SA1"), None, SAMPLE)
    assert shown.splitlines()[5].startswith("SA1 -315 MW: '<script>alert('storm')")
    assert shown.splitlines()[5].endswith("(agent 0, agent 1)") and "NSW1" not in shown
    # Where agents list what they read, it is next to the title.
    assert sum(line.endswith(" (-315 MW)") for line in shown.splitlines()) == 2
    assert [line[:4] for line in command.list_news_effects(issued)] == ["NSW1", "SA1 "]


def test_the_change_compares_the_same_steps():
    issued = make_issued()

    def change(**inputs):
        series = [one | inputs for one in issued.facts["series"]]
        return summarise_day(replace(issued, facts=issued.facts | {"series": series}))[0].change_pct

    # 34 half-hours of yesterday are known, at 6,000 MW; the forecast of these is 7,500 MW.
    assert change() == 25.0
    assert change(inputs=[None] * 48) is None
    # Of a longer past whole seasons count: the second of two days of inputs is yesterday.
    assert change(inputs=[1.0] * 48 + [6000.0] * 48) == pytest.approx(100 / 3)


def test_numbers_keep_their_sign_and_digits():
    assert format_band((-16.78, 7.02), 1) == "-16.8 to 7.0"
    assert format_band((16.78, 17.02), 1) == "16.8-17.0"
    for value, decimals in ((0.0, 0), (0.6612, 4), (9.5, 3), (512.0, 1), (9873.0, 0)):
        assert choose_decimals([value]) == decimals


def test_a_name_cannot_move_the_cursor():
    assert clean_text("\x1b[2JNSW\n1\u202e") == "[2JNSW 1"
    entities = ("\x1b[31mred\x07" + "x" * 40, "SA1")
    shown = command.render_forecast(make_issued(entities=entities), SAMPLE)
    assert "\x1b" not in shown and "\x07" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_daily_step_is_named_by_date():
    issued = make_issued()
    first = issued.starts[0]
    days = issued.rows.with_columns(start_utc=first + (pl.col("start_utc") - first) * 48)
    facts = {**issued.facts, "step_minutes": 24 * 60}
    assert format_start(issued, issued.starts[37]) == "18:30"
    daily = replace(issued, rows=days, facts=facts)
    assert format_start(daily, first + timedelta(days=37)) == "07 May"


@pytest.fixture
def issued_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path))
    monkeypatch.setenv("COMPEVO_MODE", "sample")
    root = tmp_path / "sample" / "forecasts" / "issued" / "electricity-operational"
    write_issued(root, make_issued())
    write_issued(root, make_issued(known_steps=48, level=8100.0))
    return root


def test_parts_add_up_and_news_is_text(issued_folder):
    shown = explain("2026-03-31", "NSW1", "--known-to", "issue-time")
    assert read_line(shown, "agent 0") == "agent 0 25.0 % 7920 +30 +20 1992"
    assert read_line(shown, "agent 1").endswith(" 6008")
    assert read_line(shown, "weighted").endswith(" 8000")
    assert read_line(shown, "forecast minus published").endswith(" +100")
    assert all(len(line) <= 80 for line in shown.splitlines() if "The record" not in line)
    assert "example.org: <script>alert('storm')</script>" in shown
    assert "read by" not in shown and "2026 16:40" in shown


def test_numeric_members_are_named_with_weights():
    issued = make_mixture("calendar-ridge", "gbm")
    shown = command.render_explanation(issued, read_parts(issued, "NSW1"), None, SAMPLE)
    assert read_line(shown, "   ").split() == ["weight", "forecast", "correction", "adds"]
    assert read_line(shown, "calendar-ridge") == "calendar-ridge 25.0 % 7950 +20 1992"
    assert read_line(shown, "weighted") == "weighted sum 8025 -25 8000"
    assert read_line(shown, "published") == "published 7900"
    assert not any(word in shown for word in ("agent", "article", "prior", "Corrections"))


def test_a_single_model_is_one_line():
    for level, line in ((0.0, "gbm: 8000 MW"), (20.0, "gbm: 8000 MW, with a correction of +20")):
        issued = make_mixture("gbm", level=level)
        shown = command.render_explanation(issued, read_parts(issued, "NSW1"), None, SAMPLE)
        assert read_line(shown, "gbm") == line
        assert read_line(shown, "forecast minus").endswith(": +100")
        assert not any(word in shown for word in ("agent", "weight", "prior", "news"))


def test_one_step_is_explained_on_the_markets_clock(issued_folder):
    shown = explain("2026-03-31", "NSW1", "--step", "18:30")
    assert "NSW1: 9600 MW" in shown and "18:30" in shown
    with pytest.raises(ConfigError, match=r"'18:15'.* 00:00"):
        explain("2026-03-31", "NSW1", "--step", "18:15")


def test_the_forecast_that_knew_most_is_explained(issued_folder):
    for known_to, hours in ((None, 0), ("midnight", 0), ("issue-time", 7)):
        found = command.find_record(issued_folder, date(2026, 3, 31), known_to)
        assert found is not None
        known = ORIGIN - timedelta(hours=hours)
        assert found[0].facts["information_until"] == known.isoformat()

    # The record of a day begins on the day before in UTC: its neighbours are not taken for it.
    assert command.find_record(issued_folder, date(2026, 3, 30), None) is None


def test_a_missing_forecast_names_its_command(issued_folder):
    asked = ("2026-04-01", "NSW1", "--known-to", "issue-time")
    with pytest.raises(DataError, match=r"04-01 --known-to issue-time$"):
        explain(*asked)
    with pytest.raises(DataError, match=r"--day 2026-04-01$"):
        explain(*asked[:2])
    with pytest.raises(DataError, match="electricity --day 2026-03-31"):
        explain("2026-03-31", "NSW1", "electricity")
