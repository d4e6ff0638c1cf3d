"""The choice among methods: the mixture of those that are good on validation, or the best."""

import numpy as np
import pytest

from compevo_core.baselines import PRIORS, SharedFits, fit_baseline
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation import method_choice
from compevo_core.evaluation.method_choice import (
    MIXTURE,
    choose_best,
    choose_method,
    configure_method,
    rank_methods,
)
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.training.ensemble import read_model_manifest
from compevo_core.training.trainer import train
from tests.support.population import windows

TRAIN, VAL = windows("train", 24), windows("val", 12, first_day=30)
ALIKE = np.ones(len(VAL))


def test_the_mixture_wins_unless_clearly_beaten():
    rng = np.random.default_rng(0)
    days = np.repeat(rng.normal(100.0, 20.0, len(VAL) // 2), 2)
    noise = np.repeat(rng.normal(0.0, 5.0, len(VAL) // 2), 2)
    # Above by less than its own doubt; above on every day alike, without a doubt.
    errors = {"gbm": days, "calendar-ridge": days + noise - noise.mean() + 0.5}
    errors["persistence"] = days + 10.0
    scores = rank_methods(errors, VAL, ALIKE)

    assert [score.name for score in scores] == ["gbm", "calendar-ridge", "persistence"]
    assert [round(score.excess, 6) for score in scores] == [0.0, 0.5, 10.0]
    assert scores[1].standard_error > 0.5 > scores[2].standard_error
    assert choose_best(scores) == "calendar-ridge"
    for above, chosen in ((1.0, MIXTURE), (3.0, "calendar-ridge"), (noise + 3.0, MIXTURE)):
        assert choose_best(rank_methods(errors | {MIXTURE: days + above}, VAL, ALIKE)) == chosen


def test_a_method_two_percent_worse_is_never_chosen():
    days = np.full(len(VAL), 100.0)
    noise = np.tile([60.0, 60.0, -50.0, -50.0], len(VAL) // 4)
    scores = rank_methods({"gbm": days, "persistence": days + noise}, VAL, ALIKE)
    assert scores[1].standard_error > scores[1].excess == pytest.approx(5.0)
    assert choose_best(scores) == "gbm"


def test_the_largest_series_does_not_choose_alone():
    scale_N = np.where([view.entity == "NSW1" for view in VAL.views()], 1000.0, 1.0)
    assert 0 < (scale_N > 1).sum() < len(VAL)
    errors = {"gbm": np.where(scale_N > 1, 900.0, 0.2), "persistence": scale_N * 0.8}
    pooled = {name: error_N.mean() for name, error_N in errors.items()}
    assert pooled["persistence"] < pooled["gbm"]
    scores = rank_methods(errors, VAL, scale_N)
    assert choose_best(scores) == "gbm" and scores[0].mae == pytest.approx(pooled["gbm"])
    # A series that never changes has no scale, and no vote.
    unknown = np.where(scale_N > 1, np.nan, 1.0)

    assert rank_methods(errors, VAL, unknown)[0].error == pytest.approx(0.2)


def test_series_of_a_day_are_one_observation():
    rng = np.random.default_rng(1)
    by_day = np.repeat(rng.normal(size=len(VAL) // 2), 2)
    alone = rng.normal(size=len(VAL))
    zero = np.zeros(len(VAL))
    same, other = (
        rank_methods({"gbm": zero - 9.0, "persistence": errors}, VAL, ALIKE)[1].standard_error
        for errors in (by_day, alone / alone.std() * by_day.std())
    )
    assert same > 1.2 * other


def test_many_windows_of_validation_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(method_choice, "_MOST_WINDOWS", len(VAL) // 2)
    choice = choose_method(TRAIN, VAL, names=("persistence",))
    assert choice.windows == len(VAL) // 2 and choice.days == 12


def test_candidates_are_scored_as_they_forecast():
    names = ("persistence", "calendar-ridge")
    choice = choose_method(TRAIN, VAL, names=names)

    mae = {score.name: score.mae for score in choice.scores}
    error = {score.name: score.error for score in choice.scores}
    for name in names:
        forecast_NH = fit_baseline(name, TRAIN).predict(VAL.views())
        expected = measure_window_errors(VAL.truth(), forecast_NH).mean()
        assert mae[name] == pytest.approx(expected, rel=1e-9)
    assert set(mae) == {*names, MIXTURE} and choice.members == names
    assert choice.sentence.startswith(f"auto: {choice.method}")
    told = (f"{mae[choice.method]:.4g}", f"{error['persistence']:.3g}", "12 days of")
    assert [number for number in told if number not in choice.sentence] == []


def test_methods_stay_mixed_and_count_once(tmp_path):
    choice = choose_method(TRAIN, VAL, names=("persistence", "seasonal-mean", "calendar-ridge"))
    errors = {score.name: score.error for score in choice.scores}
    assert errors["persistence"] == errors["seasonal-mean"] > errors["calendar-ridge"]
    assert choice.members == ("persistence", "calendar-ridge")

    # The ridge by itself was better on validation, but need not be later.
    report = train(configure_method(MIXTURE, choice.members), TRAIN, VAL, None, tmp_path)
    calibration = report["calibration"]
    assert calibration["calibrated_mae"] > calibration["prior_mae"]
    assert calibration["guard"] == "none"


def test_the_choice_is_recorded_and_trained_on_both(tmp_path):
    fits = SharedFits()
    choice = choose_method(TRAIN, VAL, names=("persistence", "calendar-ridge"), fit=fits)
    config = configure_method(choice.method, choice.members)
    facts = {"method": choice.method, "choice": choice.to_json()}
    summary = train(config, TRAIN, VAL, None, tmp_path, fit=fits, facts=facts)
    manifest = read_model_manifest(tmp_path)
    assert manifest["choice"]["sentence"] == choice.sentence and manifest["refit"]
    assert summary["train_windows"] == len(TRAIN) + len(VAL)


def test_a_method_that_fails_to_fit_is_named(monkeypatch):
    def fit(name, train, *, seed=0):
        if name == "gbm":
            raise DataError("too few windows")
        return fit_baseline(name, train, seed=seed)

    # Slow ones are tried where they are named.
    monkeypatch.setattr(PRIORS["gbm"], "most_steps", 1)
    choice = choose_method(TRAIN, VAL, names=("persistence", "gbm"), fit=fit)
    assert choice.left_out == {"gbm": "too few windows"} and choice.method == "persistence"
    with pytest.raises(DataError, match="gbm: too few"):
        choose_method(TRAIN, VAL, names=("gbm",), fit=fit)
    with pytest.raises(DataError, match="no validation window"):
        choose_method(TRAIN, VAL[:0], names=("persistence",))


def test_an_unknown_method_is_refused_with_alternatives():
    with pytest.raises(ConfigError, match=r"'ridge'; .*calendar-ridge.*auto"):
        configure_method("ridge")
    with pytest.raises(ConfigError, match="two methods"):
        configure_method(MIXTURE, ["gbm"])
