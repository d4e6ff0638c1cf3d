"""Jobs: ``demo``, ``full``, ``refresh``.

What belongs here: what runs together, with which run configuration, and running it in this process
for a command. What does not: what an asset does, research (``paper.definitions``). ``demo`` and
``full`` train and score electricity; each other data set has its own, such as ``full_traffic``.
``refresh`` trains nothing; its partition is the day to forecast. It is for operational demand;
others have their own, as ``refresh_exchange``: a publisher that fails stops no other data set.
"""

import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
from sqlalchemy.exc import DBAPIError

from compevo_core.errors import ConfigError, StorageError
from compevo_core.runtime.files import translate_storage_errors
from compevo_pipeline.config.settings import locate_dagster_home
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.registry import RegisteredDataset, Registry

MAX_REFRESH_S = 2 * 3600  # after which the daemon ends a refresh: the next one resumes
_REPORT = (keys.REPORT, keys.CLEANED)


def job_name(name: str, dataset: str) -> str:
    """Return the name of the job ``demo``, ``full`` or ``refresh`` of a data set."""
    without = keys.OPERATIONAL if name == "refresh" else keys.DEFAULT_DATASET
    return name if dataset == without else f"{name}_{dataset.replace('-', '_')}"


def step_name(key: dg.AssetKey) -> str:
    """Return the name of the step that materializes an asset; Dagster allows no hyphen in it."""
    return "__".join(key.path).replace("-", "_")


def run_config(name: str, dataset: str = keys.DEFAULT_DATASET) -> dict[str, Any]:
    """Return the run configuration of a job unless a run changes it.

    ``demo`` uses sample mode and so little of everything that two cores need minutes; result rows
    name what made them: subset, seeds, configuration hash.
    """
    if name != "demo":
        return {}
    configs: dict[dg.AssetKey, dict[str, Any]] = {
        # Another process would import for seconds what this one holds.
        keys.model_key(dataset): {"preset": "demo", "launcher": "inline"},
        # Every step embeds what its own windows name: two thirds of the titles.
        keys.NEWS_EMBEDDINGS: {"ahead": False},
        keys.baselines_key(dataset): {"seeds": 1},
        # The sample world announces only events of electricity.
        keys.population_test_key(dataset): {"audits_news": dataset == keys.DEFAULT_DATASET},
    }
    return sample_config(configs)


