"""A supervised stage trained once for several runs: equal models, and nothing trained twice."""

from pathlib import Path
from typing import Any

import pytest

from compevo_core.config import RunConfig
from compevo_core.experiments.ablation import FULL_METHOD, VARIANTS
from compevo_core.experiments.controls import configure_experiment
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.shared_stages import SharedStages, hash_stage
from compevo_core.training.trainer import train
from tests.support import population as small
from tests.support.population import tiny

IDENTITY = {"config_hash": "c", "data_hash": "d", "news_hash": "n"}
SHARING = [name for name in VARIANTS if name not in (FULL_METHOD, "uniform-weights")]
TRAIN = small.windows("train", 6)
VAL = small.windows("val", 2, first_day=40)
DURATIONS = ("seconds", "eta_seconds", "train_seconds")


def full_method() -> RunConfig:
    return tiny(run__supervised_epochs=1, run__rounds=2, run__validate_every=1, run__seed=3)


def run(config: RunConfig, out: Path, **options: Any) -> dict[str, Any]:
    return train(config, TRAIN, VAL, small.news_pool(), out, clock=lambda: 0.0, **options)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> SharedStages:
    """The stage of the full method, kept as its training went past it."""
    folder = tmp_path_factory.mktemp("stages")
    kept = SharedStages(folder / "kept")
    run(full_method(), folder / "full", stages=kept)
    return kept


@pytest.mark.parametrize("variant", [*SHARING, "fixed-logics"])
def test_a_variant_that_goes_on_from_the_shared_stage_is_the_one_that_trained_it(
    variant: str, stages: SharedStages, tmp_path: Path
) -> None:
    config = configure_experiment(full_method(), variant)
    played: list[int] = []
    alone = run(config, tmp_path / "alone")
    shared = run(
        config,
        tmp_path / "shared",
        stages=stages,
        on_round=lambda record: played.append(record.round),
    )

    assert shared["artifact_hash"] == alone["artifact_hash"]
    records = [RunFolder(tmp_path / name).read_rounds() for name in ("alone", "shared")]
    assert records[0] == records[1]
    # The rounds of the stage are on record, and were not trained again.
    assert [record.round for record in records[1]] == [*range(len(records[1]))]
    assert played == [record.round for record in records[1] if record.stage == "evolution"]


def test_the_best_round_of_a_shared_stage_is_sealed_and_its_end_is_gone_on_from(
    tmp_path: Path,
) -> None:
    # At this rate validation gets worse after the first round.
    config = full_method().with_overrides({"optim.forecast_lr": 1e-2})
    kept = SharedStages(tmp_path / "kept")
    first = run(config, tmp_path / "first", stages=kept)
    second = run(config, tmp_path / "second", stages=kept)
    assert 0 < second["chosen_round"] == first["chosen_round"] < len(TRAIN) // 2
    assert second["artifact_hash"] == first["artifact_hash"]
    assert (
        RunFolder(tmp_path / "second").read_rounds() == RunFolder(tmp_path / "first").read_rounds()
    )


def test_the_run_that_trains_a_stage_is_the_same_without_sharing(
    stages: SharedStages, tmp_path: Path
) -> None:
    alone = run(full_method(), tmp_path / "alone")
    keeping = run(full_method(), tmp_path / "keeping", stages=SharedStages(tmp_path / "kept"))
    again = run(full_method(), tmp_path / "again", stages=stages)
    assert alone["artifact_hash"] == keeping["artifact_hash"] == again["artifact_hash"]


def test_a_run_that_went_on_from_a_shared_stage_resumes_from_its_own_folder(
    stages: SharedStages, tmp_path: Path
) -> None:
    config = configure_experiment(full_method(), "no-grpo")

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", stages=stages, on_round=stop)
    resumed = run(config, tmp_path / "run")
    assert resumed["artifact_hash"] == run(config, tmp_path / "alone")["artifact_hash"]


@pytest.mark.parametrize(
    "change",
    [
        {"run.seed": 4},
        {"selection.uniform": True},
        {"objective.lambda_own": 0.5},
        {"optim.forecast_lr": 2e-3},
        {"run.rounds": 3},
        {"evolution.form": "slots"},
    ],
)
def test_what_acts_in_the_stage_makes_it_another(change: dict[str, object]) -> None:
    config = full_method()
    assert hash_stage(config.with_overrides(change), IDENTITY) != hash_stage(config, IDENTITY)


def test_other_windows_or_articles_make_it_another_and_the_name_of_the_run_does_not() -> None:
    config = full_method()

    def key(other: dict[str, str]) -> str:
        return hash_stage(config, IDENTITY | other)

    assert key({"config_hash": "x"}) == key({})
    assert len({key({}), key({"data_hash": "x"}), key({"news_hash": "x"})}) == 3
