"""The ridge on news: what it finds, what it must not see, and what choice and table make of it."""

import json
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core import Forecaster
from compevo_core.agents.logics import name_own_topics
from compevo_core.baselines import SharedFits, add_news, load_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.build import build_windows
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import release_windows
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.method_choice import MethodChoice, choose_method, configure_method
from compevo_core.evaluation.news_audit import audit_news
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.issued import measure_news_change
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.training.prior import PriorKey, PriorSet
from compevo_core.training.trainer import train as train_run
from compevo_core.training.training_data import join_for_refit

METHOD = "seasonal-mean+news"
DAYS, START = 400, datetime(2023, 1, 2)  # noqa: DTZ001 - as tables have them
STRIKES = ("Strike at the port", "Unions call a strike", "Trains stop as strike goes on")
OTHERS = ("Council wins award", "Museum opens wing", "Farmers hope for rain", "Ferry is late")


def make_table(effect, *, seed=0, moved=0, series=("a",)):
    """Return days of a series, lower on a quarter of them, and the headlines of the days before."""
    rng = np.random.default_rng(seed)
    is_strike = rng.random(DAYS) < 0.25
    days = [START + timedelta(days=n) for n in range(DAYS)]
    week = np.tile([0.0, 3.0, 3.0, 3.0, 2.0, -4.0, -6.0], DAYS // 7 + 1)[:DAYS]
    tables = [
        pl.DataFrame({"unique_id": name, "ds": days}).with_columns(
            y=50 + week + rng.normal(0, 1, DAYS) - effect * (n + 1) * is_strike
        )
        for n, name in enumerate(series)
    ]
    told = np.roll(is_strike, moved)
    headlines = [
        (day - timedelta(hours=6), title)
        for day, strikes in zip(days, told, strict=True)
        for title in [*rng.choice(OTHERS, 2), *([rng.choice(STRIKES)] if strikes else [])]
    ]
    return pl.concat(tables), pl.DataFrame(headlines, schema=["ds", "title"], orient="row")


class Hashing(HashingEncoder):
    """Hashed words, in place of a model that takes seconds to load."""

    name = RunConfig().encoder


def cut(table, news, horizon=1):
    """Return windows of train and of validation, and all articles as a pool."""
    forecaster = Forecaster(horizon=horizon)
    known = forecaster._take(table, None, news)
    spec, articles = forecaster._plan(known), known.articles
    windows = build_windows(spec, **known.list_frames(spec))
    pool = NewsPool(articles, Hashing().encode(articles["title"].to_list()), Hashing.name)
    return windows.split("train"), windows.split("val"), pool


@pytest.fixture(scope="module")
def struck():
    """Windows of train and of validation that fall on strikes, and the headlines."""
    return cut(*make_table(3.0))


def hide_later(news, val):
    """Return the headlines with other words in all that came out since validation began."""
    begin = val[0].view.origin_utc.replace(tzinfo=None)
    told = pl.when(pl.col("ds") < begin).then("title").otherwise(pl.lit("zebra zebra zebra"))
    return news.with_columns(title=told)


def miss(forecast_NH, windows):
    return float(np.abs(forecast_NH - windows.truth()).mean())


def test_a_news_ridge_recovers_announced_effects(struck, tmp_path):
    train, val, news = struck
    fit = add_news(SharedFits(), news)
    fitted = fit(METHOD, train)
    assert [part.entity for part in fitted.parts] == [""]
    views = val.views()
    bare = miss(fitted.base.predict(views), val)
    assert miss(fitted.predict(views), val) < 0.75 * bare
    assert miss(fitted.predict(views, views[::-1]), val) > bare

    fitted.save(tmp_path)
    again = load_baseline(tmp_path, news)
    np.testing.assert_array_equal(again.predict(val.views()), fitted.predict(val.views()))
    with pytest.raises(ConfigError, match="reads news, and"):
        load_baseline(tmp_path).predict(val.views())
    # Without a feed nothing is known, and nothing is corrected.
    silent = [window.change_view(candidate_ids=()).view for window in val]
    np.testing.assert_array_equal(fitted.predict(silent), fitted.base.predict(silent))


def test_each_series_has_weights_where_they_differ():
    train, val, news = cut(*make_table(2.0, series=("a", "b")))
    reading = add_news(SharedFits(), news)(METHOD, train)
    assert [part.entity for part in reading.parts][:1] == [""]
    assert {part.entity for part in reading.parts} <= {"", "a", "b"}
    read_NH = reading.read(val.views())
    of_a, of_b = (read_NH[[view.entity == name for view in val.views()]] for name in "ab")
    assert np.ptp(of_b) > 1.5 * np.ptp(of_a)


def test_nothing_of_validation_enters_the_fit(struck):
    table, news = make_table(3.0)
    train, val, pool = struck
    begin = val[0].view.origin_utc.replace(tzinfo=None)
    changed = table.with_columns(pl.when(pl.col("ds") < begin).then("y").otherwise(99.0).alias("y"))
    other, _, poisoned = cut(changed, hide_later(news, val))

    fitted = add_news(SharedFits(), pool)(METHOD, train)
    same = add_news(SharedFits(), poisoned)(METHOD, other)

    assert "strike" in fitted.columns.words and fitted.columns.words == same.columns.words
    for part, again in zip(fitted.parts, same.parts, strict=True):
        np.testing.assert_array_equal(part.weights_KH, again.weights_KH)


def test_a_refit_in_use_keeps_what_was_read(struck):
    train, val, news = struck
    config = configure_method(METHOD).with_overrides({"forecast.refit_days": 7})
    priors = PriorSet.fit(config, train, Scaler.fit(train), add_news(SharedFits(), news))
    (before,) = priors.fitted.values()
    priors.observe(release_windows(list(val)))
    (after,) = priors.fitted.values()
    assert after.base is not before.base and after.parts is before.parts
    assert list(priors.fitted) == [PriorKey(METHOD)]


def test_a_record_says_how_far_news_moves(struck, tmp_path):
    train, val, news = struck
    train_run(configure_method(METHOD), train, val, news, tmp_path)
    model = CompEvoForecaster.load(tmp_path, news)
    change_N = measure_news_change(model, val.views(), model.predict(val.views()))
    assert [bool(view.candidate_ids) for view in val.views()] == (change_N != 0).tolist()


@pytest.mark.parametrize(
    ("effect", "moved"),
    [(3.0, 0), (3.0, 40), (0.0, 0)],
    ids=["announced", "announced on other days", "without an effect"],
)
def test_auto_takes_news_that_helps_validation(effect, moved):
    train, val, news = cut(*make_table(effect, moved=moved))
    choice = choose_method(train, val, names=("seasonal-mean", "last-value"), news=news)
    check = choice.news
    assert check.helps is (effect > 0 and not moved)
    assert (METHOD in {score.name for score in choice.scores}) is check.helps
    if check.helps:
        assert METHOD in (choice.method, *choice.members)
        assert check.own < 0.8 * check.none < check.swapped
    assert check.sentence.startswith(f"{check.articles:,} articles")
    errors = [f"{error:.3g}" for error in (check.own, check.none, check.swapped)]

    assert [word for word in errors if word not in check.sentence] == []
    assert ("not used" in check.sentence) is not check.helps
    assert MethodChoice.from_json(choice.to_json()) == choice
    assert choose_method(train, val, names=("seasonal-mean", "last-value")).news is None


def test_a_table_with_news_is_fully_supported(tmp_path, monkeypatch):
    monkeypatch.setattr("compevo_core.lm.encoder.load_encoder", lambda _: Hashing())
    table, news = make_table(3.0)
    forecaster = Forecaster(METHOD, horizon=1).fit(table, news=news)

    def forecast(title, time="ds"):
        told = {time: [START + timedelta(days=DAYS, hours=-2)], "title": [title]}
        return forecaster.predict(news=pl.DataFrame(told))["mean"][0]

    assert forecast("Unions call a strike") < forecast("Museum opens wing") - 1.5
    # Files of news say when an article came out.
    assert forecast("Museum opens wing", "published_at") == forecast("Museum opens wing")
    forecaster.save(tmp_path / "kept")
    assert Forecaster.load(tmp_path / "kept").predict().equals(forecaster.predict())
    assert set(forecaster.explain()["member"]) == {METHOD}

    errors = {}
    for name, known in ((METHOD, news), ("seasonal-mean", None)):
        tested = Forecaster(name, horizon=1).backtest(table, windows=20, news=known)
        errors[name] = (tested["y"] - tested["mean"]).abs().mean()
    assert errors[METHOD] < 0.8 * errors["seasonal-mean"]

    audit = forecaster.audit()
    assert audit.verdict.startswith("Yes, the news helps.") and audit.effect < 0
    assert audit.own < audit.none < audit.swapped


def test_an_audit_sees_planted_effects_and_no_others():
    right = {0.0: 0, 0.7: 0}
    for effect in right:
        for seed in range(2):
            train, val, news = cut(*make_table(effect, seed=seed))
            audit = audit_news(join_for_refit(train, val), news, base="seasonal-mean")
            right[effect] += audit.is_seen is (effect > 0)
            if not audit.is_seen:
                assert audit.power <= 1.0
                assert "would have been" in audit.verdict and audit.p_value > 0.01
    assert right == {0.0: 2, 0.7: 2}
    short, news = make_table(1.0)

    with pytest.raises(DataError, match="too few to"):
        train, val, pool = cut(short.head(100), news)
        audit_news(join_for_refit(train, val), pool, base="seasonal-mean")


def test_a_table_too_short_for_news_says_why():
    table, news = make_table(3.0)
    train, val, pool = cut(table.head(40), news.filter(pl.col("ds") < table["ds"][40]))
    few = train.with_windows(list(train)[:2])
    choice = choose_method(few, val, names=("last-value",), news=pool)
    assert choice.news is None and choice.method == "last-value"
    assert "last-value+news" in choice.left_out


def test_agents_take_their_topics_from_headlines_of_train(struck):
    table, news = make_table(3.0)
    daily = news.unique("ds").with_columns(title=pl.lit("Weather today"))
    train, _, pool = cut(table, pl.concat([hide_later(news, struck[1]), daily]))
    config = name_own_topics(RunConfig.preset("own-news"), train, pool)

    topics = config.evolution.topics
    assert {"strike", "museum"} <= {*topics} and not {"zebra", "weather"} & {*topics}
    as_frequent = ("museum", "opens", "wing")
    assert tuple(word for word in topics if word in as_frequent) == as_frequent
    assert len(config.evolution.start) == config.population.agents
    for word, logic in zip(topics, config.evolution.start, strict=False):
        assert f" about {word} in " in logic
    assert name_own_topics(config, train, pool) == config
    more = RunConfig.preset("own-news").with_overrides({"evolution.topics": ["tariffs", "*"]})
    assert name_own_topics(more, train, pool).evolution.topics == ("tariffs", *topics)

    with pytest.raises(ConfigError, match="no word is in the headlines"):
        name_own_topics(RunConfig.preset("own-news"), train.with_windows(list(train)[:5]), pool)


@pytest.mark.slow
def test_agents_read_the_news_of_a_table(tmp_path):
    table, news = make_table(3.0)
    agents = Forecaster("compevo", horizon=1, preset="own-news").fit(table, news=news)
    agents.save(tmp_path / "kept")

    metrics = json.loads((tmp_path / "kept" / "run" / "metrics.json").read_text("utf-8"))
    assert metrics["val_sealed_mae_scaled"] < 0.8 * metrics["val_prior_mae_scaled"]
    logics = json.loads((tmp_path / "kept" / "run" / "model" / "logics.json").read_text("utf-8"))
    acting = set(" ".join(STRIKES).lower().split())
    assert any(acting & set(logic.split()) and "a day old" in logic for logic in logics)
