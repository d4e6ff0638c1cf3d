"""The keys of all assets: how one asset names another.

What belongs here: one constant or function an asset. What does not: the assets themselves. An asset
module depends on keys, never on the module of another asset, so each can be read alone. What is
made of one data set alone is one asset a data set (decision 58).
"""

import re

import dagster as dg

from compevo_pipeline.partitions import OPERATIONAL

# The first part of a key is the asset's group.
NEWS_ARTICLES = dg.AssetKey(["news", "articles"])
NEWS_EMBEDDINGS = dg.AssetKey(["news", "embeddings"])
INFERENCE_2026 = dg.AssetKey(["leakage", "inference_2026"])
SOURCE_COVERAGE = dg.AssetKey(["sources", "coverage"])
REPORT = dg.AssetKey(["report", "site"])
CLEANED = dg.AssetKey(["report", "cleaned"])


def series_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's series."""
    return dg.AssetKey(["series", dataset])


BROKEN_GROUP = "broken"
"""Group of declarations of data sets that cannot be read."""


def broken_key(name: str) -> dg.AssetKey:
    """Return the key of a broken declaration, by the name of its file."""
    # A file may have any name, a key may not.
    return dg.AssetKey([BROKEN_GROUP, re.sub(r"[^A-Za-z0-9_]", "_", name)])


def windows_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's windows."""
    return dg.AssetKey(["windows", dataset])


def model_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's trained population."""
    return dg.AssetKey(["models", "compevo", dataset])


def baselines_key(dataset: str) -> dg.AssetKey:
    """Return the key of the scores of a data set's baselines."""
    return dg.AssetKey(["evaluation", "baselines", dataset])


def population_test_key(dataset: str) -> dg.AssetKey:
    """Return the key of the scores of a data set's population."""
    return dg.AssetKey(["evaluation", "test", dataset])


def lud_key(dataset: str) -> dg.AssetKey:
    """Return the key of the Logic Update Degree of a data set's population."""
    return dg.AssetKey(["evaluation", "lud", dataset])


def ablation_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's ablation."""
    return dg.AssetKey(["ablation", "variants", dataset])


def benchmark_key(dataset: str) -> dg.AssetKey:
    """Return the key of the runs of all methods on a data set."""
    return dg.AssetKey(["benchmark", "methods", dataset])


def next_day_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's forecasts of single days."""
    return _forecast_key("next_day", dataset)


def scored_key(dataset: str) -> dg.AssetKey:
    """Return the key of the scores of a data set's forecasts."""
    return _forecast_key("scored", dataset)


def _forecast_key(name: str, dataset: str) -> dg.AssetKey:
    # What is forecast every day needs no name beside it.
    return dg.AssetKey(["forecast", name, *([] if dataset == OPERATIONAL else [dataset])])


def score_keys(dataset: str) -> list[dg.AssetKey]:
    """Return the keys of everything that is scored for one data set."""
    return [
        baselines_key(dataset),
        population_test_key(dataset),
        lud_key(dataset),
        ablation_key(dataset),
    ]
