"""Cross-validation on the folds of train: every fold is trained and measured, and summed up."""

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import build_folds, choose_validation
from compevo_core.data.window import WindowSet
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.folds import FOLD_SCHEMA, FOLDS_FILE, train_folds
from compevo_core.training.run_folder import RunFolder
from tests.support.population import news_pool, tiny, windows
from tests.support.window_samples import place_in_folds

# The shortest training that there is: what a fold's training does is the trainer's own business.
CONFIG = tiny(
    population__agents=2,
    evolution__every=0,
    news__top_k=0,
    run__rounds=1,
    run__validate_every=1,
    run__validation_windows=1,
    run__fixed_logics=0,
)


@pytest.fixture(scope="module")
def folded():
    return place_in_folds(
        WindowSet(
            [
                *windows("train", 18, entities=("NSW1",)),
                *windows("test", 2, first_day=40, entities=("NSW1",)),
            ],
            dataset="electricity",
        )
    )


@pytest.fixture(scope="module")
def trained(folded, tmp_path_factory):
    out = tmp_path_factory.mktemp("folds")
    return out, train_folds(CONFIG, folded, news_pool(), out, commit="abc")


def test_every_fold_is_trained_in_its_folder_and_has_a_row_of_population_and_prior(folded, trained):
    out, rows = trained
    numbers = [str(k) for k in range(len(build_folds(folded)))]
    assert len(numbers) == 5 and all(RunFolder(out / f"fold_{k}").is_finished for k in numbers)

    assert rows.schema == pl.Schema(FOLD_SCHEMA)
    order = [(fold, method) for fold in numbers for method in ("compevo", "prior")]
    order += [(name, method) for method in ("compevo", "prior") for name in ("mean", "sd")]
    assert rows.select("fold", "method").rows() == order
    assert pl.read_csv(out / FOLDS_FILE, infer_schema=False).height == rows.height
    assert set(rows["commit"]) == {"abc"} and set(rows["config_hash"]) == {CONFIG.hash}


def test_errors_are_those_of_the_sealed_model_on_the_folds_own_windows(folded, trained):
    out, rows = trained
    for number, (train, validation) in enumerate(build_folds(folded)):
        scaler = Scaler.fit(train)
        scale_N1 = np.array([[scaler.std[view.entity]] for view in validation.views()])
        forecasts = {
            "compevo": CompEvoForecaster.load(out / f"fold_{number}", news_pool()),
            "prior": fit_baseline("persistence", train),
        }
        for method, forecaster in forecasts.items():
            row = rows.row(
                by_predicate=(pl.col("fold") == str(number)) & (pl.col("method") == method),
                named=True,
            )
            error_NH = forecaster.predict(validation.views()) - validation.truth()
            assert row["mae"] == pytest.approx(np.abs(error_NH).mean(), rel=1e-4)
            assert row["rmse_scaled"] == pytest.approx(
                np.sqrt(((error_NH / scale_N1) ** 2).mean()), rel=1e-4
            )
            assert (row["n_train"], row["n_validation"]) == (len(train), len(validation))


def test_finished_folds_are_not_trained_again(folded, trained):
    out, rows = trained
    calls = []
    again = train_folds(
        CONFIG,
        folded,
        news_pool(),
        out,
        on_round=lambda fold, record: calls.append(fold),
        commit="abc",
    )
    assert again.equals(rows) and calls == []


def test_the_last_fold_can_stand_in_for_the_validation_split(folded):
    train, validation = choose_validation(folded, last_fold=True)
    expected_train, expected_validation = build_folds(folded)[-1]
    assert (train.hash, validation.hash) == (expected_train.hash, expected_validation.hash)
    assert {view.split for view in validation.views()} == {"val"}
    splits = choose_validation(folded, last_fold=False)
    assert [len(part) for part in splits] == [len(folded.split("train")), 0]
