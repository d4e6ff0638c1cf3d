"""News that is not available: what fails, and what works with the stored articles."""

from dataclasses import replace

import dagster as dg
import pytest

from compevo_core.errors import SchemaDrift, SourceRejected
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.asset_checks import DATA_AGE, _judge_articles
from compevo_pipeline.defs.asset_keys import NEWS_ARTICLES, OPERATIONAL, series_key
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.runs import set_current_run
from compevo_pipeline.work import next_day
from compevo_pipeline.work.deployment import Deployment
from tests.support.deployment import NOW, QUIET, deploy, few_feeds, read_materialization


@pytest.mark.parametrize(
    ("error", "is_stored", "succeeds"),
    [
        (SourceRejected("403 from a proxy"), True, True),
        (SourceRejected("403 from a proxy"), False, False),
        (SchemaDrift("another format"), True, False),
    ],
)
def test_stored_news_outlive_a_publisher(tmp_path, error, is_stored, succeeds):
    def fail(*_):
        raise error

    news = tuple(replace(feed, read_files=fail) for feed in few_feeds()["news"])
    deployment = deploy(tmp_path, feeds=few_feeds() | {"news": news})
    if is_stored:
        NewsStore(deployment.layout.news_database).create()
    result = deployment.materialize("news/articles", raise_on_error=False)
    failed = {event.step_key for event in result.all_events if event.is_step_failure}

    assert ("news__articles" not in failed) == succeeds
    if succeeds:
        shown = read_materialization(result, "news/articles").metadata
        assert shown["unread"].value == f"SourceRejected: {error}"


@pytest.mark.parametrize(
    ("job", "encoder", "asked"),
    [
        ("refresh", "", [OPERATIONAL]),
        ("refresh", "hashing", [OPERATIONAL, "news"]),
        ("full_electricity_operational", "", [OPERATIONAL, "news"]),
    ],
)
def test_a_refresh_asks_for_needed_news(tmp_path, monkeypatch, job, encoder, asked):
    seen = []

    def record(name):
        def fetch(live):
            seen.append(name)
            raise SourceRejected("nothing to fetch")

        return (replace(few_feeds()[name][0], fetch_live=fetch),)

    settings = Settings(home=tmp_path, mode=Mode.LIVE)
    set_current_run(settings.layout(Mode.LIVE), OPERATIONAL, "one")
    monkeypatch.setattr(next_day, "find_encoder", lambda run: encoder)
    feeds = few_feeds() | {name: record(name) for name in (OPERATIONAL, "news")}
    result = (
        build_defs(settings, feeds=feeds)
        .resolve_job_def(job)
        .execute_in_process(
            asset_selection=[NEWS_ARTICLES, series_key(OPERATIONAL)],
            run_config={"loggers": QUIET},
            instance=dg.DagsterInstance.ephemeral(),
            raise_on_error=False,
        )
    )
    assert seen == asked
    if "news" not in asked:
        shown = read_materialization(result, "news/articles").metadata
        assert shown["unread"].value == f"no model of {OPERATIONAL} reads news"
    # And there is no warning about the age of news that is not read.
    NewsStore(settings.layout(Mode.LIVE).news_database).create()
    deployment = Deployment(settings=settings, mode=Mode.LIVE)
    (age,) = _judge_articles(deployment, "news", NOW, {DATA_AGE})
    assert age.passed is not bool(encoder)
