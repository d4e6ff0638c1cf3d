"""The news audit: what own news is worth against none, another day's and irrelevant ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.scopes import Scope
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.news_audit import (
    AUDIT_SCHEMA,
    READINGS,
    NewsProbe,
    audit_scope,
    write_audit,
)
from compevo_core.paper.news_changes import Relevance
from compevo_core.report.audit_tables import format_audit, judge_news
from compevo_core.report.inputs import AUDIT_COLUMNS
from tests.support.population import article_ids, news_pool
from tests.support.population import windows as make_windows

TOPICS = ("heatwave record demand", "interest rates inflation")
FACTS = {"source": "probe", "encoder": "hashing", "penalty": 1.0, "commit": "c"}


def with_article(windows: WindowSet, chosen: int = 0) -> WindowSet:
    """Every second window has one article, the others none."""
    owned = [
        window.change_view(candidate_ids=(article_ids()[chosen],) if i % 4 < 2 else ())
        for i, window in enumerate(windows)
    ]
    return WindowSet(owned, dataset=windows.dataset)


def audit(windows: WindowSet, forecast) -> pl.DataFrame:
    relevance = Relevance(news_pool(), HashingEncoder().encode(TOPICS))
    return audit_scope(Scope(subset="test", windows=windows), forecast, relevance, TOPICS, FACTS)


def forecast_with_help(scope: Scope) -> FloatArray:
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


def test_effects_are_given_by_series_by_topic_and_where_there_was_news():
    rows = audit(with_article(make_windows("test", 40)), forecast_with_help)
    groups = set(rows.select("group_kind", "group").iter_rows())
    assert {("series", "NSW1"), ("series", "SA1"), ("with news", "with news")} <= groups
    assert ("topic", TOPICS[0]) in groups
    # No window has an article about it, and an effect on none is no effect.
    assert ("topic", TOPICS[1]) not in groups
    with_news = rows.filter((pl.col("group_kind") == "with news") & (pl.col("news") == "none"))
    assert with_news["difference"].to_list() == [pytest.approx(-6.0)]


def test_a_gain_over_no_news_alone_is_not_called_help():
    windows = with_article(make_windows("test", 70))

    def any_news_helps(scope: Scope) -> FloatArray:
        errs = [10.0 - 6.0 * bool(view.candidate_ids) for view in scope.windows.views()]
        return scope.windows.truth() + np.array(errs)[:, None]

    # The first month has nobody to borrow from; only later days are compared.
    later = WindowSet(
        [one for one in windows if int(one.view.window_id.split("-")[2]) >= 40],
        dataset="electricity",
    )
    rows = audit(later, any_news_helps).to_dicts()
    swapped = [
        row | {"interval_low": -1.0, "interval_high": 1.0} if row["news"] == "swapped" else row
        for row in rows
    ]
    assert judge_news(swapped).startswith("The gain is not from")
    assert judge_news(audit(windows, forecast_with_help).to_dicts()).startswith("Yes")


@pytest.mark.parametrize(("harm", "verdict"), [(0.0, "No"), (1.0, "No gain: the error is")])
def test_news_that_does_nothing_or_harm_is_said_to(harm, verdict):
    def forecast(scope: Scope) -> FloatArray:
        errs = [1.0 + harm * bool(view.candidate_ids) for view in scope.windows.views()]
        return scope.windows.truth() + np.array(errs)[:, None]

    rows = audit(with_article(make_windows("test", 40)), forecast)
    assert judge_news(rows.to_dicts()).startswith(verdict)


def test_rows_of_another_source_stay_and_the_same_are_replaced(tmp_path: Path):
    rows = audit(with_article(make_windows("test", 40)), forecast_with_help)
    other = rows.with_columns(pl.lit("run").alias("source"))
    for one in (rows, other, rows):
        path = write_audit(tmp_path, one)
    stored = pl.read_csv(path, schema=AUDIT_SCHEMA)
    assert stored["source"].value_counts().sort("source")["count"].to_list() == [rows.height] * 2
    assert set(AUDIT_COLUMNS) <= set(stored.columns)
    assert format_audit(stored.to_dicts()).count("does news help") == 2


def test_the_probe_learns_what_an_article_says_and_stands_on_its_base_without_one():
    def push(windows: WindowSet) -> WindowSet:
        """Demand is higher by a tenth on days with the first article, lower with the second."""
        made = []
        for i, window in enumerate(windows):
            ids = ((article_ids()[0],), (article_ids()[1],), ())[i // 2 % 3]
            factor = (1.1, 0.9, 1.0)[i // 2 % 3]
            made.append(replace(window.change_view(candidate_ids=ids), y=window.y * factor))
        return WindowSet(made, dataset=windows.dataset)

    train, val = push(make_windows("train", 90)), push(make_windows("val", 30, first_day=100))
    probe = NewsProbe.fit(train, val, news_pool())

    test = push(make_windows("test", 30, first_day=140))
    truth_NH = test.truth()
    own = np.abs(probe.predict(test.views()) - truth_NH).mean()
    base = np.abs(probe.base.predict(test.views()) - truth_NH).mean()
    assert own < 0.9 * base

    silent = [view for view in test.views() if not view.candidate_ids]
    assert np.array_equal(probe.predict(silent), probe.base.predict(silent))


def test_the_probe_learns_errors_that_its_base_made_on_days_it_had_not_seen(monkeypatch):
    learnt = []

    def record(probe: NewsProbe, train: WindowSet, base_NH: FloatArray, penalty: float):
        seen_NH = probe.base.predict(train.views())
        learnt.append([np.abs(it - train.truth()).mean() for it in (base_NH, seen_NH)])
        return {}

    monkeypatch.setattr(NewsProbe, "_fit_weights", record)
    NewsProbe.fit(make_windows("train", 40), make_windows("val", 5, first_day=60), news_pool())
    assert all(out_of_sample > 1.01 * in_sample for out_of_sample, in_sample in learnt)


def test_a_probe_without_news_is_refused():
    train, val = (
        make_windows("train", 40, news=False),
        make_windows("val", 5, first_day=60, news=False),
    )
    with pytest.raises(DataError, match="too few for 16 components"):
        NewsProbe.fit(train, val, news_pool())


def test_too_few_days_for_an_interval_are_said_to_be():
    rows = audit(with_article(make_windows("test", 6)), forecast_with_help).to_dicts()
    assert judge_news(rows).startswith("Unknown: there are too few days")
