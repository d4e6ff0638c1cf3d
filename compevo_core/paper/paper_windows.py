"""The paper's own test sets, cut by region and day, how far their split leaks, and plain forecasts.

What belongs here: which windows the paper's repository publishes, its split of them and an honest
one, shares of overlap, and the forecasts that measure a leak or repeat last week. What does not:
reading files and stores, cutting (``data.build``), other methods (``paper.method_table``).

Source: the paper's repository at e3204217. Of its ``real_dataset_enhanced.json`` (split by its
``dataset.py``) and ``real_dataset_100_2026_test.json`` only regions and days are read; the values
are AEMO's. ``docs/explanation/paper-and-code.md`` states how certain each part is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Self

import numpy as np
import polars as pl

from compevo_core.baselines import Baseline, fit_baseline
from compevo_core.baselines.naive import NaiveForecast
from compevo_core.baselines.ridge import CalendarRidge
from compevo_core.data import datasets
from compevo_core.data.arrays import FloatArray
from compevo_core.data.context import PAST
from compevo_core.data.steps import DAY
from compevo_core.data.view import WindowView, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError
from compevo_core.evaluation.leakage import find_overlapping_targets

RegionDay = tuple[str, date]  # a region and the day of the 48 targets, by the clock of the set
_TEST = "test"
_DAYS = 366 + 365  # more than any set has
_LAST_WEEK = f"{PAST}_lag7"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSet:
    """Windows that the paper's repository publishes, and what a method may be fitted on."""

    spec: datasets.DatasetSpec  # how windows are cut; the days of its subsets hold the test windows
    file: str  # table of regions and days
    follows_table: bool = False  # whether the table gives a random split, instead of the spans
    has_weather: bool = True  # whether views hold the weather of the days before


_FIRST, _FIRST_2020, _LAST = date(2019, 1, 2), date(2020, 1, 1), date(2021, 1, 1)


def _span(split: str, first_day: date, last_day: date, **subsets: date) -> datasets.Span:
    """Return a span; each subset is its days from a first one on."""
    return datasets.Span(
        split=split,
        series_pattern=r"^AEMO/",
        first_day=first_day,
        last_day=last_day,
        subsets=tuple(
            datasets.DaySubset(name=name.replace("_", "-"), first_day=day, every=1, count=_DAYS)
            for name, day in subsets.items()
        ),
    )


_FIRST_2026 = datasets.ELECTRICITY_OPERATIONAL.spans[2].first_day

# The paper's day consists of the rows stamped 00:00 to 23:30. Stamps are interval ends, so it
# begins at 23:30 NEM time on the previous day: midnight by a clock half an hour ahead.
_ORIGINAL = PaperSet(
    spec=replace(
        datasets.ELECTRICITY,
        # For Tasmania there is HISTDEMAND only for 2019.
        series=((r"^AEMO/TOTALDEMAND/([A-Z]+1)$", ""), (r"^AEMO/HISTDEMAND/(TAS1)$", "")),
        market_offset=datasets.ELECTRICITY.market_offset + timedelta(minutes=30),
        past_evidence=True,
        spans=(
            _span("train", _FIRST, _LAST, paper_original=_FIRST, paper_original_2020=_FIRST_2020),
        ),
    ),
    file="paper_original_split.csv",
    follows_table=True,
)


def _respan(*spans: datasets.Span) -> datasets.DatasetSpec:
    return replace(_ORIGINAL.spec, spans=spans)


PAPER_SETS = {
    "paper-original": _ORIGINAL,
    "paper-original-no-weather": replace(
        _ORIGINAL,
        spec=_respan(_span("train", _FIRST, _LAST, paper_original_no_weather=_FIRST)),
        has_weather=False,
    ),
    # The test days of 2020 by methods that know only 2019.
    "paper-original-2019": replace(
        _ORIGINAL,
        spec=_respan(
            _span("train", _FIRST, date(2019, 10, 31)),
            _span("val", date(2019, 11, 1), date(2019, 12, 30)),
            _span(_TEST, _FIRST_2020, _LAST, paper_original_2020_from_2019=_FIRST_2020),
        ),
        follows_table=False,
    ),
    # Train and validation as they are; the paper's days reach to 31 March.
    "paper-2026": PaperSet(
        spec=replace(
            datasets.ELECTRICITY_OPERATIONAL,
            spans=(
                *datasets.ELECTRICITY_OPERATIONAL.spans[:2],
                _span(_TEST, _FIRST_2026, date(2026, 3, 31), paper_2026=_FIRST_2026),
            ),
        ),
        file="paper_2026_windows.csv",
    ),
}
"""The sets, by their names on the command line and of files of rows."""


def parse_table(content: bytes, name: str) -> dict[RegionDay, str]:
    """Return the split of every published window; a table without splits has only test windows.

    DataError if a column is missing, a day is no date, or a window occurs twice.
    """
    try:
        table = pl.read_csv(content, schema_overrides={"target_day": pl.Date})
        keys = table.select("region", "target_day").rows()
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{name} is not a table with region and target_day: {error}") from error

    splits = table["split"] if "split" in table.columns else [_TEST] * table.height
    published = dict(zip(keys, splits, strict=True))
    if len(published) < table.height:
        raise DataError(f"{name} lists a region and day twice; fetch the file again")
    return published


