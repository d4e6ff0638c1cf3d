"""Jobs: ``demo``, ``full``, ``refresh``.

What belongs here: what runs together, with which run configuration. What does not: how anything
runs. ``demo`` and ``full`` train and score electricity; each other data set has jobs of its own,
such as ``full_traffic``. ``refresh`` trains nothing; its partition is the day to forecast. It reads
every built-in data set and forecasts operational demand; ``refresh_exchange`` is for one alone.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.asset_keys import (
    INFERENCE_2026,
    NEWS_ARTICLES,
    NEWS_EMBEDDINGS,
    REPORT,
    ablation_key,
    baselines_key,
    lud_key,
    model_key,
    next_day_key,
    population_test_key,
    score_keys,
    scored_key,
    series_key,
    windows_key,
)
from compevo_pipeline.launchers.executor import watch_dead_runs
from compevo_pipeline.partitions import DATASETS, OPERATIONAL
from compevo_pipeline.registry import Registry
from compevo_pipeline.sources.common.base import Mode

DEFAULT_DATASET = "electricity"
REFRESHED_GROUPS = ("series", "news", "windows", "leakage", "forecast", "report")

_TWO_STEPS_AT_ONCE = watch_dead_runs(dg.multiprocess_executor).configured({"max_concurrent": 2})


def set_mode(mode: Mode) -> dict[str, Any]:
    """Return the run configuration that fixes the mode of every asset and check of a run."""
    return {"resources": {"workspace": {"config": {"mode": mode.value}}}}


def job_name(name: str, dataset: str) -> str:
    """Return the name of the job ``demo``, ``full`` or ``refresh`` of a data set."""
    without = OPERATIONAL if name == "refresh" else DEFAULT_DATASET
    return name if dataset == without else f"{name}_{dataset.replace('-', '_')}"


def step_name(key: dg.AssetKey) -> str:
    """Return the name of the step that materializes an asset; Dagster allows no hyphen in it."""
    return "__".join(key.path).replace("-", "_")


def build_demo_config(dataset: str) -> dict[str, Any]:
    """Return sample mode and so little of everything that two cores need minutes.

    Result rows name what made them: subset, seeds, configuration hash.
    """
    # Some variants share the budget of the demo: fewer agents, one round that rewrites logics, and
    # nothing that no row of theirs shows.
    smaller = {
        "population": {
            "agents": 2,
            "members": [{"prior": "calendar-ridge"}, {"prior": "persistence"}],
        },
        "forecast": {"prior_folds": 1},
        "run": {
            "rounds": 1,
            "batch_size": 4,
            "supervised_epochs": 0,
            "validate_every": 0,
            "validation_windows": 4,
            "fixed_logics": 0,
        },
    }
    configs: dict[dg.AssetKey, dict[str, Any]] = {
        model_key(dataset): {"preset": "demo"},
        ablation_key(dataset): {
            "preset": "demo",
            "settings": smaller,
            "every": 4,
            "variants": ["compevo", "no-grpo"],
        },
        baselines_key(dataset): {"seeds": 1},
        population_test_key(dataset): {"scopes": 1},
        lud_key(dataset): {"pairs": 2},
    }
    if dataset == DEFAULT_DATASET:
        configs[INFERENCE_2026] = {"seeds": 1, "every": 5}

    return set_mode(Mode.SAMPLE) | {
        "ops": {step_name(key): {"config": config} for key, config in configs.items()}
    }


def run_config(name: str, dataset: str = DEFAULT_DATASET) -> dict[str, Any]:
    """Return the run configuration of a job unless a run changes it."""
    return build_demo_config(dataset) if name == "demo" else {}


def _select(dataset: str) -> dg.AssetSelection:
    """Return what is trained and scored for one data set, all that it is made of, the report."""
    own = dg.AssetSelection.assets(*score_keys(dataset)).upstream()
    made = own | dg.AssetSelection.groups("report")
    if dataset != DEFAULT_DATASET:
        return made

    # The first thing that anybody runs: it also shows the data of the others, and the check of
    # 2026, which concerns the population of electricity.
    everything = dg.AssetSelection.groups("series", "news", "windows")
    return made | everything | dg.AssetSelection.assets(INFERENCE_2026)


def _select_own(dataset: str) -> dg.AssetSelection:
    """Return all that is made of a user's own data set, which needs no source of this project."""
    return dg.AssetSelection.assets(
        series_key(dataset),
        NEWS_EMBEDDINGS,
        windows_key(dataset),
        model_key(dataset),
        *score_keys(dataset),
        REPORT,
    )


