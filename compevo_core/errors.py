"""The error family of CompEvo.

What belongs here: exception types shared by the core and the pipeline.
What does not: handling, retry policy (``compevo_pipeline.failures``) or messages.
Every message raised with one of these says what went wrong, where, and what to do.
"""


class CompEvoError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(CompEvoError):
    """A setting is unknown, of the wrong type or out of bounds."""


class SourceError(CompEvoError):
    """Base of what can go wrong between a publisher and our storage."""


class SourceAbsent(SourceError):
    """The publisher has no such file (404, a future month, an empty folder)."""


class SourceTransient(SourceError):
    """A failure worth another try: timeout, 429, 5xx, an empty body."""


class SourceRejected(SourceError):
    """The publisher refused our query; the same query will be refused again."""


class SourceBlocked(SourceError):
    """A bot wall or login stands in the way; we do not go around it."""


class SchemaDrift(SourceError):
    """The bytes are not the format we know: header, types, stamps or encoding changed."""


class DataError(CompEvoError):
    """A series, news or window frame breaks its data contract."""


class LeakageError(CompEvoError):
    """Something later than the forecast origin reached a model or a choice."""


class ForecastParseError(CompEvoError):
    """A text answer does not hold 48 finite numbers."""


class CheckpointMismatch(CompEvoError):
    """A checkpoint is torn, altered or belongs to another configuration."""


class NonFiniteLoss(CompEvoError):
    """A loss term became NaN or infinite; raised before the update."""
