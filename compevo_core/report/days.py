"""What the page of forecasts shows: the newest forecast of each data set, and its record.

What belongs here: reading issued forecasts, with what has become known of their days, as plain
objects. What does not: writing them (``forecast.issued``), scores (``evaluation.issued_scores``),
wording and drawing (``report.tomorrow``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.steps import shift
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.issued_scores import (
    OPERATOR_SCHEMA,
    SCORED_SCHEMA,
    name_known_to,
)
from compevo_core.forecast.issued import (
    IssuedForecast,
    find_issued,
    find_newest,
    is_issued,
    list_earlier,
    read_chain,
    read_issued,
)

Truth = Mapping[tuple[str, datetime], FloatArray]
"""Measured values (H,), NaN where unknown, by series and origin."""


@dataclass(frozen=True, kw_only=True)
class ForecastDay:
    """The newest issued forecast of one data set and the record of the days before it."""

    issued: IssuedForecast  # the newest forecast
    before: IssuedForecast | None = (
        None  # of the day before, where one was issued that knew as much
    )
    truth: Truth = field(default_factory=dict)  # what was measured on both days
    # Rows of all days that are over, of forecasts that knew as much
    scores: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SCORED_SCHEMA))
    earlier: Sequence[IssuedForecast] = ()  # the issues that the newest one supersedes
    # Rows of ``evaluation.issued_scores``, where they were made
    by_step: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OPERATOR_SCHEMA))
    head: str = ""  # of the chain of all issued forecasts of the data set

    def find_truth(self, issued: IssuedForecast, entity: str) -> FloatArray | None:
        """Return what was measured (H,) on a forecast's day; None where nothing was."""
        return self.truth.get((entity, issued.origin))

    def list_measured(self, entity: str) -> tuple[list[datetime], FloatArray]:
        """Return starts and values of what was measured before the forecast and since.

        Of the day before, what was measured since counts, or else what was known at the issue; NaN
        where nothing is known.
        """
        issued = self.issued
        starts, eve = issued.starts, issued.origin - issued.length
        step = issued.step
        series = {str(facts["entity"]): facts for facts in issued.facts["series"]}
        known = self.truth.get((entity, eve))
        if known is None:
            inputs = (series[entity].get("inputs") or [])[-len(starts) :]
            known = np.array(inputs, dtype=float)  # what is not known is None there
        before = [shift(starts[0], -back, step) for back in range(known.size, 0, -1)]
        since = self.find_truth(issued, entity)
        if since is None:
            return before, known
        return [*before, *starts], np.concatenate([known, since])


def read_days(issued: Path, windows: Path, scored: Path | None = None) -> list[ForecastDay]:
    """Read the newest forecast of every data set and what is known of the days before it.

    In the folders of issued forecasts and of windows, whose truth is used, each data set has one of
    its own; in the folder of scores, a Parquet file. CheckpointMismatch if a record was altered,
    DataError if one or the windows are torn.
    """
    days = []
    for root in sorted(path for path in issued.glob("*") if path.is_dir()):
        folder = find_newest(root)
        if folder is None:
            continue

        chain = read_chain(root)
        newest = read_issued(folder, chain)
        older = [read_issued(issue, chain) for issue in list_earlier(folder)]
        earliest = newest.origin - 2 * newest.length
        measured = windows / root.name
        views = [(it.view, it.y) for it in WindowSet.read(measured)] if measured.exists() else []
        truth = {
            (view.entity, view.origin_utc): y for view, y in views if view.origin_utc >= earliest
        }
        # Of the day before and of all days only forecasts that knew as much as this one.
        lead = newest.origin - datetime.fromisoformat(newest.facts["information_until"])
        origin = newest.origin - newest.length
        folder = find_issued(root, origin.astimezone(UTC), (origin - lead).astimezone(UTC))
        before = read_issued(folder, chain) if is_issued(folder) else None
        path = scored / f"{newest.facts['dataset']}.parquet" if scored else None
        rows = pl.DataFrame(schema=SCORED_SCHEMA)
        if path and path.exists():
            rows = pl.read_parquet(path)
        scores = rows.filter(pl.col("known_to") == name_known_to(newest.facts))
        day = ForecastDay(issued=newest, before=before, truth=truth, scores=scores)
        days.append(replace(day, earlier=older, head=chain.head))
    return days
