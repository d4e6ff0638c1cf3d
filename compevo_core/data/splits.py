"""Where train, validation, test and inference lie, and the five folds within train (style, rule 4).

What belongs here: chronological plans with an embargo of one horizon. What does not: cutting windows, or any random
choice; there is none. A plan says of an origin which split its *target* steps belong to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from compevo_core.data.window import HORIZON, LOOKBACK, WindowSet
from compevo_core.errors import DataError

FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySubset:
    """A named subset: ``count`` days from ``first_day`` on, ``every`` days apart."""

    name: str
    first_day: date
    every: int
    count: int

    def holds(self, day: date) -> bool:
        """Whether ``day`` is one of them."""
        offset = (day - self.first_day).days
        return offset >= 0 and offset % self.every == 0 and offset // self.every < self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Target days ``first_day``..``last_day`` (market clock, both included) of one series family are one split."""

    split: str
    series_pattern: str
    first_day: date
    last_day: date
    subsets: tuple[DaySubset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Target spans of one series as UTC [start, end) by split, an embargo apart."""

    spans: Mapping[str, tuple[datetime, datetime]]

    def split_of(self, origin_utc: datetime, end_utc: datetime) -> str | None:
        """The split that holds all target steps, or None (embargo, or across a boundary)."""
        for name, (start, end) in self.spans.items():
            if start <= origin_utc and end_utc <= end:
                return name
        return None


def dated(
    spans: Sequence[Span], step: timedelta, market_offset: timedelta
) -> dict[Span, tuple[datetime, datetime]]:
    """UTC [start, end) of every span; a later span starts no sooner than one horizon after an earlier split ends.

    Raises:
        DataError: two spans of different splits overlap before the embargo.
    """
    found: dict[Span, tuple[datetime, datetime]] = {}
    for span in sorted(spans, key=lambda s: s.first_day):
        start = _midnight(span.first_day, market_offset)
        end = _midnight(span.last_day + timedelta(days=1), market_offset)
        for other, (_, other_end) in found.items():
            if other.split == span.split:
                continue
            if start < other_end:
                raise DataError(
                    f"split {span.split} starts {span.first_day}, inside {other.split}; move one of them"
                )
            start = max(start, other_end + HORIZON * step)
        found[span] = (start, end)
    return found


def chronological(
    first: datetime, n_steps: int, step: timedelta, fractions: tuple[float, float, float]
) -> Boundaries:
    """Train, validation and test by fractions of the target steps that two embargos of one horizon leave.

    The first ``LOOKBACK`` steps can only be input. The embargoed steps are nobody's target; they may be the input of
    the split after them.

    Raises:
        DataError: a split would hold no whole horizon.
    """
    usable = n_steps - LOOKBACK - 2 * HORIZON
    lengths = [int(usable * fractions[0]), int(usable * fractions[1])]
    lengths.append(usable - sum(lengths))
    if min(lengths) < HORIZON:
        raise DataError(
            f"{n_steps} steps leave splits of {lengths} target steps; each needs {HORIZON}: use a longer series"
        )
    spans, at = {}, LOOKBACK
    for name, length in zip(("train", "val", "test"), lengths, strict=True):
        spans[name] = (first + at * step, first + (at + length) * step)
        at += length + HORIZON
    return Boundaries(spans=spans)


def fold_numbers(origins: Sequence[datetime], n: int = FOLDS) -> dict[datetime, int]:
    """Fold of every train origin: time is cut into n + 1 equal parts; part 0 is -1 (only ever trained on)."""
    if not origins:
        return {}
    first, last = min(origins), max(origins)
    width = (last - first) / (n + 1)
    if not width:
        return dict.fromkeys(origins, -1)
    return {origin: min(int((origin - first) / width), n) - 1 for origin in origins}


def folds(windows: WindowSet) -> list[tuple[WindowSet, WindowSet]]:
    """Expanding (train, validation) pairs within the train split, one horizon of embargo between them.

    Raises:
        DataError: the train split has no folds (it is empty or a single origin).
    """
    train = windows.split("train")
    numbers = sorted({w.view.fold for w in train} - {-1})
    if not numbers:
        raise DataError(
            f"{windows.dataset} has no folds; its train split holds {len(train)} window(s)"
        )
    pairs = []
    for number in numbers:
        held = [w for w in train if w.view.fold == number]
        start = min(w.view.origin_utc for w in held)
        before = [w for w in train if w.view.end_utc + HORIZON * w.view.step <= start]
        pairs.append(
            (WindowSet(before, dataset=windows.dataset), WindowSet(held, dataset=windows.dataset)),
        )
    return pairs


def _midnight(day: date, market_offset: timedelta) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) - market_offset
