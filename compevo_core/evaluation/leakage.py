"""Detectors of leakage in windows and in trained models (paper E.1, memorization risk).

What belongs here: functions that look for one kind of leak and say where it is. What does not:
preventing leaks (``data.context``, ``data.splits``), what a failed check blocks (the asset checks).
Detectors read the source frames again: a window cut wrongly would vouch for itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from compevo_core.data.context import MEDIAN, OWN
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.steps import shift
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import LeakageError
from compevo_core.runtime.files import hash_file

_ValuesByKey = dict[tuple[Any, ...], list[tuple[float, datetime]]]
"""Values by key, each with the time from which it was available."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One leak."""

    kind: str  # what kind of leak it is
    where: str  # the window, file or method it was found in
    detail: str  # what is wrong there


def find_unavailable_articles(
    views: Iterable[WindowView], articles: pl.DataFrame
) -> list[Violation]:
    """Find candidates that were not known when a view was made, or are not among the articles."""
    available_at = dict(articles.select("article_id", "available_at").iter_rows())

    violations = []
    for view in views:
        for article_id in view.candidate_ids:
            available = available_at.get(article_id)
            if available is None:
                # Its date is unknown, so it counts as a leak.
                detail = f"article {article_id} is unknown"
            elif available >= view.known_before:
                # At the origin is too late: the forecast is made in that very moment.
                detail = (
                    f"article {article_id} was available {available}, the view was made "
                    f"{view.known_before}"
                )
            else:
                continue
            violations.append(Violation("late article", view.window_id, detail))
    return violations


def raise_if_later_news(views: Sequence[WindowView], pool: NewsPool) -> None:
    """Raise LeakageError if a view names an article which came out after it was made.

    Views that copy a published leaky prompt are marked, and so are their result rows.
    """
    for view in views:
        # An article of the very instant counts as later: it was not read when the view was made.
        later = [name for name in view.candidate_ids if pool.get_date(name) >= view.known_before]
        if later and not view.leaky:
            raise LeakageError(
                f"window {view.window_id} names {len(later)} article(s) that were not available "
                f"before {view.known_before}, first {later[0]}; build the windows again"
            )


def find_unavailable_covariates(
    views: Iterable[WindowView], covariates: pl.DataFrame
) -> list[Violation]:
    """Find covariates whose value was not known when a view was made, or is in no row."""
    rows = _index_values(covariates, "entity", "name", "valid_date")

    violations = []
    for view in views:
        for key, value in view.covariates.items():
            # The key names variable and lag in days: afternoon_temp_k_lag1 is yesterday's value.
            name, _, lag = key.rpartition("_lag")
            day = view.calendar.target_date - timedelta(days=int(lag))
            if not _was_available(value, rows, (view.entity, name, day), view):
                detail = f"{key} = {value} has no row for {day} known before {view.known_before}"
                violations.append(Violation("late covariate", view.window_id, detail))
    return violations


def find_unavailable_published(
    views: Iterable[WindowView], published: pl.DataFrame
) -> list[Violation]:
    """Find published forecasts of which a step was not out when a view was made."""
    # A view holds the median: the same number as another quantile does not say that it was out.
    medians = published.filter(pl.col("quantile") == float(MEDIAN))
    rows = _index_values(medians, "entity", "start_utc")

    violations = []
    for view in views:
        if view.published is None:
            continue  # most days have no published forecast

        for step, value in enumerate(view.published):
            start = shift(view.origin_utc, step, view.step)
            if not _was_available(value, rows, (view.entity, start), view):
                detail = f"step {step} = {value} was not published before {view.known_before}"
                violations.append(Violation("late forecast", view.window_id, detail))
                break  # one line a window: an issue that came late is late in all its steps
    return violations


