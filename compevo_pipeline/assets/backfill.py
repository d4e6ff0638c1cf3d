"""The job ``backfill``: what is missing of a past span, fetched month by month.

What belongs here: its run configuration, and telling Dagster that the series of the data set
changed. What does not: the months and their order (``compevo_pipeline.backfill``).
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Self

import dagster as dg
from pydantic import Field, model_validator

from compevo_pipeline.asset_keys import NEWS_ARTICLES, series_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.ingest import read_day
from compevo_pipeline.backfill import backfill, choose_feeds
from compevo_pipeline.data_versions import DATA_VERSION_TAG, hash_news, hash_series
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.feeds import FeedTable
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.source_coverage import NEWS


class BackfillConfig(LaunchConfig):
    """What to fetch."""

    dataset: str
    """data set, such as electricity-operational, or news"""
    since: str
    """first day, such as 2025-05-01 (UTC)"""
    until: str | None = None
    """the day after the last one; left out: up to now"""
    feeds: list[str] | None = Field(default=None, min_length=1)
    """feeds to read; left out: all of the data set that have an endpoint"""

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        since, until = self.read_span()
        if until and since >= until:
            raise ValueError(f"since {self.since} is not before until {self.until}")
        return self

    def read_span(self) -> tuple[datetime, datetime | None]:
        """Return start and end in UTC; None is now.

        Raises:
            ValueError: a text that is no date.
        """
        return read_day(self.since, "since"), None if self.until is None else read_day(
            self.until, "until"
        )


# In no pool: it may take days, and what it writes takes turns with others by short locks.
@dg.op(config_schema=BackfillConfig.schema_of_launch(), out={})
def fetch_missing(
    context: dg.OpExecutionContext,
    workspace: Workspace,
    feeds: dg.ResourceParam[FeedTable],
    clock: dg.ResourceParam[Clock],
) -> Iterator[dg.AssetMaterialization]:
    """Fetch and store the months of the span that are missing."""
    config = BackfillConfig.model_validate(context.op_config)
    counts: dict[str, Counter[str]] = {}
    try:
        with translate_errors(attempt=context.retry_number):
            since, until = config.read_span()
            backfill(
                workspace,
                config.dataset,
                choose_feeds(feeds, config.dataset, config.feeds),
                since=since,
                until=until,
                clock=clock,
                log=context.log,
                counts=counts,
            )
    finally:
        # Months before a failure are stored too: what is made of them is out of date now.
        if counts:
            yield _describe(workspace, config, counts)


def _describe(
    workspace: Workspace, config: BackfillConfig, counts: dict[str, Counter[str]]
) -> dg.AssetMaterialization:
    """Return what the catalog shows of the series, or of the news, that have changed."""
    is_news = config.dataset == NEWS
    version = hash_news(workspace) if is_news else hash_series(workspace, config.dataset)
    shown: dict[str, Any] = {feed: metadata.render_counts(found) for feed, found in counts.items()}
    return dg.AssetMaterialization(
        NEWS_ARTICLES if is_news else series_key(config.dataset),
        metadata={"backfill_since": config.since, "mode": workspace.data_mode.value, **shown},
        tags={DATA_VERSION_TAG: version},
    )


def build_backfill_job() -> dg.JobDefinition:
    """Return the job."""

    @dg.job(
        name="backfill",
        description=(
            "Fetch what is missing of a past span from the publishers, month by month. Stopped or "
            "failed, it goes on where it was when it is launched again."
        ),
        tags={"compevo/job": "backfill"},
    )
    def _backfill() -> None:
        fetch_missing()

    return _backfill
