"""Pairing of stored forecasts: the same windows, one budget a method, the mean over seeds."""

import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.pairing import list_files, pair_stored
from compevo_core.evaluation.scopes import Scope, one_seed, write_forecasts
from tests.support.population import windows as make_windows

SCOPE = Scope(subset="test", windows=make_windows("test", 20))
OTHER = Scope(subset="later", windows=make_windows("test", 15, first_day=60))
TRUTH = SCOPE.windows.truth()


def store(folder, name, by_method, scope=SCOPE):
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.parquet"
    write_forecasts(path, [(scope, one_seed(by_method))])
    return path


def test_a_method_is_paired_with_every_stored_one_by_its_mean_over_seeds(tmp_path):
    runs = [
        store(tmp_path, f"run-{i}", {"compevo": TRUTH + shift})
        for i, shift in enumerate((2.0, 4.0))
    ]
    stored = tmp_path / "benchmark"
    store(stored, "dlinear-standard-seed0", {"dlinear": TRUTH + 5.0})
    store(stored, "dlinear-standard-seed1", {"dlinear": TRUTH + 9.0, "dlinear-recalibrated": TRUTH})
    tests = {
        test["method_b"]: test for test in pair_stored([SCOPE], runs, stored, "compevo").to_dicts()
    }
    assert set(tests) == {"dlinear", "dlinear-recalibrated"}
    assert tests["dlinear"]["mean_difference"] == pytest.approx(3.0 - 7.0)
    assert tests["dlinear"]["n"] == len(SCOPE.windows)


def test_of_two_budgets_the_usual_one_is_paired(tmp_path):
    budgets = ("quick", "small", "standard")
    for name in (*(f"film-{one}-seed0" for one in budgets), "film-standard-seed1", "theta-seed0"):
        store(tmp_path, name, {"film": TRUTH})
    (tmp_path / "notes.parquet").write_bytes(b"")
    names = [path.stem for path in list_files(tmp_path)]
    assert names == ["film-standard-seed0", "film-standard-seed1", "theta-seed0"]


def test_a_stored_method_is_paired_once_more_under_the_budget_that_others_had_too(tmp_path):
    run = store(tmp_path, "run", {"compevo": TRUTH + 1.0})
    stored = tmp_path / "benchmark"
    store(stored, "compevo-small-seed0", {"compevo": TRUTH + 3.0})
    store(stored, "mael-small-seed0", {"mael": TRUTH + 5.0})
    store(stored, "film-tuned-seed0", {"film": TRUTH + 2.0})
    store(stored, "theta-seed0", {"theta": TRUTH + 9.0})

    tests = pair_stored([SCOPE], [run], stored, "compevo")
    found = {(row["budget"], row["method_b"]): row["mean_difference"] for row in tests.to_dicts()}
    # FiLM had another budget than the stored training; Theta spends nothing.
    assert found == {
        (None, "mael"): pytest.approx(-4.0),
        (None, "film"): pytest.approx(-1.0),
        (None, "theta"): pytest.approx(-8.0),
        ("small", "mael"): pytest.approx(-2.0),
        ("small", "theta"): pytest.approx(-6.0),
    }


def test_a_pretrained_model_that_is_called_small_spends_no_budget(tmp_path):
    name = "zero-shot-chronos-bolt-small"
    store(tmp_path, f"{name}-seed0", {name: TRUTH + 5.0})
    store(tmp_path, "compevo-tuned-seed0", {"compevo": TRUTH + 3.0})
    (test,) = pair_stored([SCOPE], [], tmp_path, "compevo").to_dicts()
    assert (test["budget"], test["method_b"]) == ("tuned", name)
    assert pair_stored([SCOPE], [], tmp_path, name).height == 0


def test_without_a_run_of_its_own_a_method_is_paired_as_the_benchmark_trained_it(tmp_path):
    stored = tmp_path / "benchmark"
    store(stored, "mael-small-seed0", {"mael": TRUTH + 5.0})
    with pytest.raises(DataError, match=r"no run of compevo.*benchmark --methods compevo"):
        pair_stored([SCOPE], [], stored, "compevo")

    store(stored, "compevo-small-seed0", {"compevo": TRUTH + 3.0})
    (test,) = pair_stored([SCOPE], [], stored, "compevo").to_dicts()
    assert (test["budget"], test["method_b"], test["mean_difference"]) == ("small", "mael", -2.0)


def test_a_scope_that_a_method_cannot_answer_has_no_pair_of_it(tmp_path):
    path = tmp_path / "run.parquet"
    write_forecasts(
        path, [(SCOPE, {"compevo": [TRUTH]}), (OTHER, {"compevo": [OTHER.windows.truth()]})]
    )
    stored = tmp_path / "benchmark"
    store(stored, "film-standard-seed0", {"film": TRUTH + 1.0})
    tests = pair_stored([SCOPE, OTHER], [path], stored, "compevo")
    assert tests["subset"].to_list() == ["test"]


def test_without_forecasts_the_command_that_makes_them_is_named(tmp_path):
    run = store(tmp_path, "run", {"other": TRUTH})
    with pytest.raises(DataError, match="compevo benchmark"):
        pair_stored([SCOPE], [run], tmp_path / "none", "compevo")
    store(tmp_path / "benchmark", "film-seed0", {"film": TRUTH})
    with pytest.raises(DataError, match="0 of 1 runs have forecasts of compevo"):
        pair_stored([SCOPE], [run], tmp_path / "benchmark", "compevo")