def find_unavailable_step_covariates(
    views: Iterable[WindowView], step_covariates: pl.DataFrame
) -> list[Violation]:
    """Find covariates by step of which a value was not known when a view was made."""
    rows = _index_values(step_covariates, "entity", "name", "start_utc")
    names = set(step_covariates["name"].unique().to_list())

    violations = []
    for view in views:
        for key, values in view.step_covariates.items():
            # What is derived from published forecasts is not a row of this frame.
            season = view.reference_steps if key.startswith(OWN) else view.season_steps
            name, lag = (key, 0) if key in names else (key.removesuffix("_lag1"), season)
            if name not in names:
                continue

            for step, value in enumerate(values):
                start = shift(view.origin_utc, step - lag, view.step)
                is_known = value == value
                if is_known and not _was_available(value, rows, (view.entity, name, start), view):
                    detail = f"step {step} of {key} = {value} was not known {view.known_before}"
                    violations.append(Violation("late covariate", view.window_id, detail))
                    break  # one line a window and name
    return violations


def _index_values(frame: pl.DataFrame, *key_columns: str) -> _ValuesByKey:
    # A list for each key: a value can be published again with a correction.
    rows: _ValuesByKey = {}
    for *key, value, available in frame.select(*key_columns, "value", "available_at").iter_rows():
        rows.setdefault(tuple(key), []).append((value, available))
    return rows


def _was_available(
    value: float, rows: _ValuesByKey, key: tuple[Any, ...], view: WindowView
) -> bool:
    # The value must match too: a revision that came later has the same key and another value.
    return any(
        known == value and available < view.known_before for known, available in rows.get(key, ())
    )


def find_overlapping_targets(windows: Iterable[Window]) -> list[Violation]:
    """Find target steps in two splits, and splits closer than one horizon.

    All series are compared with each other: three measures of one region are the same days, and a
    model that learns from one region's days has seen the weather and the holidays of the others'.
    """
    violations: list[Violation] = []
    # In the order of origins, the newest end of each split is all that can come too close.
    newest: dict[str, WindowView] = {}
    for view in sorted((window.view for window in windows), key=lambda v: v.origin_utc):
        violations += _find_missing_embargo(view, newest)

        same_split = newest.get(view.split)
        if same_split is None or same_split.end_utc < view.end_utc:
            newest[view.split] = view
    return violations


def _find_missing_embargo(
    view: WindowView, newest: Mapping[str, WindowView]
) -> Iterator[Violation]:
    for split, other in newest.items():
        # A horizon separates the targets of two splits.
        gap = view.origin_utc - other.end_utc
        end_utc = shift(other.end_utc, view.horizon, view.step)
        if split != view.split and view.origin_utc < end_utc:
            detail = f"{view.split} starts {gap} after {split} window {other.window_id} ends"
            yield Violation("no embargo", view.window_id, detail)


def find_shared_windows(train: WindowSet, test: WindowSet) -> list[Violation]:
    """Find windows of ``test`` whose id or whose numbers are also in ``train``."""
    # By hash and not by pair: data sets hold tens of thousands of windows.
    train_ids = {window.view.window_id for window in train}
    train_numbers = {_hash_numbers(window): window.view.window_id for window in train}

    violations = []
    for window in test:
        window_id = window.view.window_id
        if window_id in train_ids:
            detail = "its id is in train"
        elif (numbers := _hash_numbers(window)) in train_numbers:
            # Another id does not help: the model has seen these numbers with their answer.
            detail = f"its numbers equal the numbers of {train_numbers[numbers]}"
        else:
            continue
        violations.append(Violation("shared window", window_id, detail))
    return violations


def _hash_numbers(window: Window) -> bytes:
    # Bytes, not rounded text: equal numbers hash equally, and NaN of a masked truth does too.
    return sha256(window.view.x.tobytes() + window.y.tobytes()).digest()


def find_training_after(train: WindowSet, limit_utc: datetime) -> list[Violation]:
    """Find windows of a training set that reach beyond ``limit_utc``."""
    return [
        Violation("late training", view.window_id, f"ends {view.end_utc}")
        for view in train.views()
        if view.end_utc > limit_utc
    ]


def hash_folder(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder by its relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}


def find_changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[Violation]:
    """Find files that were added, removed or altered between two results of :func:`hash_folder`.

    Inference must change no file of the model: a model that learns from test windows is leaky.
    """
    changes = dict.fromkeys(after.keys() - before.keys(), "added")
    changes |= dict.fromkeys(before.keys() - after.keys(), "removed")
    both = before.keys() & after.keys()
    changes |= {name: "altered" for name in both if before[name] != after[name]}
    return [Violation("changed artifact", name, changes[name]) for name in sorted(changes)]