def find_key(view: WindowView, spec: datasets.DatasetSpec) -> RegionDay:
    """Return region and target day of a window, by the clock of its set."""
    return view.entity, (view.origin_utc + spec.market_offset).date()


def label_windows(
    paper: PaperSet, windows: WindowSet, published: Mapping[RegionDay, str]
) -> WindowSet:
    """Return windows that ``paper.spec`` cut, with the split and the subsets of the set.

    ``published`` is the table. If the table gives the split, other windows are left out, and test
    windows are marked leaky. LeakageError if the spans give it and targets of two splits are less
    than a horizon apart.
    """
    # One window per region, day and time of knowledge: TOTALDEMAND, which sorts last, has priority.
    by_key = {(find_key(w.view, paper.spec), w.view.unknown_steps): w for w in windows}

    labelled = []
    for (key, _), window in by_key.items():
        split = published.get(key) if paper.follows_table else window.view.split
        if split is None:
            continue
        is_test = split == _TEST and published.get(key) == _TEST
        labelled.append(
            window.change_view(
                split=split,
                subsets=window.view.subsets if is_test else (),
                fold=window.view.fold if split == "train" else -1,
                leaky=is_test and paper.follows_table,
            )
        )

    named = windows.with_windows(labelled)
    leaks = find_overlapping_targets(named)
    if leaks and not paper.follows_table:
        raise LeakageError(
            f"{leaks[0].where}: {leaks[0].detail}, and {len(leaks) - 1} more; leave a horizon "
            "between the parts of a split"
        )
    return named


def describe_set(
    name: str, windows: WindowSet, published: Mapping[RegionDay, str]
) -> dict[str, Any]:
    """Return the row of a set of labelled windows; shares count all published test windows."""
    paper = PAPER_SETS[name]
    subsets = [subset for span in paper.spec.spans for subset in span.subsets]
    tested = {
        (region, day)
        for (region, day), split in published.items()
        if split == _TEST and any(subset.contains(day) for subset in subsets)
    }
    held = {find_key(view, paper.spec) for view in windows.views() if view.subsets}
    fitted = {find_key(view, paper.spec) for view in windows.split("train").views()}
    if paper.follows_table:
        fitted = {key for key, split in published.items() if split == "train"}

    return {
        "set": name,
        "train": len({find_key(v, paper.spec) for v in windows.split("train").views()}),
        "val": len({find_key(v, paper.spec) for v in windows.split("val").views()}),
        "test": len(held),
        "published_test": len(tested),
        **measure_overlap(fitted, tested),
        "leaks_found": len(find_overlapping_targets(windows)),
        "missing": " ".join(f"{region}:{day}" for region, day in sorted(tested - held)),
    }


def measure_overlap(train: Collection[RegionDay], test: Collection[RegionDay]) -> dict[str, float]:
    """Return how much of the test windows train holds, as shares.

    ``targets_in_train_inputs``: the targets are the inputs of a train window.
    ``days_in_train``: the day is the target of a train window of any region.
    """
    days = {day for _, day in train}
    return {
        "targets_in_train_inputs": float(np.mean([(r, day + DAY) in train for r, day in test])),
        "days_in_train": float(np.mean([day in days for _, day in test])),
    }


class LastWeek(NaiveForecast):
    """Repeats the same day of last week, if views hold it as well as a day of input."""

    name = "last-week"

    @classmethod
    def is_applicable(cls, windows: WindowSet, train: WindowSet | None = None) -> bool:
        """Return whether every view knows all of last week's day."""
        known = [view.step_covariates.get(_LAST_WEEK) for view in windows.views()]
        return all(week is not None and np.isfinite(week).all() for week in known)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        return stack_rows([view.step_covariates[_LAST_WEEK] for view in views])


class TrainLookUp:
    """Repeats the requested steps from a train window that holds them; otherwise a ridge forecasts.

    It does not forecast but measures a leak: with a split in time it equals the ridge.
    """

    name = "train-look-up"

    def __init__(self, ridge: Baseline, train: WindowSet) -> None:
        """Remember the inputs (H,) of the train windows by series and first step."""
        self._ridge = ridge
        self._inputs = {
            (view.entity, view.origin_utc - view.lookback * view.step): view.x
            for view in train.views()
        }

    @staticmethod
    def is_applicable(windows: WindowSet) -> bool:
        """Return whether the windows are marked leaky: without a leak it only repeats the ridge."""
        return all(view.leaky for view in windows.views())

    @classmethod
    def fit(cls, train: WindowSet) -> Self:
        """Fit the calendar ridge on train windows; LeakageError for any other split."""
        return cls(fit_baseline(CalendarRidge.name, train), train)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        pairs = zip(views, self._ridge.predict(views), strict=True)
        return stack_rows(
            [self._inputs.get((view.entity, view.origin_utc), row_H) for view, row_H in pairs]
        )
