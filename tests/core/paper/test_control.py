"""The control: planted news is found and read, and nothing where there is nothing."""

import logging
from collections import Counter
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from compevo_core.agents import retrieval
from compevo_core.agents.logics import find_topics
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper import control as control_module
from compevo_core.paper.control import (
    EXPERIMENT,
    SPECIALISTS,
    ControlPlan,
    compare_topics,
    leave_out_scored,
    list_cells,
    measure_effect,
    read_rewritings,
    run_control,
    write_control,
)
from compevo_core.paper.planted_news import (
    CONTROL_SCHEMA,
    EVENTS,
    HOMES,
    ROUNDS_SCHEMA,
    SIGNS,
    WORLDS,
    PlantedNews,
    plant_news,
)
from compevo_core.paper.report.inputs import read_configs
from compevo_core.training import trainer
from compevo_core.training.run_folder import RunFolder
from tests.support.planted import base_windows, planted_world, search, sentence_encoder

LOG = logging.getLogger(__name__)
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Two worlds, one without any effect, and every arm."""
    out = tmp_path_factory.mktemp("control")
    plan = ControlPlan(config=search(), effects=(0.0, 3.0), seeds=(0,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "load_encoder", lambda _: sentence_encoder())
        return out, *run_control(base_windows(), sentence_encoder(), plan, out, LOG)


def _find(rows, effect, arm):
    return rows.filter(effect=effect, arm=arm).row(0, named=True)


class _ShareForecaster:
    """Knows the usual part of the effect, and adds shares of what articles say about the rest."""

    config = search()
    logics = ("Track news about power outages in any region, at night, as a sign of x.",)

    def __init__(self, world):
        unusual = world.surprises_of(world.windows).tolist()
        pairs = list(zip(world.windows, unusual, strict=True))
        self._without = {w.view.window_id: w.y - e for w, e in pairs}
        self._told = {w.view.candidate_ids: e for w, e in pairs}

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
    unusual_N = world.surprises_of(world.split("test"))
    return {row["arm"]: row for row in rows.to_dicts()}, float(np.abs(unusual_N).mean())


def test_rows_hold_each_forecasts_recovered_share(tmp_path, monkeypatch):
    rows, size = _score_shares(2.0, tmp_path, monkeypatch)
    # The best agent is chosen by its weight in all windows: not the first's, nor the lowest error.
    shares = {"evolved": 0.75, "best-agent": 0.6, "prior": 0.0, "no-news": 0.0}
    for arm, share in shares.items():
        row = rows[arm]
        assert (row["n_windows"], row["precision"], row["recall"]) == (60, 1.0, 0.5)
        assert row["mae"] == pytest.approx((1 - share) * size)
        assert row["recovered"] == pytest.approx(share, abs=1e-9)
        assert row["effect_r2"] == pytest.approx(1 - (1 - share) ** 2, abs=1e-9)
        # Series have means of their own, which the pooled line does not know.
        assert row["slope"] == pytest.approx(share, abs=0.05)
        low, high = row["recovered_low"], row["recovered_high"]
        assert low < share < high if share else low == high == 0.0

    assert abs(rows["swapped-news"]["slope"]) < 0.3


def test_where_nothing_is_planted_no_share_is_told(tmp_path, monkeypatch):
    rows, _ = _score_shares(0.0, tmp_path, monkeypatch)
    for row in rows.values():
        assert row["mae"] < 1e-9
        assert row["recovered"] is row["recovered_low"] is row["slope"] is None


@slow
def test_evolved_logics_name_what_acts_and_read_it(control):
    out, rows, rounds = control
    evolved, oracle = _find(rows, 3.0, "evolved"), _find(rows, 3.0, "oracle-logics")
    prior = _find(rows, 3.0, "prior")
    assert evolved["slope"] > 0.7 * oracle["slope"] > 0.3
    assert evolved["recovered_low"] > 0.2
    assert 0.4 < evolved["effect_r2"] <= 1.0 and evolved["no_news_mae"] > evolved["mae"]
    assert evolved["mae"] < 0.8 * prior["mae"]
    assert evolved["precision"] >= 0.5
    assert _find(rows, 3.0, "seed-logics")["precision"] == 0.0
    named = rounds.filter(pl.col("effect") == 3.0).sort("rewriting")
    assert named["recall"][0] == 0.0 < named["recall"][-1]
    rewritings = read_rewritings(out / "plain-effect-3-seed-0" / "evolved", tuple(SIGNS))

    assert [row["rewriting"] for row in rewritings] == [0, 1, 2, 3]  # 6 rounds, one in two rewrites
    assert rewritings[0]["news_gain"] is None and rewritings[-1]["news_gain"] > 0.0


@slow
def test_other_or_no_news_recovers_nothing(control):
    _, rows, _ = control
    for arm in ("no-news", "swapped-news"):
        row = _find(rows, 3.0, arm)
        assert abs(row["slope"]) < 0.15 and row["effect_r2"] < 0.05
        assert row["mae"] > 0.9 * _find(rows, 3.0, "prior")["mae"]


@slow
def test_where_news_mean_nothing_the_prior_is_kept(control):
    _, rows, _ = control
    prior = _find(rows, 0.0, "prior")["mae"]
    for arm in ("evolved", "seed-logics", "all-articles"):
        row = _find(rows, 0.0, arm)
        assert row["slope"] is None and row["recovered"] is None
        assert row["mae"] == pytest.approx(prior, rel=0.05)


@slow
def test_tables_are_written_with_every_training(control, tmp_path):
    _, rows, rounds = control
    plan = ControlPlan(config=search(), effects=(0.0, 3.0), seeds=(0,))
    paths = write_control(tmp_path, "electricity", plan, rows, rounds)
    assert set(read_configs(tmp_path)) == set(rows["config_hash"])
    schemas = (CONTROL_SCHEMA, ROUNDS_SCHEMA)
    for path, frame, schema in zip(paths, (rows, rounds), schemas, strict=True):
        assert pl.read_csv(path, schema_overrides=schema).equals(frame)


@slow
def test_only_peers_change_the_drawn_logics(tmp_path, monkeypatch):
    monkeypatch.setattr(retrieval, "load_encoder", lambda _: sentence_encoder())
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


def test_each_world_has_the_settings_it_needs():
    plans = [ControlPlan(config=search(), world=world) for world in WORLDS]
    plain, regional, many, events, *_ = (plan.configure_arms(1) for plan in plans)
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
def test_unknown_worlds_and_arms_are_refused(changes):
    unknown = next(iter(changes.values()))
    with pytest.raises(ConfigError, match=unknown if isinstance(unknown, str) else "no-grpo"):
        ControlPlan(config=search(), **changes)


def test_precision_and_recall_are_means_over_agents():
    texts = ("power outages and fuel prices", "rooftop solar and power outages")
    logics = [f"Track news about {text} in any region, at night, as a sign of x." for text in texts]
    logics.append("no slots at all")
    assert compare_topics(logics, ("power outages", "rooftop solar")) == (0.5, 0.5)


TOGETHER = RunConfig.preset("specialists")


def _configure(world, agents=5):
    config = TOGETHER.with_overrides({"population.agents": agents})
    return ControlPlan(config=config, world=world, compares=SPECIALISTS).configure_arms(1)


@pytest.mark.parametrize(("agents", "group", "rounds"), [(5, 40, 8), (10, 40, 16)])
def test_specialists_and_rivals_differ_by_one_thing(agents, group, rounds):
    arms = _configure("niches-wide", agents)
    read = {arm: (config.news.fit, config.evolution.credit) for arm, config in arms.items()}
    assert read["evolved"] == ("joint", "contribution")
    assert read["credit-alone"] == ("own", "contribution")
    assert read["joint-alone"] == ("joint", "own")
    assert read["independent"] == read["crossed"] == ("own", "own")
    assert arms["independent"].evolution.cross_share == 0.0 < arms["crossed"].evolution.cross_share

    alone = arms["one-agent"]
    assert (alone.population.agents, alone.grpo.group_size, alone.run.rounds) == (1, group, rounds)
    assert alone.grpo.group_size * alone.run.rounds == agents * 8 * 8
    assert arms["2A-articles"].news.top_k == agents * arms["evolved"].news.top_k
    kinds = [member.reads for member in arms["generalist-and-specialists"].population.members]
    assert kinds == ["chosen"] * agents + ["everything"]


def test_oracle_logics_share_all_acting_topics():
    def name_topics(world):
        return [find_topics(logic) for logic in _configure(world)["oracle-joint"].evolution.start]

    for world in ("plain", "events", "many-topics", "niches", "niches-wide", "niches-regional"):
        signs = ControlPlan(config=search(), world=world).plant(1.0, 0).signs
        assert {topic for names in name_topics(world) for topic in names} == set(signs)

    regional = _configure("niches-regional")
    assert name_topics("niches-regional") == [(topic,) for topic in HOMES]
    assert "in Victoria," in regional["oracle-joint"].evolution.start[4]
    assert all(config.news.selects for config in regional.values())
    (reader,) = _configure("regional")["generalist"].population.members
    assert reader.news_scope == "place"


def test_each_region_has_a_topic_of_its_own():
    planted = ControlPlan(config=search(), world="niches-regional").plant(2.0, 0)
    signs = [planted.count_signs([topic], home) for topic, home in HOMES.items()]
    assert signs == [1, -1, 1, -1, 1]
    assert planted.count_signs(tuple(HOMES), "QLD1") == -1
    world = plant_news(base_windows(), planted, sentence_encoder())
    assert set(world.topics) == {t for t, home in HOMES.items() if home in ("NSW1", "SA1")}


def test_the_effects_share_excludes_the_prior():
    planted = PlantedNews(effect=2.0, signs={"power outages": 1})
    world = plant_news(base_windows(), planted, sentence_encoder())
    test = world.split("test")
    effect_NH = np.repeat(world.surprises_of(test)[:, None], 48, axis=1)
    assert np.abs(world.effects_of(test)).min() == 0.0 < np.abs(effect_NH).min()
    for added_NH, share in ((effect_NH, 1.0), (0.0 * effect_NH, 0.0), (0.5 * effect_NH, 0.75)):
        assert measure_effect(added_NH, world, test) == pytest.approx(share)
    assert measure_effect(-effect_NH, world, test) == pytest.approx(-3.0)
    # Series of all sizes count alike.
    is_home_N1 = np.array([[view.entity == "SA1"] for view in test.views()])
    share = measure_effect(effect_NH * is_home_N1, world, test)
    size_N = np.array([world.sizes[view.entity] for view in test.views()])
    squares_N = (effect_NH[:, 0] / size_N) ** 2

    assert share == pytest.approx(squares_N[is_home_N1[:, 0]].sum() / squares_N.sum())


def test_the_experiment_may_be_cut():
    cells = list_cells(TOGETHER)
    kinds = ((c.world, *c.effects, c.config.population.agents, "policy" in c.only) for c in cells)
    count = Counter(kinds)

    for world in ("plain", "niches-wide", "niches-regional"):
        assert count[world, 1.0, 5, False] == count[world, 2.0, 5, False] == 10
    assert {world for world, *_ in count} == set(WORLDS)
    assert count["plain", 0.0, 5, False] == count["niches-wide", 2.0, 10, False] == 5
    assert count["regional", 2.0, 5, False] == count["niches-wide", 2.0, 5, True] == 5
    assert len(cells) == sum(cells.seeds * len(cells.effects) for cells in EXPERIMENT)
    assert [cell.seeds for cell in cells] == sorted(cell.seeds for cell in cells)

    (c,) = list_cells(TOGETHER, worlds=["plain"], effects=[2.0], seeds=1, only=["generalist"])
    assert (c.world, *c.effects, *c.seeds, *c.only) == ("plain", 2.0, 0, "generalist")
    with pytest.raises(ConfigError, match=r"'flat'.*niches-wide"):
        list_cells(TOGETHER, worlds=["flat"])
    for cut in ({"effects": [3.0]}, {"only": ["generalist", "gneralist"]}):
        with pytest.raises(ConfigError, match="effect, seed and"):
            list_cells(TOGETHER, **cut)


def test_finished_arms_are_left_out(tmp_path):
    (plan,) = list_cells(TOGETHER, worlds=["plain"], effects=[2.0], seeds=1)
    path = tmp_path / "specialists-electricity.csv"
    assert leave_out_scored(plan, path) == plan

    arms = plan.configure_arms(0)
    shared = dict.fromkeys(CONTROL_SCHEMA) | {"world": "plain", "effect": 2.0, "seed": 0}
    rows = [shared | {"arm": arm, "config_hash": config.hash} for arm, config in arms.items()]
    frame = pl.DataFrame(rows[:-2], schema=CONTROL_SCHEMA)
    assert write_control(tmp_path, "electricity", plan, frame, pl.DataFrame())[0] == path
    assert leave_out_scored(plan, path).only == list(arms)[-2:]
    last = pl.DataFrame(rows[-2:], schema=CONTROL_SCHEMA)
    write_control(tmp_path, "electricity", plan, last, pl.DataFrame())
    assert leave_out_scored(plan, path) is None
    assert pl.read_csv(path)["agents"].to_list() == [5] * len(arms)
