"""A table says what its comparisons cannot tell."""

from compevo_core.report.paper.cells import describe_tests, pair_cells
from compevo_core.report.paper.scores import Score

TEST = {
    "method_a": "compevo",
    "method_b": "gbm",
    "n_blocks": 92,
    "mean_difference": -2.0,
    "p_two_sided": 0.03,
    "interval_low": -3.5,
    "interval_high": -0.5,
    "seeds_a": 3,
    "seeds_b": 5,
}
FEW = {"n_blocks": 3, "p_two_sided": None, "interval_low": None, "interval_high": None}


def score(seeds):
    return Score({}, {}, seeds, 449, "MW", {})


def describe(*tests, **scores):
    return " ".join(describe_tests(tests, {name: score(n) for name, n in scores.items()}))


def test_a_comparison_of_many_days_says_how_many_and_how_it_was_tested():
    notes = describe(TEST, gbm=5)
    assert notes == "Blocks of days: 92."
    assert pair_cells(TEST) == ["-2.00", "-3.50 to -0.5000", "0.0300"]


def test_too_few_days_are_said_to_be_too_few():
    few = TEST | FEW
    notes = describe(few, gbm=5)
    assert "n/a: 10 blocks of days" in notes
    assert pair_cells(few) == ["-2.00", "n/a", "n/a"]


def test_a_p_that_took_windows_of_a_day_for_independent_is_named():
    assert "too small" in describe(TEST | {"n_blocks": None}, gbm=5)


def test_a_method_paired_with_fewer_trainings_than_its_error_has_is_named():
    notes = describe(TEST | {"seeds_b": 1}, gbm=5)
    assert notes.endswith("Paired with the first training alone: Boosted trees.")
    varied = TEST | {"method_a": "no-grpo", "seeds_a": 1}
    assert describe_tests([varied], {"no-grpo": score(2)}, side="method_a")[-1].endswith("No GRPO.")


def test_without_comparisons_there_is_nothing_to_say():
    assert describe_tests([], {}) == []
