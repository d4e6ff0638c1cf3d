"""What own news is worth against none, another day's and irrelevant ones, and what each is."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import cache
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, LeakageError
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.evaluation.scopes import Scope
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper import news_audit
from compevo_core.paper.changes import (
    LEAST_DISTANCE,
    NEWS_CHANGES,
    Relevance,
    change_news,
    swap_news,
)
from compevo_core.paper.report.evidence_tables import judge_news, list_evidence
from compevo_core.paper.report.inputs import KINDS
from compevo_core.paper.text_networks import NEWS_DAYS, embed_days
from tests.support.planted import planted_world
from tests.support.population import article_ids, news_pool
from tests.support.population import windows as make_windows
from tests.support.window_samples import change_views, make_set


@cache
def audit():
    """The audit of a forecaster that errs by 10, and by 4 where a window has an article."""
    # Every second window has it, the others none.
    windows = make_windows("test", 40)
    owned = [
        window.change_view(candidate_ids=article_ids()[:1] if i % 4 < 2 else ())
        for i, window in enumerate(windows)
    ]

    # The first signal where a window has an article, the others nowhere.
    def measure(views):
        return np.array([[float(bool(view.candidate_ids))] + [0.0] * 10 for view in views])

    def predict(scope):
        read = [view.candidate_ids[:1] for view in scope.windows.views()]
        helped = [article_ids()[0] in view.candidate_ids for view in scope.windows.views()]
        forecast_NH = scope.windows.truth() + np.where(helped, 4.0, 10.0)[:, None]
        return SimpleNamespace(aggregate=forecast_NH, chosen_news=[read])

    return news_audit.audit_scope(
        Scope(subset="test", windows=WindowSet(owned, dataset=windows.dataset)),
        predict,
        relevance(),
        SimpleNamespace(
            measure=measure, find_topics=lambda ids: {news_audit.SIGNALS[0]} if ids else set()
        ),
        {"source": "probe", "encoder": "hashing"},
    )


def test_effects_are_mean_differences_by_group():
    rows = audit()
    overall = {row["news"]: row for row in rows.to_dicts() if row["group_kind"] == "all"}
    assert set(overall) == set(news_audit.READINGS)
    assert overall["own"]["mae"] == pytest.approx(7.0)
    assert overall["none"]["difference"] == pytest.approx(-3.0)
    assert overall["none"]["interval_high"] < 0
    assert (overall["own"]["n_windows"], overall["own"]["n_with_news"]) == (80, 40)
    assert overall["none"]["n_with_news"] == 0

    groups = set(rows.select("group_kind", "group").iter_rows())
    assert {("series", "NSW1"), ("series", "SA1"), ("declared", news_audit.SIGNALS[0])} <= groups
    # No window has it, and an effect on none is not an effect.
    assert ("declared", news_audit.SIGNALS[1]) not in groups
    declared = rows.filter(group=news_audit.ANY, news="none")
    assert declared["difference"].to_list() == [pytest.approx(-6.0)]


def test_moves_are_measured_against_the_forecast():
    without_NH = np.array([[100.0], [1000.0], [100.0], [1000.0]])
    chosen = [[("a",), ("a", "b"), (), ("b",)]]
    moved_NH = np.array([[10.0], [10.0], [0.0], [0.0]])
    own = SimpleNamespace(aggregate=without_NH + moved_NH, chosen_news=chosen)
    none = SimpleNamespace(aggregate=without_NH)
    names = {"a": "power outages", "b": "fuel prices"}

    found = news_audit.list_read_groups(
        {"own": own, "none": none}, lambda ids: {names[name] for name in ids}
    )

    groups = {(kind, group): members.tolist() for kind, group, members in found}
    assert groups["moved", "most"] == [True, False, False, False]
    assert groups["moved", "rest"] == [False, True, True, True]
    assert groups["agent 0", "power outages"] == [True, True, False, False]
    assert groups["agent 0", "fuel prices"] == [False, True, False, True]


HELP, CHANCE, HARM = (-3.0, -1.0), (-1.0, 1.0), (0.5, 2.0)


@pytest.mark.parametrize(
    ("none", "swapped", "lenders", "verdict"),
    [
        (HELP, HELP, 1, "Yes"),
        (HELP, CHANCE, 1, "The gain is not"),
        (HELP, CHANCE, 0, "Better than without news"),
        (CHANCE, HELP, 1, "No measurable gain"),
        (HARM, HELP, 1, "No gain:"),
        (HELP, (None, None), 1, "Unknown:"),
        ((None, None), HELP, 1, "Unknown:"),
    ],
)
def test_two_intervals_decide_whether_news_helps(none, swapped, lenders, verdict):
    decide = {"none": none, "swapped": swapped}
    rows = audit().to_dicts()
    for row in rows:
        if row["news"] in decide:
            row["interval_low"], row["interval_high"] = decide[row["news"]]
            row["n_with_news"] = lenders
    assert judge_news(rows).startswith(verdict)


def test_other_sources_rows_stay(tmp_path):
    rows = audit()
    other = rows.with_columns(pl.lit("run").alias("source"))
    for one in (rows, other, rows):
        path = news_audit.write_audit(tmp_path, one)
    stored = pl.read_csv(path, schema=news_audit.AUDIT_SCHEMA)
    assert stored["source"].value_counts().sort("source")["count"].to_list() == [rows.height] * 2
    assert set(KINDS["audit"]) <= set(stored.columns)
    assert len(list_evidence("audit", stored.to_dicts())) == 2


def regional_world(effect=3.0):
    """A world in which the articles of all regions are candidates of a window."""
    return planted_world(effect, is_regional=True, share=0.1)


def test_an_article_must_be_fresh_and_regional():
    world = regional_world()
    signals = news_audit.NewsSignals(world.news, world.split("train").views())
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


def test_unusually_much_news_is_a_signal():
    world = regional_world(0.0)
    signals = news_audit.NewsSignals(world.news, world.split("train").views())
    view = next(v for v in world.split("test").views() if v.entity == "SA1")
    own = [n for n in view.candidate_ids if "South Australia" in world.news.get_title(n)]

    views = [replace(view, candidate_ids=tuple(ids)) for ids in (own[:2], [*own, *own])]
    few, many = signals.measure(views)[:, -1]
    assert few == 0.0 < many


def test_only_articles_of_the_own_region_are_kept():
    world = regional_world()
    windows = world.split("test").entity("SA1")

    selected = news_audit.select_own(windows, world.news)

    for before, after in zip(windows, selected, strict=True):
        own = [n for n in before.view.candidate_ids if "South Australia" in world.news.get_title(n)]
        assert list(after.view.candidate_ids) == own
    assert any(window.view.candidate_ids for window in selected)


def test_a_probe_of_few_windows_is_refused():
    windows = make_set([*make_windows("train", 40), *make_windows("val", 5, first_day=40)])
    with pytest.raises(DataError, match="too few"):
        news_audit.audit_probe(windows, news_pool(), commit="c")


def with_own_news(*parts):
    """Windows each of which has one article, named after it."""
    return change_views(itertools.chain(*parts), lambda view: {"candidate_ids": (view.window_id,)})


def test_the_lending_day_is_thirty_days_earlier():
    windows = with_own_news(make_windows("train", 70), make_windows("test", 50, first_day=70))
    by_id = {window.view.window_id: window for window in windows}
    views = [new.view for new in swap_news(windows, 0)]
    pairs = [(by_id[view.window_id], by_id[name]) for view in views for name in view.candidate_ids]
    assert len(pairs) == 2 * (40 + 20)

    for window, lender in ((a.view, b.view) for a, b in pairs):
        assert window.origin_utc - lender.origin_utc >= timedelta(days=30)
        assert (window.split, window.series_id) == (lender.split, lender.series_id)
    # The nearest day that may lend does: a rule that is stricter by a day would waste windows.
    assert min(a.view.origin_utc - b.view.origin_utc for a, b in pairs) < LEAST_DISTANCE * 1.1


@pytest.mark.parametrize(("synthetic", "days"), [(False, 30), (True, 7)])
def test_the_first_windows_read_nothing(synthetic, days):
    own = with_own_news(make_windows("train", 40))
    swapped = swap_news(make_set(own, manifest={"synthetic": synthetic}), 0)
    assert sum(not window.view.candidate_ids for window in swapped) == 2 * days
    counted = {"least_days": days, "n_left_without_articles": 2 * days}
    assert swapped.manifest["perturbation"] == {"name": "swap-news", "seed": 0, **counted}
    # The selection of a split must still say what was done to it.
    assert swapped.split("train").manifest["perturbation"]["name"] == "swap-news"


def test_a_draw_depends_on_seed_and_window():
    test = with_own_news(make_windows("test", 60, first_day=70))
    both = with_own_news(make_windows("train", 70), make_windows("test", 60, first_day=70))
    assert swap_news(both, 1).split("test").hash == swap_news(test, 1).hash
    assert swap_news(test, 1).hash == swap_news(test, 1).hash != swap_news(test, 2).hash
    # Not one and the same lender for all: each window draws for itself.
    lent = {article for window in swap_news(test, 1) for article in window.view.candidate_ids}
    assert len(lent) > 15


def with_pool_news(days):
    """Windows each of which has the first two articles of the pool."""
    ids = tuple(article_ids()[:2])
    return change_views(make_windows("test", days), lambda _: {"candidate_ids": ids})


def relevance():
    return Relevance(news_pool(), HashingEncoder().encode(["Heatwave demand record", "power"]))


@pytest.mark.parametrize("name", NEWS_CHANGES)
def test_changed_news_leaves_all_else(name):
    windows = with_pool_news(3)
    changed = change_news(windows, name, relevance())
    for old, new in zip(windows, changed, strict=True):
        assert new.view.window_id == old.view.window_id
        assert np.array_equal(new.view.x, old.view.x) and np.array_equal(new.y, old.y)


def test_each_change_gives_what_its_name_says():
    windows = with_pool_news(2)
    own = windows[0].view.candidate_ids

    def read(name):
        return change_news(windows, name, relevance())[0].view.candidate_ids

    assert change_news(windows, "own") is windows
    assert read("none") == ()
    assert sorted(read("shuffled")) == sorted(own)
    irrelevant = read("irrelevant")
    assert len(irrelevant) == len(own)
    assert not set(irrelevant) & set(own)
    assert read("noisy") == (*own, *irrelevant)
    with pytest.raises(ConfigError, match="the relevance"):
        change_news(windows, "irrelevant")
    with pytest.raises(ConfigError, match="own, none"):
        change_news(windows, "fake")


def test_irrelevant_articles_were_available_to_the_window():
    pool = news_pool()
    early = min(pool.articles["available_at"]) + timedelta(hours=2, minutes=30)
    window = with_pool_news(1)[0].change_view(origin_utc=early)
    drawn = relevance().sample_irrelevant(window, np.random.default_rng(0))
    # Of three articles that were out by then, two are its own.
    assert drawn == (article_ids()[2],)


POOL = news_pool()
VIEW = make_windows("train", 1, entities=("NSW1",)).views()[0]


def view_at(hours, *ids):
    """A view that is made this long after the third article came out."""
    origin = POOL.get_date(article_ids()[2]) + timedelta(hours=hours)
    return replace(VIEW, origin_utc=origin, candidate_ids=ids)


@pytest.mark.parametrize(
    ("hours", "changes", "is_known"),
    [
        (0.01, {}, True),
        (0, {}, False),
        (-5, {}, False),
        # Fourteen of its inputs are unknown: it is made seven hours before its origin.
        (7.5, {"unknown_steps": 14}, True),
        (6.5, {"unknown_steps": 14}, False),
        (-5, {"leaky": True}, True),  # a copy of a published leaky prompt keeps its news
    ],
)
def test_an_article_from_the_view_on_is_refused(hours, changes, is_known):
    view = replace(view_at(hours, article_ids()[2]), **changes)
    for read in (raise_if_later_news, embed_days):
        late = pytest.raises(LeakageError, match="not available")
        with nullcontext() if is_known else late:
            read([view], POOL)


def test_days_average_their_articles_oldest_first():
    # Articles come an hour after another: with the third 23.5 hours old, the first two are older.
    first, second, third = article_ids()[:3]
    days = embed_days([view_at(23.5, third, second, first)], POOL)[0]
    np.testing.assert_array_equal(days[-1], POOL.embeddings[2])
    np.testing.assert_allclose(days[-2], POOL.embeddings[:2].mean(axis=0), rtol=1e-6)
    assert not days[:-2].any()

    # No news is zero.
    assert not embed_days([view_at(1)], POOL).any()
    assert embed_days([], POOL).shape == (0, NEWS_DAYS, POOL.embeddings.shape[1])
    with pytest.raises(DataError, match="news pool"):
        embed_days([view_at(1, "0" * 32)], POOL)
