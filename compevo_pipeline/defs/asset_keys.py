"""The data sets that assets are made of, the keys of all assets, and the days that are forecast.

What belongs here: how one asset names another; an asset module depends on keys, never on the module
of another asset. What does not: partitions by data set or month. A run has one partition key, and
Dagster knows no part of an unpartitioned asset: a model partitioned by data set would depend on the
windows of all (decision 20-operations), so that each data set has assets of its own. Series and
windows are stored by idempotent upsert and read whole (decision 19-stores).
"""

import re
from collections.abc import Callable, Sequence
from datetime import date

import dagster as dg

from compevo_core.data.datasets import DatasetSpec
from compevo_pipeline.sources.common.nem import NEM_ZONE

# The first is the default of every launch that names none.
DATASETS = ("electricity", "electricity-operational", "exchange", "bitcoin", "traffic")

OPERATIONAL = "electricity-operational"  # the data set that the job `refresh` is for
DEFAULT_DATASET = "electricity"  # the data set that the jobs `demo` and `full` are for

target_days = dg.DailyPartitionsDefinition("2026-02-19", timezone=NEM_ZONE, end_offset=2)
"""Days to forecast, from the first one after the validation span to tomorrow."""


def make_target_days(spec: DatasetSpec) -> dg.DailyPartitionsDefinition:
    """Return the days that a data set can be forecast for, to tomorrow on any clock.

    They begin with the test span, if that is a date: earlier days were learned from.
    """
    if spec.name == OPERATIONAL:
        return target_days
    later = [span.first_day for span in spec.spans if span.split not in ("train", "val")]
    first_day = min(later, default=date(2000, 1, 1)).isoformat()
    # The newest day on any clock is two days after the last one that is over in UTC.
    return dg.DailyPartitionsDefinition(first_day, timezone="UTC", end_offset=3)


def make_blocks(names: Sequence[str]) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of a family, which are the names of its data sets; None without any."""
    return dg.StaticPartitionsDefinition(names) if names else None


def make_months(spec: DatasetSpec | None) -> dg.MonthlyPartitionsDefinition:
    """Return the months that a data set, or news, is fetched for, to the last one that is over.

    They begin with the first day from which windows are cut, if the data set has one.
    """
    days = [span.first_day for span in spec.spans] if spec else []
    first = (spec.first_day if spec else None) or min(days, default=date(2015, 1, 1))
    return dg.MonthlyPartitionsDefinition(first.replace(day=1).isoformat(), timezone="UTC")


NEWS_ARTICLES = dg.AssetKey(["news", "articles"])
NEWS_EMBEDDINGS = dg.AssetKey(["news", "embeddings"])
SOURCE_COVERAGE = dg.AssetKey(["sources", "coverage"])
REPORT = dg.AssetKey(["report", "site"])
CLEANED = dg.AssetKey(["report", "cleaned"])

BROKEN_GROUP = "broken"  # group of declarations of data sets that cannot be read


def broken_key(name: str) -> dg.AssetKey:
    """Return the key of a broken declaration, by the name of its file."""
    # A file may have any name, a key may not.
    return dg.AssetKey([BROKEN_GROUP, re.sub(r"[^A-Za-z0-9_]", "_", name)])


def _keys_below(*prefix: str) -> Callable[[str], dg.AssetKey]:
    """Return the function from a data set to the key of its asset below a prefix."""
    return lambda dataset: dg.AssetKey([*prefix, dataset])


series_key = _keys_below("series")
windows_key = _keys_below("windows")


def months_key(dataset: str) -> dg.AssetKey:
    """Return the key of the months of a data set, or of ``news``."""
    return dg.AssetKey(["news", "months"] if dataset == "news" else ["months", dataset])


model_key = _keys_below("models", "compevo")
baselines_key = _keys_below("evaluation", "baselines")
population_test_key = _keys_below("evaluation", "test")

RESEARCH = "research"  # first part of the keys, which the catalog sorts after forecasts
lud_key = _keys_below(RESEARCH, "lud")
ablation_key = _keys_below(RESEARCH, "ablation")
benchmark_key = _keys_below(RESEARCH, "benchmark")
INFERENCE_2026 = dg.AssetKey([RESEARCH, "inference_2026"])
CONTROL = dg.AssetKey([RESEARCH, "control"])
TEXT = dg.AssetKey([RESEARCH, "text"])


def _forecast_keys(name: str) -> Callable[[str], dg.AssetKey]:
    # A data set that is forecast every day needs no further name.
    return lambda dataset: dg.AssetKey(
        ["forecast", name, *([] if dataset == OPERATIONAL else [dataset])]
    )


next_day_key = _forecast_keys("next_day")
scored_key = _forecast_keys("scored")


def score_keys(dataset: str) -> list[dg.AssetKey]:
    """Return the keys of everything that is scored for one data set."""
    keys = (baselines_key, population_test_key, lud_key, ablation_key)
    return [key(dataset) for key in keys]
