"""Asset checks: Great Expectations suites of every series, age of the data, availability, splits.

What belongs here: binding rules to assets, and what a failure blocks. What does not: the rules'
numbers (``checks.expectations``), leakage detectors (``compevo_core.evaluation.leakage``), the
checks that an asset makes of itself while it runs (``defs.assets.leakage``), when an asset should
be materialized again (the freshness policy of ``defs.definition``).

A blocking check that fails keeps everything downstream from running. Each of these can run alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import dagster as dg
import polars as pl

from compevo_core.data.window import WindowSet
from compevo_core.evaluation.leakage import Violation, find_overlapping_targets, find_shared_windows
from compevo_pipeline.checks.availability import find_availability_violations, format_violations
from compevo_pipeline.checks.days import find_days_without_news, find_jumps
from compevo_pipeline.checks.expectations import SUITES, Outcome, run_suites
from compevo_pipeline.defs.asset_keys import NEWS_ARTICLES, series_key, windows_key
from compevo_pipeline.defs.metadata import escape_markdown
from compevo_pipeline.sources.common.base import Clock, Mode
from compevo_pipeline.sources.registry import RegisteredDataset, Registry, Rules
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.preparation import find_unknowable, is_in_time

DATA_AGE = "data_age"
"""Age of the newest value. When the asset ran last is the concern of its freshness policy."""

TIME = "time"
PROFILE = "daily_profile"
EVERY_DAY = "every_day"
ONE_ROW = "one_row_an_article"

SERIES_DESCRIPTIONS = {
    "schema": "Columns, types, flags and required values follow the series contract.",
    "grid": "Every stamp lies on the data set's grid.",
    "units": "Every variable is in the unit its name says.",
    "gaps": "Few values are missing where the series was collected at all.",
    "duplicates": "One row a series, variable and time.",
    "ranges": "Values lie within what is physically or economically possible.",
    TIME: "No value is of a time later than two days from now.",
    PROFILE: "The days do not come an hour earlier or later than the weeks before.",
    DATA_AGE: "In live mode, the newest value is not older than the source's rhythm allows.",
}
NEWS_DESCRIPTIONS = {
    "available_when_known": "No article is marked available before it was published or seen.",
    ONE_ROW: "Each address is stored once.",
    "has_title": "Every article has a headline to read.",
    TIME: "No article is from the future, or from before there was a web.",
    EVERY_DAY: "No day between days of news is without any.",
    DATA_AGE: "In live mode, the newest article is not older than two days.",
}
WINDOW_DESCRIPTIONS = {
    "splits_disjoint": (
        "No target step is in two splits; one horizon lies between a split and the next."
    ),
    "no_shared_windows": (
        "No test or inference window is also a train window, by id or by numbers."
    ),
    "available_before_origin": (
        "Articles, covariates and published forecasts were available before each origin."
    ),
}

WARNINGS = frozenset({"gaps", DATA_AGE, PROFILE, EVERY_DAY})
"""Checks that warn and do not block: their cause may lie with the publisher."""

MAX_NEWS_AGE = timedelta(days=2)

_KNOWN_AT = ("published_at", "seen_at")
_MAX_DESCRIPTION_CHARACTERS = 1000


def _make_specs(key: dg.AssetKey, descriptions: Mapping[str, str]) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(name, asset=key, description=description, blocking=name not in WARNINGS)
        for name, description in descriptions.items()
    ]


def _name_step(key: dg.AssetKey) -> str:
    """Return the name of the step that checks an asset; Dagster allows no hyphen in it."""
    return f"{'_'.join(key.path).replace('-', '_')}_checks"


def build_asset_checks(registry: Registry) -> list[dg.AssetChecksDefinition]:
    """Return every check that is a step of its own."""
    series = [build_series_checks(registry[name]) for name in registry]
    windows = [build_windows_checks(name) for name in registry]
    return [*series, check_articles, *windows]


def build_series_checks(declared: RegisteredDataset) -> dg.AssetChecksDefinition:
    """Return the checks of a series asset, in one step: the data is read once for all of them."""
    dataset = declared.name
    key = series_key(dataset)

    @dg.multi_asset_check(
        name=_name_step(key),
        specs=_make_specs(key, SERIES_DESCRIPTIONS),
        can_subset=True,
    )
    def _checks(
        context: dg.AssetCheckExecutionContext,
        workspace: dg.ResourceParam[Deployment],
        clock: dg.ResourceParam[Clock],
    ) -> Iterator[dg.AssetCheckResult]:
        selected = _select_names(context)
        frame = workspace.series_store().read(dataset)

        suites = [name for name in SUITES if name in selected]
        if suites:
            for outcome in run_suites(frame, declared.rules, suites):
                yield _make_suite_result(key, outcome)

        if TIME in selected:
            unknowable = find_unknowable(frame, clock())
            yield _make_row_result(key, TIME, unknowable, frame.height, "series_id", "start_utc")
        if PROFILE in selected:
            yield _check_profile(key, frame, declared.rules)
        if DATA_AGE in selected:
            newest = frame.filter(pl.col("value").is_not_null())["start_utc"].max()
            yield check_data_age(key, newest, declared.max_age, workspace, clock)

    return _checks


@dg.multi_asset_check(
    name="news_articles_checks",
    specs=_make_specs(NEWS_ARTICLES, NEWS_DESCRIPTIONS),
    can_subset=True,
)
def check_articles(
    context: dg.AssetCheckExecutionContext,
    workspace: dg.ResourceParam[Deployment],
    clock: dg.ResourceParam[Clock],
) -> Iterator[dg.AssetCheckResult]:
    """Check availability, identity and content of the stored articles."""
    selected = _select_names(context)
    store = workspace.news_store()
    days = store.count_days()

    for name, rows in _find_broken_articles(store, selected, clock()).items():
        total = int(days["articles"].sum())
        yield _make_row_result(NEWS_ARTICLES, name, rows, total, "url", "available_at")

    if EVERY_DAY in selected:
        yield _check_every_day(days)
    if DATA_AGE in selected:
        newest = store.read_newest(1)["available_at"].max()
        yield check_data_age(NEWS_ARTICLES, newest, MAX_NEWS_AGE, workspace, clock)


def _find_broken_articles(
    store: NewsStore, names: Collection[str], now: datetime
) -> dict[str, pl.DataFrame]:
    """Return the articles that break each of the named rules; read month by month."""
    conditions = {
        "available_when_known": pl.col("available_at") < pl.max_horizontal(_KNOWN_AT),
        "has_title": pl.col("title").fill_null("").str.strip_chars() == "",
        TIME: ~is_in_time(now),
    }
    chosen = {name: rule for name, rule in conditions.items() if name in names}
    broken: dict[str, list[pl.DataFrame]] = {name: [] for name in chosen}
    for since, until in store.list_months() if chosen else ():
        of_month = store.read_articles(since, until)
        for name, rule in chosen.items():
            broken[name].append(of_month.filter(rule).select("url", "available_at"))

    # A month without articles is not read, so that there may be nothing to put together.
    empty = store.read_newest(0).select("url", "available_at")
    found = {name: pl.concat([empty, *frames]) for name, frames in broken.items()}
    if ONE_ROW in names:
        found[ONE_ROW] = store.read_repeated()
    return found


def build_windows_checks(dataset: str) -> dg.AssetChecksDefinition:
    """Return the leakage checks of a windows asset.

    They read the stored frames again instead of trusting what the windows say of themselves.
    """
    key = windows_key(dataset)

    @dg.multi_asset_check(
        name=_name_step(key),
        specs=_make_specs(key, WINDOW_DESCRIPTIONS),
        can_subset=True,
    )
    def _checks(
        context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Deployment]
    ) -> Iterator[dg.AssetCheckResult]:
        selected = _select_names(context)
        windows = WindowSet.read(workspace.layout.windows(dataset))

        # Looked up lazily: a check that is not selected costs nothing.
        detectors: dict[str, Callable[[], Sequence[Violation]]] = {
            "splits_disjoint": lambda: find_overlapping_targets(windows),
            "no_shared_windows": lambda: _find_shared_windows(windows),
            "available_before_origin": lambda: find_availability_violations(
                workspace, dataset, [view for view in windows.views() if not view.leaky]
            ),
        }
        for name, find_violations in detectors.items():
            if name in selected:
                violations = find_violations()
                yield dg.AssetCheckResult(
                    asset_key=key,
                    check_name=name,
                    passed=not violations,
                    description=escape_markdown(format_violations(violations)),
                    metadata={"windows": len(windows), "violations": len(violations)},
                )

    return _checks


def check_data_age(
    key: dg.AssetKey, newest: object, limit: timedelta, workspace: Deployment, clock: Clock
) -> dg.AssetCheckResult:
    """Check the age of the newest row against a limit.

    Files on disk do not age, so only live mode can fail. A run on other data in a live deployment
    does not pass either: nothing clears a warning but live data that are young enough.

    Args:
        key: the asset.
        newest: time of the newest row, in UTC; None where there is no row.
        limit: the age allowed.
        workspace: says the mode.
        clock: says the present time.
    """
    age = clock() - newest if isinstance(newest, datetime) else None
    is_live = workspace.data_mode is Mode.LIVE
    passed = age is not None and age <= limit if is_live else not workspace.is_aside

    note = "" if is_live else f"; not judged in {workspace.data_mode} mode"
    if workspace.is_aside:
        note += ": this run read other data than the deployment's; run the check in live mode"
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=DATA_AGE,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"newest row {newest}{note}",
        metadata={
            # -1 stands for no row at all: metadata has no null number.
            "age_hours": round(age / timedelta(hours=1), 1) if age is not None else -1.0,
            "limit_hours": limit / timedelta(hours=1),
        },
    )


def _make_row_result(
    key: dg.AssetKey, name: str, broken: pl.DataFrame, total: int, *shown: str
) -> dg.AssetCheckResult:
    first = ", ".join(str(broken[column][0]) for column in shown) if broken.height else ""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=broken.is_empty(),
        description=escape_markdown(f"{broken.height} of {total} rows {first}".strip()),
        metadata={"rows": total, "broken": broken.height},
    )


def _check_profile(key: dg.AssetKey, frame: pl.DataFrame, rules: Rules) -> dg.AssetCheckResult:
    jumps = find_jumps(frame, rules.step, rules.zones)
    shown = [f"{jump.series_id} from {jump.day} by {jump.hours:+d} h" for jump in jumps]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=PROFILE,
        passed=not jumps,
        severity=dg.AssetCheckSeverity.WARN,
        description=escape_markdown("; ".join(shown)[:_MAX_DESCRIPTION_CHARACTERS]) or "no jump",
        metadata={"jumps": len(jumps)},
    )


def _check_every_day(days: pl.DataFrame) -> dg.AssetCheckResult:
    empty = find_days_without_news(days)
    return dg.AssetCheckResult(
        asset_key=NEWS_ARTICLES,
        check_name=EVERY_DAY,
        passed=not empty,
        severity=dg.AssetCheckSeverity.WARN,
        description=escape_markdown("; ".join(empty)[:_MAX_DESCRIPTION_CHARACTERS]) or "none",
        metadata={"days": len(empty)},
    )


def _select_names(context: dg.AssetCheckExecutionContext) -> set[str]:
    """Return the names of the checks that this run asks for."""
    return {key.name for key in context.selected_asset_check_keys}


def _make_suite_result(key: dg.AssetKey, outcome: Outcome) -> dg.AssetCheckResult:
    is_warning = outcome.name in WARNINGS
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=outcome.name,
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
        description=escape_markdown(outcome.detail[:_MAX_DESCRIPTION_CHARACTERS]),
        metadata={"expectations": outcome.expectations, "broken_rows": outcome.broken_rows},
    )


def _find_shared_windows(windows: WindowSet) -> list[Violation]:
    held_out = [window for window in windows if window.view.split in ("test", "inference")]
    return find_shared_windows(windows.split("train"), WindowSet(held_out, dataset=windows.dataset))
