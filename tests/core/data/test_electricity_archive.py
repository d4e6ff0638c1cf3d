"""The real electricity windows: counts, the published test set, and reference errors."""

import time
from collections import Counter
from functools import cache

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.data.build import SHIFTED_SUBSET, SUBSET, build_windows
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.evaluation import leakage
from compevo_core.evaluation.metrics import score
from compevo_core.evaluation.result_rows import POOLED, Identity, evaluate, forecast_windows
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.feeds import default_feeds
from tests.support.window_samples import HALF_HOUR, NOW, from_nem


@cache
def load_electricity_frames(archive):
    """Return series, covariates, published forecasts and benchmark records of the archive."""
    frames = {}
    for feed in default_feeds()["electricity"]:
        raws = list(feed.read_files(Mode.ARCHIVE, archive, lambda: NOW))
        for kind, parse in feed.parsers.items():
            frames.setdefault(kind, []).append(parse(raws))
    return {kind: pl.concat(parts) for kind, parts in frames.items()}


ONE_DECIMAL = 0.05 + 1e-9
IDENTITY = Identity(experiment="reference")


def cut(frames):
    """Return all windows of the real electricity data, without articles."""
    keys = ["series_id", "variable", "start_utc"]
    series = frames[FrameKind.SERIES].unique(keys, keep="last", maintain_order=True)
    kinds = (FrameKind.COVARIATES, FrameKind.PUBLISHED, FrameKind.BENCHMARK)
    return build_windows(ELECTRICITY, series, **{kind.value: frames[kind] for kind in kinds})


@pytest.fixture(scope="module")
def windows(archive_dir):
    return cut(load_electricity_frames(archive_dir))


def score_pooled(windows, name, train):
    rows = evaluate(fit_baseline(name, train), windows, IDENTITY).filter(pl.col("entity") == POOLED)
    return rows.select("mae", "rmse", "mape_pct").row(0)


def test_the_splits_have_the_archives_windows(windows):
    counts = windows.manifest["n_by_split"]
    assert [counts[name] for name in ("train", "val", "test")] == [2703, 647, 913]
    # February and March 2026, and every later day that the archive holds.
    assert windows.manifest["n_by_subset"]["inference-2026-200"] == 200
    assert counts["inference"] % 5 == 0 and counts["inference"] >= 200
    assert windows.manifest["n_by_subset"][SUBSET] == 100
    assert windows.manifest["n_by_subset"][SHIFTED_SUBSET] == 22
    assert windows.manifest["n_by_subset"]["inference-2026-100"] == 100
    assert windows.entities == ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")

    views = windows.subset("inference-2026-200").views()
    assert min(view.origin_utc for view in views) == from_nem(2026, 2, 19)
    assert max(view.end_utc for view in views) == from_nem(2026, 3, 31)
    assert {view.series_id.split("/")[1] for view in views} == {"OPERATIONAL_DEMAND"}

    # Of train only known bad readings are masked.
    masked = [window for window in windows.split("train") if np.isnan(window.y).any()]
    days = {window.view.calendar.target_date.isoformat() for window in masked}
    assert days == {"2019-04-21", "2019-06-08"}
    assert sum(int(np.isnan(window.y).sum()) for window in masked) == 4 * 8 + 9 + 4 * 3


def test_electricity_is_cut_in_ten_processor_seconds(archive_dir, windows):
    frames = load_electricity_frames(archive_dir)
    started = time.process_time()
    again = cut(frames)
    assert time.process_time() - started < 10
    assert again.hash == windows.hash


def test_no_split_overlaps_and_no_view_looks_ahead(archive_dir, windows):
    frames = load_electricity_frames(archive_dir)
    covariates = frames[FrameKind.COVARIATES].filter(pl.col("value").is_not_null())
    medians = frames[FrameKind.PUBLISHED].filter(pl.col("quantile") == 0.5)

    assert leakage.find_overlapping_targets(windows) == []
    assert leakage.find_shared_windows(windows.split("train"), windows.split("test")) == []
    assert leakage.find_unavailable_covariates(windows.views(), covariates) == []
    assert leakage.find_unavailable_published(windows.views(), medians) == []
    assert all(w.view.published is not None for w in windows.split("inference"))


def test_published_windows_equal_our_totaldemand(archive_dir, windows):
    """Covered before AEMO's change to five minutes: every value is equal to the printed decimal."""
    series = load_electricity_frames(archive_dir)[FrameKind.SERIES].filter(
        pl.col("series_id").str.starts_with("AEMO/TOTALDEMAND/") & pl.col("value").is_not_null()
    )
    archive_values = {
        (sid[-4:].strip("/"), at): v
        for sid, at, v in series.select("series_id", "start_utc", "value").iter_rows()
    }
    counts = Counter()
    for window in windows.subset(SUBSET):
        is_shifted = SHIFTED_SUBSET in window.view.subsets
        entity, origin = window.view.entity, window.view.origin_utc
        pairs = [
            (float(v), archive_values[key])
            for step, v in enumerate([*window.view.x, *window.y], -48)
            if (key := (entity, origin + step * HALF_HOUR)) in archive_values
        ]
        close = sum(abs(a - b) <= ONE_DECIMAL for a, b in pairs)
        prefix = "shifted " if is_shifted else ""
        counts[f"{prefix}covered"] += len(pairs)
        counts[f"{prefix}equal"] += close
        counts["windows"] += bool(pairs) and not is_shifted
        counts["whole"] += len(pairs) == 96 and not is_shifted

    assert counts["equal"] == counts["covered"] > 0, counts
    assert (counts["whole"], counts["covered"]) == (33, 33 * 96), counts
    assert counts["shifted equal"] < 0.05 * counts["shifted covered"], counts


def test_persistence_has_the_published_test_sets_errors(windows):
    test, train = windows.subset(SUBSET), windows.split("train")
    pooled = score_pooled(test, "persistence", train)
    by_region = evaluate(fit_baseline("persistence", train), test, IDENTITY)

    assert pooled == pytest.approx((291.0, 488.5, 7.65), abs=0.06)
    mape = dict(by_region.select("entity", "mape_pct").iter_rows())
    known = {"NSW1": 5.84, "QLD1": 5.20, "SA1": 18.09, "TAS1": 4.67, "VIC1": 9.19}
    assert {k: mape[k] for k in known} == pytest.approx(known, abs=0.006)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("calendar-ridge", (205, 324, 5.4)),
        pytest.param("gbm", (180, 285, 5.2), marks=pytest.mark.slow),
    ],
)
def test_a_method_reaches_its_published_reference(name, limits, windows):
    errors = score_pooled(windows.subset(SUBSET), name, windows.split("train"))
    assert (np.array(errors) < limits).all()


def test_the_2026_references_are_reproduced(windows):
    inference, train = windows.subset("inference-2026-200"), windows.split("train")
    assert score_pooled(inference, "persistence", train)[:2] == pytest.approx((318, 533), abs=0.6)
    assert score_pooled(inference, "published", train)[:2] == pytest.approx((126, 200), abs=0.6)
    south = inference.entity("SA1")
    poe = forecast_windows(fit_baseline("published", train), south)
    mape_pct = score(south.truth(), poe, mape_threshold=1.0).mape_pct
    assert mape_pct == pytest.approx(12.66, abs=0.01)
    assert (np.array(score_pooled(inference, "calendar-ridge", train)[:2]) < (318, 533)).all()
