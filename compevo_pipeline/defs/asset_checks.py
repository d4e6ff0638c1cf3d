"""Asset checks of series, articles and windows, and the alarms of scored forecasts.

What belongs here: binding rules to assets, and what a failure blocks. What does not: the rules
(``checks``, ``compevo_core.evaluation.leakage``, ``compevo_core.evaluation.issued_scores``,
``work.next_day``), the checks that an asset makes while it runs (``defs.assets.evaluation``).

A blocking check that fails keeps everything downstream from running; alarms only warn.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from statistics import median

import dagster as dg
import polars as pl

from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.window import WindowSet, read_hash
from compevo_core.errors import DataError
from compevo_core.evaluation.issued_scores import LIMIT, PERSISTENCE, find_drift, measure_coverage
from compevo_core.evaluation.leakage import Violation, find_overlapping_targets, find_shared_windows
from compevo_core.forecast.issued import (
    PUBLISHED,
    list_news_changes,
    list_records,
    read_chain,
    read_issued,
)
from compevo_core.runtime.files import hash_file
from compevo_pipeline.checks import content
from compevo_pipeline.checks.expectations import SUITES, CheckOutcome, run_suites
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs.definition import Blocks, WorkspaceParam
from compevo_pipeline.defs.metadata import escape_markdown
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.registry import Registry
from compevo_pipeline.storage.code_versions import code_version, hash_parts
from compevo_pipeline.storage.series_changes import ChangeKind, describe_waiting
from compevo_pipeline.work import next_day
from compevo_pipeline.work.alerts import find_answering
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import hash_stored
from compevo_pipeline.work.results import read_scored
from compevo_pipeline.work.row_rules import find_unknowable, is_in_time
from compevo_pipeline.work.source_coverage import NEWS
from compevo_pipeline.work.stored_windows import read_windows

DATA_AGE = "data_age"  # age of the newest value, not of the asset's last run
TIME = "time"
PROFILE = "daily_profile"
KNOWN = "known_values"
EVERY_DAY = "every_day"
ONE_ROW = "one_row_an_article"
DRIFT, COVERAGE, INPUTS, NEWS_CHANGE = "drift", "coverage", "next_inputs", "news_change"

SERIES_DESCRIPTIONS = {
    "schema": "Columns, types, flags and required values follow the series contract.",
    "grid": "Every stamp is on the data set's grid.",
    "units": "Every variable is in the unit that its name states.",
    "gaps": "Few values are missing on days on which the series was collected.",
    "duplicates": "One row per series, variable and time.",
    "ranges": "Values are within what is physically or economically possible.",
    TIME: "No value has a time more than two days from now.",
    PROFILE: "The days do not come an hour earlier or later than the weeks before.",
    DATA_AGE: "In live mode, no series is older than the source's rhythm allows.",
    KNOWN: "No file would remove or change many known values, which stay until confirmed.",
}
NEWS_DESCRIPTIONS = {
    "available_when_known": "No article is marked available before it was published or seen.",
    ONE_ROW: "Each address is stored once.",
    "has_title": "Every article has a headline to read.",
    TIME: "No article is from the future, or older than the web.",
    EVERY_DAY: "No day without articles inside the stored period.",
    DATA_AGE: "In live mode, the newest article is not older than two days.",
}
WINDOW_DESCRIPTIONS = {
    "splits_disjoint": "No target step is in two splits; splits are at least one horizon apart.",
    "no_shared_windows": (
        "No test or inference window is also a train window, by id or by numbers."
    ),
    "available_before_origin": (
        "Articles, covariates and published forecasts were available before each origin."
    ),
}
FORECAST_DESCRIPTIONS = {
    DRIFT: "The error has not grown relative to the published forecast's (self-starting CUSUM).",
    COVERAGE: "Coverage of the 80 % band over 28 days is within its binomial 95 % range.",
    INPUTS: "In live mode, values, published forecast and news suffice for the next forecast.",
    NEWS_CHANGE: (
        "News moves the newest forecast no further than usual from the same one without news."
    ),
}

WARNINGS = frozenset({"gaps", DATA_AGE, PROFILE, KNOWN, EVERY_DAY, *FORECAST_DESCRIPTIONS})
"""Checks that warn and do not block: the publisher may be their cause."""

MAX_NEWS_AGE = timedelta(days=2)

_NOT_OF_DATA = frozenset({DATA_AGE, KNOWN})  # checks that judge more than stored data
_CHECKS_CODE = (
    "compevo_core/data",
    "compevo_core/evaluation/leakage.py",
    "compevo_pipeline/checks",
    "compevo_pipeline/defs/asset_checks.py",
    "compevo_pipeline/sources",
    "compevo_pipeline/work/row_rules.py",
)
_LIVE_PREFIX = "live:"
_KNOWN_AT = ("published_at", "seen_at")
_HOUR = timedelta(hours=1)
_USUAL_DAYS = 28  # earlier forecasts, which show how far news usually moves one
_TIMES_USUAL = 2.0

Judge = Callable[[Deployment, str, datetime, Collection[str]], Iterator[CheckOutcome]]
"""Reads an asset once and judges it by named rules: deployment, data set, present time, names."""


def build_asset_checks(registry: Registry) -> list[dg.AssetChecksDefinition]:
    """Return every check that is a step of its own."""
    articles = (NEWS_DESCRIPTIONS, _judge_articles, hash_stored)
    checks = [_build_checks(keys.NEWS_ARTICLES, NEWS, *articles)]
    for name, declared in registry.declared.items():
        blocks = keys.make_blocks(registry.find_blocks(name))
        series = (SERIES_DESCRIPTIONS, _judge_series, _identify_series)
        windows = (WINDOW_DESCRIPTIONS, _judge_windows, _identify_windows)
        checks.append(_build_checks(keys.series_key(name), name, *series, blocks=blocks))
        checks.append(_build_checks(keys.windows_key(name), name, *windows, blocks=blocks))
        if declared.spec.starts_with_days:
            scored = (FORECAST_DESCRIPTIONS, _judge_forecasts)
            key = keys.scored_key(name)
            checks.append(_build_checks(key, name, *scored, blocks=blocks, separator="__"))
    return checks


def _build_checks(
    key: dg.AssetKey,
    name: str,
    descriptions: Mapping[str, str],
    judge: Judge,
    identify: Callable[[Deployment, str], str] | None = None,
    *,
    blocks: Blocks = None,
    separator: str = "_",
) -> dg.AssetChecksDefinition:
    """Return the checks of an asset as one step: the data is read once for all of them.

    The data set is ``name``, or the one of its ``blocks`` that a run is for. If ``identify``
    identifies the judged data, data that passed is not judged again.
    """

    @dg.multi_asset_check(
        # Dagster allows no hyphen in the name of a step.
        name=f"{separator.join(key.path).replace('-', '_')}_checks",
        specs=[
            dg.AssetCheckSpec(
                check,
                asset=key,
                description=text,
                blocking=check not in WARNINGS,
                partitions_def=blocks,
            )
            for check, text in descriptions.items()
        ],
        can_subset=True,
    )
    def _checks(
        context: dg.AssetCheckExecutionContext, workspace: WorkspaceParam
    ) -> Iterator[dg.AssetCheckResult]:
        dataset = context.partition_key if blocks else name
        selected = {check.name for check in context.selected_asset_check_keys}
        receipts, receipt = workspace.receipts(), f"checks {key.to_user_string()} {dataset}"
        parts = [code_version(*_CHECKS_CODE), identify(workspace, dataset)] if identify else []
        before = receipts.find(receipt, hash_parts(parts)) or {} if parts else {}
        known = [CheckOutcome(check, True, *before[check]) for check in selected & before.keys()]
        left = selected - before.keys()
        outcomes = [*known, *(judge(workspace, dataset, workspace.clock(), left) if left else ())]

        passed = {each.name: [each.text, each.numbers] for each in outcomes if each.passed}
        passed = before | {each: text for each, text in passed.items() if each not in _NOT_OF_DATA}
        if parts and passed != before:
            receipts.keep(receipt, hash_parts(parts), passed)
        for outcome in outcomes:
            is_warning = outcome.name in WARNINGS
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name=outcome.name,
                passed=outcome.passed,
                severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
                description=escape_markdown(outcome.text[:1000]),
                metadata=dict(outcome.numbers),
            )

    return _checks


def _judge_series(
    workspace: Deployment, dataset: str, now: datetime, names: Collection[str]
) -> Iterator[CheckOutcome]:
    declared, frame = workspace.registry[dataset], workspace.series_store().read(dataset)

    suites = [name for name in SUITES if name in names]
    if suites:
        yield from run_suites(frame, declared.rules, suites)

    if TIME in names:
        unknowable = find_unknowable(frame, now).select("series_id", "start_utc")
        yield _judge_rows(TIME, unknowable, frame.height)
    if PROFILE in names:
        jumps = content.find_jumps(frame, declared.rules.step, declared.rules.zones)
        shown = [f"{jump.series_id} from {jump.day} by {jump.hours:+d} h" for jump in jumps]
        yield CheckOutcome(PROFILE, not jumps, "; ".join(shown) or "no jump", {"jumps": len(jumps)})
    if KNOWN in names:
        yield judge_known_values(workspace, dataset)
    if DATA_AGE in names:
        yield judge_series_age(frame, declared.max_age, workspace, now)


def _identify_series(workspace: Deployment, dataset: str) -> str:
    declaration = workspace.registry[dataset].declaration
    return hash_stored(workspace, dataset) + (hash_file(declaration) if declaration else "")


def _judge_articles(
    workspace: Deployment, _: str, now: datetime, names: Collection[str]
) -> Iterator[CheckOutcome]:
    store = workspace.news_store()
    days = store.count_days()

    conditions = {
        "available_when_known": pl.col("available_at") < pl.max_horizontal(_KNOWN_AT),
        "has_title": pl.col("title").fill_null("").str.strip_chars() == "",
        TIME: ~is_in_time(now),
    }
    # A month without articles is not read, so there may be nothing to concatenate.
    empty = store.read_newest(0).select("url", "available_at")
    broken = {name: empty for name in conditions if name in names}
    for since, until in store.list_months() if broken else ():
        of_month = store.read_articles(since, until)
        for name, rows in broken.items():
            failing = of_month.filter(conditions[name]).select("url", "available_at")
            broken[name] = pl.concat([rows, failing])
    if ONE_ROW in names:
        broken[ONE_ROW] = store.read_repeated()
    for name, rows in broken.items():
        yield _judge_rows(name, rows.select("url", "available_at"), int(days["articles"].sum()))

    if EVERY_DAY in names:
        without = content.find_days_without_news(days)
        yield CheckOutcome(
            EVERY_DAY, not without, "; ".join(without) or "no day is empty", {"days": len(without)}
        )
    if DATA_AGE in names:
        newest = store.read_newest(1)["available_at"].max()
        outcome = judge_data_age(newest, MAX_NEWS_AGE, workspace, now)
        if not next_day.reads_news(workspace, workspace.registry):
            outcome = replace(outcome, passed=True, text=f"{outcome.text}; no model reads news")
        yield outcome


def _judge_rows(name: str, broken: pl.DataFrame, total: int) -> CheckOutcome:
    """Pass if no row is broken; otherwise show the first one."""
    first = f", first {', '.join(map(str, broken.row(0)))}" if broken.height else ""
    text = f"{broken.height} of {total} rows break the rule{first}"
    return CheckOutcome(name, broken.is_empty(), text, {"rows": total, "broken": broken.height})


def judge_known_values(workspace: Deployment, dataset: str) -> CheckOutcome:
    """Say which changes of known values wait, and count the changes that were recorded."""
    changes = workspace.series_store().read_changes(dataset)
    counts = {kind.value: changes.filter(kind=kind.value).height for kind in ChangeKind}
    waiting = changes.filter(kind=ChangeKind.WAITING.value)
    text = describe_waiting(waiting, dataset) if waiting.height else "nothing waits"
    return CheckOutcome(KNOWN, waiting.is_empty(), text, counts)


def judge_series_age(
    frame: pl.DataFrame, limit: timedelta, workspace: Deployment, now: datetime
) -> CheckOutcome:
    """Compare the age of the newest value of every live series with a limit.

    A series that goes silent is noticed even if others continue; after a silent month it has ended.
    """
    values = frame.filter(pl.col("value").is_not_null())
    outcome = judge_data_age(values["start_utc"].max(), limit, workspace, now)
    if workspace.data_mode is not Mode.LIVE:
        return outcome

    # Files hold series that are no longer published: only those that came live must continue.
    newest = (
        values.filter(pl.col("source").str.starts_with(_LIVE_PREFIX))
        .group_by("series_id", "variable")
        .agg(pl.col("start_utc").max(), pl.col("source").last())
    )
    # A series that is silent for longer has ended.
    silent = newest.filter(
        pl.col("start_utc").is_between(now - limit - timedelta(days=30), now - limit, closed="left")
    ).sort("start_utc", "series_id")
    if silent.is_empty():
        return outcome
    shown = [
        f"{series_id} ({variable}) since {start:%Y-%m-%d %H:%M}"
        for series_id, variable, start, _ in silent.head(5).iter_rows()
    ]
    text = f"{silent.height} of {newest.height} series are silent: {', '.join(shown)}"
    publishers = silent["source"].str.extract(rf"^{_LIVE_PREFIX}([^/]*)/", 1).to_list()
    answering = find_answering(workspace.list_asked(), now).intersection(publishers)
    if answering:
        text += (
            f"; {', '.join(sorted(answering))} answers, with nothing newer: check whether the "
            "publisher's own page is old, or a cache serves an old copy"
        )
    numbers = {**outcome.numbers, "silent": silent.height}
    return CheckOutcome(DATA_AGE, passed=False, text=text, numbers=numbers)


def judge_data_age(
    newest: object, limit: timedelta, workspace: Deployment, now: datetime
) -> CheckOutcome:
    """Compare the age of the newest row (None without any) with a limit.

    Files on disk do not age, so only live mode can fail. A run on other data in a live deployment
    does not pass either: only live data that are new enough clear a warning.
    """
    age = now - newest if isinstance(newest, datetime) else None
    is_live = workspace.data_mode is Mode.LIVE
    passed = age is not None and age <= limit if is_live else not workspace.is_aside

    note = "" if is_live else f"; not judged in {workspace.data_mode} mode"
    if workspace.is_aside:
        note += ": this run did not read the data of the deployment; run the check in live mode"
    numbers = {
        # -1 means no row at all: metadata has no null number.
        "age_hours": round(age / _HOUR, 1) if age is not None else -1.0,
        "limit_hours": limit / _HOUR,
    }
    return CheckOutcome(DATA_AGE, passed, f"newest row {newest}{note}", numbers)


def _judge_windows(
    workspace: Deployment, dataset: str, _: datetime, names: Collection[str]
) -> Iterator[CheckOutcome]:
    """Look for leakage; the stored frames are read again instead of trusting the windows."""
    windows = read_windows(workspace.layout, dataset)
    held_out = [window for window in windows if window.view.split in ("test", "inference")]

    # Looked up lazily: a check that is not selected costs nothing.
    detectors: dict[str, Callable[[], Sequence[Violation]]] = {
        "splits_disjoint": lambda: find_overlapping_targets(windows),
        "no_shared_windows": lambda: find_shared_windows(
            windows.split("train"), WindowSet(held_out, dataset=dataset)
        ),
        "available_before_origin": lambda: content.find_availability_violations(
            workspace, dataset, [view for view in windows.views() if not view.leaky]
        ),
    }
    for name, find_violations in detectors.items():
        if name in names:
            violations = find_violations()
            numbers = {"windows": len(windows), "violations": len(violations)}
            yield CheckOutcome(name, not violations, content.format_violations(violations), numbers)


def _identify_windows(workspace: Deployment, dataset: str) -> str:
    stored = (hash_stored(workspace, name) for name in (dataset, NEWS))
    return hash_parts([read_hash(workspace.layout.windows(dataset)), *stored])


def _judge_forecasts(
    workspace: Deployment, dataset: str, now: datetime, names: Collection[str]
) -> Iterator[CheckOutcome]:
    spec = workspace.registry[dataset].spec
    rows = select_disjoint(read_scored(workspace.layout, dataset), spec.horizon)
    if DRIFT in names:
        yield judge_drift(rows)
    if COVERAGE in names:
        yield judge_coverage(rows)
    if INPUTS in names:
        yield judge_next_inputs(workspace, spec, now)
    if NEWS_CHANGE in names:
        yield judge_news_change(workspace.layout.issued(dataset))


def select_disjoint(rows: pl.DataFrame, span: timedelta) -> pl.DataFrame:
    """Return the rows of forecasts that share no step, from the first day on.

    The alarms count days as separate draws, but daily forecasts of 48 days share 47 of them.
    """
    chosen: list[date] = []
    for day in rows["day"].unique().sort():
        if not chosen or day - chosen[-1] >= span:
            chosen.append(day)
    return rows.filter(pl.col("day").is_in(chosen))


def judge_drift(rows: pl.DataFrame) -> CheckOutcome:
    """Look for a growth of the errors, for each cutoff of forecasts."""
    # Without a published forecast, persistence shows how hard a day was.
    reference = PUBLISHED if PUBLISHED in rows["method"] else PERSISTENCE
    drifts = {str(known): find_drift(rows, known, reference) for known in next_day.KnownTo}
    texts = [
        f"{known}: sum {drift.sum:.1f} of {LIMIT:g}"
        + (f" since {drift.since}" if drift.since else "")
        + f", {drift.n_days} days"
        for known, drift in drifts.items()
    ]
    is_alarm = any(drift.is_alarm for drift in drifts.values())
    return CheckOutcome(DRIFT, not is_alarm, f"against {reference}; " + "; ".join(texts))


def judge_coverage(rows: pl.DataFrame) -> CheckOutcome:
    """Compare the band's coverage of the last days with its limits."""
    coverages = {str(known): measure_coverage(rows, known) for known in next_day.KnownTo}
    texts = [
        f"{known}: {band.share:.1%} of {band.n_days} days, "
        f"allowed {band.low:.1%} to {band.high:.1%}"
        if band.share is not None
        else f"{known}: no band was scored"
        for known, band in coverages.items()
    ]
    return CheckOutcome(
        COVERAGE, not any(band.is_alarm for band in coverages.values()), "; ".join(texts)
    )


