"""Reports to Dagster what commands made, as events without a run, so that its UI shows it.

What belongs here: which assets a command has made. What does not: what the UI shows of an asset
(its own module), runs (``defs.jobs``). Commands call it if ``DAGSTER_HOME`` is set, after they have
printed their result: it takes 1.3 s, most of it to import Dagster. No fault of Dagster fails them.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from compevo_core.data.window import WindowSet
from compevo_core.errors import CompEvoError
from compevo_core.training.ensemble import read_config
from compevo_pipeline.config.settings import ensure_dagster_home
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs.assets.forecast import describe_forecast
from compevo_pipeline.defs.assets.sources import describe_stored, report_months, stored_key
from compevo_pipeline.defs.assets.training import describe_model
from compevo_pipeline.defs.assets.windows import describe_windows
from compevo_pipeline.defs.definition import Result
from compevo_pipeline.defs.jobs import hide_notices, open_instance
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import DATA_VERSION_TAG
from compevo_pipeline.work.next_day import DayForecast

log = logging.getLogger(__name__)


@contextmanager
def _warn_of_faults() -> Iterator[None]:
    """Turn what Dagster cannot record into a warning: the command's result is stored."""
    try:
        yield
    except (CompEvoError, dg.DagsterError, SQLAlchemyError) as error:
        kind = type(error).__name__
        log.warning("Dagster's UI will not show this result: %s: %s", kind, error)


@_warn_of_faults()
def report_forecast(deployment: Deployment, dataset: str, found: DayForecast) -> None:
    """Report a forecast; one issued before Dagster's newest of the day is only observed."""
    day = found.forecast.origin.date().isoformat()
    name, block = _name_asset(deployment, dataset)
    key, result = keys.next_day_key(name), describe_forecast(deployment, found)
    _report(key, result, block or day, datetime.fromisoformat(found.forecast.facts["issued_at"]))


@_warn_of_faults()
def report_stored(
    deployment: Deployment, dataset: str, counts: Mapping[str, Mapping[str, int]]
) -> None:
    """Report the stored data of a data set, or the news, after its files were read."""
    name, block = _name_asset(deployment, dataset)
    _report(stored_key(name), describe_stored(deployment, dataset, counts), block)
    with open_instance() as instance:
        report_months(instance, deployment, dataset, log)


@_warn_of_faults()
def report_model(deployment: Deployment, windows: WindowSet, run: Path) -> None:
    """Report the windows of a data set and the run that is trained on them."""
    name, block = _name_asset(deployment, windows.dataset)
    _report(keys.windows_key(name), describe_windows(deployment, windows), block)
    _report(keys.model_key(name), describe_model(deployment, run, read_config(run)), block)


def _name_asset(deployment: Deployment, dataset: str) -> tuple[str, str | None]:
    """Return what assets of a data set are named by, and their partition if it is a block."""
    declared = deployment.registry.datasets.get(dataset)  # None of the news
    return (declared.family, dataset) if declared and declared.family else (dataset, None)


def _report(
    key: dg.AssetKey, result: Result, partition: str | None = None, made_at: datetime | None = None
) -> None:
    """Record a materialization; an observation where the newest one has the same version.

    An asset made before the newest one is observed, too: it is no later version.
    """
    ensure_dagster_home()
    hide_notices()
    partitions = [partition] if partition else None
    of_asset = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
    version = result.data_version.value if result.data_version else ""
    with open_instance() as instance:
        was_seen = False
        for newest in instance.fetch_materializations(of_asset, limit=1).records:
            tags = newest.asset_materialization.tags if newest.asset_materialization else None
            is_older = made_at is not None and made_at.timestamp() < newest.timestamp
            was_seen = is_older or (tags or {}).get(DATA_VERSION_TAG) == version
        kind = dg.AssetObservation if was_seen else dg.AssetMaterialization
        tagged = {DATA_VERSION_TAG: version}
        event = kind(key, metadata=result.metadata, partition=partition, tags=tagged)
        instance.report_runless_asset_event(event)
