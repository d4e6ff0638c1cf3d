"""Runs that train on the same windows share the fits of their priors."""

from compevo_core.baselines import Baseline, fit_baseline, shared_fits
from compevo_core.baselines.shared_fits import SharedFits
from compevo_core.data.window import WindowSet
from compevo_core.training.training_data import TrainingData
from tests.support.population import tiny, windows


def test_a_second_variant_fits_no_prior_of_the_first_again(monkeypatch) -> None:
    fitted: list[int] = []

    def count(name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        fitted.append(len(train))
        return fit_baseline(name, train, seed=seed)

    monkeypatch.setattr(shared_fits, "fit_baseline", count)
    fit = SharedFits()
    config = tiny(forecast__prior="calendar-ridge", forecast__prior_folds=2)
    for variant in (config, config.with_overrides({"grpo.enabled": False})):
        TrainingData.prepare(variant, windows("train", 30), windows("val", 2), 8, fit)

    # The prior of all windows, and one for each of the two blocks that were left out.
    assert len(fitted) == 3 and fitted[0] == 60