def judge_next_inputs(workspace: Deployment, spec: DatasetSpec, now: datetime) -> CheckOutcome:
    """Say whether the forecast that is due now could be made, and how old its inputs are.

    Only live mode can fail; other runs clear no warning, as in :func:`judge_data_age`.
    """
    if workspace.data_mode is not Mode.LIVE:
        text = f"not judged in {workspace.data_mode} mode"
        return CheckOutcome(INPUTS, not workspace.is_aside, text)

    origin = find_due_origin(spec, now)
    rule = next_day.find_news_rule(
        workspace, spec.name, next_day.NewsRule(action=next_day.StaleNews.REFUSE)
    )
    try:
        frames = next_day.StoredFrames.read(workspace, spec, reads_news=rule is not None)
    except DataError as error:
        return CheckOutcome(INPUTS, passed=False, text=str(error))

    inputs = next_day.check_inputs(frames, origin, rule)
    ages = {}
    if inputs.newest is not None:
        instants = {
            "values": min((at for at in inputs.newest.values.values() if at), default=None),
            "publication": inputs.newest.publication,
            "article": inputs.newest.article,
        }
        ages = {
            f"{name}_age_hours": round((now - at) / _HOUR, 1) for name, at in instants.items() if at
        }
    text = "; ".join(inputs.missing) or "nothing is missing"
    known = f"{origin.day}, known until {origin.until:%Y-%m-%d %H:%M} UTC"
    return CheckOutcome(INPUTS, not inputs.missing, f"{known}: {text}", ages)


