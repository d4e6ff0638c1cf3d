"""A run end to end on a tiny backbone: learning, sealed model, no path to the test split."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from compevo_core.errors import ConfigError, LeakageError
from compevo_core.training import loop
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny, tiny_variant, windows
from tests.support.tiny_run import ROUNDS, read_records, train_days


def test_a_round_records_every_term_and_agent(tiny_run):
    rounds = read_records(tiny_run)
    assert [r["round"] for r in rounds] == list(range(ROUNDS))
    assert [r["stage"] for r in rounds] == ["supervised"] * 2 + ["evolution"] * 4
    assert [r["evolved"] for r in rounds] == [False, False, True, False, True, False]

    for r in rounds:
        assert len(r["rewards"]) == len(r["weights"]) == len(r["logics"]) == 3
        assert np.shape(r["group_rewards"]) == ((3, 3) if r["evolved"] else (0,))
        assert sum(r["weights"]) == pytest.approx(1.0, abs=1e-5)
        total = r["loss_pred"] + 0.5 * r["loss_pg"] + 0.1 * r["loss_div"] + 0.01 * r["loss_prune"]
        assert r["loss"] == pytest.approx(total, rel=1e-6)


@pytest.mark.slow
def test_the_prediction_error_falls_on_train(tmp_path):
    changes = {"optim__forecast_lr": 3e-3, "evolution__every": 24}  # only forecasts learn here
    config = tiny(run__rounds=24, run__epochs=6, run__validate_every=0, **changes)
    train_days(config, tmp_path)
    loss = [r["loss_pred"] for r in read_records(tmp_path)]
    assert np.mean(loss[-8:]) < 0.9 * np.mean(loss[:8])


@pytest.mark.parametrize("split", ["test", "inference"])
def test_the_trainer_refuses_windows_of_any_other_split(split, tmp_path):
    with pytest.raises(LeakageError, match=split):
        train(tiny(), windows(split, 2), windows("val", 2, first_day=20), news_pool(), tmp_path)
    with pytest.raises(LeakageError, match=split):
        train(tiny(), windows("train", 2), windows(split, 2, first_day=20), news_pool(), tmp_path)


def test_another_encoder_than_the_articles_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="hashing"):
        train_days(tiny(news__encoder="packaged:minilm"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("uniform-weights", {"weights": pytest.approx([1 / 3] * 3)}),
        ("no-grpo", {"kl": 0.0, "loss_pg": 0.0}),
    ],
)
def test_a_variant_trains_without_what_it_leaves_out(name, recorded, tmp_path):
    train_days(tiny_variant(name, run__rounds=2), tmp_path, days=2, val_days=1)
    last = read_records(tmp_path)[-1]
    assert {key: last[key] for key in recorded} == recorded


def run_here(out, on_round=None, **overrides):
    config = tiny(**{"evolution__every": 0} | overrides)
    return train_days(config, out, days=2, val_days=2, on_round=on_round)


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ([0.4, 0.3, 0.3], 2),  # strictly better is needed
        pytest.param([0.5, 0.4, 0.3], 4, marks=pytest.mark.slow),
        pytest.param([0.1, 0.3, 0.4], 0, marks=pytest.mark.slow),
    ],
)
def test_the_best_validated_round_is_sealed(errors, chosen, tmp_path, monkeypatch):
    measured = iter(errors)
    untrained = []
    measure = loop.measure_validation

    def made_up(*arguments):
        if not untrained:
            untrained.append(measure(*arguments))
        return next(measured), 1.0

    monkeypatch.setattr(loop, "measure_validation", made_up)
    changes = {"run__validate_every": 2, "evolution__every": 4}
    summary = run_here(tmp_path, run__rounds=4, **changes)

    # Untrained agents, which are a candidate too, validate as their prior.
    assert untrained[0][0] == pytest.approx(untrained[0][1], rel=1e-6)
    assert (summary["chosen_round"], summary["val_mae_scaled"]) == (chosen, min(errors))

    best = tmp_path / "best" / f"round_{chosen:06d}"
    state = json.loads((best / "state.json").read_text())
    assert json.loads((tmp_path / "model" / "logics.json").read_text()) == state["logics"]
    for agent in range(3):
        stored = load_file(best / f"agent_{agent:02d}.safetensors")
        adapters = tmp_path / "model" / "adapters" / f"agent_{agent:02d}" / "forecast"
        tensors = load_file(next(adapters.glob("*.safetensors")))
        sealed = next(value for name, value in sorted(tensors.items()) if "lora_B" in name)
        assert any(
            sealed.shape == value.shape and torch.equal(sealed, value)
            for name, value in stored.items()
            if name.startswith("adapters.") and name.endswith("forecast.lora_b")
        )
    history = [r.val_mae_scaled for r in RunFolder(tmp_path).read_rounds()]
    assert history == [None, errors[1], None, errors[2]]


def test_a_refit_trains_on_train_and_validation(tmp_path):
    reported = []
    changes = {"run__rounds": 2, "run__validate_every": 1, "run__refit": True}
    changes |= {"calibration__blend": True, "optim__forecast_lr": 1e-2}

    summary = run_here(tmp_path, lambda record: reported.append(record.round), **changes)

    assert summary["refit"] is True
    assert summary["train_windows"] == 8  # four of them are validation's
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["refit"] is True
    folder = RunFolder(tmp_path)
    again = RunFolder(folder.refit).read_rounds()
    assert len(folder.read_rounds()) == 2
    assert len(again) == summary["chosen_round"] > 0
    # Both trainings report their progress.
    assert reported == [record.round for record in (*folder.read_rounds(), *again)]


@pytest.mark.parametrize(("is_fitted", "windows_read"), [(True, 4), (False, 2)])
def test_a_fit_takes_all_of_validation(is_fitted, windows_read, tmp_path):
    changes = {"run__validation_windows": 2, "calibration__blend": is_fitted}
    summary = run_here(tmp_path, run__rounds=1, run__validate_every=1, **changes)
    assert summary["calibration"]["windows"] == windows_read
