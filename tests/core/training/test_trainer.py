"""A run end to end on a tiny backbone: learning, sealed model, no path to the test split."""

import numpy as np
import pytest

from compevo_core.errors import CheckpointMismatch, ConfigError, LeakageError, NonFiniteLoss
from compevo_core.paper.changes import find_variant
from compevo_core.training.model import PopulationModel
from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny, windows
from tests.support.tiny_run import ROUNDS, read_records, train_days, train_tiny


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
def test_the_prediction_error_goes_down_on_the_training_windows(tmp_path):
    changes = {"optim__forecast_lr": 3e-3, "evolution__every": 24}  # forecasts alone learn here
    config = tiny(run__rounds=24, run__epochs=6, run__validate_every=0, **changes)
    train_days(config, tmp_path)
    loss = [r["loss_pred"] for r in read_records(tmp_path)]
    assert np.mean(loss[-8:]) < 0.9 * np.mean(loss[:8])


def test_a_finished_run_is_returned_as_it_is_and_another_configuration_is_an_error(tiny_run):
    before = (tiny_run / "rounds.jsonl").stat().st_mtime_ns
    assert train_tiny(tiny_run)["rounds"] == ROUNDS
    assert (tiny_run / "rounds.jsonl").stat().st_mtime_ns == before
    with pytest.raises(CheckpointMismatch, match="config_hash"):
        train_tiny(tiny_run, changes={"run__seed": 5})


@pytest.mark.parametrize("split", ["test", "inference"])
def test_the_trainer_refuses_windows_of_any_other_split(split, tmp_path):
    with pytest.raises(LeakageError, match=split):
        train(tiny(), windows(split, 2), windows("val", 2, first_day=20), news_pool(), tmp_path)
    with pytest.raises(LeakageError, match=split):
        train(tiny(), windows("train", 2), windows(split, 2, first_day=20), news_pool(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"news__encoder": "packaged:minilm"}, "hashing"),
        (
            {"population__agents": 2, "population__members": [{"entities": ["NSW1", "NSW"]}, {}]},
            "names NSW, but",
        ),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train_days(tiny(**changes), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("uniform-weights", {"weights": pytest.approx([1 / 3] * 3)}),
        ("no-grpo", {"kl": 0.0, "loss_pg": 0.0}),
    ],
)
def test_a_variant_trains_without_what_it_leaves_out(name, recorded, tmp_path):
    train_days(find_variant(name).configure(tiny(run__rounds=2)), tmp_path, days=2, val_days=1)
    last = read_records(tmp_path)[-1]
    assert {key: last[key] for key in recorded} == recorded


def test_a_non_finite_loss_stops_before_the_update_and_names_the_agent(tmp_path):
    original = PopulationModel.head_parameters

    def poisoned(self):
        parameters = original(self)
        parameters[-1].data[1] = float("nan")  # agent 1's head bias
        return parameters

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(NonFiniteLoss, match=r"round 0 for agent\(s\) \[1\]"),
    ):
        patch.setattr(PopulationModel, "head_parameters", poisoned)
        train_days(tiny(), tmp_path)
