"""News that cannot be had: what fails, and what goes on with the articles that are stored."""

from dataclasses import replace

import pytest

from compevo_core.errors import SchemaDrift, SourceRejected
from compevo_pipeline.storage.news_store import NewsStore
from tests.support.deployment import deploy, few_feeds, read_materialization


def deploy_failing(home, error):
    def fail(*_):
        raise error

    feeds = few_feeds()
    news = tuple(replace(feed, read_files=fail) for feed in feeds["news"])
    return deploy(home, feeds=feeds | {"news": news})


@pytest.mark.parametrize(
    ("error", "is_stored", "succeeds"),
    [
        (SourceRejected("403 from a proxy"), True, True),
        (SourceRejected("403 from a proxy"), False, False),
        (SchemaDrift("another format"), True, False),
    ],
)
def test_stored_news_go_on_where_a_publisher_cannot_be_reached(
    tmp_path, error, is_stored, succeeds
):
    deployment = deploy_failing(tmp_path, error)
    if is_stored:
        NewsStore(deployment.layout.news_database).create()
    result = deployment.materialize("news/articles", raise_on_error=False)
    failed = {event.step_key for event in result.all_events if event.is_step_failure}
    assert ("news__articles" not in failed) == succeeds
    if succeeds:
        shown = read_materialization(result, "news/articles").metadata
        assert shown["unread"].value == f"SourceRejected: {error}"
