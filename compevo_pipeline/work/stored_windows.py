"""Windows of a data set, cut from stored data, and whether the stored windows are current.

What belongs here: cutting and writing windows, and the receipt of what they were cut from. What
does not: how windows are cut (``compevo_core.data.build``), storing what they are cut from
(``work.ingest``), news pools (``work.embedded_news``).
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from compevo_core.data.build import build_windows
from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_core.data.series import split_series
from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet, read_hash
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.scopes import ALL_DAYS, EVENT_DAYS
from compevo_core.runtime.files import hash_file
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.sources.common.base import FrameKind, Mode, read_planted
from compevo_pipeline.storage.code_versions import code_version, hash_parts
from compevo_pipeline.storage.news_store import StoredArticles
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import hash_series

CUTTING_CODE = ("compevo_core/data",)

_FIRST_MONTH = "1970-01"  # of what belongs to no month


def cut_windows(deployment: Deployment, dataset: str, news_cutoff: str = "origin") -> WindowSet:
    """Build the windows of a data set from stored data.

    Stored windows of months before the first that changed are taken over. ConfigError if there is
    no such data set or cutoff; DataError if nothing of it is stored, or it is too short.
    """
    if news_cutoff not in ("origin", "horizon-end"):
        raise ConfigError(
            f"news_cutoff {news_cutoff!r} is neither 'origin' nor 'horizon-end'; correct the run "
            "configuration"
        )

    spec = deployment.registry[dataset].spec
    store = deployment.series_store()
    unchanged = _find_unchanged(deployment, dataset, news_cutoff)
    windows = build_windows(
        spec,
        store.read(dataset),
        covariates=store.read_frame(dataset, FrameKind.COVARIATES),
        articles=StoredArticles(deployment.news_store(), spec.news_source),
        published=store.read_frame(dataset, FrameKind.PUBLISHED),
        benchmark=store.read_frame(dataset, FrameKind.BENCHMARK),
        step_covariates=store.read_frame(dataset, FrameKind.STEP_COVARIATES),
        news_cutoff=news_cutoff,  # type: ignore[arg-type]  # checked just above
        unchanged=unchanged,
    )
    if deployment.data_mode is not Mode.SAMPLE:
        return windows

    # Test windows of days with an event of the sample world have a subset of their own.
    events = {(day, region) for day, region, _ in read_planted()}

    def mark(window: Window) -> Window:
        view = window.view
        is_event = (str(view.calendar.target_date), view.entity) in events
        names = (EVENT_DAYS,) if is_event and ALL_DAYS in view.subsets else ()
        return window.change_view(subsets=(*view.subsets, *names)) if names else window

    return windows.with_windows(map(mark, windows))


def read_windows(layout: Layout, dataset: str) -> WindowSet:
    """Read the windows of a data set as they were cut last.

    DataError if none were cut yet, or they cannot be read.
    """
    folder = layout.windows(dataset)
    if not folder.exists():
        raise DataError(
            f"{layout.root} holds no windows of {dataset}: cut them with `compevo refresh "
            f"{dataset}`, or materialize windows/{dataset}"
        )
    return WindowSet.read(folder)


def write_windows(deployment: Deployment, windows: WindowSet, news_cutoff: str = "origin") -> None:
    """Write windows that were just cut, with a receipt of what they were cut from."""
    dataset = windows.dataset
    windows.write(deployment.layout.windows(dataset))
    cut_from = {
        "windows": windows.hash,
        "series": hash_series(deployment, dataset),
        "news": _hash_articles(deployment, dataset),
        "months": _hash_months(deployment, dataset),
    }
    rules = _hash_rules(deployment, dataset, news_cutoff)
    deployment.receipts().keep(f"windows {dataset}", rules, cut_from)


def _find_receipt(deployment: Deployment, dataset: str, news_cutoff: str) -> dict[str, Any] | None:
    """Return what the stored windows were cut from, if that was by the present rules."""
    rules = _hash_rules(deployment, dataset, news_cutoff)
    cut_from: dict[str, Any] | None = deployment.receipts().find(f"windows {dataset}", rules)
    is_theirs = cut_from and cut_from["windows"] == read_hash(deployment.layout.windows(dataset))
    return cut_from if is_theirs else None


def _find_unchanged(deployment: Deployment, dataset: str, news_cutoff: str) -> list[Window]:
    """Return the stored windows that end before the first month that has changed since."""
    before = _find_receipt(deployment, dataset, news_cutoff)
    if before is None:
        return []

    then, now = before["months"], _hash_months(deployment, dataset)
    changed = [month for month in then.keys() | now.keys() if then.get(month) != now.get(month)]
    try:
        windows = read_windows(deployment.layout, dataset)
    except DataError:
        return []  # damaged: all are cut again
    if not changed:
        return list(windows)
    # Days on a market's clock begin up to a day before those of UTC.
    until = datetime.strptime(min(changed), "%Y-%m").replace(tzinfo=UTC) - timedelta(days=1)
    return [window for window in windows if window.view.end_utc <= until]


def _hash_months(deployment: Deployment, dataset: str) -> dict[str, str]:
    """Return hashes of all stored data of a data set by month, and of data without a month."""
    store, news = deployment.series_store(), deployment.news_store()
    parts: dict[str, list[str]] = {}
    for line in store.hash_files(dataset):
        kind, _, name = line.partition(" ")
        if kind not in (FrameKind.SERIES, FrameKind.COVARIATES):
            # One file per month; a benchmark has one file, which counts for all months.
            month = name[:7] if name[:4].isdigit() else _FIRST_MONTH
            parts.setdefault(month, []).append(line)

    # Series by series: a hash of all rows at once takes as much memory as they do.
    frames = [(rows, "start_utc") for _, rows in split_series(store.read(dataset))]
    covariates = store.read_frame(dataset, FrameKind.COVARIATES)
    frames += [(covariates, "valid_date")] if covariates is not None else []
    for number, (frame, column) in enumerate(frames):
        rows = frame.select(pl.exclude("source", "fetched_at"))
        sums = rows.group_by(pl.col(column).dt.strftime("%Y-%m").alias("month")).agg(
            pl.struct(pl.all()).hash(seed=0).sum().alias("digest"), pl.len()
        )
        for month, *numbers in sums.iter_rows():
            parts.setdefault(month, []).append(f"{column} {number} {numbers}")

    publisher = deployment.registry[dataset].spec.news_source
    if news.path.exists():
        for month, digest in news.hash_months(publisher).items():
            parts.setdefault(month, []).append(f"articles {digest}")
    return {month: hash_parts(sorted(of_month)) for month, of_month in parts.items()}


def _hash_rules(deployment: Deployment, dataset: str, news_cutoff: str) -> str:
    """Return a hash of how windows are cut, from any data."""
    declared = deployment.registry[dataset].declaration
    return hash_parts(
        [
            # Another release of the library may know other holidays: windows are cut again then.
            code_version(*CUTTING_CODE, data_release=HOLIDAYS_VERSION),
            # Hashes of rows differ between releases.
            pl.__version__,
            news_cutoff,
            hash_file(declared) if declared is not None else "",
        ]
    )


def _hash_articles(deployment: Deployment, dataset: str) -> str:
    news, publisher = deployment.news_store(), deployment.registry[dataset].spec.news_source
    return news.hash_content(publisher) if news.path.exists() else ""


def are_current(
    deployment: Deployment, dataset: str, news_cutoff: str = "origin", *, counts_news: bool = True
) -> bool:
    """Whether cutting would give the stored windows now.

    Without ``counts_news`` they may name other articles, and the news store is not opened.
    """
    before = _find_receipt(deployment, dataset, news_cutoff)
    return (
        before is not None
        and before["series"] == hash_series(deployment, dataset)
        and (not counts_news or before["news"] == _hash_articles(deployment, dataset))
    )


def find_current_windows(
    deployment: Deployment, dataset: str, since: datetime | None = None, *, counts_news: bool = True
) -> WindowSet | None:
    """Return the stored windows since an origin if they are :func:`are_current`, or None."""
    is_current = are_current(deployment, dataset, counts_news=counts_news)
    folder = deployment.layout.windows(dataset)
    try:
        return WindowSet.read(folder, since) if is_current else None
    except DataError:
        return None
