"""Alarms of scored forecasts: drift, coverage, and inputs of the next forecast.

What belongs here: the checks as Dagster shows them. What does not: the tests and their limits
(``compevo_core.evaluation.issued_scores``), what an input must be
(``compevo_pipeline.work.next_day``).

They warn and block nothing: a forecast that got worse is still the one there is. A stale input is
refused where the forecast is made; here it is seen before that.
"""

from collections.abc import Iterator
from datetime import date, datetime, timedelta

import dagster as dg
import polars as pl

from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.view import HORIZON
from compevo_core.errors import DataError
from compevo_core.evaluation.issued_scores import LIMIT, PERSISTENCE, find_drift, measure_coverage
from compevo_core.forecast.issued import PUBLISHED
from compevo_pipeline.defs.asset_keys import scored_key
from compevo_pipeline.sources.common.base import Clock, Mode
from compevo_pipeline.sources.registry import Registry
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import (
    KnownTo,
    NewsRule,
    Origin,
    StaleNews,
    StoredFrames,
    check_inputs,
)
from compevo_pipeline.work.results import read_scored

DRIFT, COVERAGE, INPUTS = "drift", "coverage", "next_inputs"
DESCRIPTIONS = {
    DRIFT: (
        "The error has not grown beside the published forecast's: self-starting CUSUM over days."
    ),
    COVERAGE: "The 80 % band of the last 28 days covers what days as binomial trials allow.",
    INPUTS: "In live mode, values, published forecast and news suffice for the next forecast.",
}


def build_forecast_checks(registry: Registry) -> list[dg.AssetChecksDefinition]:
    """Return the alarms of each data set that is forecast."""
    specs = [registry[name].spec for name in registry]
    return [_build_checks(spec) for spec in specs if spec.starts_with_days]


def _build_checks(spec: DatasetSpec) -> dg.AssetChecksDefinition:
    key = scored_key(spec.name)

    @dg.multi_asset_check(
        name="__".join(key.path).replace("-", "_") + "_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=key, description=description)
            for name, description in DESCRIPTIONS.items()
        ],
        can_subset=True,
    )
    def _checks(
        context: dg.AssetCheckExecutionContext,
        workspace: dg.ResourceParam[Deployment],
        clock: dg.ResourceParam[Clock],
    ) -> Iterator[dg.AssetCheckResult]:
        selected = {check.name for check in context.selected_asset_check_keys}
        rows = select_disjoint(read_scored(workspace.layout, spec.name), HORIZON * spec.step)

        if DRIFT in selected:
            yield check_drift(rows)
        if COVERAGE in selected:
            yield check_coverage(rows)
        if INPUTS in selected:
            yield check_next_inputs(workspace, spec, clock())

    return _checks


def select_disjoint(rows: pl.DataFrame, span: timedelta) -> pl.DataFrame:
    """Return the rows of forecasts that share no step, from the first day on.

    The alarms count days as draws of their own: of forecasts over 48 days that are issued daily, 47
    days are the same.
    """
    chosen: list[date] = []
    for day in rows["day"].unique().sort():
        if not chosen or day - chosen[-1] >= span:
            chosen.append(day)
    return rows.filter(pl.col("day").is_in(chosen))


def check_drift(rows: pl.DataFrame) -> dg.AssetCheckResult:
    """Look for a growth of the errors, at each instant that forecasts know to."""
    # Where nobody publishes a forecast, persistence says how hard a day was.
    reference = PUBLISHED if PUBLISHED in rows["method"] else PERSISTENCE
    found = {str(known): find_drift(rows, known, reference) for known in KnownTo}
    texts = [
        f"{known}: sum {drift.sum:.1f} of {LIMIT:g}"
        + (f" since {drift.since}" if drift.since else "")
        + f", {drift.n_days} days"
        for known, drift in found.items()
    ]
    is_alarm = any(drift.is_alarm for drift in found.values())
    return _make_result(DRIFT, not is_alarm, f"against {reference}; " + "; ".join(texts))


def check_coverage(rows: pl.DataFrame) -> dg.AssetCheckResult:
    """Compare the band's coverage of the last days with what it may be."""
    found = {str(known): measure_coverage(rows, known) for known in KnownTo}
    texts = [
        f"{known}: {one.share:.1%} of {one.n_days} days, allowed {one.low:.1%} to {one.high:.1%}"
        if one.share is not None
        else f"{known}: no band was scored"
        for known, one in found.items()
    ]
    is_alarm = any(one.is_alarm for one in found.values())
    return _make_result(COVERAGE, not is_alarm, "; ".join(texts))


def check_next_inputs(
    workspace: Deployment, spec: DatasetSpec, now: datetime
) -> dg.AssetCheckResult:
    """Say whether the forecast that is due now could be made, and how old its inputs are.

    Files on disk do not age, so only live mode can fail; a run on other data in a live deployment
    clears no warning.
    """
    if workspace.data_mode is not Mode.LIVE:
        text = f"not judged in {workspace.data_mode} mode"
        return _make_result(INPUTS, not workspace.is_aside, text)

    origin = find_due_origin(spec, now)
    try:
        frames = StoredFrames.read(workspace, spec)
    except DataError as error:
        return _make_result(INPUTS, False, str(error))

    inputs = check_inputs(frames, origin, NewsRule(action=StaleNews.REFUSE))
    ages = {}
    if inputs.newest is not None:
        oldest = min((at for at in inputs.newest.values.values() if at), default=None)
        instants = {
            "values": oldest,
            "publication": inputs.newest.publication,
            "article": inputs.newest.article,
        }
        hour = timedelta(hours=1)
        ages = {
            f"{name}_age_hours": round((now - at) / hour, 1) for name, at in instants.items() if at
        }
    text = "; ".join(inputs.missing) or "nothing is missing"
    known = f"{origin.day}, known until {origin.until:%Y-%m-%d %H:%M} UTC"
    return _make_result(INPUTS, not inputs.missing, f"{known}: {text}", ages)


def find_due_origin(spec: DatasetSpec, now: datetime) -> Origin:
    """Return the forecast that is due: of tomorrow from the issue time on, of today before it."""
    today = (now + spec.market_offset).date()
    if max(spec.unknown_steps):
        tomorrow = Origin.of(spec, today + timedelta(days=1), KnownTo.ISSUE_TIME)
        if tomorrow.until <= now:
            return tomorrow
    return Origin.of(spec, today, KnownTo.MIDNIGHT)


def _make_result(
    name: str, passed: bool, text: str, numbers: dict[str, float] | None = None
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=text,
        metadata=dict(numbers or {}),
    )