def sample_config(configs: Mapping[dg.AssetKey, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the run configuration of a run on sample data, with the settings of its assets."""
    return {
        "resources": {"workspace": {"config": {"mode": Mode.SAMPLE.value}}},
        "ops": {step_name(key): {"config": config} for key, config in configs.items()},
    }


def build_jobs(registry: Registry) -> list[Any]:
    """Return the jobs that make, score and refresh data sets.

    Each of the user's own data sets has the jobs ``full_<name>`` and ``refresh_<name>``; no other
    job reads them, so that a fault in a user's file stops no other data set. Those of a family have
    a partition for each block, which the page does not show.
    """
    declared = registry.declared
    pages = {name: [] if name in registry.families else _REPORT for name in declared}
    ways = {
        "demo": "on the sample data and the smallest preset; minutes on two cores.",
        "full": "in the deployment's mode and preset: ingest to report.",
    }
    by_shell = {"demo": " From a shell: add --config dagster_home/demo.yaml."}  # its steps only
    scored = [
        dg.define_asset_job(
            job_name(name, dataset),
            dg.AssetSelection.assets(
                *_list_data(registry, dataset),
                keys.model_key(dataset),
                keys.baselines_key(dataset),
                keys.population_test_key(dataset),
                *pages[dataset],
            ),
            description=f"Everything but research for {dataset} {ways[name]}"
            f"{by_shell.get(job_name(name, dataset), '')}",
            config=run_config(name, dataset),
            tags={"compevo/job": name, "dataset": dataset},
        )
        for name, datasets in (("demo", keys.DATASETS), ("full", declared))
        for dataset in datasets
    ]
    refreshes = []
    others = [dataset for dataset in declared if dataset != keys.OPERATIONAL]
    for dataset in (keys.OPERATIONAL, *others):
        # Everything that a new day of the data set changes, except for training.
        refreshed, what = _list_data(registry, dataset), f"windows of {dataset}"
        if declared[dataset].spec.starts_with_days:
            refreshed += [keys.next_day_key(dataset), keys.scored_key(dataset)]
            what = f"the forecast of {dataset} for the partition's day, scores of the days before"
        # A partition is the day of the forecast. Everything else has none, and runs with it.
        tags = {"dataset": dataset, "dagster/max_runtime": str(MAX_REFRESH_S)}
        refresh = dg.define_asset_job(
            job_name("refresh", dataset),
            dg.AssetSelection.assets(*refreshed, *pages[dataset]),
            description=f"New data, {what} and the report; trains nothing.",
            tags={"compevo/job": "refresh", **tags},
        )
        refreshes.append(refresh)
    return [*scored, *refreshes]


def _list_data(registry: Registry, dataset: str) -> list[dg.AssetKey]:
    """Return the series, news and windows of a data set."""
    data = [keys.series_key(dataset), keys.windows_key(dataset)]
    if dataset in registry.families:
        return data  # blocks read no news
    # A user's own data set needs no news of this project's sources.
    articles = [] if registry[dataset].declaration else [keys.NEWS_ARTICLES]
    return [*data, *articles, keys.NEWS_EMBEDDINGS]


def choose_day(declared: RegisteredDataset, now: datetime) -> str:
    """Return the partition of a refresh: today, or tomorrow if its night forecasts that.

    Days are on the data set's own clock; empty where its windows start with no day.
    """
    if not declared.spec.starts_with_days:
        return ""
    ahead = timedelta(days=declared.night.days_ahead)
    return (declared.spec.to_market(now) + ahead).date().isoformat()


def hide_notices() -> None:
    """Hide Dagster's notices about its young APIs, which a user of the demo cannot act on."""
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)


def run_job(
    defs: dg.Definitions, name: str, dataset: str, day: str = "", block: str = ""
) -> list[str]:
    """Run a job in this process, configured as it is; return a line for each step that failed.

    ``day`` is the partition; for a family that is ``block``, and ``day`` is configured.
    """
    job = defs.resolve_job_def(job_name(name, dataset))
    days = None if block else job.partitions_def
    config = dict(job.run_config or {})
    if block and day:
        config = {"ops": {step_name(keys.next_day_key(dataset)): {"config": {"day": day}}}}
    if day and not job.partitions_def:
        raise ConfigError(f"{job.name} forecasts no day of its own; leave --day {day} out")
    if day and days is not None and not days.has_partition_key(day):
        first, last = days.get_first_partition_key(), days.get_last_partition_key()
        raise ConfigError(f"{job.name} forecasts no {day}: name a day from {first} to {last}")
    # The view needs all names at the start, to know how much is left.
    steps = [node.name for node in job.nodes]
    loggers: dict[str, Any] = {"loggers": {"progress": {"config": {"steps": steps}}}}

    with open_instance() as instance:
        result = job.execute_in_process(
            run_config={**config, **loggers},
            partition_key=block or day or None,
            instance=instance,
            # A failed step must not hide others that failed with it.
            raise_on_error=False,
        )

        if result.success:
            return []
        failed = result.filter_events(lambda event: event.is_step_failure)
        steps = [f"  {event.step_key}: {describe_failure(event)}" for event in failed]
        # A run that could not begin has no failed step.
        ends = result.filter_events(lambda event: event.is_job_failure)
        return steps or [f"  {job.name}: {describe_failure(event)}" for event in ends]


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Open Dagster's records; ConfigError if its settings cannot be used."""
    with translate_record_errors(), ExitStack() as opened:
        try:
            instance = opened.enter_context(dg.DagsterInstance.get())
        except (DBAPIError, OSError):
            raise
        # Of YAML, of Dagster, or of a package that the settings name.
        except Exception as error:
            raise ConfigError(
                f"{locate_dagster_home() / 'dagster.yaml'} cannot be used "
                f"({type(error).__name__}: {' '.join(str(error).split())}): correct it, or install "
                "what it names"
            ) from error
        yield instance


@contextmanager
def translate_record_errors() -> Iterator[None]:
    """Raise StorageError if Dagster cannot keep its records, such as on a full disk."""
    what = f"Dagster's records in {locate_dagster_home()}"
    try:
        with translate_storage_errors(what):
            yield
    except DBAPIError as error:
        # The errors of a database server, such as Postgres, are of another kind.
        if not isinstance(error.orig, sqlite3.Error):
            raise
        remedy = "free space on that disk, or correct the owner of the folder"
        if "malformed" in str(error.orig) or "not a database" in str(error.orig):
            remedy = "restore the file from a backup, or set it aside: Dagster makes a new one"
        elif "locked" in str(error.orig):
            remedy = "end the program that holds it, such as an open database viewer"
        raise StorageError(
            f"{what} cannot be written ({error.orig}): {remedy}, and run it again. It resumes "
            "where it stopped"
        ) from error


def describe_failure(event: dg.DagsterEvent) -> str:
    """Return why a step or run failed, in one line: the innermost error."""
    if event.is_step_failure:
        failure = event.step_failure_data
        # A dg.Failure of ours says file, line and remedy itself.
        if failure.user_failure_data and failure.user_failure_data.description:
            return failure.user_failure_data.description
        error = failure.error
    else:
        error = event.job_failure_data.error
    if error is None:
        return "no error was recorded"
    is_interrupted = error.cls_name == dg.DagsterExecutionInterruptedError.__name__
    while error.cause is not None:
        error = error.cause
    # DuckDB has words of its own for Ctrl-C.
    if is_interrupted or "Query interrupted" in error.message:
        return "it was interrupted"
    return error.message.strip()
