"""What a user's own data sets change in the graph: where news come from, and broken declarations.

What belongs here: what comes before embeddings and the report, and an asset for each declaration
that is broken. What does not: their series and windows, which are made like
those of the built-in data sets (``assets.series``, ``assets.windows``).
"""

from typing import Any, NoReturn

import dagster as dg

from compevo_core.errors import ConfigError
from compevo_pipeline.asset_keys import (
    BROKEN_GROUP,
    broken_key,
    next_day_key,
    score_keys,
    scored_key,
    series_key,
)
from compevo_pipeline.assets.definition import OWNERS
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.markdown import escape_markdown
from compevo_pipeline.registry import Registry
from compevo_pipeline.sources.common.base import FrameKind


def find_series_with_news(registry: Registry) -> list[dg.AssetKey]:
    """Return the series of own data sets that bring articles, which are then embedded."""
    return [
        series_key(dataset.name)
        for dataset in registry.own
        if any(FrameKind.ARTICLES in feed.parsers for feed in dataset.feeds)
    ]


def find_scores(registry: Registry) -> list[dg.AssetKey]:
    """Return what is forecast of any data set and scored of own ones, which the report shows."""
    forecast = [name for name in registry if registry[name].spec.starts_with_days]
    return [
        *(key for dataset in registry.own for key in score_keys(dataset.name)),
        *(key for name in forecast for key in (next_day_key(name), scored_key(name))),
    ]


def build_broken_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return an asset for each broken declaration, which shows its error and fails with it."""
    return [_build_broken_asset(name, message) for name, message in registry.broken.items()]


def _build_broken_asset(name: str, message: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=broken_key(name),
        group_name=BROKEN_GROUP,
        description=(
            "This declaration of a data set is broken; correct it and reload the code location. "
            + escape_markdown(message)
        ),
        kinds={"toml"},
        owners=OWNERS,
    )
    def _broken(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        with translate_errors(retry=False):
            _fail(message)

    return _broken


def _fail(message: str) -> NoReturn:
    raise ConfigError(message)
