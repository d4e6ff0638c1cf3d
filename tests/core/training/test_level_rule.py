"""How errors are remembered is judged on windows that come after those remembered."""

import pytest

from compevo_core.training.calibration import calibrate
from tests.support.calibration import MadeUpPopulation, make_examples, settings


def no_correction(day: int, residual_H: object) -> object:
    return 0.0 * residual_H


@pytest.mark.parametrize(("second", "is_remembered"), [(-3.0, False), (3.0, True)])
def test_a_drift_that_turned_is_not_remembered_and_one_that_stayed_is(
    second: float, is_remembered: bool
) -> None:
    # A level that held both halves would lie on the side of the second one.
    examples = [*make_examples(6, drift=3.0), *make_examples(6, drift=second, first_day=6)]
    population = MadeUpPopulation([no_correction])
    report = calibrate(population, population, [""], examples, settings(known_errors="validated"))
    assert (report.known_errors != "none") is is_remembered
