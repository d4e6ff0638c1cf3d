"""``leakage/inference_2026``: the trained population on days after its training, without any update (design 4.11).

What belongs here: inference on 20 days of five regions between 2026-02-19 and 2026-03-30, beside simple forecasters and
AEMO's own day-ahead forecast, and the blocking checks that nothing leaked and nothing changed. What does not: detectors
(``compevo_core.evaluation.leakage``), scoring (``scoring``).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.data.window import WindowSet
from compevo_core.evaluation.leakage import (
    Violation,
    changed_files,
    folder_hashes,
    trained_on_or_after,
)
from compevo_core.evaluation.result_rows import evaluate, write_rows
from compevo_core.evaluation.scopes import Scope, thinned, write_forecasts
from compevo_core.evaluation.scoring import COMPEVO, identity, load, predict, score_baselines
from compevo_core.report.inputs import keep_config
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.assets.evaluation import describe
from compevo_pipeline.assets.training import GPU_POOL
from compevo_pipeline.checks.availability import late, wording
from compevo_pipeline.failures import source_failures
from compevo_pipeline.partitions import electricity_only
from compevo_pipeline.provenance import commit
from compevo_pipeline.resources import Workspace
from compevo_pipeline.storage.runs import current

DATASET = "electricity"
SUBSET = "inference-2026-100"
EXPERIMENT = "leakage-2026"
KEY = dg.AssetKey(["leakage", "inference_2026"])
CHECKS = {
    "artifact_unchanged": "Every file of the trained model has the same hash before and after the inference.",
    "nothing_late": "No article, covariate or published forecast was available only at or after its origin.",
    "nothing_of_2026_in_training": "No train or validation window reaches the first inference origin.",
    "every_window_scored": "All windows of the subset were forecast and scored.",
}


class InferenceConfig(dg.Config):
    """How much is forecast."""

    every: int = Field(
        default=1,
        description="score every n-th origin; the rows' subset says so where n is above 1",
    )
    seeds: int = Field(default=5, description="seeds of the baselines that draw random numbers")


@dg.asset(
    key=KEY,
    deps=[
        dg.AssetDep(dg.AssetKey(["models", "compevo"]), partition_mapping=electricity_only),
        dg.AssetKey(["windows", DATASET]),
        dg.AssetKey(["news", "embeddings"]),
    ],
    group_name="leakage",
    description="100 windows of February and March 2026 over five regions: no update, nothing learnt, hashes compared.",
    kinds={"pytorch", "csv"},
    owners=show.OWNERS,
    pool=GPU_POOL,
    check_specs=[
        dg.AssetCheckSpec(name, asset=KEY, blocking=True, description=about)
        for name, about in CHECKS.items()
    ],
)
def inference_2026(
    context: dg.AssetExecutionContext, config: InferenceConfig, workspace: Workspace
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster refuses a parameter beside check results
    """Forecasts 2026 with the sealed electricity population and checks that this was honest."""
    layout = workspace.layout
    with source_failures(retry=False):
        windows, run = WindowSet.read(layout.windows(DATASET)), current(layout, DATASET)
        scope = thinned(windows.subset(SUBSET), SUBSET, config.every)
        before = folder_hashes(run / "model")
        forecaster = load(run, layout.news_pool)
        found = predict(forecaster, scope, context.log)
        train = windows.split("train")
        about = identity(
            forecaster,
            found,
            experiment=EXPERIMENT,
            method=COMPEVO,
            subset=scope.subset,
            commit=commit(),
        )
        own = evaluate(found.values, scope.windows, about, train=train)
        rivals, (forecasts,) = score_baselines(
            train, [scope], experiment=EXPERIMENT, seeds=config.seeds, commit=commit()
        )
        rows, path = pl.concat([own, rivals]), layout.results / "leakage-2026.csv"
        write_rows(path, rows)
        keep_config(layout.results, forecaster.config)
        write_forecasts(
            layout.root / "forecasts" / "leakage-2026.parquet",
            [(scope, {COMPEVO: found.values, **forecasts})],
        )
        leaks = {
            "artifact_unchanged": changed_files(before, folder_hashes(run / "model")),
            "nothing_late": late(workspace, DATASET, scope.windows.views()),
            "nothing_of_2026_in_training": too_new(windows, scope),
            "every_window_scored": unscored(scope, rows),
        }
    record_checks(layout.results / "leakage-checks.csv", leaks)
    facts = {
        "artifact_hash": forecaster.artifact_hash,
        "windows": len(scope.windows),
        "run_folder": show.path(run),
    }
    return dg.MaterializeResult(metadata=describe(rows, path) | facts, check_results=results(leaks))


def too_new(windows: WindowSet, scope: Scope) -> list[Violation]:
    """Windows that training used and that reach the first origin of the scope."""
    first = min(view.origin_utc for view in scope.windows.views())
    return trained_on_or_after(windows.split("train"), first) + trained_on_or_after(
        windows.split("val"), first
    )


def unscored(scope: Scope, rows: pl.DataFrame) -> list[Violation]:
    """Methods whose pooled row does not count every window."""
    pooled = rows.filter(pl.col("entity") == "pooled").select("method", "n_windows")
    total = len(scope.windows)
    return [
        Violation(kind="windows left out", where=method, detail=f"{count} of {total}")
        for method, count in pooled.iter_rows()
        if count != total
    ]


def record_checks(path: Path, leaks: Mapping[str, Sequence[Violation]]) -> None:
    """Leaves the outcome where the report reads it."""
    rows = [
        {"check": CHECKS[name], "passed": not found, "detail": wording(found)}
        for name, found in leaks.items()
    ]
    pl.DataFrame(rows).write_csv(path)


def results(leaks: Mapping[str, Sequence[Violation]]) -> list[dg.AssetCheckResult]:
    """Check results for Dagster."""
    return [
        dg.AssetCheckResult(
            check_name=name,
            passed=not found,
            description=wording(found),
            metadata={"violations": len(found)},
        )
        for name, found in leaks.items()
    ]
