"""The news audit: what own news is worth against none, another day's and irrelevant ones."""

from dataclasses import replace
from datetime import timedelta
from functools import cache
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.scopes import Scope
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper import news_audit
from compevo_core.paper.news_audit import (
    ANY,
    AUDIT_SCHEMA,
    READINGS,
    SIGNALS,
    NewsProbe,
    NewsSignals,
    audit_probe,
    audit_scope,
    is_seen,
    list_read_groups,
    plant_effect,
    write_audit,
)
from compevo_core.paper.news_changes import Relevance
from compevo_core.paper.planted_news import measure_residuals
from compevo_core.report.evidence_tables import format_audit, judge_news
from compevo_core.report.inputs import AUDIT_COLUMNS
from tests.support.planted import planted_world
from tests.support.population import article_ids, news_pool
from tests.support.population import windows as make_windows

TOPICS = ("heatwave record demand", "interest rates inflation")
FACTS = {"source": "probe", "encoder": "hashing", "commit": "c"}


def with_article(windows, chosen=0):
    """Every second window has one article, the others none."""
    owned = [
        window.change_view(candidate_ids=(article_ids()[chosen],) if i % 4 < 2 else ())
        for i, window in enumerate(windows)
    ]
    return WindowSet(owned, dataset=windows.dataset)


def measure_first_topic(views):
    """The first signal where a window has an article, the others nowhere."""
    return np.array([[float(bool(view.candidate_ids))] + [0.0] * 10 for view in views])


def audit(windows, forecast):
    relevance = Relevance(news_pool(), HashingEncoder().encode(TOPICS))
    signals = SimpleNamespace(measure=measure_first_topic, find_topics=find_topics)

    def predict(scope):
        read = [view.candidate_ids[:1] for view in scope.windows.views()]
        return SimpleNamespace(aggregate=forecast(scope), chosen_news=[read])

    return audit_scope(Scope(subset="test", windows=windows), predict, relevance, signals, FACTS)


def find_topics(ids):
    return {SIGNALS[0]} if ids else set()


def forecast_with_help(scope):
    """A forecaster that errs by 10, and by 4 where a window has its own first article."""
    truth_NH = scope.windows.truth()
    helped = [article_ids()[0] in view.candidate_ids for view in scope.windows.views()]
    return truth_NH + np.where(helped, 4.0, 10.0)[:, None]


def test_the_effect_is_the_mean_difference_of_window_errors():
    rows = audit(with_article(make_windows("test", 40)), forecast_with_help)
    overall = {row["news"]: row for row in rows.to_dicts() if row["group_kind"] == "all"}
    assert set(overall) == set(READINGS)
    assert overall["own"]["mae"] == pytest.approx(7.0)
    assert overall["none"]["difference"] == pytest.approx(-3.0)
    assert overall["none"]["interval_high"] < 0
    assert (overall["own"]["n_windows"], overall["own"]["n_with_news"]) == (80, 40)
    assert overall["none"]["n_with_news"] == 0


def test_effects_are_given_by_series_and_by_declared_days():
    rows = audit(with_article(make_windows("test", 40)), forecast_with_help)
    groups = set(rows.select("group_kind", "group").iter_rows())
    assert {("series", "NSW1"), ("series", "SA1"), ("declared", SIGNALS[0])} <= groups
    # No window has it, and an effect on none is not an effect.
    assert ("declared", SIGNALS[1]) not in groups
    declared = rows.filter((pl.col("group") == ANY) & (pl.col("news") == "none"))
    assert declared["difference"].to_list() == [pytest.approx(-6.0)]


def test_what_moves_a_forecast_is_measured_against_the_forecast():
    without_NH = np.array([[100.0], [1000.0], [100.0], [1000.0]])
    chosen = [[("a",), ("a", "b"), (), ("b",)]]
    moved_NH = np.array([[10.0], [10.0], [0.0], [0.0]])
    own = SimpleNamespace(aggregate=without_NH + moved_NH, chosen_news=chosen)
    names = {"a": "power outages", "b": "fuel prices"}
    groups = {
        (kind, group): members.tolist()
        for kind, group, members in list_read_groups(
            {"own": own, "none": SimpleNamespace(aggregate=without_NH)},
            lambda ids: {names[name] for name in ids},
        )
    }
    assert groups["moved", "most"] == [True, False, False, False]
    assert groups["moved", "rest"] == [False, True, True, True]
    assert groups["agent 0", "power outages"] == [True, True, False, False]
    assert groups["agent 0", "fuel prices"] == [False, True, False, True]


