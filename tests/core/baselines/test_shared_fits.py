"""Each baseline is fitted once, and a kept one forecasts the same bits."""

import numpy as np
import pytest

from compevo_core.baselines import fit_baseline, shared_fits
from compevo_core.baselines.shared_fits import SharedFits
from tests.support.population import windows

TRAIN = windows("train", 20)


@pytest.fixture
def fitted(monkeypatch):
    """The names that were really fitted, in order."""
    names = []

    def count(name, train, *, seed=0):
        names.append((name, seed))
        return fit_baseline(name, train, seed=seed)

    monkeypatch.setattr(shared_fits, "fit_baseline", count)
    return names


def test_equal_windows_and_seed_are_fitted_once_and_others_again(fitted):
    fit = SharedFits()
    same = fit("persistence", TRAIN)
    assert fit("persistence", windows("train", 20)) is same
    fit("persistence", windows("train", 21))
    fit("persistence", TRAIN, seed=1)
    assert fitted == [("persistence", 0), ("persistence", 0), ("persistence", 1)]


def test_a_blend_takes_the_parts_that_others_asked_for(fitted):
    fit = SharedFits()
    fit("gbm", TRAIN)
    blend = fit("blend", TRAIN)
    assert sorted(fitted) == [("calendar-ridge", 0), ("gbm", 0)]
    assert np.array_equal(
        blend.predict(TRAIN.views()), fit_baseline("blend", TRAIN).predict(TRAIN.views())
    )


def test_another_process_reads_what_the_first_one_kept(fitted, tmp_path):
    first = SharedFits(tmp_path)("calendar-ridge", TRAIN)
    second = SharedFits(tmp_path)("calendar-ridge", TRAIN)
    assert fitted == [("calendar-ridge", 0)]
    assert np.array_equal(first.predict(TRAIN.views()), second.predict(TRAIN.views()))


def test_a_fit_that_was_cut_off_is_made_again(fitted, tmp_path):
    SharedFits(tmp_path)("calendar-ridge", TRAIN)
    next(tmp_path.rglob("baseline.json")).unlink()
    SharedFits(tmp_path)("calendar-ridge", TRAIN)
    assert len(fitted) == 2
