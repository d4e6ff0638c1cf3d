"""Detectors of leakage, used by tests, by the trainer and by Dagster checks (style, rules 3 to 6 and 13).

What belongs here: functions that look for one kind of leak and say where it is. What does not: preventing leaks
(``context``, ``splits``), deciding what a run does about one. A detector returns what it found; ``refuse`` raises.
Detectors read the source frames again rather than trust what the windows say of themselves.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import HORIZON, Window, WindowSet, WindowView
from compevo_core.errors import LeakageError

_SHOWN = 3
Predict = Callable[[Sequence[WindowView]], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One leak: its kind, the window (or file) it was found in, and what is wrong there."""

    kind: str
    where: str
    detail: str


def refuse(violations: Sequence[Violation], remedy: str) -> None:
    """Raise LeakageError with the number of violations and the first few, if there are any."""
    if violations:
        first = "; ".join(f"{v.kind} in {v.where}: {v.detail}" for v in violations[:_SHOWN])
        raise LeakageError(f"{len(violations)} leak(s): {first}. {remedy}")


def late_articles(views: Iterable[WindowView], articles: pl.DataFrame) -> list[Violation]:
    """Candidates that were not available before the origin, or are not among the articles."""
    known = dict(articles.select("article_id", "available_at").iter_rows())
    found = []
    for view in views:
        for name in view.candidate_ids:
            available = known.get(name)
            if available is None:
                detail = f"article {name} is unknown"
            elif available >= view.origin_utc:
                detail = f"article {name} was available {available}, origin {view.origin_utc}"
            else:
                continue
            found.append(Violation(kind="late article", where=view.window_id, detail=detail))
    return found


def late_covariates(views: Iterable[WindowView], covariates: pl.DataFrame) -> list[Violation]:
    """Covariates whose value was not available before the origin, or is in no row of the frame."""
    known: dict[tuple[str, str, date], list[tuple[float, datetime]]] = {}
    for entity, name, day, value, available in covariates.select(
        "entity", "name", "valid_date", "value", "available_at"
    ).iter_rows():
        known.setdefault((entity, name, day), []).append((value, available))
    found = []
    for view in views:
        for key, value in view.covariates.items():
            name, _, lag = key.rpartition("_lag")
            day = view.calendar.target_date - timedelta(days=int(lag))
            rows = known.get((view.entity, name, day), [])
            if not any(
                known_value == value and available < view.origin_utc
                for known_value, available in rows
            ):
                detail = f"{key} = {value} has no row for {day} available before {view.origin_utc}"
                found.append(Violation(kind="late covariate", where=view.window_id, detail=detail))
    return found


def late_published(views: Iterable[WindowView], published: pl.DataFrame) -> list[Violation]:
    """Published forecasts of which a step was not out before the origin."""
    known: dict[tuple[str, datetime], list[tuple[float, datetime]]] = {}
    for entity, start, value, available in published.select(
        "entity", "start_utc", "value", "available_at"
    ).iter_rows():
        known.setdefault((entity, start), []).append((value, available))
    found = []
    for view in views:
        if view.published is None:
            continue
        for i, value in enumerate(view.published):
            rows = known.get((view.entity, view.origin_utc + i * view.step), [])
            if not any(
                known_value == value and available < view.origin_utc
                for known_value, available in rows
            ):
                detail = f"step {i} = {value} was not published before {view.origin_utc}"
                found.append(Violation(kind="late forecast", where=view.window_id, detail=detail))
                break
    return found


def overlapping_targets(windows: Iterable[Window]) -> list[Violation]:
    """Target steps of one entity in two splits, or less than one horizon between a split and a later one.

    Entities are compared across series: three measures of one region are still the same days.
    """
    by_entity: dict[str, list[WindowView]] = {}
    for window in windows:
        by_entity.setdefault(window.view.entity, []).append(window.view)
    found = []
    for views in by_entity.values():
        ordered = sorted(views, key=lambda v: v.origin_utc)
        latest: dict[str, WindowView] = {}
        for view in ordered:
            for split, other in latest.items():
                if split == view.split:
                    continue
                gap = view.origin_utc - other.end_utc
                if gap < HORIZON * view.step:
                    detail = (
                        f"{view.split} starts {gap} after {split} window {other.window_id} ends"
                    )
                    found.append(Violation(kind="no embargo", where=view.window_id, detail=detail))
            held = latest.get(view.split)
            if held is None or held.end_utc < view.end_utc:
                latest[view.split] = view
    return found


