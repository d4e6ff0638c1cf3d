"""Pretrained models as they are: in a series' unit, window by window, from safetensors alone."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from compevo_core.baselines import Baseline, fit_baseline, load_baseline
from compevo_core.baselines.zero_shot import find_at_hand
from compevo_core.config.run import RunConfig
from compevo_core.data.scaling import Scaler
from compevo_core.errors import CheckpointMismatch, ConfigError, LeakageError
from compevo_core.evaluation import method_choice
from compevo_core.training.prior import PriorSet
from tests.support import tiny_time_series_models as tiny
from tests.support.population import windows
from tests.support.window_samples import make_set, make_window

STEPS = np.arange(48)
TRAIN = make_set([make_window(i, x=900 + 50 * np.sin(STEPS / (3 + i))) for i in range(4)])


@pytest.fixture(scope="module")
def timesfm(tmp_path_factory):
    return tiny.save_timesfm(tmp_path_factory.mktemp("models") / "tiny-timesfm")


def fit(folder):
    return fit_baseline(f"zero-shot:{folder}", TRAIN)


@pytest.mark.parametrize("save", [tiny.save_timesfm, tiny.save_chronos_2, tiny.save_chronos_bolt])
def test_windows_are_forecast_separately_in_any_unit(save, tmp_path):
    if save is not tiny.save_timesfm:
        pytest.importorskip("chronos")
    folder = save(tmp_path / "tiny-model")
    fitted = fit(folder)
    views = TRAIN.views()
    whole = fitted.predict(views)
    alone = np.concatenate([fitted.predict([view]) for view in reversed(views)])[::-1]
    np.testing.assert_allclose(whole, alone, rtol=1e-4)
    assert np.isfinite(whole).all() and np.ptp(whole, axis=0).max() > 1
    other_unit = [make_window(i, x=0.01 * view.x - 30).view for i, view in enumerate(views)]
    np.testing.assert_allclose(fitted.predict(other_unit), 0.01 * whole - 30, rtol=1e-3)
    assert fitted.name == f"zero-shot-{folder.name}"
    assert fitted.predict([]).shape == (0, 48)


def test_values_before_the_inputs_are_read(timesfm):
    views = TRAIN.views()
    longer = [make_window(i, x=v.x, past=v.x[: 30 * i]).view for i, v in enumerate(views)]
    forecast_NH, usual_NH = (fit(timesfm).predict(given) for given in (longer, views))
    np.testing.assert_array_equal(forecast_NH[:2], usual_NH[:2])  # less than a look-back
    assert (forecast_NH[2] != usual_NH[2]).any()


def test_rows_name_weights_and_possible_memorisation(timesfm):
    facts = fit(timesfm).facts
    assert (facts.backbone, facts.knowledge_cutoff) == ("tiny-timesfm", "unknown")
    assert (facts.trainable_parameters, len(facts.artifact_hash)) == (0, 64)


def test_changed_weights_break_a_sealed_prior(tmp_path, monkeypatch):
    model = tiny.save_timesfm(tmp_path / "tiny-timesfm")
    settings = {"forecast.prior": "zero-shot", "forecast.zero_shot_model": str(model)}
    config = RunConfig.preset("tiny").with_overrides(settings)
    scaler = Scaler.fit(TRAIN)
    fitted = PriorSet.fit(config, TRAIN, scaler)
    (prior,) = fitted.fitted.values()
    assert isinstance(prior, Baseline)

    fitted.save(tmp_path / "sealed")
    (folder,) = (tmp_path / "sealed" / "prior").iterdir()
    loaded = PriorSet.load(config, tmp_path / "sealed", scaler)
    assert loaded.forecast(TRAIN.views()).tobytes() == fitted.forecast(TRAIN.views()).tobytes()

    weights = load_file(model / "model.safetensors")
    changed = {name: value + 1 for name, value in weights.items()}
    save_file(changed, model / "model.safetensors")
    from compevo_core.baselines import zero_shot

    zero_shot._load_once.cache_clear()
    with pytest.raises(CheckpointMismatch, match="has other weights"):
        load_baseline(folder)


def test_what_is_no_such_model_is_refused(tmp_path, timesfm):
    with pytest.raises(ConfigError, match=r"'amazon/none'.*download amazon/none"):
        fit("amazon/none")
    with pytest.raises(ConfigError, match="names no model"):
        fit("")
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        fit(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*known: Chronos2"):
        fit(tmp_path)

    later = make_set([make_window(0, split="test")])
    with pytest.raises(LeakageError):
        fit_baseline(f"zero-shot:{timesfm}", later)


def test_a_complete_cache_makes_a_model_available(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_at_hand() == ""
    model = tmp_path / "models--google--timesfm-2.5-200m-transformers"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    assert find_at_hand() == ""  # its weights were never fetched
    (snapshot / "model.safetensors").write_bytes(b"weights")

    assert find_at_hand() == "google/timesfm-2.5-200m-transformers"


def test_an_available_model_is_a_candidate_of_auto(timesfm, monkeypatch):
    train, val = windows("train", 8), windows("val", 6, first_day=20)
    for name, method in method_choice.baselines.PRIORS.items():
        monkeypatch.setattr(method, "is_candidate", name == "persistence")
    monkeypatch.setattr(method_choice, "find_at_hand", lambda: str(timesfm))
    said = []

    choice = method_choice.choose_method(train, val, on_step=said.append)

    names = {score.name for score in choice.scores}
    assert names == {"persistence", f"zero-shot:{timesfm}", "mixture"}
    assert said[0].startswith("1/3 fitting persistence") and "left" in said[-1]
