"""Where train, validation, test and inference lie, and the five folds within train.

What belongs here: chronological plans with an embargo of one horizon. What does not: cutting
windows (``data.cutting``), or any random choice; there is none.

A plan says of an origin which split its *target* steps belong to. The embargo keeps the targets of
one split out of the inputs of the next, because lookback and horizon have the same length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from compevo_core.data.window import HORIZON, LOOKBACK, WindowSet
from compevo_core.errors import DataError

FOLDS = 5  # the five-fold protocol of the paper, ordered in time


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySubset:
    """A named subset: ``count`` days from ``first_day`` on, ``every`` days apart."""

    name: str
    first_day: date
    every: int
    count: int

    def contains(self, day: date) -> bool:
        """Return whether ``day`` belongs to the subset."""
        offset = (day - self.first_day).days
        return offset >= 0 and offset % self.every == 0 and offset // self.every < self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One split of one series family: target days ``first_day`` to ``last_day``, both included.

    Days are those of the market clock; ``series_pattern`` is a regular expression for series ids.
    """

    split: str
    series_pattern: str
    first_day: date
    last_day: date
    subsets: tuple[DaySubset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Target spans of one series as UTC [start, end) by split, an embargo apart."""

    spans: Mapping[str, tuple[datetime, datetime]]

    def find_split(self, origin_utc: datetime, end_utc: datetime) -> str | None:
        """Return the split that holds all target steps, or None (embargo, or two splits)."""
        for name, (start, end) in self.spans.items():
            if start <= origin_utc and end_utc <= end:
                return name
        return None


def resolve_spans(
    spans: Sequence[Span], step: timedelta, market_offset: timedelta
) -> dict[Span, tuple[datetime, datetime]]:
    """Return UTC [start, end) of every span, with the embargo taken from the later split.

    Args:
        spans: in any order; those of one split may follow each other without a gap.
        step: length of one step.
        market_offset: UTC offset of the market clock that dates the spans.

    Raises:
        DataError: two spans of different splits overlap before the embargo.
    """
    limits: dict[Span, tuple[datetime, datetime]] = {}

    for span in sorted(spans, key=lambda span: span.first_day):
        start = _midnight_utc(span.first_day, market_offset)
        end = _midnight_utc(span.last_day + timedelta(days=1), market_offset)

        for other, (_, other_end) in limits.items():
            if other.split == span.split:
                continue
            if start < other_end:
                raise DataError(
                    f"split {span.split} starts {span.first_day}, inside {other.split}; "
                    "move one of them"
                )
            start = max(start, other_end + HORIZON * step)

        limits[span] = (start, end)
    return limits


def split_chronologically(
    first: datetime, n_steps: int, step: timedelta, fractions: tuple[float, float, float]
) -> Boundaries:
    """Divide a series into train, validation and test by fractions of its target steps.

    Args:
        first: start of the first step, UTC.
        n_steps: steps of the whole series.
        step: length of one step.
        fractions: of train, validation and test.

    Raises:
        DataError: a split would hold no whole horizon.
    """
    # The first LOOKBACK steps can only be input, and the steps of the two embargos are no split's
    # target; they may still be the input of the split after them.
    usable = n_steps - LOOKBACK - 2 * HORIZON
    lengths = [int(usable * fractions[0]), int(usable * fractions[1])]
    lengths.append(usable - sum(lengths))

    if min(lengths) < HORIZON:
        raise DataError(
            f"{n_steps} steps leave splits of {lengths} target steps; each needs {HORIZON}: "
            "use a longer series"
        )

    spans: dict[str, tuple[datetime, datetime]] = {}
    position = LOOKBACK
    for name, length in zip(("train", "val", "test"), lengths, strict=True):
        spans[name] = (first + position * step, first + (position + length) * step)
        position += length + HORIZON
    return Boundaries(spans=spans)


def assign_folds(origins: Sequence[datetime], n: int = FOLDS) -> dict[datetime, int]:
    """Return the fold of every train origin.

    Time is cut into ``n`` + 1 equal parts. The first part has the number -1: it is only ever
    trained on, as nothing comes before it.
    """
    if not origins:
        return {}

    first = min(origins)
    width = (max(origins) - first) / (n + 1)
    if not width:
        return dict.fromkeys(origins, -1)

    # The last origin falls on the outer edge of the last part and is counted in.
    return {origin: min(int((origin - first) / width), n) - 1 for origin in origins}


def build_folds(windows: WindowSet) -> list[tuple[WindowSet, WindowSet]]:
    """Return expanding (train, validation) pairs within the train split.

    One horizon of embargo lies between the two.

    Raises:
        DataError: the train split has no folds (it is empty or a single origin).
    """
    train = windows.split("train")
    numbers = sorted({window.view.fold for window in train} - {-1})
    if not numbers:
        raise DataError(
            f"{windows.dataset} has no folds; its train split holds {len(train)} window(s)"
        )

    pairs = []
    for number in numbers:
        validation = [window for window in train if window.view.fold == number]
        start = min(window.view.origin_utc for window in validation)
        earlier = [w for w in train if w.view.end_utc + HORIZON * w.view.step <= start]

        pairs.append(
            (
                WindowSet(earlier, dataset=windows.dataset),
                WindowSet(validation, dataset=windows.dataset),
            )
        )
    return pairs


def _midnight_utc(day: date, market_offset: timedelta) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) - market_offset
