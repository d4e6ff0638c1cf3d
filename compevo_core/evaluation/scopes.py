"""Scopes, sets of windows that are scored together under one name, and forecasts stored by window.

What belongs here: choosing windows by split and subset, keeping forecasts on disk, and panels, a
few windows of a scope with all that a picture of them needs (``panels.jsonl`` of a run folder).
What does not: scoring, plotting (``paper.report``). Every method of a table is scored on the
same scope, so a stored forecast is looked up by window and a missing one is an error, never a gap.

Shapes: N windows, H horizon.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import AwareDatetime, TypeAdapter

from compevo_core.data.arrays import FloatArray, evenly_spaced
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.steps import DAY
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.runtime.files import write_atomically, write_text

ALL_DAYS = "aemo-2021"
EVENT_DAYS = "aemo-2021-events"  # only in the sample, where it is known what news announces
TEST_SUBSETS = {
    "electricity": (
        "paper-original",
        "paper-original-no-weather",
        "paper-original-2020",
        "paper-original-2020-from-2019",
        "n2f-test-100",
        ALL_DAYS,
        EVENT_DAYS,
    ),
    # What is known at midnight, and what is known at 17:00, when AEMO issues its own forecast.
    "electricity-operational": (
        "operational-2026-200",
        "operational-2026-200-known-1700",
        "paper-2026",
        "paper-2026-known-1700",
    ),
}
"""Subsets that are scored apart; other data sets are scored on their whole test split."""

SeedForecasts = Mapping[str, Sequence[FloatArray]]
"""Forecasts (N, H) of the windows of a scope by method, one array per training."""

_TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Windows with the name that their rows carry."""

    subset: str  # name of the subset or split; marked if not all origins are scored
    windows: WindowSet  # the windows, all of one split
    # Windows of the whole span, which a population in daily use forecasts and observes; None: these
    days: WindowSet | None = None


def select_scopes(
    windows: WindowSet, *, split: str = "test", subset: str = "", every: int = 1
) -> list[Scope]:
    """Return the scopes that a run is scored on: every n-th origin of a split or a named subset.

    Views that know less have their own scope; for the test split see :func:`select_test_scopes`.
    DataError if there is no such window.
    """
    # The test split of electricity is two benchmarks, whose errors must not be averaged.
    if split == "test" and not subset:
        return select_test_scopes(windows, every)

    # Checked here: a forecaster would be loaded and run before the rows find nothing to score.
    chosen = windows.subset(subset) if subset else windows.split(split)
    if not len(chosen):
        raise DataError(
            f"{windows.dataset} has no window in {subset or split}; name another split or subset"
        )
    if subset:
        return [thin_windows(chosen, subset, every)]
    return _select_by_knowledge(chosen, split, every)


def select_test_scopes(windows: WindowSet, every: int = 1) -> list[Scope]:
    """Return the scopes of a data set's test split; subsets that hold no window are left out."""
    # The demo's sample data hold fewer days than the archive, so a named subset can be empty.
    present = windows.manifest["n_by_subset"]
    names = [name for name in TEST_SUBSETS.get(windows.dataset, ()) if name in present]
    days = windows.split("test")
    scopes = [thin_windows(windows.subset(name), name, every) for name in names]
    scopes = scopes or _select_by_knowledge(days, "test", every)
    if not scopes:
        raise DataError(
            f"{windows.dataset} has no test window: read newer values, or `compevo init --test 0.2`"
        )
    return [replace(scope, days=days) for scope in scopes]


def _select_by_knowledge(windows: WindowSet, split: str, every: int) -> list[Scope]:
    """Return the windows of a split; those that know less are separate, named as their subset."""

    def name(view: WindowView) -> str:
        # Data sets with views that know less have origins at midnight of the market's clock.
        known = datetime(1, 1, 1, tzinfo=UTC) + (-view.unknown_steps * view.step) % DAY
        return split + (f"-known-{known:%H%M}" if view.unknown_steps else "")

    # A mean over views of midnight and of 17:00 describes neither, and counts every day twice.
    scopes = _group(windows, name, every)
    is_alike = not any(view.unknown_steps for view in windows.views())
    return scopes if is_alike else [replace(scope, days=windows) for scope in scopes]


def select_month_scopes(windows: WindowSet, every: int = 1) -> list[Scope]:
    """Return the windows of the inference split month by month, as ``inference-2026-04``."""
    inference = windows.split("inference")
    return _group(inference, lambda v: f"inference-{v.calendar.target_date:%Y-%m}", every)


def _group(windows: WindowSet, name: Callable[[WindowView], str], every: int) -> list[Scope]:
    """Return a scope for each name that views have."""
    named: dict[str, list[Window]] = {}
    for window in windows:
        named.setdefault(name(window.view), []).append(window)
    return [thin_windows(windows.with_windows(named[n]), n, every) for n in sorted(named)]


def thin_windows(windows: WindowSet, subset: str, every: int) -> Scope:
    """Return the windows of every n-th origin; the scope's name says so if n is above one."""
    if every < 1:
        raise ConfigError(f"every is {every}; it must be 1 (all windows) or more")
    if every == 1:
        return Scope(subset=subset, windows=windows)

    # Origins, not windows: all entities of a day stay together, as a bootstrap by day needs them.
    origins = set(sorted({view.origin_utc for view in windows.views()})[::every])
    # The manifest of the whole set stays: rows must still state whether the data are synthetic.
    thinned = windows.with_windows(w for w in windows if w.view.origin_utc in origins)
    return Scope(subset=f"{subset}-every-{every}", windows=thinned)


