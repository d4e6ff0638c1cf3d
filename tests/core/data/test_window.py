"""Windows, their order and hash, and their folder."""

import dataclasses
import json
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

from compevo_core.data import window as window_module
from compevo_core.data.build import build_windows
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet, serialize_for_hash
from compevo_core.errors import DataError
from compevo_core.runtime.files import hash_text, replace_together
from tests.support.window_samples import (
    make_series,
    make_set,
    make_spec,
    make_window,
    make_window_set,
)


@pytest.mark.parametrize(
    "changes",
    [
        {"candidate_ids": ("a1",)},
        {"covariates": {"t": 1.0}},
        {"split": "val"},
        {"fold": 2},
        {"subsets": ("s",)},
        {"leaky": True},
        {"published": np.zeros(48)},
    ],
)
def test_the_hash_covers_everything_a_model_can_see(changes):
    changed, same = make_set([make_window(0, **changes)]), make_window_set(1)
    assert changed.hash != same.hash and changed.identity != same.identity


def test_windows_are_serialized_once(tmp_path, monkeypatch):
    kinds = enumerate(["train", "train", "val"])
    windows = make_set([make_window(day, split=split) for day, split in kinds])
    apart = [make_set(list(windows.split(split))) for split in ("train", "val")]
    expected = hash_text("".join(part.hash for part in apart)), apart[0].identity

    serialize = Mock(wraps=serialize_for_hash)
    monkeypatch.setattr(window_module, "serialize_for_hash", serialize)

    assert len(windows.hash) == 64
    assert (windows.training_hash, windows[:2].identity) == expected
    windows.write(tmp_path)
    assert WindowSet.read(tmp_path).hash == windows.hash
    assert serialize.call_count == 3


def test_the_hash_separates_masks_from_zeros():
    truths = [np.array([first, *[1.0] * 47]) for first in (1.0, 0.0, np.nan)]
    assert len({make_set([make_window(0, y=y)]).hash for y in truths}) == 3


def test_a_view_has_no_field_for_the_truth():
    names = {field.name for field in dataclasses.fields(WindowView)}
    assert not names & {"y", "truth", "target", "targets", "window"}
    assert not hasattr(make_window(0).view, "y")


def test_inputs_and_truths_are_read_only():
    for numbers in (make_window(0).view.x, make_window(0).y):
        with pytest.raises(ValueError, match="read-only"):
            numbers[0] = 1.0


def test_stored_windows_have_their_past_again(tmp_path, monkeypatch):
    monkeypatch.setattr("compevo_core.data.cutting.MOST_PAST", 60)
    monkeypatch.setattr("compevo_core.data.window.MOST_PAST", 60)
    spec = make_spec(year_evidence=True, max_fill_steps=1)
    values = [None if 120 <= i < 130 else float(i) for i in range(48 * 9)]
    built = build_windows(spec, make_series(values))
    built.write(tmp_path)
    for old, new in zip(built.views(), WindowSet.read(tmp_path).views(), strict=True):
        # The last long gap and what is before it are no past; nor is what no window has read.
        np.testing.assert_array_equal(new.past, old.past[-len(new.past) :] if len(new.past) else [])
        np.testing.assert_array_equal(old.known[-48:], old.x)
        assert (np.diff(old.known) <= 2).all() and len(old.past) <= 60
    assert len(new.past) == 60


def test_a_folder_whose_windows_were_exchanged_is_refused(tmp_path):
    make_window_set(2).write(tmp_path / "a")
    make_window_set(3).write(tmp_path / "b")
    ours, theirs = (next((tmp_path / name).glob("windows-*.parquet")) for name in "ab")
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(make_window_set(3).hash, "0"))
    with pytest.raises(DataError, match="differs from its manifest"):
        WindowSet.read(tmp_path / "b")
    theirs.replace(ours)
    with pytest.raises(DataError, match="its manifest"):
        WindowSet.read(tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest\.json is missing"):
        WindowSet.read(tmp_path / "a")


def test_the_manifest_counts_splits_subsets_and_masked_targets():
    y = np.array([1.0, *[np.nan] * 47])
    windows = make_set([make_window(0), make_window(1, split="test", subsets=("s",), y=y)])
    assert windows.manifest["n_by_split"] == {"train": 1, "test": 1}
    assert windows.manifest["n_by_subset"] == {"s": 1}
    assert windows.manifest["n_masked_targets"] == 47
    assert json.dumps(windows.manifest)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_window(0, x=[]), "horizon of 48 after 0 inputs"),
        (lambda: make_window(0, horizon=0), "horizon of 0 after 48 inputs"),
        (lambda: make_window(0, x=[float("nan")] * 48), "NaN or infinity"),
        (lambda: make_window(0, split="dev"), "none of"),
        (lambda: make_window(0, y=[1.0] * 47), r"y has shape \(47,\)"),
        (lambda: make_set([make_window(0), make_window(0)]), "w0 comes twice"),
        (lambda: make_window_set().subset("n2f"), r"'n2f'.*none"),
        (lambda: make_window_set().split("dev"), "split 'dev'"),
    ],
)
def test_malformed_windows_and_unknown_parts_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_windows_of_two_grids_make_no_set():
    short = make_window(0, x=[1.0] * 24, y=[1.0] * 12, horizon=12)
    assert short.view.end_utc - short.view.origin_utc == 12 * short.view.step
    with pytest.raises(DataError, match="24 and of 48"):
        make_set([short, make_window(1)])

    assert b"horizon" in serialize_for_hash(short)
    assert b"horizon" not in serialize_for_hash(make_window(1))


def test_windows_are_read_back_to_every_bit(tmp_path):
    weather = np.linspace(0.0, 1.0, 48)
    weather[3] = np.nan
    known = {"covariates": {"b": 2.0, "a": 1.0}, "candidate_ids": ("a2", "a1"), "n_filled": 3}
    known |= {"published": np.arange(48.0), "step_covariates": {"wind": weather, "rain": weather}}
    full = make_window(1, y=weather, subsets=("s",), **known)
    written = make_set([full, make_window(0)], manifest={"news_cutoff": "origin"})

    written.write(tmp_path)
    loaded = WindowSet.read(tmp_path)

    assert (loaded.hash, loaded.manifest) == (written.hash, written.manifest)
    assert loaded[:].hash == written.hash  # of what was read
    assert loaded[1].view.candidate_ids == ("a2", "a1")
    assert list(loaded[1].view.step_covariates) == ["rain", "wind"]

    def hash_of(**by_step):
        return serialize_for_hash(make_window(0, step_covariates=by_step))

    same = weather.copy()
    same[3] = -np.nan  # other bits, no other number
    assert hash_of(wind=same) == hash_of(wind=weather)
    moved = weather.copy()
    moved[7] = np.nextafter(moved[7], 1.0)
    assert hash_of(wind=moved) != hash_of(wind=weather) != hash_of(rain=weather)


def test_a_file_with_other_columns_is_refused(tmp_path):
    windows = make_window_set(2)
    windows.write(tmp_path)
    frame = pl.read_parquet(tmp_path / "windows-*.parquet")
    for other in (frame.cast({"season": pl.String}), frame.drop("season")):
        replace_together(tmp_path, {"windows.parquet": other.write_parquet}, windows.manifest)
        with pytest.raises(DataError, match="has other columns"):
            WindowSet.read(tmp_path)
