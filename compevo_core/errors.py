"""The error family of CompEvo.

What belongs here: exception types shared by the core and the pipeline, the import of a package that
may be missing, names in a message.
What does not: handling, retries (the pipeline decides on those) or messages.
Every message raised with one of these says what went wrong, where, and what to do.
"""

import importlib
from collections.abc import Sequence
from typing import Any

_EXTRAS = {
    **dict.fromkeys(("pyarrow", "lightgbm", "scipy", "matplotlib", "jinja2"), "table"),
    **dict.fromkeys(("typer", "duckdb", "requests", "urllib3"), "table"),
    "statsforecast": "statsforecast",
    "fracast": "fracast",
    "chronos": "zero-shot",
    "fugue": "groups",
}
"""Extras of the install by the imports that they bring; ``all`` brings any other."""

_MOST_LISTED = 8  # names, or sentences, in a message


class CompEvoError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(CompEvoError):
    """A setting is unknown, of the wrong type or out of bounds."""


class PackageMissing(ConfigError):
    """A package that only some methods and commands need is not installed."""

    def __init__(self, package: str) -> None:
        """Name the package by its import, and the extra that brings it."""
        extra = _EXTRAS.get(package, "all")
        super().__init__(f"this needs {package}: pip install 'compevo[{extra}]'")


def import_package(name: str) -> Any:  # noqa: ANN401 - a module
    """Return a module; PackageMissing if no install brought it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PackageMissing(name.partition(".")[0]) from error


class SourceError(CompEvoError):
    """Base of failures between a publisher and the store."""


class SourceAbsent(SourceError):
    """The publisher has no such file (404, a future month, an empty folder)."""


class SourceTransient(SourceError):
    """A failure that a retry may cure: timeout, 429, 5xx, an empty body."""


class SourceRejected(SourceError):
    """The publisher refused the query; the same query will be refused again."""


class SourceBlocked(SourceError):
    """Access is blocked by a login or bot protection."""


class SchemaDrift(SourceError):
    """The file is not in the known format: header, types, times or encoding changed."""


class DataError(CompEvoError):
    """A series, news or window frame breaks its data contract."""


class StorageError(CompEvoError):
    """Disk, file system or database did not do what was asked: full, read-only, torn, denied."""


class LeakageError(CompEvoError):
    """Information from after the forecast origin reached a model or a choice."""


class ForecastParseError(CompEvoError):
    """A text answer does not hold one finite number for every step."""


class CheckpointMismatch(CompEvoError):
    """A checkpoint is incomplete, was altered, or belongs to another configuration."""


class NonFiniteLoss(CompEvoError):
    """A loss term is NaN or infinite; raised before the update."""


def list_some(names: Sequence[str], mark: str = ", ") -> str:
    """Return the first of some names, or sentences, and how many more there are."""
    more = len(names) - _MOST_LISTED
    return mark.join(names[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")
