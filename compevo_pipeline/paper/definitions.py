"""The Dagster code location of research: the paper's comparisons, with the product's models.

What belongs here: wiring of the wing's assets, their jobs, and what starts by itself. What does
not: what an asset does (``paper.assets``). Series, windows and models are the product's location's.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs.alerts import CHECKS, build_alert_sensors
from compevo_pipeline.defs.jobs import job_name, sample_config
from compevo_pipeline.defs.resources import Launchers, build_location
from compevo_pipeline.paper import assets
from compevo_pipeline.sources.common.base import Clock
from compevo_pipeline.work.deployment import Deployment, utc_now

_BY_DATASET = (assets.build_lud_asset, assets.build_ablation_asset, assets.build_benchmark_asset)


def build_defs(
    settings: Settings, *, launchers: Launchers | None = None, clock: Clock | None = None
) -> dg.Definitions:
    """Wire the research of one deployment; arguments replace the project's own parts."""
    deployment = Deployment(settings=settings, clock=clock or utc_now)
    names = deployment.registry.whole
    follow = dg.AutomationConditionSensorDefinition(
        "follow_windows",
        target=dg.AssetSelection.assets(keys.INFERENCE_2026),
        default_status=dg.DefaultSensorStatus(settings.default_status(keys.DEFAULT_DATASET)),
        minimum_interval_seconds=300,
        description="Forecasts 2026 again after new windows, or a new model, of electricity.",
    )
    return build_location(
        deployment,
        launchers,
        assets=[
            *(build(dataset) for dataset in names for build in _BY_DATASET),
            assets.inference_2026,
            assets.control,
            assets.text,
        ],
        jobs=[
            *(_build_job("demo_research", dataset) for dataset in keys.DATASETS),
            *(_build_job("full_research", dataset) for dataset in names),
        ],
        sensors=[
            follow,
            # The product's location reports failed runs, for all locations.
            *(one for one in build_alert_sensors(deployment) if one.name == CHECKS),
        ],
    )


def _build_job(name: str, dataset: str) -> Any:  # noqa: ANN401 - Dagster's unresolved job
    """Return the job of the comparisons on a trained data set."""
    selected = [keys.ablation_key(dataset), keys.lud_key(dataset)]
    # The check of 2026 concerns the population of electricity.
    if dataset == keys.DEFAULT_DATASET:
        selected.append(keys.INFERENCE_2026)
    return dg.define_asset_job(
        job_name(name, dataset),
        dg.AssetSelection.assets(*selected),
        description=f"Ablation and updates of logics of {dataset}, after the job of its model.",
        config=run_config(name, dataset),
        tags={"compevo/job": name, "dataset": dataset},
    )


def run_config(name: str, dataset: str = keys.DEFAULT_DATASET) -> dict[str, Any]:
    """Return the run configuration of a job unless a run changes it.

    ``demo_research`` uses sample mode and little of everything, like the job ``demo``.
    """
    if name != "demo_research":
        return {}
    configs: dict[dg.AssetKey, dict[str, Any]] = {
        keys.ablation_key(dataset): {
            "preset": "demo",
            "launcher": "inline",
            "scopes": None,
            "variants": ["compevo", "one-agent-all-trials", "paper-method"],
        },
        keys.lud_key(dataset): {"pairs": 2},
    }
    if dataset == keys.DEFAULT_DATASET:
        configs[keys.INFERENCE_2026] = {"seeds": 1, "every": 5}
    return sample_config(configs)


defs = build_defs(Settings.from_environment())
