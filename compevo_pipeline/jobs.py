"""Jobs: ``demo``, ``full``, ``refresh``.

What belongs here: what runs together. What does not: how anything runs. ``demo`` and ``full`` are for the data set of
their partition (electricity unless another is chosen); ``refresh`` trains nothing.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.sources.base import Mode

DEFAULT_PARTITION = {"dagster/partition": "electricity"}
REFRESHED = ("series", "news", "windows", "leakage", "report")


def in_mode(mode: Mode) -> dict[str, Any]:
    """Run configuration that fixes the mode of every asset and check of a run."""
    return {"resources": {"workspace": {"config": {"mode": mode.value}}}}


def demo_config() -> dict[str, Any]:
    """Sample mode, the demo preset, one seed."""
    training, one_seed = {"config": {"preset": "demo"}}, {"config": {"seeds": 1}}
    ops = {
        "models__compevo": training,
        "ablation__variants": training,
        "evaluation__baselines": one_seed,
        "leakage__inference_2026": one_seed,
    }
    return in_mode(Mode.SAMPLE) | {"ops": ops}


def jobs() -> list[Any]:
    """All jobs."""
    everything = dg.AssetSelection.all()
    demo = dg.define_asset_job(
        "demo",
        everything,
        description="Everything end to end on the sample data and the smallest preset; minutes on two cores.",
        config=demo_config(),
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