def test_a_gain_over_no_news_alone_is_not_called_help():
    windows = with_article(make_windows("test", 70))

    def any_news_helps(scope):
        errs = [10.0 - 6.0 * bool(view.candidate_ids) for view in scope.windows.views()]
        return scope.windows.truth() + np.array(errs)[:, None]

    # The first month has nobody to borrow from; only later days are compared.
    later = WindowSet(
        [one for one in windows if int(one.view.window_id.split("-")[2]) >= 40],
        dataset="electricity",
    )
    rows = audit(later, any_news_helps).to_dicts()
    swapped = [
        row | {"interval_low": -1.0, "interval_high": 1.0, "n_with_news": 1}
        if row["news"] == "swapped"
        else row
        for row in rows
    ]
    assert judge_news(rows).startswith("Better than without")
    assert judge_news(swapped).startswith("The gain is not from")
    assert judge_news(audit(windows, forecast_with_help).to_dicts()).startswith("Yes")


@pytest.mark.parametrize(("harm", "verdict"), [(0.0, "No"), (1.0, "No gain: the error is")])
def test_news_that_does_nothing_or_harm_is_said_to(harm, verdict):
    def forecast(scope):
        errs = [1.0 + harm * bool(view.candidate_ids) for view in scope.windows.views()]
        return scope.windows.truth() + np.array(errs)[:, None]

    rows = audit(with_article(make_windows("test", 40)), forecast)
    assert judge_news(rows.to_dicts()).startswith(verdict)


def test_rows_of_another_source_stay_and_the_same_are_replaced(tmp_path):
    rows = audit(with_article(make_windows("test", 40)), forecast_with_help)
    other = rows.with_columns(pl.lit("run").alias("source"))
    for one in (rows, other, rows):
        path = write_audit(tmp_path, one)
    stored = pl.read_csv(path, schema=AUDIT_SCHEMA)
    assert stored["source"].value_counts().sort("source")["count"].to_list() == [rows.height] * 2
    assert set(AUDIT_COLUMNS) <= set(stored.columns)
    assert format_audit(stored.to_dicts()).count("does news help") == 2


@cache
def probe(effect=3.0):
    """A probe of a world in which the articles of all regions are candidates of a window."""
    world = planted_world(effect, is_regional=True, share=0.1)
    return NewsProbe(world.split("train"), world.news)


def open_test(effect=3.0):
    world = planted_world(effect, is_regional=True, share=0.1)
    return probe(effect).open(Scope(subset="test", windows=world.split("test")))


def test_a_planted_effect_is_seen_held_out_and_later_and_news_of_another_day_is_no_help():
    samples = [probe().train, open_test()]
    for sample, errors in zip(samples, probe().read(samples), strict=True):
        assert is_seen(errors, sample, ANY)
        assert not is_seen(errors, sample, "fuel prices")
        own, none, swapped = (np.nanmean(errors[news]) for news in ("own", "none", "swapped"))
        assert own < 0.9 * none < swapped
    assert is_seen(probe().read(samples)[0], samples[0], "power outages")


def test_news_that_any_other_day_replaces_is_not_seen():
    errors = probe().read([probe().train])[0]
    replaced = {**errors, "swapped": errors["own"]}
    assert is_seen(errors, probe().train, ANY) and not is_seen(replaced, probe().train, ANY)


def test_an_article_counts_if_it_is_fresh_and_of_the_windows_own_region():
    world = planted_world(3.0, is_regional=True, share=0.1)
    signals = NewsSignals(world.news, world.split("train").views())
    views = [view for view in world.split("test").views() if view.entity == "SA1"]
    view = views[int(signals.measure(views).sum(1).argmax())]
    titles = {name: world.news.get_title(name) for name in view.candidate_ids}
    others = tuple(name for name, title in titles.items() if "South Australia" not in title)
    assert 0 < len(others) < len(titles)

    def read(**changes):
        return signals.measure([replace(view, **changes)])[0]

    assert read().any()
    assert not read(candidate_ids=others).any()
    assert np.array_equal(read(candidate_ids=tuple(titles)[::-1]), read())
    assert not read(origin_utc=view.origin_utc + timedelta(days=1)).any()


def test_more_news_than_usual_is_a_signal_of_its_own():
    world = planted_world(0.0, is_regional=True, share=0.1)
    signals = NewsSignals(world.news, world.split("train").views())
    view = next(v for v in world.split("test").views() if v.entity == "SA1")
    own = [n for n in view.candidate_ids if "South Australia" in world.news.get_title(n)]
    few, many = (
        signals.measure([replace(view, candidate_ids=tuple(ids))])[0, -1]
        for ids in (own[:2], [*own, *own])
    )
    assert few == 0.0 < many


def test_windows_next_to_another_part_of_train_are_left_out():
    train = probe().train
    origins = np.array([view.origin_utc for view in train.scope.windows.views()])
    left_out = np.isnan(train.missed_NH).all(1)
    first = [origins[train.fold_N == fold].min() for fold in range(5)]
    assert sorted(set(origins[left_out])) == first


