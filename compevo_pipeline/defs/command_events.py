"""Tells Dagster what commands made, as events without a run: its UI shows what is there.

What belongs here: which assets a command has made anew. What does not: what the UI shows of an
asset (its own module), runs (``defs.jobs``). Commands call it where ``DAGSTER_HOME`` is set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from compevo_core.data.window import WindowSet
from compevo_core.training.artifact import read_config
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs.assets.forecast import describe_forecast
from compevo_pipeline.defs.assets.sources import describe_stored, stored_key
from compevo_pipeline.defs.assets.training import describe_model
from compevo_pipeline.defs.assets.windows import describe_windows
from compevo_pipeline.defs.jobs import hide_notices, translate_record_errors
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import DATA_VERSION_TAG
from compevo_pipeline.work.next_day import DayForecast


def report_forecast(deployment: Deployment, dataset: str, found: DayForecast) -> None:
    """Tell of a forecast; one that was issued before, and that Dagster knows, was looked at."""
    day = found.forecast.origin.date().isoformat()
    key, result = keys.next_day_key(dataset), describe_forecast(deployment, found)
    _report(key, result, day, is_new=found.is_new)


def report_stored(
    deployment: Deployment, dataset: str, counts: Mapping[str, Mapping[str, int]]
) -> None:
    """Tell what is stored of a data set, or of the news, after files of it were read."""
    _report(stored_key(dataset), describe_stored(deployment, dataset, counts))


def report_model(deployment: Deployment, windows: WindowSet, run: Path) -> None:
    """Tell of the windows of a data set and of the run that is trained on them."""
    _report(keys.windows_key(windows.dataset), describe_windows(deployment, windows))
    result = describe_model(deployment, run, read_config(run))
    _report(keys.model_key(windows.dataset), result)


def _report(
    key: dg.AssetKey,
    result: dg.MaterializeResult[Any],
    day: str | None = None,
    *,
    is_new: bool = True,
) -> None:
    """Record a materialization; an observation where the newest one has the same version.

    What is not new is a materialization only where Dagster knows none.

    Raises:
        StorageError: Dagster cannot keep its records.
    """
    hide_notices()
    of_asset = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[day] if day else None)
    version = result.data_version.value if result.data_version else ""
    with translate_record_errors(), dg.DagsterInstance.get() as instance:
        known = [
            (record.asset_materialization.tags or {}).get(DATA_VERSION_TAG)
            for record in instance.fetch_materializations(of_asset, limit=1).records
            if record.asset_materialization
        ]
        was_seen = version in known if is_new else bool(known)
        event = dg.AssetObservation if was_seen else dg.AssetMaterialization
        instance.report_runless_asset_event(
            event(
                key,
                metadata=result.metadata,
                partition=day,
                tags={DATA_VERSION_TAG: version},
            )
        )
