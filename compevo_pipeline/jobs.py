"""Jobs: ``demo``, ``full``, ``refresh``.

What belongs here: what runs together. What does not: how anything runs. ``demo`` and ``full`` are for the data set of
their partition (electricity unless another is chosen); ``refresh`` trains nothing.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.sources.common.base import Mode

DEFAULT_PARTITION = {"dagster/partition": "electricity"}
REFRESHED = ("series", "news", "windows", "leakage", "report")


def in_mode(mode: Mode) -> dict[str, Any]:
    """Run configuration that fixes the mode of every asset and check of a run."""
    return {"resources": {"workspace": {"config": {"mode": mode.value}}}}


def demo_config() -> dict[str, Any]:
    """Sample mode and so little of everything that two cores need minutes; rows say what they were made of."""
    smaller = {"population.agents": 2, "run.validate_every": 0, "forecast.prior_folds": 1}
    ops: dict[str, dict[str, Any]] = {
        "models__compevo": {"preset": "demo"},
        "ablation__variants": {"preset": "demo", "rounds": 1, "overrides": smaller, "every": 4},
        "evaluation__baselines": {"seeds": 1},
        "evaluation__test": {"scopes": 1},
        "evaluation__lud": {"pairs": 2},
        "leakage__inference_2026": {"seeds": 1, "every": 5},
    }
    return in_mode(Mode.SAMPLE) | {
        "ops": {name: {"config": config} for name, config in ops.items()}
    }


def run_config(name: str) -> dict[str, Any]:
    """The run configuration a job has unless a run changes it."""
    return demo_config() if name == "demo" else {}


def jobs() -> list[Any]:
    """All jobs."""
    everything = dg.AssetSelection.all()
    demo = dg.define_asset_job(
        "demo",
        everything,
        description="Everything end to end on the sample data and the smallest preset; minutes on two cores.",
        config=run_config("demo"),
        tags={**DEFAULT_PARTITION, "compevo/job": "demo"},
        executor_def=dg.in_process_executor,
    )
    full = dg.define_asset_job(
        "full",
        everything,
        description="Everything end to end in the deployment's mode and preset: ingest to report.",
        tags={**DEFAULT_PARTITION, "compevo/job": "full"},
        executor_def=dg.multiprocess_executor.configured({"max_concurrent": 2}),
    )
    refresh = dg.define_asset_job(
        "refresh",
        dg.AssetSelection.groups(*REFRESHED),
        description="New data, windows, the 2026 inference of the trained population and the report; trains nothing.",
        tags={"compevo/job": "refresh"},
        executor_def=dg.multiprocess_executor.configured({"max_concurrent": 2}),
    )
    return [demo, full, refresh]
