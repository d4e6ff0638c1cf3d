"""Jobs: ``demo``, ``full``, ``refresh``, ``next_day``.

What belongs here: what runs together, with which run configuration. What does not: how anything
runs. ``demo`` and ``full`` train and score the data set of their partition, which every launch
chooses (electricity where it names none). ``refresh`` and ``next_day`` train nothing; a partition
of the latter is a day to forecast.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.asset_keys import (
    NEWS_ARTICLES,
    NEWS_EMBEDDINGS,
    NEXT_DAY,
    series_key,
    windows_key,
)
from compevo_pipeline.partitions import OPERATIONAL, target_days
from compevo_pipeline.sources.common.base import Mode

PARTITION_TAG = "dagster/partition"
DEFAULT_DATASET = "electricity"
REFRESHED_GROUPS = ("series", "news", "windows", "leakage", "report")

# A tag of the job is its default: a partition chosen in the UI, by --partition or by partition_key
# takes its place, and a launch that names none still has one.
_DEFAULT_PARTITION = {PARTITION_TAG: DEFAULT_DATASET}
# Days to forecast are other partitions than data sets, and a job has one kind of them.
_BY_DATASET = dg.AssetSelection.all() - dg.AssetSelection.groups("forecast")
_TWO_STEPS_AT_ONCE = dg.multiprocess_executor.configured({"max_concurrent": 2})


def set_mode(mode: Mode) -> dict[str, Any]:
    """Return the run configuration that fixes the mode of every asset and check of a run."""
    return {"resources": {"workspace": {"config": {"mode": mode.value}}}}


def build_demo_config() -> dict[str, Any]:
    """Return sample mode and so little of everything that two cores need minutes.

    Result rows name what made them: subset, seeds, configuration hash.
    """
    # Some variants share the budget of the demo: fewer agents, one round that rewrites logics, and
    # nothing that no row of theirs shows.
    smaller = {
        "population.agents": 2,
        "population.members": [{"prior": "calendar-ridge"}, {"prior": "persistence"}],
        "run.batch_size": 4,
        "run.supervised_epochs": 0,
        "run.validate_every": 0,
        "run.validation_windows": 4,
        "run.fixed_logics": 0,
        "forecast.prior_folds": 1,
    }
    ops: dict[str, dict[str, Any]] = {
        "models__compevo": {"preset": "demo"},
        "ablation__variants": {
            "preset": "demo",
            "rounds": 1,
            "overrides": smaller,
            "every": 4,
            "variants": ["compevo", "no-grpo"],
        },
        "evaluation__baselines": {"seeds": 1},
        "evaluation__test": {"scopes": 1},
        "evaluation__lud": {"pairs": 2},
        "leakage__inference_2026": {"seeds": 1, "every": 5},
    }
    return set_mode(Mode.SAMPLE) | {
        "ops": {name: {"config": config} for name, config in ops.items()}
    }


def run_config(name: str) -> dict[str, Any]:
    """Return the run configuration of a job unless a run changes it."""
    return build_demo_config() if name == "demo" else {}


def build_jobs() -> list[Any]:
    """Return all jobs."""
    demo = dg.define_asset_job(
        "demo",
        _BY_DATASET,
        description=(
            "Everything end to end on the sample data and the smallest preset; minutes on two "
            "cores. From a shell: add --config dagster_home/demo.yaml."
        ),
        config=run_config("demo"),
        tags={**_DEFAULT_PARTITION, "compevo/job": "demo"},
        # One process: importing torch in a process for each step would cost a minute.
        executor_def=dg.in_process_executor,
    )
    full = dg.define_asset_job(
        "full",
        _BY_DATASET,
        description="Everything end to end in the deployment's mode and preset: ingest to report.",
        tags={**_DEFAULT_PARTITION, "compevo/job": "full"},
        executor_def=_TWO_STEPS_AT_ONCE,
    )
    refresh = dg.define_asset_job(
        "refresh",
        dg.AssetSelection.groups(*REFRESHED_GROUPS),
        description=(
            "New data, windows, the 2026 inference of the trained population and the report; "
            "trains nothing."
        ),
        tags={"compevo/job": "refresh"},
        executor_def=_TWO_STEPS_AT_ONCE,
    )
    next_day = dg.define_asset_job(
        "next_day",
        dg.AssetSelection.assets(
            series_key(OPERATIONAL),
            NEWS_ARTICLES,
            NEWS_EMBEDDINGS,
            windows_key(OPERATIONAL),
            NEXT_DAY,
        ),
        description=(
            "The newest values and news of operational demand, then the forecast of the "
            "partition's day by the trained population; trains nothing."
        ),
        partitions_def=target_days,
        tags={"compevo/job": "next_day"},
        executor_def=_TWO_STEPS_AT_ONCE,
    )
    return [demo, full, refresh, next_day]
