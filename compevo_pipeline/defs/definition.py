"""What asset definitions share: owner, pools, freshness, run configuration, errors of a step.

What belongs here: arguments of ``@dg.asset`` that more than one asset takes, Dagster's exceptions
for the project's errors, and run configuration as pydantic models: the schema that Dagster shows
(types, choices, bounds, notes), the check of a launch by the model itself, and the model that a
step reads. What does not: keys (``defs.asset_keys``), which errors are tried again
(``compevo_pipeline.errors``), any setting (each asset's own module), metadata (``defs.metadata``).
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

import dagster as dg
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError

from compevo_core.config.run import describe_error
from compevo_core.errors import CompEvoError, ConfigError
from compevo_core.runtime.files import StoreBusy, translate_storage_errors
from compevo_pipeline.defs.asset_keys import RESEARCH
from compevo_pipeline.errors import MAX_RETRY_AFTER_S, Throttled, get_policy
from compevo_pipeline.sources.registry import Night
from compevo_pipeline.storage.code_versions import code_version
from compevo_pipeline.work.deployment import Deployment

OWNERS = ["team:forecasting"]

DUCKDB_POOL = "duckdb"  # assets that write the one DuckDB file, one at a time
EMBEDDINGS_POOL = "embeddings"  # two runs of a night would embed the same titles
GPU_POOL = "gpu"  # assets that load a language model: two would exceed the memory of a GPU
BLOCKS_POOL = "blocks"  # models and forecasts of blocks, as many at once as there are machines

Context = dg.AssetExecutionContext
Result = dg.MaterializeResult[Any]
WorkspaceParam = dg.ResourceParam[Deployment]  # the deployment in the mode of a run
Blocks = dg.PartitionsDefinition[str] | None  # a family's data sets; None for any other data set

DAILY_REFRESH = dg.FreshnessPolicy.time_window(
    # Every 24 hours, and a run may take two; one missed refresh warns, a second one fails.
    warn_window=timedelta(hours=26),
    fail_window=timedelta(hours=50),
)
"""For data that a refresh brings every day, in live mode; ``data_age`` checks the data itself."""


def make_freshness(night: Night) -> dg.FreshnessPolicy:
    """Return when a forecast is due: by its deadline, or daily; kept only in live mode."""
    if night.deadline is None:
        return DAILY_REFRESH
    return dg.FreshnessPolicy.cron(
        deadline_cron=f"{night.deadline.minute} {night.deadline.hour} * * *",
        # A forecast of another time of day does not count.
        lower_bound_delta=timedelta(hours=12),
        timezone=night.zone,
    )


_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}

NO_SOURCE = {"use_attribute_docstrings": False}  # of models without a class statement


class LaunchConfig(BaseModel):
    """What a launch may choose; what it leaves out has the default, or is not given at all.

    Dagster's own ``dg.Config`` checks bounds when a step starts, minutes after a launch, and knows
    neither a choice that may be left out nor a list of tables.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    @classmethod
    @functools.cache  # assets of every data set have the same settings
    def schema_of_launch(cls) -> dg.Shape:
        """Return the schema for ``@dg.asset(config_schema=...)``."""
        return _CheckedShape(cls)

    @classmethod
    def read(cls, context: Context) -> Self:
        """Return what the launch of a step chose.

        ConfigError if the launch configures a step that does not exist. If assets are chosen one by
        one, Dagster ignores it, and a misspelt step would run with its defaults.
        """
        job = context.job_def
        chosen_from = job.asset_selection_data
        steps = [node.name for node in (chosen_from.parent_job_def if chosen_from else job).nodes]
        ops: Any = context.run.run_config.get("ops", {})
        for name in set(ops).difference(steps):
            near = get_close_matches(name, steps, n=1)
            hint = f"did you mean {near[0]}?" if near else "the launchpad lists all steps"
            raise ConfigError(f"the run configuration has a step {name!r} that no run has: {hint}")
        return cls.model_validate(context.op_execution_context.op_config)