def _select_refreshed(dataset: str, *, is_own: bool) -> dg.AssetSelection:
    """Return what a new day of one data set changes, but for what is trained."""
    # A user's own data set needs no news of this project's sources.
    news = [NEWS_EMBEDDINGS] if is_own else [NEWS_ARTICLES, NEWS_EMBEDDINGS]
    return dg.AssetSelection.assets(
        series_key(dataset),
        *news,
        windows_key(dataset),
        next_day_key(dataset),
        scored_key(dataset),
        REPORT,
    )


def build_jobs(registry: Registry) -> list[Any]:
    """Return all jobs.

    Each of the user's own data sets has the jobs ``full_<name>`` and ``refresh_<name>``; no other
    job reads them, so that a fault in a user's file stops no other data set.
    """
    own = [dataset.name for dataset in registry.own]
    of_own = dg.AssetSelection.assets(
        *(key for dataset in own for key in (series_key(dataset), windows_key(dataset)))
    )
    demos = [
        dg.define_asset_job(
            job_name("demo", dataset),
            _select(dataset) - of_own,
            description=(
                f"Everything end to end for {dataset} on the sample data and the smallest preset; "
                "minutes on two cores. From a shell: add --config dagster_home/demo.yaml."
            ),
            config=run_config("demo", dataset),
            tags={"compevo/job": "demo", "dataset": dataset},
            # One process: importing torch in a process for each step would cost a minute.
            executor_def=watch_dead_runs(dg.in_process_executor),
        )
        for dataset in DATASETS
    ]
    full = [
        dg.define_asset_job(
            job_name("full", dataset),
            _select_own(dataset) if dataset in own else _select(dataset) - of_own,
            description=(
                f"Everything end to end for {dataset} in the deployment's mode and preset: ingest "
                "to report."
            ),
            tags={"compevo/job": "full", "dataset": dataset},
            executor_def=_TWO_STEPS_AT_ONCE,
        )
        for dataset in (*DATASETS, *own)
    ]
    return [*demos, *full, *_build_refreshes(registry, of_own)]


def _build_refreshes(registry: Registry, of_own: dg.AssetSelection) -> list[Any]:
    """Return the refresh of everything, and that of each other data set that is forecast."""
    forecast = [name for name in registry if registry[name].spec.starts_with_days]
    others = [name for name in forecast if name != OPERATIONAL]
    of_others = dg.AssetSelection.assets(
        *(key for name in others for key in (next_day_key(name), scored_key(name)))
    )
    own = {dataset.name for dataset in registry.own}
    selections = {
        OPERATIONAL: dg.AssetSelection.groups(*REFRESHED_GROUPS) - of_own - of_others,
        **{name: _select_refreshed(name, is_own=name in own) for name in others},
    }
    return [
        dg.define_asset_job(
            job_name("refresh", name),
            selection,
            description=(
                f"New data, the forecast of {name} for the partition's day, scores of the days "
                "before it"
                + (", the 2026 inference" if name == OPERATIONAL else "")
                + " and the report; trains nothing."
            ),
            # A partition is the day of the forecast. Everything else has none, and runs with it.
            tags={"compevo/job": "refresh"} | ({} if name == OPERATIONAL else {"dataset": name}),
            executor_def=_TWO_STEPS_AT_ONCE,
        )
        for name, selection in selections.items()
    ]
