"""What an error means for retries: one table of error classes.

What belongs here: error class -> retry decision, in a step and by Dagster. What does not: Dagster's
exceptions (``defs.definition``), what an HTTP answer means (``sources.common.http``).

Why a table: a permanent failure that is retried costs hours (another project saw one 405 retried
5,363 times). So transient failures are retried a few times with growing waits; everything else
stops at once and stays stopped until somebody acts on the message.
"""

from dataclasses import dataclass
from enum import StrEnum

from compevo_core.errors import CompEvoError, SourceBlocked, SourceError, SourceTransient


class Throttled(SourceTransient):
    """The publisher asks for fewer requests, and may say for how long (``Retry-After``).

    Attributes:
        retry_after_s: seconds to wait before the next request; 0 where it does not say.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooSlow(SourceTransient):
    """The time for an answer, or for all answers of a feed, is over."""


MAX_RETRY_AFTER_S = 6 * 3600.0  # longest pause that a `Retry-After` can ask for
MAX_TURN_WAIT_S = 120.0  # longest wait for a turn at a host; a longer one ends the step
SHORT_RETRIES = 2
MAX_SHORT_WAIT_S = 30.0
"""How often, and how long at most, a step waits and asks again before it ends."""
FIRST_SHORT_WAIT_S = 2.0


class RetryDecision(StrEnum):
    """What to do about a failure."""

    TRANSIENT = "transient"  # try again: the same request may succeed
    PERMANENT = "permanent"  # stop: the same request fails again until somebody changes something
    BLOCKED = "blocked"  # stop: the publisher does not want automatic access


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What an error does to a run, and what a person should do about it."""

    decision: RetryDecision  # whether to try again
    remedy: str  # what a person should do once retries are used up
    retries: int = 0  # how many times to try again
    first_wait_s: float = 0.0  # seconds before the first retry; each further wait is twice as long


_RETRY = FailurePolicy(
    decision=RetryDecision.TRANSIENT,
    retries=3,
    first_wait_s=60.0,
    remedy="wait, then materialize again; for a file on disk, fetch or copy it again",
)
_STOP = FailurePolicy(
    decision=RetryDecision.PERMANENT,
    remedy="correct the request, the file or the parser, then materialize again",
)
_RESPECT_BLOCK = FailurePolicy(
    decision=RetryDecision.BLOCKED,
    remedy=(
        "do not bypass the block: keep the last good data, or save the file by hand into the "
        "archive folder"
    ),
)

_LEAVE = FailurePolicy(
    decision=RetryDecision.PERMANENT,
    remedy="none: what came is stored, and the next run asks for the rest",
)

POLICIES: tuple[tuple[type[CompEvoError], FailurePolicy], ...] = (
    (TooSlow, _LEAVE),
    (SourceTransient, _RETRY),
    (SourceBlocked, _RESPECT_BLOCK),
    (CompEvoError, _STOP),  # such as an absent or rejected file, or a changed format
)
"""The first that fits is used; every error of the project's family has a policy."""


def get_policy(error: CompEvoError) -> FailurePolicy:
    """Return the policy of an error: the first entry of :data:`POLICIES` that fits."""
    return next(policy for kind, policy in POLICIES if isinstance(error, kind))


def plan_short_wait(error: SourceError, attempt: int, draw: float) -> float | None:
    """Return the seconds to wait before a step asks again itself, or None where it should end.

    A step that ends leaves the decision to ``defs.definition.to_dagster``, which frees the worker
    meanwhile. ``attempt`` counts how often this step has asked again. ``draw``, from 0 to 1, lets
    the wait grow by up to half, so that clients that failed together come back one by one.
    """
    if get_policy(error).decision is not RetryDecision.TRANSIENT or attempt >= SHORT_RETRIES:
        return None

    requested = error.retry_after_s if isinstance(error, Throttled) else 0.0
    wait_s = max(FIRST_SHORT_WAIT_S * 4**attempt, requested) * (1.0 + draw / 2)
    return wait_s if wait_s <= MAX_SHORT_WAIT_S else None
