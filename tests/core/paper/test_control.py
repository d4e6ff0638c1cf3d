"""The control: planted news is found and read, and nothing where there is nothing."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from compevo_core.agents.logics import find_topics
from compevo_core.errors import ConfigError
from compevo_core.evaluation.score_files import read_configs
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper import control as control_module
from compevo_core.paper.control import (
    ControlPlan,
    compare_topics,
    read_rewritings,
    run_control,
    write_control,
)
from compevo_core.paper.planted_news import (
    CONTROL_SCHEMA,
    EVENTS,
    ROUNDS_SCHEMA,
    SIGNS,
    WORLDS,
    plant_news,
)
from compevo_core.training import model, trainer
from compevo_core.training.run_folder import RunFolder
from tests.support.planted import base_windows, planted_world, search, sentence_encoder
from tests.support.tiny_run import Killed, kill_after, read_hash, read_records

LOG = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Two worlds, one without any effect, and every arm."""
    out = tmp_path_factory.mktemp("control")
    plan = ControlPlan(config=search(), effects=(0.0, 3.0), seeds=(0,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "load_encoder", lambda _: sentence_encoder())
        return out, *run_control(base_windows(), sentence_encoder(), plan, out, LOG)


def _find(rows, effect, arm):
    return rows.row(by_predicate=(pl.col("effect") == effect) & (pl.col("arm") == arm), named=True)


@pytest.mark.slow
def test_evolved_logics_name_what_acts_and_read_it(control):
    out, rows, rounds = control
    evolved, oracle = _find(rows, 3.0, "evolved"), _find(rows, 3.0, "oracle-logics")
    prior = _find(rows, 3.0, "prior")
    assert evolved["slope"] > 0.7 * oracle["slope"] > 0.3
    assert evolved["recovered_low"] > 0.2
    assert evolved["mae"] < 0.8 * prior["mae"]
    assert evolved["precision"] >= 0.5
    assert _find(rows, 3.0, "seed-logics")["precision"] == 0.0
    named = rounds.filter(pl.col("effect") == 3.0).sort("rewriting")
    assert named["recall"][0] == 0.0 < named["recall"][-1]
    rewritings = read_rewritings(out / "plain-effect-3-seed-0" / "evolved", tuple(SIGNS))
    assert [row["rewriting"] for row in rewritings] == [0, 1, 2, 3]  # 6 rounds, one in two rewrites
    assert rewritings[0]["news_gain"] is None and rewritings[-1]["news_gain"] > 0.0


@pytest.mark.slow
def test_no_news_and_the_news_of_another_day_say_nothing_of_the_effect(control):
    _, rows, _ = control
    for arm in ("no-news", "swapped-news"):
        row = _find(rows, 3.0, arm)
        assert abs(row["slope"]) < 0.15
        assert row["mae"] > 0.9 * _find(rows, 3.0, "prior")["mae"]


@pytest.mark.slow
def test_where_news_mean_nothing_the_prior_is_kept(control):
    _, rows, _ = control
    prior = _find(rows, 0.0, "prior")["mae"]
    for arm in ("evolved", "seed-logics", "all-articles"):
        row = _find(rows, 0.0, arm)
        assert row["slope"] is None and row["recovered"] is None
        assert row["mae"] == pytest.approx(prior, rel=0.05)


@pytest.mark.slow
def test_finished_runs_are_not_trained_again_and_tables_are_written(control, tmp_path):
    out, rows, rounds = control
    sealed = {path: path.stat().st_mtime_ns for path in out.rglob("model/manifest.json")}
    plan = ControlPlan(config=search(), effects=(0.0, 3.0), seeds=(0,))
    again, _ = run_control(base_windows(), sentence_encoder(), plan, out, LOG)
    assert again.equals(rows)
    assert sealed == {path: path.stat().st_mtime_ns for path in out.rglob("model/manifest.json")}

    paths = write_control(tmp_path, "electricity", plan, rows, rounds)
    assert set(read_configs(tmp_path)) == set(rows["config_hash"])
    schemas = (CONTROL_SCHEMA, ROUNDS_SCHEMA)
    for path, frame, schema in zip(paths, (rows, rounds), schemas, strict=True):
        assert pl.read_csv(path, schema_overrides=schema).equals(frame)


@pytest.mark.slow
def test_a_search_that_was_stopped_ends_as_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "load_encoder", lambda _: sentence_encoder())
    world, whole, stopped = planted_world(), tmp_path / "whole", tmp_path / "stopped"
    data = (search(run__rounds=4), world.split("train")[:60], world.split("val"), world.news)

    trainer.train(*data, whole)
    with pytest.raises(Killed):
        trainer.train(*data, stopped, on_round=kill_after(1))
    trainer.train(*data, stopped)
    assert read_records(stopped) == read_records(whole)
    assert read_hash(stopped) == read_hash(whole)
    # Three logics are remembered beside the played one and the eight new ones.
    state = json.loads((whole / "checkpoints/round_000004/state.json").read_text())
    assert [len(records) for records in state["records"].values()] > [9, 9, 9]


@pytest.mark.slow
def test_fusion_diversity_and_pruning_change_no_drawn_logic_and_peers_do(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "load_encoder", lambda _: sentence_encoder())
    world = planted_world()
    data = world.split("train")[:30], world.split("val")[:4], world.news
    short = {"run__rounds": 2, "evolution__every": 1, "evolution__cross_share": 0.5}
    short |= {"grpo__group_size": 4, "grpo__reward_windows": 4, "run__batch_size": 4}

    def draw(name, **changes):
        config = search(**short, **changes)
        trainer.train(config, *data, tmp_path / name)
        records = RunFolder(tmp_path / name).read_rounds()
        return [(record.logics, record.group_logics) for record in records]

    without = {"evolution__update": "simplified", "objective__lambda_div": 0.0}
    whole = draw("whole", objective__lambda_div=1.0, objective__lambda_prune=1.0)
    assert draw("without", **without, objective__lambda_prune=0.0) == whole
    assert draw("alone", population__exposed_peers=0) != whole