def judge_news_change(root: Path) -> CheckOutcome:
    """Compare how far news changes the newest forecast and the forecasts before it.

    Twice the usual is an alarm: anyone can publish headlines, which may be made up.
    """
    folders = list_records(root, read_chain(root))
    newest = list_news_changes(read_issued(folders[-1])) if folders else {}
    if not newest:
        return CheckOutcome(NEWS_CHANGE, passed=True, text="the newest forecast reads no news")
    before = [list_news_changes(read_issued(each)) for each in folders[-1 - _USUAL_DAYS : -1]]
    usual = [max(map(abs, changes.values())) for changes in before if changes]
    limit = max(next_day.LEAST_NEWS_CHANGE, _TIMES_USUAL * median(usual or [0.0]))
    far = {entity: change for entity, change in newest.items() if abs(change) > limit}
    shown = [f"{entity} {change:+.1%}" for entity, change in far.items()]
    text = f"{', '.join(shown) or 'no series'} moved by more than {limit:.1%}"
    return CheckOutcome(NEWS_CHANGE, not far, text, {"limit": limit, "moved": len(far)})


def find_due_origin(spec: DatasetSpec, now: datetime) -> next_day.Origin:
    """Return the forecast that is due: tomorrow's from the issue time on, today's before it."""
    today = spec.to_market(now).date()
    if max(spec.unknown_steps):
        tomorrow = next_day.Origin.of(spec, today + timedelta(days=1), next_day.KnownTo.ISSUE_TIME)
        if tomorrow.until <= now:
            return tomorrow
    return next_day.Origin.of(spec, today, next_day.KnownTo.MIDNIGHT)