def shared_windows(train: WindowSet, test: WindowSet) -> list[Violation]:
    """Windows of ``test`` whose id or whose 48 + 48 numbers are also in ``train``."""
    ids = {w.view.window_id for w in train}
    numbers = {_numbers(w): w.view.window_id for w in train}
    found = []
    for window in test:
        name = window.view.window_id
        if name in ids:
            found.append(Violation(kind="shared window", where=name, detail="its id is in train"))
        elif _numbers(window) in numbers:
            other = numbers[_numbers(window)]
            found.append(
                Violation(
                    kind="shared window", where=name, detail=f"its numbers are those of {other}"
                )
            )
    return found


def _numbers(window: Window) -> bytes:
    return hashlib.sha256(window.view.x.tobytes() + window.y.tobytes()).digest()


def trained_on_or_after(train: WindowSet, limit_utc: datetime) -> list[Violation]:
    """Windows of a training set that reach to ``limit_utc`` or later ("nothing of 2026 is in training")."""
    late = [w.view for w in train if w.view.end_utc > limit_utc]
    return [
        Violation(kind="late training", where=v.window_id, detail=f"ends {v.end_utc}") for v in late
    ]


def folder_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under a folder by its relative path."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths
    }


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[Violation]:
    """Files that were added, removed or altered between two hash lists: inference must change none."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            how = "added" if name not in before else "removed" if name not in after else "altered"
            found.append(Violation(kind="changed artifact", where=name, detail=how))
    return found


def shift_test(
    build: Callable[[pl.DataFrame], WindowSet],
    series: pl.DataFrame,
    predict: Predict,
    origin_utc: datetime,
    rng: np.random.Generator,
) -> list[Violation]:
    """Change every value from ``origin_utc`` on; forecasts of windows up to that origin must be bit-identical.

    ``build`` cuts windows from a series frame. Raises LeakageError if there is no such window to compare.
    """
    later = (pl.col("start_utc") >= origin_utc) & pl.col("value").is_not_null()
    noise = pl.Series("noise", rng.normal(1.5, 0.5, series.height))
    shifted = series.with_columns(
        pl.when(later).then(pl.col("value") * noise + 1).otherwise(pl.col("value")).alias("value")
    )
    before = [v for v in build(series).views() if v.origin_utc <= origin_utc]
    after = {v.window_id: v for v in build(shifted).views()}
    if not before:
        raise LeakageError(
            f"no window has its origin by {origin_utc}; choose an origin inside the series"
        )
    found = [
        Violation(
            kind="shift", where=v.window_id, detail="the window exists only with the true future"
        )
        for v in before
        if v.window_id not in after
    ]
    same = [v for v in before if v.window_id in after]
    for view, one, other in zip(
        same, predict(same), predict([after[v.window_id] for v in same]), strict=True
    ):
        if one.tobytes() != other.tobytes():
            worst = float(np.abs(one - other).max())
            detail = f"the forecast moved by up to {worst} when values after {origin_utc} changed"
            found.append(Violation(kind="shift", where=view.window_id, detail=detail))
    return found


def poison_test(
    train_and_hash: Callable[[WindowSet], str], windows: WindowSet, rng: np.random.Generator
) -> list[Violation]:
    """Replace every test and inference truth by noise; the trained artifact's hash must not change."""
    truth = windows.truth()
    held = np.array([w.view.split in ("test", "inference") for w in windows], dtype=bool)
    if not held.any():
        raise LeakageError(
            "there is no test or inference window to poison; give the whole window set"
        )
    poisoned = np.where(held[:, None], rng.normal(0.0, 1e6, truth.shape), truth)
    one, other = train_and_hash(windows), train_and_hash(windows.with_truth(poisoned))
    if one == other:
        return []
    return [Violation(kind="poison", where="trained artifact", detail=f"hash {one} became {other}")]