class _ShareForecaster:
    """Knows all but the effect, and adds shares of what a window's articles tell of it."""

    config = search()
    logics = ("Track news about power outages in any region, at night, as a sign of x.",)

    def __init__(self, world):
        self._without = {window.view.window_id: window.y for window in base_windows()}
        self._told = {v.candidate_ids: world.effects[v.window_id] for v in world.windows.views()}

    def predict_by_agent(self, views):
        prior_NH = np.stack([self._without[view.window_id] for view in views])
        told_N1 = np.array([[self._told.get(view.candidate_ids, 0.0)] for view in views])
        weights_NA = np.tile([0.3, 0.2, 0.5], (len(views), 1))
        weights_NA[0] = 1.0, 0.0, 0.0
        own, *agents = (prior_NH + share * told_N1 for share in (0.75, 0.9, 0.1, 0.6))
        return SimpleNamespace(prior=prior_NH, aggregate=own, agents=agents, weights=weights_NA)

    def predict(self, views):
        return self.predict_by_agent(views).aggregate


def _score_shares(effect, out, monkeypatch):
    """Return the rows of a world by arm, without any training, and the mean size of its effect."""
    plan = ControlPlan(config=search(), effects=(effect,), seeds=(3,), only=("evolved",))
    world = plant_news(base_windows(), plan.plant(effect, 3), HashingEncoder())
    monkeypatch.setattr(CompEvoForecaster, "load", lambda *_: _ShareForecaster(world))
    monkeypatch.setattr(control_module, "train", lambda *_: None)
    monkeypatch.setattr(control_module, "read_rewritings", lambda *_: [])
    rows, _ = run_control(base_windows(), HashingEncoder(), plan, out, LOG)
    effects = world.effects_of(world.split("test"))
    return {row["arm"]: row for row in rows.to_dicts()}, float(np.abs(effects).mean())


def test_rows_hold_the_share_of_the_effect_that_each_forecast_recovers(tmp_path, monkeypatch):
    rows, size = _score_shares(2.0, tmp_path, monkeypatch)
    # The best agent is chosen by its weight in all windows: not the first's, nor the lowest error.
    shares = {"evolved": 0.75, "best-agent": 0.6, "prior": 0.0, "no-news": 0.0}
    for arm, share in shares.items():
        row = rows[arm]
        assert (row["n_windows"], row["precision"], row["recall"]) == (60, 1.0, 0.5)
        assert row["mae"] == pytest.approx((1 - share) * size)
        recovered = share * size / (size - row["known_mae"])
        assert [row["recovered"], row["slope"]] == pytest.approx([recovered, share], abs=1e-9)
        low, high = row["recovered_low"], row["recovered_high"]
        assert low < recovered < high if share else low == high == 0.0
    assert abs(rows["swapped-news"]["slope"]) < 0.3


def test_where_nothing_is_planted_no_share_is_told(tmp_path, monkeypatch):
    rows, _ = _score_shares(0.0, tmp_path, monkeypatch)
    for row in rows.values():
        assert row["mae"] < 1e-9
        assert row["recovered"] is row["recovered_low"] is row["slope"] is None


def test_each_kind_of_world_has_the_settings_that_it_needs():
    plain, regional, many, events = (
        ControlPlan(config=search(), world=world).configure_arms(1) for world in WORLDS
    )
    assert {config.run.seed for config in (plain | regional | many).values()} == {1}
    assert not plain["evolved"].news.selects and "no-place" not in plain
    assert regional["evolved"].news.selects and not regional["no-place"].news.selects
    assert "the home region" in regional["oracle-logics"].evolution.start[0]
    assert len(many["evolved"].evolution.topics) == 100
    named = [find_topics(logic) for logic in many["oracle-logics"].evolution.start]
    assert set().union(*named) == set(WORLDS["many-topics"]["signs"])
    assert {*find_topics(events["oracle-logics"].evolution.start[2])} <= set(EVENTS)

    writers = ControlPlan(config=search(), compares="search").configure_arms(1)
    assert writers["flat"].evolution.flat_share == 1.0 and not writers["flat"].grpo.enabled
    assert writers["policy"].evolution.flat_share == 0.0 and writers["policy"].grpo.enabled
    some = ControlPlan(config=search(), compares="search", only=("flat", "no-grpo"))
    assert some.configure_arms(1) == {arm: writers[arm] for arm in ("flat", "no-grpo")}


@pytest.mark.parametrize(
    "changes", [{"world": "flat"}, {"compares": "worlds"}, {"only": ["evolved", "no-grpo"]}]
)
def test_an_unknown_world_comparison_or_arm_is_refused_by_name(changes):
    unknown = next(iter(changes.values()))
    with pytest.raises(ConfigError, match=unknown if isinstance(unknown, str) else "no-grpo"):
        ControlPlan(config=search(), **changes)


def test_precision_and_recall_are_means_over_agents():
    logics = [
        "Track news about power outages and fuel prices in any region, at night, as a sign of x.",
        "Track news about rooftop solar and power outages in any region, at night, as a sign of x.",
        "no slots at all",
    ]
    assert compare_topics(logics, ("power outages", "rooftop solar")) == (0.5, 0.5)
