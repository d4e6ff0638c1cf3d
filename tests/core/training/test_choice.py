"""Which round is sealed, and that no sealed model is worse than what it corrects."""

import json

import pytest
import torch
from safetensors.torch import load_file

from compevo_core.training import loop, trainer
from compevo_core.training.calibration import ValidationErrors, calibrate
from compevo_core.training.model import PopulationModel
from compevo_core.training.run_folder import RunFolder
from tests.support.population import tiny, windows
from tests.support.tiny_run import train_days


def run_here(out, on_round=None, **overrides):
    config = tiny(**{"evolution__every": 0} | overrides)
    return train_days(config, out, days=2, val_days=2, on_round=on_round)


def read_sealed(out, agent):
    """One adapter tensor of a sealed model, as it is stored in a checkpoint too."""
    (file,) = (out / "model" / "adapters" / f"agent_{agent:02d}" / "forecast").glob("*.safetensors")
    return next(value for name, value in sorted(load_file(file).items()) if "lora_B" in name)


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ([0.4, 0.3, 0.3], 2),  # strictly better is needed
        pytest.param([0.5, 0.4, 0.3], 4, marks=pytest.mark.slow),
        pytest.param([0.1, 0.3, 0.4], 0, marks=pytest.mark.slow),
    ],
)
def test_the_round_with_the_lowest_validation_error_is_sealed(
    errors, chosen, tmp_path, monkeypatch
):
    measured = iter(errors)
    untrained = []
    measure = loop.measure_validation

    def made_up(*arguments):
        if not untrained:
            untrained.append(measure(*arguments))
        return ValidationErrors(next(measured), 1.0)

    monkeypatch.setattr(loop, "measure_validation", made_up)
    changes = {"run__validate_every": 2, "evolution__every": 4}
    summary = run_here(tmp_path, run__rounds=4, **changes)
    # Untrained agents, which are a candidate too, validate as their prior.
    assert untrained[0].aggregate == pytest.approx(untrained[0].prior, rel=1e-6)
    assert summary["chosen_round"] == chosen
    assert summary["val_mae_scaled"] == min(errors)

    best = tmp_path / "best" / f"round_{chosen:06d}"
    state = json.loads((best / "state.json").read_text())
    assert json.loads((tmp_path / "model" / "logics.json").read_text()) == state["logics"]
    for agent in range(3):
        stored = load_file(best / f"agent_{agent:02d}.safetensors")
        sealed = read_sealed(tmp_path, agent)
        assert any(
            sealed.shape == value.shape and torch.equal(sealed, value)
            for name, value in stored.items()
            if name.startswith("adapters.") and name.endswith("forecast.lora_b")
        )
    history = [r.val_mae_scaled for r in RunFolder(tmp_path).read_rounds()]
    assert history == [None, errors[1], None, errors[2]]


class BadStart(PopulationModel):
    """Heads far from what is right, and no rate to correct them."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for parameter in self.head_parameters():
            parameter.data.add_(0.5)


def test_no_sealed_model_is_worse_than_its_prior(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "PopulationModel", BadStart)
    summary = run_here(tmp_path, run__rounds=1, optim__forecast_lr=0.0, optim__policy_lr=0.0)
    assert summary["val_raw_mae_scaled"] > summary["val_prior_mae_scaled"]
    assert summary["val_sealed_mae_scaled"] <= summary["val_prior_mae_scaled"]


def test_a_refit_trains_the_chosen_rounds_on_train_and_validation(tmp_path):
    reported = []
    summary = run_here(
        tmp_path,
        lambda record: reported.append(record.round),
        run__rounds=2,
        run__validate_every=1,
        run__refit=True,
        calibration__blend=True,
        calibration__known_errors="mean",
        optim__forecast_lr=1e-2,
    )
    assert summary["refit"] is True
    assert summary["calibration"]["known_errors"] == "mean"
    assert summary["train_windows"] == 8  # four of them are validation's
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["refit"] is True

    folder = RunFolder(tmp_path)
    assert len(folder.read_rounds()) == 2
    assert summary["chosen_round"] > 0
    again = RunFolder(folder.refit).read_rounds()
    assert len(again) == summary["chosen_round"]
    # Both trainings report their progress.
    assert reported == [record.round for record in (*folder.read_rounds(), *again)]


def test_the_history_of_a_level_is_the_last_train_windows(tmp_path, monkeypatch):
    days = []

    def record(*arguments, history):
        days.extend(example.view.origin_utc.toordinal() for example in history)
        return calibrate(*arguments, history=history)

    monkeypatch.setattr(trainer, "calibrate", record)
    config = tiny(run__rounds=1, evolution__every=0, calibration__known_errors="mean")
    train_days(config, tmp_path, days=5, val_days=2)
    first = windows("train", 1).views()[0].origin_utc.toordinal()
    assert [day - first for day in days] == [3, 3, 4, 4]


@pytest.mark.parametrize(("is_fitted", "windows_read"), [(True, 4), (False, 2)])
def test_what_is_fitted_takes_all_of_validation_and_the_guard_alone_what_the_rounds_took(
    is_fitted, windows_read, tmp_path
):
    changes = {"run__validation_windows": 2, "calibration__blend": is_fitted}
    summary = run_here(tmp_path, run__rounds=1, run__validate_every=1, **changes)
    assert summary["calibration"]["windows"] == windows_read
