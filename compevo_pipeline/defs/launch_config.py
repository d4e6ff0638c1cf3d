"""Run configuration as pydantic models: shown in the launchpad, checked before any work starts.

What belongs here: a model -> the schema that Dagster shows (types, choices, bounds, notes), the
check of a launch by the model itself, and the model that a step reads. What does not: any setting
(each asset's own module, ``defs.assets.training``).

Dagster's own ``dg.Config`` checks bounds when a step starts, which is minutes after a launch that
refreshes data first; and it knows neither a choice that may be left out nor a list of tables.
"""

import functools
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

import dagster as dg
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from compevo_core.config.run import describe_error
from compevo_core.errors import ConfigError

_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


NO_SOURCE = {"use_attribute_docstrings": False}
"""For a model that no class statement makes: pydantic would search all callers for its source."""


class LaunchConfig(BaseModel):
    """What a launch may choose; what it leaves out has the default, or is not given at all."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    @classmethod
    @functools.cache  # assets of every data set have the same settings
    def schema_of_launch(cls) -> dg.Shape:
        """Return the schema for ``@dg.asset(config_schema=...)``."""
        return _CheckedShape(cls)

    @classmethod
    def read(cls, context: dg.AssetExecutionContext) -> Self:
        """Return what the launch of a step chose."""
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


def describe_bounds(field: FieldInfo) -> str:
    """Return the bounds of a setting in words: ``at least 1, at most 64``; empty without any."""
    parts = []
    for bound in field.metadata:
        if type(bound) in _BOUNDS:
            name, word = _BOUNDS[type(bound)]
            parts.append(f"{word} {getattr(bound, name):g}")
    return ", ".join(parts)


def _fields_of(model: type[BaseModel]) -> dict[str, dg.Field]:
    return {name: _to_dagster_field(field) for name, field in model.model_fields.items()}


def _to_dagster_field(field: FieldInfo) -> dg.Field:
    notes = (" ".join((field.description or "").split()), describe_bounds(field))
    description = "; ".join(note for note in notes if note) or None
    kind = _to_dagster_type(field.annotation)

    if field.is_required():
        return dg.Field(kind, is_required=True, description=description)
    if field.default is None or isinstance(field.default, BaseModel | tuple):
        # Not given is not a value: the launchpad shows none, and none reaches the step.
        return dg.Field(kind, is_required=False, description=description)
    default = field.default.value if isinstance(field.default, StrEnum) else field.default
    return dg.Field(kind, default_value=default, description=description)


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
        f"{annotation} has no Dagster type yet: add one to compevo_pipeline/defs/launch_config.py"
    )


def _to_choice(values: list[str]) -> dg.Enum:
    # Dagster knows a type by its name: equal choices are one type.
    return dg.Enum(" | ".join(values), [dg.EnumValue(value) for value in values])
