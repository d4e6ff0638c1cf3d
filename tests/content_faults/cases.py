"""Faults of content: files in a publisher's own format that say what cannot be so.

What belongs here: one line a fault, with what must become of it. What does not: publishers
(``worlds``), the check (``test_content_faults``). Faults of form are in ``tests/fuzz``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from tests.content_faults.worlds import DAY, PRICES, REPORTS, World
from tests.support import nemweb
from tests.support.nemweb import HALF_HOUR

BEYOND = "its name promises rows"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        name: what is wrong.
        world: the publisher.
        role: which of its files is damaged.
        make: makes the damaged bytes from the good ones.
        says: what the refusal says.
    """

    name: str
    world: World
    role: str
    make: Callable[[bytes], bytes]
    says: str


def _month(month=date(2026, 7, 1), region="NSW1", **kwargs):
    return lambda _: nemweb.price_month(month, region, **kwargs)[1]


def _actual(at, **kwargs):
    return lambda _: nemweb.actual(at, **kwargs)[1]


NEXT = DAY + 41 * HALF_HOUR
FAULTS = [
    Fault(
        name="another region", world=PRICES, role="NSW1", make=_month(region="QLD1"), says=BEYOND
    ),
    Fault(name="a year ago", world=PRICES, role="NSW1", make=_month(date(2025, 7, 1)), says=BEYOND),
    Fault(name="last month", world=PRICES, role="NSW1", make=_month(date(2026, 6, 1)), says=BEYOND),
    Fault(
        name="a half-hour of the night",
        world=REPORTS,
        role="actual",
        make=_actual(DAY + 2 * HALF_HOUR, value=1234.0),
        says=BEYOND,
    ),
    Fault(
        name="yesterday's half-hour",
        world=REPORTS,
        role="actual",
        make=_actual(NEXT - timedelta(days=1)),
        says=BEYOND,
    ),
]