def test_a_window_of_train_is_read_without_what_its_own_part_says():
    train = probe().train
    sign_N = np.where(train.fold_N == 2, -1.0, 1.0)
    turned = replace(train, missed_NH=train.missed_NH * sign_N[:, None])
    weights_FSH, turned_FSH = NewsProbe.fit(train), NewsProbe.fit(turned)
    assert weights_FSH[2].any()
    assert np.array_equal(turned_FSH[2], weights_FSH[2])
    assert not any(np.array_equal(turned_FSH[i], weights_FSH[i]) for i in (0, 1, 3, 4, -1))


def test_planting_leaves_the_errors_and_moves_the_days_of_a_signal_alone():
    train = probe().train
    rng = (np.random.default_rng(0) for _ in range(2))
    still, shifted = (
        plant_effect([train], "fuel prices", effect, next(rng))[0].missed_NH for effect in (0, 2)
    )
    whole = np.isfinite(still).all(1)
    has = (train.own_NS[:, SIGNALS.index("fuel prices")] > 0)[whole]
    moved = (shifted - still)[whole]
    assert np.ptp(moved[has]) < 1e-9
    assert abs(moved[has].mean() - moved[~has].mean()) == pytest.approx(2.0)
    # Another order of the same errors, so that what is real in them is not counted as seen.
    assert not np.isclose(still, train.missed_NH).all(1)[whole].any()
    assert np.nanstd(still) == pytest.approx(np.nanstd(train.missed_NH), rel=0.05)


@pytest.mark.slow
def test_larger_effects_are_seen_more_often_and_the_smallest_one_is_named(monkeypatch):
    monkeypatch.setattr(news_audit, "DRAWS", 10)
    monkeypatch.setattr(news_audit, "EFFECTS", (0.05, 4.0))
    sample = probe(0.0).train

    def count(effect):
        draws = (
            plant_effect([sample], ANY, effect, np.random.default_rng(seed)) for seed in range(10)
        )
        return sum(is_seen(probe(0.0).read(drawn)[0], sample, ANY) for drawn in draws)

    seen = [count(effect) for effect in (0.0, 0.3, 4.0)]
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 10)
    assert probe(0.0).measure_power([sample], ANY) == [(4.0, 0.0)]
    monkeypatch.setattr(news_audit, "EFFECTS", (0.05,))
    assert probe(0.0).measure_power([sample], ANY) == [(None, 0.0)]


def test_the_probe_learns_errors_that_its_base_made_on_days_it_had_not_seen():
    train = planted_world(3.0, is_regional=True, share=0.1).split("train")
    missed_NH = np.abs(probe().train.missed_NH) * probe().train.size_N[:, None]
    seen_NH = train.truth() - fit_baseline("calendar-ridge", train).predict(train.views())
    assert np.nanmean(missed_NH) > 1.01 * np.abs(seen_NH).mean()


def test_a_probe_without_fresh_news_is_refused():
    with pytest.raises(DataError, match="0 train windows"):
        NewsProbe(make_windows("train", 40), news_pool())


def test_the_rows_of_a_probe_name_what_it_would_have_seen(monkeypatch):
    monkeypatch.setattr(news_audit, "DRAWS", 1)
    monkeypatch.setattr(news_audit, "EFFECTS", (4.0,))
    world = planted_world(3.0, is_regional=True, share=0.1)
    rows = audit_probe(world.windows, world.news, commit="c")
    assert rows["split"].unique(maintain_order=True).to_list() == ["train", "val", "test"]
    declared = rows.filter(
        (pl.col("group_kind") == "declared") & (pl.col("group") == ANY) & (pl.col("news") == "own")
    ).to_dicts()
    sizes = measure_residuals(world.split("train")).values()
    low, high = min(sizes), max(sizes)
    assert low < declared[0]["seen_from"] / declared[0]["seen_from_sd"] < high
    assert rows.filter(pl.col("news") != "own")["seen_from_sd"].is_null().all()

    train = rows.filter(pl.col("split") == "train").to_dicts()
    assert judge_news(train).startswith("Yes")
    silent = [
        row | ({"interval_low": -1.0, "interval_high": 1.0} if row["news"] != "own" else {})
        for row in train
    ]
    assert "4 standard deviations" in judge_news(silent)
    missed = [row | {"seen_from": None, "seen_from_sd": None} for row in silent]
    assert judge_news(missed) != judge_news(silent)


def test_too_few_days_for_an_interval_are_said_to_be():
    rows = audit(with_article(make_windows("test", 6)), forecast_with_help).to_dicts()
    assert judge_news(rows).startswith("Unknown: there are too few days")