def write_forecasts(
    path: Path, forecasts: Sequence[tuple[Scope, SeedForecasts]], *, keeps_others: bool = False
) -> None:
    """Write the forecasts of scopes as Parquet, one row per subset, method, training and window.

    With ``keeps_others`` the forecasts of other subsets that the file holds stay.
    """
    frames = [
        pl.DataFrame(
            {
                "subset": scope.subset,
                "method": method,
                _TRAINING: number,
                "window_id": [view.window_id for view in scope.windows.views()],
                "values": values_NH.tolist(),
            },
            schema_overrides={_TRAINING: pl.Int64()},
        )
        for scope, by_method in forecasts
        for method, of_seeds in by_method.items()
        for number, values_NH in enumerate(of_seeds)
    ]

    if keeps_others and path.exists():
        scored = [scope.subset for scope, _ in forecasts]
        frames.insert(0, pl.read_parquet(path).filter(~pl.col("subset").is_in(scored)))
    write_atomically(path, pl.concat(frames).write_parquet)


def read_forecasts(path: Path, scope: Scope) -> dict[str, list[FloatArray]]:
    """Return stored forecasts (N, H) of every seed by method, in the scope's order."""
    if not path.exists():
        raise DataError(f"no forecasts at {path}: materialize evaluation/baselines first")

    # One file holds several scopes, and a window can be in more than one of them.
    frame = pl.read_parquet(path).filter(pl.col("subset") == scope.subset)
    if not frame.height:
        raise DataError(
            f"{path} has no forecasts for {scope.subset}: give both evaluation assets the same "
            "settings"
        )

    # Rows come in the order they were written; a paired test needs the order of the truths.
    window_ids = [view.window_id for view in scope.windows.views()]
    forecasts: dict[str, list[FloatArray]] = {}
    for (method, _), part in frame.group_by("method", _TRAINING, maintain_order=True):
        values = dict(part.select("window_id", "values").iter_rows())
        if missing := [window_id for window_id in window_ids if window_id not in values]:
            raise DataError(
                f"{path} lacks {len(missing)} window(s), first {missing[0]}: materialize its asset "
                "again"
            )
        ordered_NH = np.array([values[window_id] for window_id in window_ids], dtype=np.float64)
        forecasts.setdefault(str(method), []).append(ordered_NH)
    return forecasts


@dataclass(frozen=True, kw_only=True)
class ForecastPanel:
    """A window and what was forecast for it; all values in physical units."""

    window_id: str  # identity of the window
    dataset: str  # data set of the window
    subset: str  # name of the scope that the window belongs to
    entity: str  # region, currency or sensor
    unit: str  # unit of all values
    origin_utc: AwareDatetime  # start of the first forecast interval
    step_minutes: int  # length of an interval
    history: Sequence[float]  # values before the origin, oldest first
    truth: Sequence[float | None]  # values from the origin on; None where masked
    forecasts: Mapping[str, Sequence[float]]  # values by method
    # (date, title) of the articles the agents chose, newest first. Untrusted text
    news: tuple[tuple[str, str], ...] = ()
    synthetic: bool = False  # whether the series is made up

    def __post_init__(self) -> None:
        # A shorter line would be plotted as one that ends early, without notice.
        for method, values in self.forecasts.items():
            if len(values) != len(self.truth):
                raise DataError(
                    f"panel {self.window_id}: {method} has {len(values)} values, "
                    f"not {len(self.truth)}"
                )


def build_panels(
    scope: Scope,
    forecasts: Mapping[str, FloatArray],
    chosen: Sequence[Sequence[str]],
    news: NewsPool,
    count: int,
) -> list[ForecastPanel]:
    """Return panels of ``count`` evenly spaced windows of a scope.

    ``forecasts`` (N, H) by method are in the order of the plot; ``chosen`` are the ids of the
    articles that the agents read, for each window.
    """
    # From the manifest: the picture of a made-up day must say so wherever it is shown.
    is_synthetic = bool(scope.windows.manifest.get("synthetic", False))

    panels = []
    for position in evenly_spaced(len(scope.windows), count):
        window = scope.windows[position]
        view = window.view
        # Newest first, as a reader of the report meets them; equal dates go by title.
        articles = [(news.get_date(i), news.get_title(i)) for i in chosen[position]]
        articles.sort(reverse=True)
        panels.append(
            ForecastPanel(
                window_id=view.window_id,
                dataset=view.dataset,
                subset=scope.subset,
                entity=view.entity,
                unit=view.unit,
                origin_utc=view.origin_utc,
                step_minutes=view.step_minutes,
                history=view.x.tolist(),
                truth=window.y.tolist(),
                forecasts={name: values[position].tolist() for name, values in forecasts.items()},
                news=tuple((f"{date:%Y-%m-%d %H:%M}", title) for date, title in articles),
                synthetic=is_synthetic,
            )
        )
    return panels


def write_panels(path: Path, panels: Sequence[ForecastPanel]) -> None:
    """Write panels as JSON lines; a NaN in the truth is written as null."""
    form = TypeAdapter(ForecastPanel)
    write_text(path, "".join(f"{form.dump_json(panel).decode()}\n" for panel in panels))
