"""What is wrong with a setting, in one line: which one, what was given, what it means.

What belongs here: wording the errors that pydantic finds in a tree of settings, also in tables
inside of them, such as the members of a population. What does not: the settings and their bounds
(``config``).
"""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo


def describe_error(error: Mapping[str, Any], root: type[BaseModel]) -> str:
    """Return one error as a line.

    Args:
        error: an entry of ``ValidationError.errors()``.
        root: the model that was validated.
    """
    name, field, section = _find_setting(error["loc"], root)
    if section is not None:
        # The section is known, and it has no setting of that name.
        known = ", ".join(sorted(section.model_fields))
        return f"unknown setting {name}; known: {known}"
    if error["type"] == "value_error":  # of a model's own check, which says what to do
        return f"{name}: {error['ctx']['error']}" if name else str(error["ctx"]["error"])

    value = error["input"]
    meaning = (field.description or "").replace("\n", " ")
    for bound in field.metadata:
        if isinstance(bound, Ge) and error["type"] == "greater_than_equal":
            return f"{name} = {value} is below {bound.ge}: {meaning}"
        if isinstance(bound, Gt) and error["type"] == "greater_than":
            return f"{name} = {value} is not above {bound.gt}: {meaning}"
        if isinstance(bound, Le) and error["type"] == "less_than_equal":
            return f"{name} = {value} is above {bound.le}: {meaning}"
    if error["type"] == "literal_error":
        choices = ", ".join(map(str, get_args(field.annotation)))
        return f"{name} = {value!r} is not one of {choices}"

    # An entry of a list, such as a member, is a table where the list itself is a list.
    expected = _name_type(field.annotation)
    if name.endswith("]"):
        entry = _section_of(field.annotation)
        expected = "a table of settings" if entry else _name_type(get_args(field.annotation)[0])
    return f"{name} must be {expected}, got {value!r}: correct the preset or override"


def _find_setting(
    loc: Sequence[str | int], root: type[BaseModel]
) -> tuple[str, FieldInfo, type[BaseModel] | None]:
    """Find the setting that an error is about.

    Returns:
        its name, such as ``population.members[0].prior``; its field, or that of the section it
        stands in; and, where there is no such setting, the section that lacks it.
    """
    section: type[BaseModel] | None = root
    name = ""
    field = FieldInfo()
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
            continue
        if section is None:
            break  # below a setting, pydantic names the types that it tried

        name = f"{name}.{part}" if name else part
        if part not in section.model_fields:
            return name, field, section
        field = section.model_fields[part]
        section = _section_of(field.annotation)
    return name, field, None


def _section_of(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - a type hint
    """Return the table of settings that a field holds, itself or as entries of a list."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _name_type(annotation: Any) -> str:  # noqa: ANN401 - a type hint
    """Name the kind of value that a setting takes, as a reader of TOML calls it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table of settings"
    if get_origin(annotation) is tuple:
        return "a list"

    # A setting that may be left out is a number or nothing.
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    return " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
