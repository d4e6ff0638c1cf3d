"""The error family of CompEvo.

What belongs here: exception types shared by the core and the pipeline.
What does not: handling, retries (the pipeline decides on those) or messages.
Every message raised with one of these says what went wrong, where, and what to do.
"""


class CompEvoError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(CompEvoError):
    """A setting is unknown, of the wrong type or out of bounds."""


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
