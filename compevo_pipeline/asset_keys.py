"""The keys of all assets: how one asset names another.

What belongs here: one constant or function an asset. What does not: the assets themselves. An asset
module depends on keys, never on the module of another asset, so each can be read alone.
"""

import dagster as dg

from compevo_pipeline.partitions import DATASETS

# The first part of a key is the asset's group.
NEWS_ARTICLES = dg.AssetKey(["news", "articles"])
NEWS_EMBEDDINGS = dg.AssetKey(["news", "embeddings"])
MODEL = dg.AssetKey(["models", "compevo"])
BASELINES = dg.AssetKey(["evaluation", "baselines"])
POPULATION_TEST = dg.AssetKey(["evaluation", "test"])
LUD = dg.AssetKey(["evaluation", "lud"])
ABLATION = dg.AssetKey(["ablation", "variants"])
INFERENCE_2026 = dg.AssetKey(["leakage", "inference_2026"])
NEXT_DAY = dg.AssetKey(["forecast", "next_day"])
REPORT = dg.AssetKey(["report", "site"])


def series_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's series."""
    return dg.AssetKey(["series", dataset])


def windows_key(dataset: str) -> dg.AssetKey:
    """Return the key of a data set's windows."""
    return dg.AssetKey(["windows", dataset])


ALL_WINDOWS = [windows_key(dataset) for dataset in DATASETS]
"""What an asset partitioned by data set depends on: series and windows are one asset a data set."""
