"""The forecaster on a sealed tiny model with a fitted calibration."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.errors import DataError, LeakageError
from compevo_core.evaluation.leakage import find_changed_files, hash_folder
from compevo_core.forecast.explain import explain
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.issued import issue_forecast, read_issued, write_issued
from compevo_core.training.ensemble import write_model
from compevo_core.training.prior import PriorSet
from compevo_core.training.run_folder import RunFolder
from tests.support.models import build_executor, build_model, fill_with_noise
from tests.support.population import news_pool, tiny, windows

VAL = windows("val", 6, first_day=60)
TEST = windows("test", 3, first_day=80)


def seal_population(folder, observed=VAL[:0], **overrides):
    """Write and load a population of noisy agents that keep a part of their corrections."""
    config = tiny(**overrides)
    model = build_model(config)
    fill_with_noise(model)
    priors = PriorSet.fit(config, windows("train", 40), model.scaler)
    priors.observe(observed)

    # Not fitted: noise would be shut out, and every forecast would be the prior.
    model.calibration.blend_AH[:] = [[0.0], [0.5], [1.0]]
    model.calibration.best_prior.fill(1)
    model.executor = build_executor(model)
    model.logics = list(SEED_LOGICS[: config.population.agents])

    model.priors = priors
    write_model(RunFolder(folder), model, {}, model.shards)
    return CompEvoForecaster.load(folder, news_pool())


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    seal_population(folder, VAL, forecast__known_errors="mean")
    return folder


def test_an_agent_blends_base_and_correction(tmp_path):
    forecaster = seal_population(tmp_path)
    found = forecaster.predict_by_agent(TEST.views())
    # Without levels and refits, what is observed changes nothing.
    assert forecaster.observe(windows("inference", 1, first_day=70)) == 2
    assert np.array_equal(forecaster.predict(TEST.views()), found.aggregate)

    calibration = forecaster._model.calibration
    calibration.blend_AH.fill(1.0)
    raw = forecaster.predict_by_agent(TEST.views())
    assert np.array_equal(found.agents[0], found.bases[0])
    assert np.allclose(found.agents[1], (raw.agents[1] + raw.bases[1]) / 2, rtol=1e-5)
    assert np.array_equal(found.agents[2], raw.agents[2])
    assert np.array_equal(found.prior, found.bases[1])

    # The weights of a guard are those of the aggregate.
    calibration.override_A[:] = [0.0, 0.0, 1.0]
    guarded = forecaster.predict_by_agent(TEST.views())
    assert np.allclose(guarded.aggregate, guarded.agents[2], rtol=1e-6)
    assert guarded.weights[0].tolist() == [0.0, 0.0, 1.0]


def test_a_logic_is_scored_by_the_agents_forecast(tmp_path):
    forecaster = seal_population(tmp_path, grpo__reward_windows=0)
    model, played = forecaster._model, forecaster.logics
    candidates = [[own, SEED_LOGICS[5]] for own in played]
    reward_A2 = forecaster.score_logics(played, candidates, VAL)

    model.calibration.blend_AH.fill(1.0)
    agents_ANH = forecaster.predict_by_agent(VAL.views()).agents
    spread_N = np.array([model.scaler.std[view.entity] for view in VAL.views()])
    error_AN = (((agents_ANH - VAL.truth()) / spread_N[:, None]) ** 2).mean(-1)
    assert np.allclose(reward_A2[:, 0], -error_AN.mean(-1), rtol=1e-4)
    assert not np.allclose(reward_A2[:, 0], reward_A2[:, 1], rtol=1e-4)


def test_known_errors_move_forecasts_and_no_file(sealed):
    forecaster = CompEvoForecaster.load(sealed, news_pool())
    views = TEST.views()
    before = forecaster.predict(views)
    files = hash_folder(sealed)

    days = windows("inference", 4, first_day=70)
    assert forecaster.observe(days.with_truth(days.truth() * 1.5)) == len(days)
    after = forecaster.predict(views)
    assert (after - before).mean() > 0.1 * before.mean()
    assert find_changed_files(files, hash_folder(sealed)) == []

    # A newly loaded model has forgotten it, and forecasts the windows one by one as together.
    again = CompEvoForecaster.load(sealed, news_pool())
    one_by_one = np.concatenate([again.predict([view]) for view in views])
    assert np.allclose(one_by_one, before, rtol=1e-5)


def test_seen_windows_are_neither_observed_nor_forecast(sealed):
    forecaster = CompEvoForecaster.load(sealed, news_pool())
    with pytest.raises(DataError, match="not later than"):
        forecaster.observe(windows("val", 1, first_day=65))

    days = windows("inference", 1, first_day=70)
    forecaster.observe(days)
    with pytest.raises(DataError, match="not later than"):
        forecaster.observe(days)
    with pytest.raises(LeakageError, match="is before"):
        forecaster.predict(days.views())


VIEWS = windows("test", 1, first_day=80).views()
NOW = datetime(2026, 3, 30, 7, 30, tzinfo=UTC)


def test_the_parts_add_up_and_name_news(sealed, tmp_path):
    facts = {"market_offset": timedelta(hours=10), "issued_at": NOW, "commit": "abc"}
    forecaster = CompEvoForecaster.load(sealed, news_pool())
    # A bound that some of the noisy agents pass.
    views = [replace(view, bounds=(None, float(np.median(view.x)))) for view in VIEWS]
    forecast = issue_forecast(forecaster, views, news=news_pool(), **facts)
    issued = read_issued(write_issued(tmp_path, forecast))

    why = explain(issued, VIEWS[0].entity)

    total = sum(part.contribution for part in why.parts)
    assert np.allclose(total, why.forecast, rtol=1e-6, atol=0)
    parts = [why.weigh(name) for name in ("prior", "correction", "level")]
    assert np.allclose(sum(parts), why.forecast, rtol=1e-6, atol=0)
    # All three are there: none of them is the whole forecast.
    assert all(np.abs(part).mean() > 1e-3 for part in parts)

    # The first agent keeps none of its correction, the last all of it.
    first, _, last = why.parts
    assert np.abs(first.correction).max() < 1e-2 * np.abs(last.correction).max()
    for part, logic in zip(why.parts, issued.facts["logics"], strict=True):
        assert part.logic == logic
        titles = [news_pool().get_title(one.article_id) for one in part.articles]
        assert [one.title for one in part.articles] == titles
        assert all(one.available_at < VIEWS[0].origin_utc for one in part.articles)
    with pytest.raises(DataError, match="WA1"):
        explain(issued, "WA1")
