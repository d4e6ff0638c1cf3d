"""What asset definitions share: owner, pools, freshness, and what an error does to a step.

What belongs here: arguments of ``@dg.asset`` that more than one asset takes, and Dagster's
exceptions for the project's errors. What does not: keys (``defs.asset_keys``), which errors are
tried again (``compevo_pipeline.errors``), run configuration, metadata (``defs.metadata``).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dagster as dg

from compevo_core.errors import CompEvoError
from compevo_core.runtime.files import translate_storage_errors
from compevo_pipeline.defs.asset_keys import EVENING_DEADLINE, NEM_ZONE
from compevo_pipeline.defs.launch_config import LaunchConfig
from compevo_pipeline.errors import MAX_RETRY_AFTER_S, Throttled, get_policy
from compevo_pipeline.storage.code_versions import code_version

OWNERS = ["team:forecasting"]

DUCKDB_POOL = "duckdb"
"""Assets that write the one DuckDB file; the pool's limit of one keeps two from writing at once."""
GPU_POOL = "gpu"
"""Assets that load a language model; two at once would exceed the memory of one accelerator."""

DAILY_REFRESH = dg.FreshnessPolicy.time_window(
    # The schedule starts every 24 hours and a run may take two; one missed refresh warns, a
    # second one fails.
    warn_window=timedelta(hours=26),
    fail_window=timedelta(hours=50),
)
"""For what a refresh brings every day; ``definitions`` keeps it in live mode alone.

The age of the data itself is the check ``data_age``.
"""

EVENING_FORECAST = dg.FreshnessPolicy.cron(
    deadline_cron=f"{EVENING_DEADLINE.minute} {EVENING_DEADLINE.hour} * * *",
    # Midnight's forecast of the day before counts for no evening.
    lower_bound_delta=timedelta(hours=12),
    timezone=NEM_ZONE,
)
"""For the forecast of tomorrow; kept in live mode alone."""


def define_asset(
    key: dg.AssetKey,
    *,
    version: str | None = None,
    dataset: str = "",
    config: type[LaunchConfig] | None = None,
    **arguments: Any,  # noqa: ANN401 - of dg.asset
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return ``@dg.asset`` with what all assets have in common; the group is the key's first part.

    The project's errors fail the step with what is wrong and what to do.

    ``version`` names the code that decides the content; ``dataset`` is empty where an asset is made
    of several; ``arguments`` are any others of ``dg.asset``.
    """
    tags = {"dataset": dataset} if dataset else {}
    define: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
        key=key,
        group_name=key.path[0],
        owners=OWNERS,
        code_version=version,
        tags=tags,
        op_tags=tags,
        config_schema=config.schema_of_launch() if config else None,
        **arguments,
    )

    def define_translated(compute: Callable[..., Any]) -> dg.AssetsDefinition:
        # Files on disk do not change: what reads a publisher or a server asks for retries itself.
        return define(translate_errors(retry=False)(compute))

    return define_translated


def define_by_dataset(
    key: Callable[[str], dg.AssetKey],
    *,
    deps: Sequence[Callable[[str], dg.AssetKey] | dg.AssetKey],
    description: str,
    code: Sequence[str],
    data_release: str = "",
    **arguments: Any,  # noqa: ANN401 - of define_asset
) -> Callable[[Callable[..., Any]], Callable[[str], dg.AssetsDefinition]]:
    """Return a decorator: of a computation, the function from a data set to its asset.

    ``deps`` of the same data set are functions of its name; ``description`` names it as
    ``{dataset}``; data of the library with ``data_release`` decide the version, too.
    """

    def decorate(compute: Callable[..., Any]) -> Callable[[str], dg.AssetsDefinition]:
        def build(dataset: str) -> dg.AssetsDefinition:
            bound: Any = functools.partial(compute, dataset)
            # Dagster reads there what a step returns.
            bound.__annotations__ = compute.__annotations__
            return define_asset(
                key(dataset),
                deps=[dep(dataset) if callable(dep) else dep for dep in deps],
                description=description.format(dataset=dataset),
                version=code_version(*code, data_release=data_release),
                dataset=dataset,
                **arguments,
            )(bound)

        return build

    return decorate


def to_dagster(error: CompEvoError, *, attempt: int = 0, retry: bool = True) -> Exception:
    """Return ``RetryRequested`` while another try may help, else a final ``Failure``.

    ``attempt`` counts the retries so far; ``retry`` is false for files on disk, which do not
    change.
    """
    policy = get_policy(error)
    if retry and attempt < policy.retries:
        requested = error.retry_after_s if isinstance(error, Throttled) else 0.0
        requested = min(requested, MAX_RETRY_AFTER_S)
        return dg.RetryRequested(
            max_retries=policy.retries,
            seconds_to_wait=max(policy.compute_wait(attempt), requested),
        )

    gave_up = f" (given up after {attempt} retries)" if attempt else ""
    metadata = {
        "error": type(error).__name__,
        "decision": policy.decision.value,
        "remedy": policy.remedy,
    }
    return dg.Failure(
        f"{type(error).__name__}: {error}{gave_up}", metadata=metadata, allow_retries=False
    )


@contextmanager
def translate_errors(*, attempt: int = 0, retry: bool = True) -> Iterator[None]:
    """Turn the project's errors inside the block into Dagster's.

    Arguments as in :func:`to_dagster`.

    Raises:
        dagster.RetryRequested: a transient failure.
        dagster.Failure: any other, or a transient one out of tries.
    """
    try:
        with translate_storage_errors():
            yield
    except CompEvoError as error:
        raise to_dagster(error, attempt=attempt, retry=retry) from error
