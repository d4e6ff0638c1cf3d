"""The choice among methods: the simplest of those that validation cannot tell from the best."""

import numpy as np
import pytest

from compevo_core.baselines import SharedFits, fit_baseline
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.method_choice import (
    MIXTURE,
    choose_method,
    choose_simplest,
    configure_method,
    rank_methods,
)
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.training.artifact import read_model_manifest
from compevo_core.training.trainer import train
from tests.support.population import windows

TRAIN, VAL = windows("train", 24), windows("val", 12, first_day=30)


def test_the_simplest_within_one_standard_error_of_the_best_is_chosen():
    rng = np.random.default_rng(0)
    days = np.repeat(rng.normal(100.0, 20.0, len(VAL) // 2), 2)
    noise = np.repeat(rng.normal(0.0, 5.0, len(VAL) // 2), 2)
    errors = {
        "gbm": days,
        "calendar-ridge": days + noise - noise.mean() + 0.5,  # above by less than its own doubt
        "persistence": days + 10.0,  # above on every day alike: no doubt
    }
    scores = rank_methods(errors, VAL)
    assert [score.name for score in scores] == ["gbm", "calendar-ridge", "persistence"]
    assert [round(score.excess, 6) for score in scores] == [0.0, 0.5, 10.0]
    assert scores[1].standard_error > 0.5 > scores[2].standard_error
    assert choose_simplest(scores) == "calendar-ridge"


def test_series_of_a_day_are_one_piece_of_evidence():
    rng = np.random.default_rng(1)
    by_day = np.repeat(rng.normal(size=len(VAL) // 2), 2)
    alone = rng.normal(size=len(VAL))
    zero = np.zeros(len(VAL))
    same, other = (
        rank_methods({"gbm": zero - 9.0, "persistence": errors}, VAL)[1].standard_error
        for errors in (by_day, alone / alone.std() * by_day.std())
    )
    assert same > 1.2 * other


def test_candidates_are_scored_as_they_forecast_validation_and_said_in_a_line():
    names = ("persistence", "calendar-ridge")
    choice = choose_method(TRAIN, VAL, names=names)
    mae = {score.name: score.mae for score in choice.scores}
    for name in names:
        forecast_NH = fit_baseline(name, TRAIN).predict(VAL.views())
        expected = measure_window_errors(VAL.truth(), forecast_NH).mean()
        assert mae[name] == pytest.approx(expected, rel=1e-9)
    assert set(mae) == {*names, MIXTURE} and choice.members == list(names)
    assert choice.method == "calendar-ridge"
    assert choice.sentence.startswith("auto: calendar-ridge, MAE ")
    assert f"persistence {mae['persistence']:.4g}" in choice.sentence
    assert "12 days of validation" in choice.sentence


def test_the_choice_stands_in_the_manifest_and_is_trained_on_both_splits(tmp_path):
    fits = SharedFits()
    choice = choose_method(TRAIN, VAL, names=("persistence", "calendar-ridge"), fit=fits)
    config = configure_method(choice.method)
    facts = {"method": choice.method, "choice": choice.to_json()}
    summary = train(config, TRAIN, VAL, None, tmp_path, fit=fits, facts=facts)
    manifest = read_model_manifest(tmp_path)
    assert manifest["choice"]["sentence"] == choice.sentence and manifest["refit"]
    assert summary["train_windows"] == len(TRAIN) + len(VAL)


def test_a_method_that_cannot_be_fitted_is_left_out_and_named(monkeypatch):
    def fit(name, train, *, seed=0):
        if name == "gbm":
            raise DataError("too few windows")
        return fit_baseline(name, train, seed=seed)

    choice = choose_method(TRAIN, VAL, names=("persistence", "gbm"), fit=fit)
    assert choice.left_out == {"gbm": "too few windows"} and choice.method == "persistence"
    with pytest.raises(DataError, match="no method can forecast electricity: gbm: too few"):
        choose_method(TRAIN, VAL, names=("gbm",), fit=fit)
    with pytest.raises(DataError, match="no validation window"):
        choose_method(TRAIN, VAL[:0], names=("persistence",))


def test_a_method_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"no method 'ridge'; known: .*calendar-ridge.*auto"):
        configure_method("ridge")
    with pytest.raises(ConfigError, match="two methods or more"):
        configure_method(MIXTURE, ["gbm"])
