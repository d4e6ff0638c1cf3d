"""Whether anything in a window came too late: the core's detectors run on the stored frames.

What belongs here: handing articles, covariates and published forecasts to :mod:`compevo_core.evaluation.leakage`, and wording what
it finds. What does not: the detectors, or what a check does about a finding.
"""

from collections.abc import Sequence

from compevo_core.data.window import WindowView
from compevo_core.evaluation.leakage import (
    Violation,
    late_articles,
    late_covariates,
    late_published,
)
from compevo_pipeline.feeds import Kind
from compevo_pipeline.resources import Workspace

_SHOWN = 3


def late(workspace: Workspace, dataset: str, views: Sequence[WindowView]) -> list[Violation]:
    """Everything in the views that was not available before its origin."""
    tables = workspace.frame_store()
    found = late_articles(views, workspace.news_store().read_articles())
    covariates, published = (
        tables.read(dataset, Kind.COVARIATES),
        tables.read(dataset, Kind.PUBLISHED),
    )
    if covariates is not None:
        found += late_covariates(views, covariates)
    if published is not None:
        found += late_published(views, published)
    return found


def wording(found: Sequence[Violation]) -> str:
    """The first few violations in words."""
    if not found:
        return "none found"
    return f"{len(found)}: " + "; ".join(
        f"{v.kind} in {v.where}: {v.detail}" for v in found[:_SHOWN]
    )
