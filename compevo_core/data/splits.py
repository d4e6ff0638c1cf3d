"""Where train, validation, test and inference lie, the folds of train origins, spans near a block.

What belongs here: chronological plans with an embargo of one horizon. What does not: cutting
windows (``data.cutting``), training on folds (``paper.trials``), or any random choice; there is
none.

A plan states which split the *target* steps of an origin belong to. One horizon separates the
targets of two splits, so that no target is in two of them. The inputs of a split may be targets of
the one before it: they are what was known.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial

import numpy as np

from compevo_core.data.arrays import BoolArray
from compevo_core.data.datasets import DatasetSpec, Span
from compevo_core.data.steps import DAY, count_steps, shift
from compevo_core.data.view import Window, WindowView, find_horizon
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError

FOLDS = 5  # the five-fold protocol of the paper, ordered in time
_FIRST_DAY, _LAST_DAY = date(1677, 9, 22), date(2199, 12, 31)
FITTABLE_SPLITS = ("train", "val")
"""Test and inference windows enter no fit, not even a scale or an imputed mean."""


Boundaries = Mapping[str, tuple[datetime, datetime]]
"""Target spans of one series as UTC [start, end) by split, an embargo apart."""


def find_split(boundaries: Boundaries, origin_utc: datetime, end_utc: datetime) -> str | None:
    """Return the split that holds all target steps, or None (embargo, or two splits)."""
    splits = (
        name for name, (start, end) in boundaries.items() if start <= origin_utc and end_utc <= end
    )
    return next(splits, None)


def resolve_spans(spec: DatasetSpec) -> dict[Span, tuple[datetime, datetime]]:
    """Return UTC [start, end) of every span, with the embargo taken from the later split.

    The embargo is one horizon. Spans of one split may follow each other without a gap; the market's
    clock dates them. DataError if two spans of different splits overlap before the embargo.
    """
    limits: dict[Span, tuple[datetime, datetime]] = {}

    for span in sorted(spec.spans, key=lambda span: span.first_day):
        start = spec.from_market(span.first_day)
        end = spec.from_market(span.last_day + DAY)

        for other, (_, other_end) in limits.items():
            if other.split == span.split:
                continue
            if start < other_end:
                raise DataError(
                    f"split {span.split} starts {span.first_day}, inside {other.split}; "
                    "move one of them"
                )
            start = max(start, other_end + spec.horizon)

        limits[span] = (start, end)
    return limits


def divide_days(pattern: str, validation_from: date, test_from: date) -> tuple[Span, ...]:
    """Return the spans of train, validation and test, which has no end, by their first days."""
    span = partial(Span, series_pattern=pattern)
    return (
        span(split="train", first_day=_FIRST_DAY, last_day=validation_from - DAY),
        span(split="val", first_day=validation_from, last_day=test_from - DAY),
        span(split="test", first_day=test_from, last_day=_LAST_DAY),
    )


def split_chronologically(spec: DatasetSpec, first: datetime, end: datetime) -> Boundaries:
    """Divide the time of all series into train, validation and test by fractions of its steps.

    ``first`` is the start of the first step of any series and ``end`` the end of the last one, UTC.
    DataError if a split would hold no whole horizon.
    """
    lookback, horizon = spec.lookback_steps, spec.horizon_steps
    n_steps = count_steps(first, end, spec.step)
    # The steps of the first look-back can only be input, and the steps of the two embargos are no
    # split's target; they may still be the input of the split after them.
    usable = n_steps - lookback - 2 * horizon
    lengths = [int(usable * share) for share in spec.fractions[:2]]
    lengths.append(usable - sum(lengths))

    if min(lengths) < horizon:
        needed = lookback + 2 * horizon + math.ceil(horizon / min(spec.fractions))
        shares = ", ".join(f"{share:.0%}" for share in spec.fractions)
        raise DataError(
            f"{n_steps:,} steps are too few: a look-back of {lookback}, a horizon of {horizon} and "
            f"splits of {shares} need {needed:,} steps; use a longer series, or a shorter "
            "look-back or horizon"
        )

    spans: dict[str, tuple[datetime, datetime]] = {}
    position = lookback
    for name, length in zip(("train", "val", "test"), lengths, strict=True):
        start = shift(first, position, spec.step)
        spans[name] = (start, shift(first, position + length, spec.step))
        position += length + horizon
    return spans


def assign_folds(origins: Sequence[datetime]) -> dict[datetime, int]:
    """Return the fold of every train origin.

    Time is cut into ``FOLDS`` + 1 equal parts. The first part has the number -1: it is only ever
    trained on, as nothing comes before it.
    """
    if not origins:
        return {}

    first = min(origins)
    width = (max(origins) - first) / (FOLDS + 1)
    if not width:
        return dict.fromkeys(origins, -1)

    # The last origin falls on the outer edge of the last part and is counted in.
    return {origin: min(int((origin - first) / width), FOLDS) - 1 for origin in origins}


def assign_split(windows: WindowSet, split: str) -> WindowSet:
    """Return train and validation windows as windows of another of these two splits.

    For folds, and for a last training on train and validation together. LeakageError if a window,
    or the new split, is neither train nor validation.
    """
    splits = sorted({split, *(window.view.split for window in windows)})
    held_out = [name for name in splits if name not in FITTABLE_SPLITS]
    if held_out:
        raise LeakageError(
            f"windows of split {', '.join(splits)} cannot become {split}: {held_out[0]} enters no "
            f"fit; give windows of {' and '.join(FITTABLE_SPLITS)}"
        )

    # A fold is a part of train: validation windows have none.
    moved = [
        window.change_view(split=split, fold=window.view.fold if split == "train" else -1)
        for window in windows
    ]
    return WindowSet(moved, dataset=windows.dataset)


def leave_out_blocks(
    views: Sequence[WindowView], blocks: int, of: Sequence[WindowView] = ()
) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Yield contiguous blocks of origins: which windows (N,) are left out, and which to fit on.

    One horizon separates the targets of the two: targets that overlap would make too small a
    penalty look good. In a short sample none may be left to fit on. Blocks have as many of the
    origins of the windows ``of``, by default of all.
    """
    origins = sorted({view.origin_utc for view in of or views})
    for block in np.array_split(np.arange(len(origins)), blocks):
        if not block.size:
            continue
        first, last = origins[block[0]], origins[block[-1]]
        embargo: timedelta = 2 * find_horizon(views) * views[0].step
        is_near = [first - embargo < v.origin_utc < last + embargo for v in views]
        yield np.array([first <= v.origin_utc <= last for v in views]), ~np.array(is_near)


