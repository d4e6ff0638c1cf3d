"""Asset checks: Great Expectations suites of every series, freshness, news availability, window splits.

What belongs here: binding rules to assets, and what a failure blocks. What does not: the rules' numbers
(``expectations``), leakage detectors (``compevo_core.leakage``), the checks that an asset makes of itself while it runs
(``assets.leakage``). A blocking check that fails keeps everything downstream from running.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import polars as pl

from compevo_pipeline.expectations import NAMES, RULES, Outcome, run_suite
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.base import Mode

ABOUT = {
    "schema": "Columns, types, flags and required values follow the series contract.",
    "grid": "Every stamp lies on the data set's grid.",
    "units": "Every variable is in the unit its name says.",
    "gaps": "Few values are missing where the series was collected at all.",
    "duplicates": "One row a series, variable and time.",
    "ranges": "Values lie within what is physically or economically possible.",
    "fresh": "In live mode, the newest value is not older than the source's rhythm allows.",
}
WARNINGS = frozenset({"gaps", "fresh"})
"""Checks that warn and do not block: what they find may be the publisher's state, not our fault."""
MAX_AGE = {
    "electricity": timedelta(days=2),
    "exchange": timedelta(days=5),
    "bitcoin": timedelta(days=3),
    "traffic": timedelta(days=45),
    "news": timedelta(days=2),
}


def series_checks(dataset: str) -> dg.AssetChecksDefinition:
    """All checks of one series asset in one step, so that the suite is imported and the data read once."""
    key = dg.AssetKey(["series", dataset])
    specs = [
        dg.AssetCheckSpec(name, asset=key, description=about, blocking=name not in WARNINGS)
        for name, about in ABOUT.items()
    ]

    @dg.multi_asset_check(name=f"series_{dataset}_checks", specs=specs)
    def _checks(workspace: Workspace, clock: dg.ResourceParam[Clock]) -> Iterator[dg.AssetCheckResult]:
        frame = workspace.series_store().read(dataset)
        for outcome in run_suite(frame, RULES[dataset]):
            yield _result(key, outcome)
        newest = frame.filter(pl.col("value").is_not_null())["start_utc"].max()
        yield freshness(key, "fresh", newest, MAX_AGE[dataset], workspace, clock)

    return _checks


def _result(key: dg.AssetKey, outcome: Outcome) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=outcome.name,
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.WARN if outcome.name in WARNINGS else dg.AssetCheckSeverity.ERROR,
        description=outcome.detail[:1000],
        metadata={"expectations": outcome.expectations, "broken_rows": outcome.broken},
    )


def freshness(
    key: dg.AssetKey, name: str, newest: Any, limit: timedelta, workspace: Workspace, clock: Clock  # noqa: ANN401 - a polars scalar
) -> dg.AssetCheckResult:
    """Age of the newest row against ``limit``; files on disk do not age, so only live mode can fail."""
    age = clock() - newest if newest is not None else None
    live = workspace.data_mode is Mode.LIVE
    passed = not live or (age is not None and age <= limit)
    hours = round(age.total_seconds() / 3600, 1) if age is not None else -1.0
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"newest row {newest}" + ("" if live else f"; not judged in {workspace.data_mode} mode"),
        metadata={"age_hours": hours, "limit_hours": limit.total_seconds() / 3600},
    )


_ARTICLES = dg.AssetKey(["news", "articles"])


@dg.multi_asset_check(
    name="news_articles_checks",
    specs=[
        dg.AssetCheckSpec(
            "available_when_known",
            asset=_ARTICLES,
            blocking=True,
            description="No article is marked available before it was published or seen.",
        ),
        dg.AssetCheckSpec(
            "one_row_an_article", asset=_ARTICLES, blocking=True, description="Each address is stored once."
        ),
        dg.AssetCheckSpec("has_title", asset=_ARTICLES, blocking=True, description="Every article has a headline to read."),
        dg.AssetCheckSpec("fresh", asset=_ARTICLES, description="In live mode, news arrived in the last two days."),
    ],
)
def news_checks(workspace: Workspace, clock: dg.ResourceParam[Clock]) -> Iterator[dg.AssetCheckResult]:
    """Availability, identity and content of the stored articles."""
    stored = workspace.news_store().read_articles()
    early = stored.filter(pl.col("available_at") < pl.max_horizontal("published_at", "seen_at"))
    twice = stored.filter(pl.col("article_id").is_duplicated())
    silent = stored.filter(pl.col("title").fill_null("").str.strip_chars() == "")
    for name, bad in (("available_when_known", early), ("one_row_an_article", twice), ("has_title", silent)):
        yield dg.AssetCheckResult(
            asset_key=_ARTICLES,
            check_name=name,
            passed=bad.height == 0,
            description=f"{bad.height} of {stored.height} articles" + (f", first {bad['url'][0]}" if bad.height else ""),
            metadata={"articles": stored.height, "broken": bad.height},
        )
    yield freshness(_ARTICLES, "fresh", stored["available_at"].max(), MAX_AGE["news"], workspace, clock)


def all_checks() -> list[dg.AssetChecksDefinition]:
    """Every check that is a step of its own."""
    return [*(series_checks(dataset) for dataset in DATASETS), news_checks]


assert set(NAMES) < set(ABOUT)  # noqa: S101 - the two tables name the same suites
