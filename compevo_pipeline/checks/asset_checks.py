"""Asset checks: Great Expectations suites of every series, freshness, news availability, window splits.

What belongs here: binding rules to assets, and what a failure blocks. What does not: the rules' numbers
(``expectations``), leakage detectors (``compevo_core.evaluation.leakage``), the checks that an asset makes of itself while it runs
(``assets.leakage``). A blocking check that fails keeps everything downstream from running.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import polars as pl

from compevo_core.data.window import WindowSet
from compevo_core.evaluation.leakage import overlapping_targets, shared_windows
from compevo_pipeline.checks.availability import late, wording
from compevo_pipeline.checks.expectations import NAMES, RULES, Outcome, run_suite
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.common.base import Mode

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
    def _checks(
        workspace: Workspace, clock: dg.ResourceParam[Clock]
    ) -> Iterator[dg.AssetCheckResult]:
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
        severity=dg.AssetCheckSeverity.WARN
        if outcome.name in WARNINGS
        else dg.AssetCheckSeverity.ERROR,
        description=outcome.detail[:1000],
        metadata={"expectations": outcome.expectations, "broken_rows": outcome.broken},
    )


def freshness(
    key: dg.AssetKey,
    name: str,
    newest: Any,
    limit: timedelta,
    workspace: Workspace,
    clock: Clock,
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
        description=f"newest row {newest}"
        + ("" if live else f"; not judged in {workspace.data_mode} mode"),
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
            "one_row_an_article",
            asset=_ARTICLES,
            blocking=True,
            description="Each address is stored once.",
        ),
        dg.AssetCheckSpec(
            "has_title",
            asset=_ARTICLES,
            blocking=True,
            description="Every article has a headline to read.",
        ),
        dg.AssetCheckSpec(
            "fresh", asset=_ARTICLES, description="In live mode, news arrived in the last two days."
        ),
    ],
)
def news_checks(
    workspace: Workspace, clock: dg.ResourceParam[Clock]
) -> Iterator[dg.AssetCheckResult]:
    """Availability, identity and content of the stored articles."""
    stored = workspace.news_store().read_articles()
    early = stored.filter(pl.col("available_at") < pl.max_horizontal("published_at", "seen_at"))
    twice = stored.filter(pl.col("article_id").is_duplicated())
    silent = stored.filter(pl.col("title").fill_null("").str.strip_chars() == "")
    for name, bad in (
        ("available_when_known", early),
        ("one_row_an_article", twice),
        ("has_title", silent),
    ):
        yield dg.AssetCheckResult(
            asset_key=_ARTICLES,
            check_name=name,
            passed=bad.height == 0,
            description=f"{bad.height} of {stored.height} articles {bad['url'].head(1).to_list() or ''}",
            metadata={"articles": stored.height, "broken": bad.height},
        )
    yield freshness(
        _ARTICLES, "fresh", stored["available_at"].max(), MAX_AGE["news"], workspace, clock
    )


WINDOW_ABOUT = {
    "splits_disjoint": "No target step is in two splits; one horizon lies between a split and the next.",
    "no_shared_windows": "No test or inference window is also a train window, by id or by numbers.",
    "nothing_late": "Articles, covariates and published forecasts were available before each origin.",
}


def window_checks(dataset: str) -> dg.AssetChecksDefinition:
    """Leakage checks of one windows asset; they read the stored frames again instead of trusting the windows."""
    key = dg.AssetKey(["windows", dataset])
    specs = [
        dg.AssetCheckSpec(name, asset=key, description=about, blocking=True)
        for name, about in WINDOW_ABOUT.items()
    ]

    @dg.multi_asset_check(name=f"windows_{dataset}_checks", specs=specs)
    def _checks(workspace: Workspace) -> Iterator[dg.AssetCheckResult]:
        windows = WindowSet.read(workspace.layout.windows(dataset))
        held = [window for window in windows if window.view.split in ("test", "inference")]
        found = {
            "splits_disjoint": overlapping_targets(windows),
            "no_shared_windows": shared_windows(
                windows.split("train"), WindowSet(held, dataset=dataset)
            ),
            "nothing_late": late(
                workspace, dataset, [view for view in windows.views() if not view.leaky]
            ),
        }
        for name, violations in found.items():
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name=name,
                passed=not violations,
                description=wording(violations),
                metadata={"windows": len(windows), "violations": len(violations)},
            )

    return _checks


def all_checks() -> list[dg.AssetChecksDefinition]:
    """Every check that is a step of its own."""
    series, windows = map(series_checks, DATASETS), map(window_checks, DATASETS)
    return [*series, news_checks, *windows]


assert set(NAMES) < set(ABOUT)