class _CheckedShape(dg.Shape):
    """A table of settings that its model checks when a run is created, not when a step starts."""

    def __new__(cls, model: type[BaseModel]) -> Self:
        # dg.Shape hands out one instance for equal fields, which would have another's model.
        shape = object.__new__(cls)
        shape._initialized = False
        return shape

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        super().__init__(_fields_of(model), description=model.__doc__)  # type: ignore[no-untyped-call]  # Dagster's

    def post_process(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the values as they are, unless the model refuses one."""
        try:
            self._model.model_validate(value)
        except ValidationError as error:
            described = (describe_error(details, self._model) for details in error.errors())
            raise ConfigError("; ".join(described)) from error
        return value


def _fields_of(model: type[BaseModel]) -> dict[str, dg.Field]:
    fields = {}
    for name, field in model.model_fields.items():
        # As in: at least 1, at most 64.
        bounds = [
            f"{word} {getattr(bound, key):g}"
            for bound in field.metadata
            if type(bound) in _BOUNDS
            for key, word in [_BOUNDS[type(bound)]]
        ]
        notes = (" ".join((field.description or "").split()), ", ".join(bounds))
        # A missing setting has no value: the launchpad shows none, and none reaches the step.
        options: dict[str, Any] = {"is_required": field.is_required()}
        default = field.default.value if isinstance(field.default, StrEnum) else field.default
        has_default = default is not None and not isinstance(default, BaseModel | tuple)
        if has_default and not field.is_required():
            options = {"default_value": default}
        fields[name] = dg.Field(
            _to_dagster_type(field.annotation),
            description="; ".join(filter(None, notes)) or None,
            **options,
        )
    return fields


def _to_dagster_type(annotation: Any) -> Any:  # noqa: ANN401 - a type hint, and a Dagster type
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _to_dagster_type(arguments[0])
    if origin is Literal:
        return _to_choice([str(value) for value in arguments])
    if origin in (Union, UnionType):
        (inner,) = (kind for kind in arguments if kind is not NoneType)
        return dg.Noneable(_to_dagster_type(inner))
    if origin in (list, tuple):
        return dg.Array(_to_dagster_type(arguments[0]))

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = _fields_of(annotation)
        return dg.Shape(fields, description=annotation.__doc__)  # type: ignore[no-untyped-call]  # Dagster's
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return _to_choice([member.value for member in annotation])
    if annotation in (str, int, float, bool):
        return annotation
    raise ConfigError(
        f"{annotation} has no Dagster type yet: add one to compevo_pipeline/defs/definition.py"
    )


def _to_choice(values: list[str]) -> dg.Enum:
    # Dagster knows a type by its name: equal choices are one type.
    return dg.Enum(" | ".join(values), [dg.EnumValue(value) for value in values])


def define_asset(
    key: dg.AssetKey,
    *,
    code: Sequence[str] = (),
    data_release: str = "",
    dataset: str = "",
    config: type[LaunchConfig] | None = None,
    op_tags: Mapping[str, str] | None = None,
    **arguments: Any,  # noqa: ANN401 - of dg.asset
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return ``@dg.asset`` with what all assets have in common.

    The group is the data set of an asset, "research", or the first part of the key. The project's
    errors fail the step with what is wrong and what to do. ``code`` decides the content, and so do
    data of the library with ``data_release``; ``dataset`` is empty if an asset is made of several;
    ``arguments`` are any others of ``dg.asset``.
    """
    tags = {"dataset": dataset} if dataset else {}
    group = RESEARCH if key.path[0] == RESEARCH else dataset.replace("-", "_") or key.path[0]
    define: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
        key=key,
        group_name=group,
        owners=OWNERS,
        code_version=code_version(*code, data_release=data_release) if code else None,
        tags=tags,
        op_tags=tags | dict(op_tags or {}),
        config_schema=config.schema_of_launch() if config else None,
        **arguments,
    )

    def define_translated(compute: Callable[..., Any]) -> dg.AssetsDefinition:
        if inspect.isgeneratorfunction(compute):
            return define(compute)  # what it raises later passes by: it translates within
        # Files on disk do not change: assets that read a publisher or a server ask for retries.
        return define(translate_errors(retry=False)(compute))

    return define_translated


def define_by_dataset(
    key: Callable[[str], dg.AssetKey],
    *,
    deps: Sequence[Callable[[str], dg.AssetKey] | dg.AssetKey],
    description: str,
    **arguments: Any,  # noqa: ANN401 - of define_asset
) -> Callable[[Callable[..., Any]], Callable[..., dg.AssetsDefinition]]:
    """Return a decorator: of a computation, the function from a data set to its asset.

    ``deps`` of the same data set are functions of its name; ``description`` names it as
    ``{dataset}``. The partitions of a family are its ``blocks``, each computed as a data set.
    """

    def decorate(compute: Callable[..., Any]) -> Callable[..., dg.AssetsDefinition]:
        def build(dataset: str, blocks: Blocks = None) -> dg.AssetsDefinition:
            @functools.wraps(compute)
            def bound(context: Context, **resources: object) -> object:
                return compute(context.partition_key if blocks else dataset, context, **resources)

            # Dagster reads there what a step takes and returns.
            signature = inspect.signature(compute)
            _, *taken = signature.parameters.values()
            bound.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
            by_block: dict[str, Any] = {"partitions_def": blocks} if blocks else {}
            if blocks and "pool" in arguments:
                by_block["pool"] = BLOCKS_POOL
            return define_asset(
                key(dataset),
                deps=[dep(dataset) if callable(dep) else dep for dep in deps],
                description=description.format(dataset=dataset),
                dataset=dataset,
                **{**arguments, **by_block},
            )(bound)

        return build

    return decorate


def to_dagster(error: CompEvoError, *, attempt: int = 0, retry: bool = True) -> Exception:
    """Return ``RetryRequested`` while another try may help, otherwise a final ``Failure``.

    ``attempt`` counts the retries so far; ``retry`` is false for files on disk, which stay as they
    are. A store that another run holds is tried again anyway: it becomes free.
    """
    policy = get_policy(error)
    if (retry or isinstance(error, StoreBusy)) and attempt < policy.retries:
        requested = error.retry_after_s if isinstance(error, Throttled) else 0.0
        requested = min(requested, MAX_RETRY_AFTER_S)
        return dg.RetryRequested(
            max_retries=policy.retries,
            seconds_to_wait=max(policy.first_wait_s * 2**attempt, requested),
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
    """Turn the project's errors inside the block into Dagster's, as :func:`to_dagster` does."""
    try:
        with translate_storage_errors():
            yield
    except CompEvoError as error:
        raise to_dagster(error, attempt=attempt, retry=retry) from error
