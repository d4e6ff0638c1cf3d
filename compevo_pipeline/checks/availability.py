"""Availability of what windows hold, checked on the stored frames by the core's detectors.

What belongs here: handing articles, covariates and published forecasts to
:mod:`compevo_core.evaluation.leakage`, and wording what it finds. What does not: the detectors,
or what a check does about a violation.
"""

import functools
from collections.abc import Sequence

import polars as pl

from compevo_core.data.view import WindowView
from compevo_core.evaluation.leakage import (
    Violation,
    find_unavailable_articles,
    find_unavailable_covariates,
    find_unavailable_published,
    find_unavailable_step_covariates,
)
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.work.deployment import Deployment

_SHOWN_VIOLATIONS = 3


def find_availability_violations(
    deployment: Deployment, dataset: str, views: Sequence[WindowView]
) -> list[Violation]:
    """Return everything in the views that was not available before its origin.

    The stored frames are read again: a window's own fields could not show that they are wrong.
    """
    named = {name for view in views for name in view.candidate_ids}
    violations = find_unavailable_articles(views, deployment.news_store().read_named(named))

    detectors = (
        (FrameKind.COVARIATES, find_unavailable_covariates, None),
        (FrameKind.PUBLISHED, find_unavailable_published, functools.partial(_find_targets, views)),
        (FrameKind.STEP_COVARIATES, find_unavailable_step_covariates, None),
    )
    for kind, find, query in detectors:
        frame = deployment.frame_store().read(dataset, kind, query)
        violations += [] if frame is None else find(views, frame)
    return violations


def _find_targets(views: Sequence[WindowView], rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of the days that the views forecast: other days can show nothing."""
    if not views:
        return rows.limit(0)
    first = min(view.origin_utc for view in views)
    end = max(view.end_utc for view in views)
    return rows.filter(pl.col("start_utc").is_between(first, end))


def format_violations(violations: Sequence[Violation]) -> str:
    """Return the number of violations and the first few in words."""
    if not violations:
        return "none found"

    examples = [
        f"{violation.kind} in {violation.where}: {violation.detail}"
        for violation in violations[:_SHOWN_VIOLATIONS]
    ]
    return f"{len(violations)}: " + "; ".join(examples)
