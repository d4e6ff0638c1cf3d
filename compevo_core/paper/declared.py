"""What the wing declares in TOML files: arms, columns, settings, texts, sweeps, budgets.

What belongs here: reading such a file, refusing unknown names, and the budgets of a fit. What does
not: the use of everything else.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from compevo_core.errors import ConfigError
from compevo_core.runtime.files import read_packaged


@cache
def read_declared(name: str) -> dict[str, Any]:
    """Return the content of one of the files, by its name without an ending."""
    return read_packaged(__file__, name)


_TYPES: Mapping[str, pl.DataType] = {
    "text": pl.String(),
    "count": pl.Int64(),
    "number": pl.Float64(),
    "flag": pl.Boolean(),
    "day": pl.Date(),
}


def read_columns(kind: str) -> dict[str, pl.DataType]:
    """Return the columns of a kind of rows that the wing writes, with their types."""
    return {name: _TYPES[text] for name, text in read_declared("columns")[kind].items()}


def require_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for the first of the names that is not known."""
    for name in names:
        if name not in known:
            raise ConfigError(f"no {what} {name!r}; known: {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a fit may spend."""

    name: str  # what rows say
    meaning: str  # the same in words, for tables
    passes: int  # most passes over the train windows
    patience: int  # passes without a better validation loss after which a fit ends
    # Learning rates; validation chooses one, unless there is only one
    learning_rates: tuple[float, ...]
    rounds: int  # updates of a language model with adapters
    round_windows: int  # train windows of such an update
    tuning_passes: int = 0  # passes that each rate is tried for, with seed 0
    pass_windows: int | None = None  # most train windows of a pass, sampled for each; None: all
    val_windows: int | None = None  # most validation windows that a pass is measured on; None: all
    most_seeds: int | None = None  # most seeds of a method; None: as many as it has

    def choose_seeds(self, seeds: int) -> range:
        """Return how many seeds a method gets that has ``seeds`` in a full table."""
        return range(min(seeds, self.most_seeds or seeds))


BUDGETS = {
    name: Budget(name=name, **budget | {"learning_rates": tuple(budget["learning_rates"])})
    for name, budget in read_declared("budgets").items()
}
"""Every budget by its name, the largest first."""

STANDARD = BUDGETS["standard"]


def find_budget(name: str) -> Budget:
    """Return a budget; ConfigError if the name is unknown."""
    require_known("budget", [name], BUDGETS)
    return BUDGETS[name]


def rank_budget(name: str | None) -> int:
    """Return the place of a budget, 0 for the largest; rows without a name count as ``standard``.

    The largest budget represents a method, never the one with less error.
    """
    # A choice by error would use the test split; this choice is fixed before anything is measured.
    return list(BUDGETS).index(name or STANDARD.name)
