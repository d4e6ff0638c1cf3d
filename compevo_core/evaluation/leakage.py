"""Detectors of leakage in windows and in trained models (paper E.1, memorization risk).

What belongs here: functions that look for one kind of leak and say where it is. What does not:
preventing leaks (``data.context``, ``data.splits``), what a failed check blocks (the asset checks).
Detectors read the source frames again: a window cut wrongly would vouch for itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.context import MEDIAN, OWN
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.steps import DAY, shift
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import LeakageError
from compevo_core.runtime.files import hash_file


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
    claims = (
        (view, f"article {article_id}", (article_id,))
        for view in views
        for article_id in view.candidate_ids
    )
    return _find_late("late article", claims, articles, "article_id")


def raise_if_later_news(views: Sequence[WindowView], pool: NewsPool) -> None:
    """Raise LeakageError if a view names an article which came out after it was made.

    Views that copy a published leaky prompt are marked, and so are their result rows.
    """
    for view in views:
        # An article of that instant counts as later: it was not read when the view was made.
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
    # A key names variable and lag in days: afternoon_temp_k_lag1 is yesterday's value.
    claims = (
        (view, key, (view.entity, name, view.calendar.target_date - int(lag) * DAY, value))
        for view in views
        for key, value in view.covariates.items()
        for name, _, lag in [key.rpartition("_lag")]
    )
    return _find_late("late covariate", claims, covariates, "entity", "name", "valid_date", "value")


def find_unavailable_published(
    views: Iterable[WindowView], published: pl.DataFrame
) -> list[Violation]:
    """Find published forecasts with a step that was not out when a view was made."""
    # A view holds the median: the same number as another quantile does not prove that it was out.
    medians = published.filter(pl.col("quantile") == float(MEDIAN))
    claims = (
        (view, "published", (view.entity, shift(view.origin_utc, step, view.step), value))
        for view in views
        if view.published is not None
        for step, value in enumerate(view.published)
    )
    return _find_late("late forecast", claims, medians, "entity", "start_utc", "value")


def find_unavailable_step_covariates(
    views: Iterable[WindowView], step_covariates: pl.DataFrame
) -> list[Violation]:
    """Find covariates by step with a value that was not known when a view was made."""
    names = set(step_covariates["name"].unique().to_list())

    claims = []
    for view in views:
        for key, values in view.step_covariates.items():
            season = view.seasons.reference if key.startswith(OWN) else view.seasons.day
            name, lag = (key, 0) if key in names else (key.removesuffix("_lag1"), season)
            # Values derived from published forecasts are not rows of this frame.
            for step in np.flatnonzero(np.isfinite(values)) if name in names else ():
                start = shift(view.origin_utc, int(step) - lag, view.step)
                claims.append((view, key, (view.entity, name, start, values[step])))
    columns = ("entity", "name", "start_utc", "value")
    return _find_late("late covariate", claims, step_covariates, *columns)


def _find_late(
    kind: str,
    claims: Iterable[tuple[WindowView, str, tuple[Any, ...]]],
    frame: pl.DataFrame,
    *columns: str,
) -> list[Violation]:
    """Return a violation for each thing in a view that no row held before the view was made.

    A claim is a view, the name of a thing in it, and what a row has in ``columns``: the value as
    well, since a revision that came later has the same time. A view has one for each name.
    """
    # What came out again counts from the first time.
    rows = frame.select(*columns, "available_at").sort("available_at", descending=True)
    available_at = {tuple(row): available for *row, available in rows.iter_rows()}

    violations: dict[tuple[str, str], Violation] = {}
    for view, name, row in claims:
        available = available_at.get(row)
        # At the very moment is too late, and so is what is unknown.
        if available is None or available >= view.known_before:
            *key, value = row
            what = f"{name} = {value} of {key[-1]}" if key else name
            detail = f"{what} was not known before {view.known_before}"
            violations.setdefault((view.window_id, name), Violation(kind, view.window_id, detail))
    return list(violations.values())


def find_overlapping_targets(windows: Iterable[Window]) -> list[Violation]:
    """Find target steps in two splits, and splits closer than one horizon.

    All series are compared with each other: three measures of one region are the same days, and a
    model that learns from one region's days has seen the weather and the holidays of the others'.
    """
    violations: list[Violation] = []
    # In the order of origins, the newest end of each split is all that can come too close.
    newest: dict[str, WindowView] = {}
    for view in sorted((window.view for window in windows), key=lambda v: v.origin_utc):
        for split, other in newest.items():
            # A horizon separates the targets of two splits.
            end_utc = shift(other.end_utc, view.horizon, view.step)
            if split == view.split or view.origin_utc >= end_utc:
                continue
            gap = view.origin_utc - other.end_utc
            detail = f"{view.split} starts {gap} after {split} window {other.window_id} ends"
            violations.append(Violation("no embargo", view.window_id, detail))

        same_split = newest.get(view.split)
        if same_split is None or same_split.end_utc < view.end_utc:
            newest[view.split] = view
    return violations


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
