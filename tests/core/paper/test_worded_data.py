"""Worded data: what a window may read of an archive, and what is read of it."""

import csv
import gzip
import io
import json
import logging
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from itertools import product

import numpy as np
import polars as pl
import pytest

from compevo_core.agents import retrieval
from compevo_core.agents.logics import TOPICS
from compevo_core.config.run import RunConfig
from compevo_core.errors import SourceAbsent
from compevo_core.lm.encoder import HashingEncoder, load_encoder
from compevo_core.paper import control, planted_news
from tests.support.planted import base_windows, planted_world, search, sentence_encoder
from tests.support.window_samples import make_set

DAY = timedelta(days=1)
NEM = timedelta(hours=10)
WORDS = ("Showers.", "Windy. Cold.")


def write_packed(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def list_titles(data, view):
    return [data.news.get_title(name) for name in view.candidate_ids]


def measure_errors(forecasts, truth_NH):
    return {arm: np.abs(values_NH - truth_NH).mean() for arm, values_NH in forecasts.items()}


def test_captions_are_foresight_of_the_target_day(tmp_path):
    # Five days of each year: the temperature is the year's last digit, one value is lost.
    folder, captions = tmp_path / "weather_captioned", {}
    table = {"h0": "It's the morning of a day in May. ", "h1": "Mild. "}
    for year in range(2014, 2019):
        first = datetime(year, 5, 1, tzinfo=UTC)
        stamps = [first + timedelta(minutes=20 + 30 * n) for n in range(5 * 48)]
        lines = [f"{at:%Y%m%d%H%M},{year % 10}°C" for at in stamps if at != stamps[100]]
        text = "\n".join(["time,temp", *lines, f"{stamps[-1] + DAY:%Y%m%d%H%M},N/A"])
        write_packed(folder / f"hourly_weather_raw_{year}.csv.gz", text)
        for day, hour in product(range(5), (0, 6, 12, 18)):
            captions[f"{first + day * DAY:%Y%m%d}{hour:02}00"] = ["h0", "h1", "unknown"]
    names = {text: name for name, text in table.items()}
    write_packed(folder / "hashtable.json.gz", json.dumps(names))
    write_packed(folder / "wm_messages_v1.json.gz", json.dumps(captions))

    data = planted_news.read_worded_data(planted_news.WEATHER, tmp_path, HashingEncoder())
    assert data.foresight and data.trains

    # The first day of a year has no inputs.
    assert [len(data.windows.split(name)) for name in ("train", "val", "test")] == [12, 4, 4]
    parts = ("At night", "In the morning", "In the afternoon", "In the evening")
    for view in data.windows.views():
        assert list_titles(data, view) == [f"{part}: Mild." for part in parts]
        dates = [data.news.get_date(name) for name in view.candidate_ids]
        assert all(view.origin_utc - DAY < at < view.origin_utc for at in dates)
        assert set(view.x) == {view.origin_utc.year % 10}


def test_a_worded_forecast_is_the_newest_known(tmp_path):
    windows = base_windows()
    view = windows[-1].view
    day = (view.origin_utc + NEM).date()

    market = timezone(NEM)
    rows = [
        (view.entity, known.astimezone(market).isoformat(), day, 10, highest, "60%", *WORDS)
        for hours, highest in ((-30, 20), (-3, 21), (0, 22), (4, 23))
        for known in [view.origin_utc + timedelta(hours=hours)]
    ]
    rows.append((view.entity, rows[0][1], day - timedelta(days=1), 8, 24, "60%", *WORDS))
    columns = ["region", "known_at", "day", "temp_min_c", "temp_max_c", "rain_chance", "precis"]
    table = io.StringIO()
    csv.writer(table).writerows([[*columns, "forecast"], *rows])
    write_packed(tmp_path / "bom_worded_forecasts" / "worded_forecasts.csv.gz", table.getvalue())

    data = planted_news.read_worded_data(planted_news.DEMAND, tmp_path, HashingEncoder(), windows)

    *_, given = (view for view in data.windows.views() if view.candidate_ids)
    numbers, change, *words = list_titles(data, given)
    assert given.window_id == view.window_id
    assert re.findall(r"-?\d+", numbers + change) == ["10", "21", "60", "2", "-3"]
    assert words == ["Showers.", "Windy.", "Cold."]
    assert not data.foresight and not data.trains
    assert not any(w.view.covariates or w.view.step_covariates for w in data.windows)
    is_late = {w.view.calendar.target_date >= date(2026, 2, 19) for w in data.windows.split("test")}
    assert is_late <= {True}


def test_a_day_reads_yesterdays_or_older_words(tmp_path):
    first = datetime(2016, 6, 1, tzinfo=UTC)
    stamps = [first + i * timedelta(minutes=30) for i in range(48 * 40)]
    load = [f"{at:%Y-%m-%d %H:%M:%S},0,{at.day}" for at in stamps]
    # Where clocks go back a stamp comes twice; the first one counts.
    load.insert(10, f"{stamps[9]:%Y-%m-%d %H:%M:%S},0,999")
    words = [f"{at:%Y/%-m/%-d},{at.day},1,0,{at.month}" for at in stamps[::48]]
    tables = {"NIEload": ["Date,Forecast,Load", *load]}
    tables["WordFreqDf_titles"] = ["Date,storm,100,calm,fog", *words]
    for name, lines in tables.items():
        write_packed(tmp_path / "ni_load" / f"{name}.csv.gz", "\n".join(lines))

    data = planted_news.read_worded_data(planted_news.IRELAND, tmp_path, HashingEncoder())
    assert len(data.windows) == 39 and not data.foresight and not data.trains
    for view in data.windows.views():
        (name,) = view.candidate_ids
        before = view.origin_utc - DAY
        # June is 6: the words of its first days come after "fog".
        title = "storm fog" if before.day > before.month else "fog storm"
        assert data.news.get_title(name) == title
        assert data.news.get_date(name) == view.origin_utc - timedelta(minutes=1)
        assert set(view.x) == {before.day}

    name = planted_news.IRELAND_EARLIER
    earlier = planted_news.read_worded_data(name, tmp_path, HashingEncoder())
    read = [window.view for window in earlier.windows if window.view.candidate_ids]
    assert len(read) == 4 and earlier.windows.dataset == name
    for view in read:
        known = earlier.news.get_date(view.candidate_ids[0])
        assert view.origin_utc - known == timedelta(days=35, minutes=1)


def test_a_sines_change_is_announced_before(tmp_path):
    first = datetime(2020, 1, 1, tzinfo=UTC)
    lines = [f"{first + n * DAY:%Y-%m-%d}|{n}|It goes as a steady sine wave" for n in range(120)]
    lines[60] = f"{first + 60 * DAY:%Y-%m-%d}|60|The period will be changed to 7 in 1 days"
    text = "\n".join(["date|Channel 1|text", *lines])
    write_packed(tmp_path / "text_toy" / "toydata_with_text.csv.gz", text)

    data = planted_news.read_worded_data(planted_news.TOY, tmp_path, HashingEncoder())

    assert not data.foresight and not data.trains and len(data.windows) == 25
    (view,) = (window.view for window in data.windows if window.view.candidate_ids)
    assert view.x[-1] == 60 and data.news.get_title(view.candidate_ids[0]).endswith("7 in 1 days")
    assert data.news.get_date(view.candidate_ids[0]) < view.origin_utc


def test_missing_sources_are_named(tmp_path):
    with pytest.raises(SourceAbsent, match="weather_captioned"):
        planted_news.read_worded_data(planted_news.WEATHER, tmp_path, HashingEncoder())


@pytest.mark.slow
def test_the_archive_holds_five_years_of_captions(archive_dir):
    data = planted_news.read_worded_data(planted_news.WEATHER, archive_dir, HashingEncoder())
    counts = {s: len(data.windows.split(s)) for s in ("train", "val", "test")}
    assert counts == {"train": 1090, "val": 364, "test": 364}
    assert {len(w.view.candidate_ids) for w in data.windows} <= {21, 23, 24, 25}


@pytest.mark.slow
def test_only_the_days_own_announcements_are_read(archive_dir):
    data = planted_news.read_worded_data(planted_news.TOY, archive_dir, sentence_encoder())
    truth_NH = np.stack([w.y for w in data.windows.split("test") if w.view.candidate_ids])

    errors = measure_errors(control.read_by_ridges(data, sentence_encoder()), truth_NH)

    assert len(truth_NH) == 80
    assert errors["ridge"] < 0.85 * errors["prior"] < 0.85 * errors["ridge-swapped"]


LOG = logging.getLogger(__name__)


def _make_data(**changes):
    world = planted_world()
    # A sample world may swap news of a week ago: real ones need a month, which these spans lack.
    windows = make_set(world.windows, manifest=world.windows.manifest | {"synthetic": True})
    facts = {"foresight": True, "logics": {"temperature": "power outages and rooftop solar"}}
    return planted_news.WordedData(**{"windows": windows, "news": world.news} | facts | changes)


@cache
def _read_test_days():
    return control.read_by_ridges(_make_data(refit_days=20), sentence_encoder())


def test_a_ridge_gains_only_from_own_words():
    truth_NH = control._select(_make_data(), "test").truth()
    errors = measure_errors(_read_test_days(), truth_NH)

    assert errors["ridge"] < 0.8 * errors[planted_news.PRIOR]
    assert errors["ridge-swapped"] > 0.95 * errors[planted_news.PRIOR]
    # The headlines hold no number, and alike embeddings no word.
    assert errors["ridge-numbers"] == pytest.approx(errors[planted_news.PRIOR])
    assert errors["ridge-words"] == pytest.approx(errors["ridge"])


def test_every_step_is_fitted_on_ended_days():
    data = _make_data(refit_days=7)
    steps = list(control._list_steps(data, control._select(data, "test")))

    assert [len({w.view.origin_utc for w in step}) for _, step in steps] == [7, 7, 7, 7, 2]
    for known, step in steps:
        first = step[0].view.origin_utc
        assert max(w.view.end_utc for w in known) <= first
        assert {w.view.split for w in known} == {"train"}
    assert len(steps[1][0]) == len(steps[0][0]) + len(steps[0][1])


def test_truths_of_later_days_change_no_forecast():
    data = _make_data(refit_days=20)
    late = data.windows.split("test")[-1].view.origin_utc - timedelta(days=5)
    moved = (replace(w, y=w.y + 1e4) if w.view.origin_utc > late else w for w in data.windows)
    poisoned = replace(data, windows=data.windows.with_windows(moved))
    changed = control.read_by_ridges(poisoned, sentence_encoder())
    np.testing.assert_array_equal(_read_test_days()["ridge"], changed["ridge"])


@pytest.mark.slow
def test_rows_name_every_arm_seed_and_foresight(tmp_path, monkeypatch):
    monkeypatch.setattr(retrieval, "load_encoder", lambda _: sentence_encoder())
    data = _make_data(settings={"news.top_k": 2})
    fewer = {"population.agents": 2, "run.rounds": 1, "grpo.group_size": 2}
    config = RunConfig.preset("specialists").with_overrides(fewer)
    plan = control.TextPlan(config=config, seeds=(0,), commit="abc")

    rows = control.run_text(data, sentence_encoder(), plan, tmp_path / "runs", LOG)

    trained = {"seed-logics", "all-articles-mean", "hand-temperature", "evolved"}
    trained |= {"generalist", "generalist-and-specialists"}
    changed = {"no-news", "swapped-news", "generalist-and-specialists-swapped"}
    assert set(rows.filter(pl.col("seed") == 0)["arm"]) == trained | changed
    unseeded = rows.filter(pl.col("seed").is_null())
    assert {planted_news.PRIOR, "ridge", "persistence"} <= set(unseeded["arm"])
    assert rows["foresight"].all() and set(rows["split"]) == {"test"}
    mae = dict(rows.select("arm", "mae").iter_rows())
    assert mae["hand-temperature"] < mae["seed-logics"]

    path = control.write_text(tmp_path / "results", data, plan, rows)
    assert pl.read_csv(path, schema_overrides=planted_news.TEXT_SCHEMA).equals(rows)
    assert len(list((tmp_path / "results/configs").iterdir())) == len(trained)


@pytest.mark.slow
def test_validation_is_scored_apart_and_then_fitted_on(tmp_path):
    data = _make_data(trains=False, scored=("val", "test"), refit_days=30)
    plan = control.TextPlan(config=search())
    rows = control.run_text(data, sentence_encoder(), plan, tmp_path, LOG)
    assert rows["split"].to_list() == ["val"] * 6 + ["test"] * 6

    known, _ = next(control._list_steps(data, control._select(data, "test")))
    validation = {window.view.window_id for window in data.windows.split("val")}
    assert validation <= {window.view.window_id for window in known}


def _topics_of(title):
    """Return the topics whose headlines, without the place, begin or end as a title does."""
    return {
        topic
        for topic, templates in planted_news.HEADLINES.items()
        for template in templates
        if all(part in title for part in template.split("{place}"))
    }


def test_every_topic_has_distinct_headlines():
    assert set(planted_news.HEADLINES) == set(TOPICS)
    for topic, templates in planted_news.HEADLINES.items():
        for template in templates:
            assert _topics_of(template.format(place="Tasmania")) == {topic}
    assert not any(_topics_of(title.format(place="Tasmania")) for title in planted_news.DISTRACTORS)


def test_acting_topics_move_targets_not_inputs():
    world, before = planted_world(), base_windows()
    size_of = planted_news.measure_residuals(before.split("train"))
    for old, new in zip(before, world.windows, strict=True):
        topics = set().union(*map(_topics_of, list_titles(world, new.view)))
        sign = ("rooftop solar" in topics) - ("power outages" in topics)
        expected = 3.0 * size_of[new.view.entity] * sign
        np.testing.assert_allclose(new.y - old.y, expected)
        assert world.effects[new.view.window_id] == pytest.approx(expected)
        assert np.array_equal(new.view.x, old.view.x)
        assert all(world.news.get_date(n) < new.view.known_before for n in new.view.candidate_ids)


def test_regional_articles_name_their_region():
    plain, regional = planted_world(), planted_world(is_regional=True)
    window = next(w for w in plain.windows if w.view.entity == "SA1")
    other = next(w for w in regional.windows if w.view.window_id == window.view.window_id)
    titles, others = list_titles(plain, window.view), list_titles(regional, other.view)

    assert all("South Australia" in title for title in titles)
    assert len(others) > len(titles)
    assert any("New South Wales" in title for title in others)
    # The draws are the same: more candidates change no effect.
    assert regional.effects == plain.effects


@pytest.mark.slow
def test_without_effect_news_changes_nothing():
    silent, other = planted_world(0.0), planted_world(seed=1)
    assert np.array_equal(silent.windows.truth(), base_windows().truth())
    assert other.effects != planted_world().effects


def test_three_of_a_hundred_topics_act():
    topics = planted_news.WORLDS["many-topics"]["topics"]
    assert len(set(topics)) == 100
    headlines = {title for topic in topics for title in planted_news.list_headlines(topic)}
    assert len(headlines) == 400 and all("{place}" in title for title in headlines)
    assert not any("{topic}" in title for title in headlines)
    acting = set(planted_news.WORLDS["many-topics"]["signs"])
    assert len(acting) == 3 and acting < set(topics)


def test_an_event_has_three_lengths():
    before = base_windows()
    planted = planted_news.PlantedNews(effect=3.0, **planted_news.WORLDS["events"])
    world = planted_news.plant_news(before, planted, load_encoder("hashing"))  # not read here
    size_of = planted_news.measure_residuals(before.split("train"))
    lengths = set()
    for old, new in zip(before, world.windows, strict=True):
        titles, signs = list_titles(world, new.view), 0
        for topic, sign in planted_news.EVENTS.items():
            headlines = planted_news.list_headlines(topic)
            parts = [max(text.split("{place}"), key=len) for text in headlines]
            told = [title for title in titles if any(part in title for part in parts)]
            assert len(told) <= 1
            lengths |= {(title.count("."), topic) for title in told}
            signs += sign * len(told)
        np.testing.assert_allclose(new.y - old.y, 3.0 * size_of[new.view.entity] * signs)

    # A title; with a sentence on the event; between two titles of no topic.
    assert lengths == {(dots, topic) for dots in (0, 2, 4) for topic in planted_news.EVENTS}
