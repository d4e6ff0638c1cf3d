"""Known errors of a baseline: estimated on validation alone, frozen, added by series."""

import numpy as np
import pytest

from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError
from compevo_core.evaluation.baseline_scores import fit_known_errors
from tests.support import population as small

TRAIN = small.windows("train", 6)
SCALER = Scaler.fit(TRAIN)
VAL = small.windows("val", 40, first_day=60)
TEST = small.windows("test", 6, first_day=120)


def test_errors_without_a_direction_add_nothing():
    signs = np.array([1 if view.origin_utc.toordinal() % 2 else -1 for view in VAL.views()])
    level = fit_known_errors(VAL, VAL.truth() + 1000.0 * signs[:, None], SCALER)
    assert level.rule.form == "none"
    assert not level.apply(TEST.views(), np.zeros((len(TEST), 1, 48))).any()


def test_windows_of_another_split_are_refused():
    mixed = WindowSet([*VAL, *TEST], dataset=VAL.dataset)
    with pytest.raises(LeakageError, match="test"):
        fit_known_errors(mixed, mixed.truth(), SCALER)
    with pytest.raises(DataError, match="forecast every window once"):
        fit_known_errors(VAL, VAL.truth()[1:], SCALER)
