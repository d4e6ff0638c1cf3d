"""A declaration as commented TOML: each key with its meaning; one that is not set is a comment.

What belongs here: the text. What does not: what the values are (``own.draft``).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date

from pydantic import BaseModel

from compevo_pipeline.sources.own.declaration import Declaration

SECTIONS = ("series", "grid", "splits", "place", "covariates", "news", "evaluation", "prompt")


def write_declaration(
    name: str,
    sections: Mapping[str, Mapping[str, object]],
    found: Sequence[str],
    guessed: Sequence[str],
) -> str:
    """Return the text of a declaration.

    Args:
        name: name of the data set.
        sections: the keys that are set, by section.
        found: what was seen in the file.
        guessed: what was assumed.
    """
    lines = [f"# The data set {name}: written by `compevo init`, yours to change."]
    lines += [f"# Found: {line}." for line in found if line]
    lines += [f"# Guessed: {line}." for line in guessed]
    lines += ["", f"name = {_to_toml(name)}"]

    for title in SECTIONS:
        given = sections.get(title, {})
        if title == "covariates" and not given:
            lines += ["", "# [covariates] is left out: no table of daily values was given"]
            continue

        lines += ["", f"[{title}]"]
        for key, about in _section_of(title).model_fields.items():
            value = given.get(key)
            if value in (None, "", []):
                lines.append(f"# {key} = {_to_toml(about.default)}  # {about.description}")
            else:
                lines.append(f"{key} = {_to_toml(value)}  # {about.description}")
    return "\n".join(lines) + "\n"


def _section_of(title: str) -> type[BaseModel]:
    annotation = Declaration.model_fields[title].annotation
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))


def _to_toml(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    # JSON and TOML write texts, numbers and lists alike; TOML has no null.
    return "" if value is None else json.dumps(value, ensure_ascii=False)
