"""Headlines that somebody makes up to move a forecast."""

from dataclasses import replace
from datetime import timedelta
from string import ascii_lowercase

import numpy as np
import polars as pl
import pytest

from compevo_core.data.datasets import BITCOIN, ELECTRICITY
from compevo_core.data.news import find_candidates
from compevo_core.data.news_pool import NewsPool
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.issued import issue_forecast
from compevo_core.training.trainer import train
from compevo_pipeline.work.next_day import LEAST_NEWS_CHANGE, _describe_crowds, _describe_news
from tests.support.planted import planted_world, search, sentence_encoder
from tests.support.window_samples import NOW, make_articles

COUNT = 150


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, COUNT])  # with titles that are alike, or unlike each other
def test_false_headlines_move_nothing_untold(tmp_path, sites):
    world, encoder = planted_world(3.0), sentence_encoder()
    train(search(), world.windows.split("train"), world.windows.split("val"), world.news, tmp_path)
    views = world.windows.split("test").views()

    moved = seen = 0
    for day in sorted({view.origin_utc for view in views})[::6]:
        today = [view for view in views if view.origin_utc == day]
        titles = [f"Power outage {n} in NSW: blackout, storm {n} cuts lines" for n in range(COUNT)]
        if sites > 1:
            rng = np.random.default_rng(day.toordinal())
            unlike = [" ".join(rng.permutation(list(ascii_lowercase))[:9]) for _ in titles]
            titles = [f"Power outage in NSW: {words}" for words in unlike]
        false = make_articles([day - timedelta(hours=1)] * COUNT, titles)
        domain = pl.Series([f"strangers-{number % sites}" for number in range(COUNT)])
        articles = pl.concat([world.news.articles, false.with_columns(domain=domain)])
        pool = NewsPool(articles, encoder.encode(articles["title"].to_list()), encoder.name)

        attacked = []
        for view in today:
            known = [*view.candidate_ids, *false["article_id"]]
            read = articles.filter(pl.col("article_id").is_in(known))
            ordered = read.sort("available_at", "article_id")
            ids = find_candidates(ordered, day, BITCOIN, is_spread=True)
            attacked.append(replace(view, candidate_ids=tuple(ids)))
        model = CompEvoForecaster.load(tmp_path, pool)
        facts = {"market_offset": timedelta(hours=10), "issued_at": NOW, "commit": "", "news": pool}
        true, issued = (issue_forecast(model, each, **facts) for each in (today, attacked))
        notes = [*_describe_crowds(articles, ELECTRICITY, day), *_describe_news(issued)]
        for view in today:
            before, after = (
                each.select_points(view.entity)["forecast"].mean() for each in (true, issued)
            )
            if abs(after / before - 1) > LEAST_NEWS_CHANGE:
                moved += 1
                told = [note for note in notes if note.startswith("news moves ")]
                seen += any(f"{view.entity} by" in note for note in told)
                assert any(" articles " in note for note in notes), day
    # A false headline in the place of a true one may leave a forecast as it is without news: then
    # only the crowd is noted.
    assert 0.6 * moved < seen <= moved