def release_windows(windows: Sequence[Window]) -> list[Window]:
    """Return windows whose target has ended as windows of the train split.

    A day that has ended is held out no longer from the forecasts of later days: in daily use
    everybody knows it. Only forecasters that follow time may learn from it, and no setting is
    chosen on it.
    """
    return [window.change_view(split="train", fold=-1) for window in windows]


def nearest_windows(
    train: WindowSet, first: datetime | None, last: datetime | None, days: int
) -> WindowSet:
    """Return each entity's windows of the ``days`` target days that are nearest to a block.

    The block is given by the origins of its first and last window, None for what comes after train;
    0 days keep all windows. Half of the days are on either side if train has as many. Each
    entity is counted by itself: one whose series ends early keeps its own last days, so that a fit
    knows its scale. Where a day has several origins, each counts as one. DataError for a negative
    number of days, or one end of the block without the other.
    """
    if days < 0 or (first is None) is not (last is None):
        raise DataError(
            f"{days} days nearest to {first}..{last}; give 0 or more days and both ends, or none"
        )
    if not days or not len(train):
        return train
    if first is None or last is None:
        first = last = max(window.view.end_utc for window in train)

    chosen: list[Window] = []
    for entity in train.entities:
        of_entity = train.entity(entity)
        origins = {window.view.origin_utc for window in of_entity}

        # Of two equally near days the earlier comes first, so that order does not matter.
        by_distance = sorted((max(first - at, at - last), at) for at in origins)
        nearest = {at for _, at in by_distance[:days]}
        chosen.extend(window for window in of_entity if window.view.origin_utc in nearest)
    return WindowSet(chosen, dataset=train.dataset)
