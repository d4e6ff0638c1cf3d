"""Why a forecast is what it is: the parts of a sealed record, which add up to the forecast."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from compevo_core.baselines.known_errors import LevelRule
from compevo_core.errors import DataError
from compevo_core.forecast.explain import explain
from compevo_core.forecast.issued import issue_forecast, read_issued, write_issued
from tests.core.forecast.test_forecaster import seal_population
from tests.support.population import news_pool, windows

VIEWS = windows("test", 1, first_day=80).views()
NOW = datetime(2026, 3, 30, 7, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    """A forecast of noisy agents with levels, written and read again."""
    folder = tmp_path_factory.mktemp("deployment")
    forecaster = seal_population(folder / "run", LevelRule("mean", 2.0))
    forecast = issue_forecast(
        forecaster,
        VIEWS,
        news=news_pool(),
        market_offset=timedelta(hours=10),
        issued_at=NOW,
        commit="abc",
    )
    return read_issued(write_issued(folder / "issued", forecast))


def explain_first(issued):
    return explain(issued, VIEWS[0].entity)


def test_the_parts_add_up_to_the_forecast(issued):
    why = explain_first(issued)
    total = sum(part.contribution for part in why.parts)
    assert np.allclose(total, why.forecast, rtol=1e-6, atol=0)

    parts = [why.weigh(name) for name in ("prior", "correction", "level")]
    assert np.allclose(sum(parts), why.forecast, rtol=1e-6, atol=0)
    # All three are there: none of them is the whole forecast.
    assert all(np.abs(part).mean() > 1e-3 for part in parts)


def test_an_agent_whose_corrections_are_shut_out_corrects_nothing(issued):
    # Of the noisy agents, the first keeps none of its correction, the last all of it.
    first, _, last = explain_first(issued).parts
    assert np.abs(first.correction).max() < 1e-2 * np.abs(last.correction).max()
    assert np.abs(first.level).max() > 0


def test_what_each_agent_read_is_named_with_its_logic(issued):
    pool = news_pool()
    for part, logic in zip(explain_first(issued).parts, issued.facts["logics"], strict=True):
        assert part.logic == logic
        assert [one.title for one in part.articles] == [
            pool.get_title(one.article_id) for one in part.articles
        ]
        assert all(one.available_at < VIEWS[0].origin_utc for one in part.articles)


def test_a_series_that_the_record_lacks_is_an_error(issued):
    with pytest.raises(DataError, match="WA1"):
        explain(issued, "WA1")
