"""Rows on worded data: own words are read, another day's are not, and no fit sees later days."""

import logging
from dataclasses import replace
from datetime import timedelta
from functools import cache

import numpy as np
import polars as pl
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.paper.planted_news import PRIOR
from compevo_core.paper.text_evidence import (
    TextPlan,
    _list_steps,
    _select,
    read_by_ridges,
    run_text,
    write_text,
)
from compevo_core.paper.worded_data import TEXT_SCHEMA, WordedData
from compevo_core.training import model
from tests.support.planted import planted_world, search, sentence_encoder

LOG = logging.getLogger(__name__)


def _make_data(**changes):
    world = planted_world()
    # A sample world may swap news of a week ago: real ones need a month, which these spans lack.
    windows = WindowSet(
        world.windows, dataset="electricity", manifest=world.windows.manifest | {"synthetic": True}
    )
    logics = {"temperature": "power outages and rooftop solar"}
    return WordedData(
        **{"windows": windows, "news": world.news, "foresight": True, "logics": logics} | changes
    )


@cache
def _read_test_days():
    return read_by_ridges(_make_data(refit_days=20), sentence_encoder())


def test_a_ridge_reads_own_words_and_gains_nothing_from_those_of_another_day():
    truth_NH = _select(_make_data(), "test").truth()
    errors = {
        arm: np.abs(forecast_NH - truth_NH).mean() for arm, forecast_NH in _read_test_days().items()
    }
    assert errors["ridge"] < 0.8 * errors[PRIOR]
    assert errors["ridge-swapped"] > 0.95 * errors[PRIOR]
    # The headlines hold no number, and alike embeddings no word.
    assert errors["ridge-numbers"] == pytest.approx(errors[PRIOR])
    assert errors["ridge-words"] == pytest.approx(errors["ridge"])


def test_every_step_is_fitted_on_days_that_have_ended_alone():
    data = _make_data(refit_days=7)
    steps = list(_list_steps(data, _select(data, "test")))
    assert [len({w.view.origin_utc for w in step}) for _, step in steps] == [7, 7, 7, 7, 2]
    for known, step in steps:
        first = step[0].view.origin_utc
        assert max(w.view.end_utc for w in known) <= first
        assert {w.view.split for w in known} == {"train"}
    assert len(steps[1][0]) == len(steps[0][0]) + len(steps[0][1])


def test_truths_of_later_days_change_no_forecast():
    data = _make_data(refit_days=20)
    late = data.windows.split("test")[-1].view.origin_utc - timedelta(days=5)
    poisoned = data.windows.with_windows(
        replace(w, y=w.y + 1e4) if w.view.origin_utc > late else w for w in data.windows
    )
    changed = read_by_ridges(replace(data, windows=poisoned), sentence_encoder())
    np.testing.assert_array_equal(_read_test_days()["ridge"], changed["ridge"])


@pytest.mark.slow
def test_rows_name_every_arm_seed_and_foresight(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "load_encoder", lambda _: sentence_encoder())
    data = _make_data(settings={"news.top_k": 2})
    plan = TextPlan(config=search(run__rounds=2, grpo__group_size=2), seeds=(0,), commit="abc")
    rows = run_text(data, sentence_encoder(), plan, tmp_path / "runs", LOG)
    trained = {"seed-logics", "all-articles", "hand-temperature", "evolved"}
    changed = {"no-news", "swapped-news", "best-agent"}
    assert set(rows.filter(pl.col("seed") == 0)["arm"]) == trained | changed
    assert {PRIOR, "ridge", "persistence"} <= set(rows.filter(pl.col("seed").is_null())["arm"])
    assert rows["foresight"].all() and set(rows["split"]) == {"test"}
    mae = dict(rows.select("arm", "mae").iter_rows())
    assert mae["hand-temperature"] < mae["seed-logics"]

    path = write_text(tmp_path / "results", data, plan, rows)
    assert pl.read_csv(path, schema_overrides=TEXT_SCHEMA).equals(rows)
    assert len(list((tmp_path / "results/configs").iterdir())) == len(trained)


@pytest.mark.slow
def test_validation_is_scored_apart_and_then_fitted_on(tmp_path):
    data = _make_data(trains=False, scored=("val", "test"), refit_days=30)
    rows = run_text(data, sentence_encoder(), TextPlan(config=search()), tmp_path, LOG)
    assert rows["split"].to_list() == ["val"] * 6 + ["test"] * 6

    known, _ = next(_list_steps(data, _select(data, "test")))
    validation = {window.view.window_id for window in data.windows.split("val")}
    assert validation <= {window.view.window_id for window in known}
