"""The rules that the rows of every series must follow: grid, units, bounds, gaps.

What belongs here: the rules' shape, and their numbers for the built-in data sets. What does not:
checking them (``checks.expectations``), rules of a user's own data sets (``registry``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What a variable's rows must look like: unit, and bounds in it; no bound is None."""

    unit: str
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one data set.

    Attributes:
        step: the grid.
        variables: unit and bounds by variable; one that is not named must only be non-negative.
        max_gap_share: largest share of a series' grid without a value, holes not counted.
        hole: a longer stretch without values was not collected, and is no gap.
        weekdays_only: prefixes of series that publish on business days; weekends and holidays are
            no gaps there.
        clock: UTC offset of the clock whose midnight is a step of the grid.
        zones: clocks by which the people live whose days the series shows; empty: no clock that
            changes.
    """

    step: timedelta
    variables: Mapping[str, Variable]
    max_gap_share: float
    hole: timedelta
    weekdays_only: tuple[str, ...] = ()
    clock: timedelta = timedelta(0)
    zones: tuple[str, ...] = ()


# US dollars a unit of the currency; about a third beyond the range of the last thirty years.
_RATE_BOUNDS = {
    "aud": (0.4, 1.3),
    "gbp": (0.9, 2.5),
    "cad": (0.5, 1.3),
    "chf": (0.4, 1.6),
    "cny": (0.1, 0.2),
    "jpy": (0.004, 0.02),
    "nzd": (0.3, 1.1),
    "sgd": (0.4, 1.0),
    "eur": (0.7, 1.8),
}

# South Australian demand falls below zero when roofs feed more in than is used.
_DEMAND_VARIABLES = {
    "demand_mw": Variable(unit="MW", low=-1000, high=20000),
    "demand_forecast_mw": Variable(unit="MW", low=-1500, high=20000),
}

RULES: dict[str, Rules] = {
    "electricity": Rules(
        step=timedelta(minutes=30),
        variables={
            **_DEMAND_VARIABLES,
            # The market's floor, and a cap above every one it has had.
            "price_aud_per_mwh": Variable(unit="AUD/MWh", low=-1000, high=25000),
        },
        max_gap_share=0.01,
        hole=timedelta(days=2),
        zones=("Australia/Sydney",),
    ),
    "electricity-operational": Rules(
        step=timedelta(minutes=30),
        variables=_DEMAND_VARIABLES,
        max_gap_share=0.01,
        hole=timedelta(days=2),
        zones=("Australia/Sydney",),
    ),
    "exchange": Rules(
        step=timedelta(days=1),
        variables={
            f"rate_usd_per_{code}": Variable(unit=f"USD per {code.upper()}", low=low, high=high)
            for code, (low, high) in _RATE_BOUNDS.items()
        },
        max_gap_share=0.05,
        hole=timedelta(days=14),
        weekdays_only=("ECB/", "N2F/", "RBA/"),
    ),
    "bitcoin": Rules(
        step=timedelta(days=1),
        variables={"price_usd": Variable(unit="USD", low=0, high=1e6)},
        max_gap_share=0.05,
        hole=timedelta(days=120),
    ),
    "traffic": Rules(
        step=timedelta(hours=1),
        variables={
            "occupancy": Variable(unit="fraction", low=0, high=1),
            "pct_observed": Variable(unit="%", low=0, high=100),
        },
        max_gap_share=0.05,
        hole=timedelta(days=14),
        zones=("America/Los_Angeles",),
    ),
}
