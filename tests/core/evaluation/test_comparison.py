"""Methods are compared window by window, and variants with the full method seed by seed."""

from datetime import date

import numpy as np
import polars as pl
import pytest
from scipy import stats

from benchmarks.intervals import measure_coverage
from compevo_core.data.build import build_windows
from compevo_core.data.datasets import ELECTRICITY, ELECTRICITY_OPERATIONAL
from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation import scopes
from compevo_core.evaluation.comparison import (
    PAIRED_TEST_SCHEMA,
    choose_block_days,
    compare_methods,
    measure_interval,
    paired_test,
)
from compevo_core.paper.trials import compare_with_reference, pair_stored
from tests.support import window_samples as samples
from tests.support.population import windows as make_windows

SCOPE = scopes.Scope(subset="first", windows=make_windows("test", 12))
TRUTH_NH = SCOPE.windows.truth()


def test_errors_are_averaged_over_seeds_before_pairing():
    # By single seeds the differences would be 1 and 7; forecasts averaged first would have none.
    forecasts = {"compevo": [TRUTH_NH + 2, TRUTH_NH - 2], "no-grpo": [TRUTH_NH + 3, TRUTH_NH - 9]}
    seeds = {"compevo": [0, 3], "no-grpo": [3, 0]}
    (test,) = compare_with_reference(SCOPE, forecasts, "compevo", seeds)
    assert list(test) == list(PAIRED_TEST_SCHEMA)
    assert (test["method_a"], test["method_b"]) == ("no-grpo", "compevo")
    assert test["n"] == len(SCOPE.windows), "a window counts once, however many seeds there are"
    assert test["mean_difference"] == pytest.approx(4.0)
    assert test["rank_sign"] == 1 and test["p_two_sided"] < 0.01 < 0.99 < test["p_value"]
    assert (test["seeds"], test["sd_between_seeds"]) == ("0 3", 0.0)


@pytest.mark.parametrize("other", [[0], [0, 2]])
def test_a_variant_is_compared_over_equal_seeds(other):
    forecasts = {"compevo": [TRUTH_NH + 2, TRUTH_NH + 4], "no-news": [TRUTH_NH] * len(other)}
    with pytest.raises(DataError, match=r"no-news .*\[0, 1\]"):
        compare_with_reference(SCOPE, forecasts, "compevo", {"compevo": [0, 1], "no-news": other})


@pytest.mark.parametrize(("seeds", "spread"), [([1], None), ([0, 1], pytest.approx(2**0.5))])
def test_training_deviation_needs_two_references(seeds, spread):
    forecasts = {"compevo": [TRUTH_NH + 2, TRUTH_NH + 4], "no-news": [TRUTH_NH] * 2}
    chosen = {name: of_seeds[: len(seeds)] for name, of_seeds in forecasts.items()}
    (test,) = compare_with_reference(SCOPE, chosen, "compevo", dict.fromkeys(chosen, seeds))
    assert (test["seeds"], test["sd_between_seeds"]) == (" ".join(map(str, seeds)), spread)


def test_few_overlapping_spans_give_only_a_difference():
    # 200 windows of 48 days: a block of four horizons and a piece of the next.
    half_hourly = make_windows("test", 200, entities=("NSW1",))
    daily = samples.change_views(half_hourly, lambda _: {"step_minutes": 24 * 60})
    scope = scopes.Scope(subset="test", windows=daily)
    truth_NH = scope.windows.truth()
    by_block = np.repeat([1.0, 3.0], [4 * DEFAULT_STEPS, 8])

    forecasts = {"a": [truth_NH], "b": [truth_NH + by_block[:, None]]}
    (test,) = compare_methods(scope, forecasts, "a")

    assert (test["n"], test["n_blocks"], test["block_days"]) == (200, 2, 4 * DEFAULT_STEPS)
    # The mean of windows, as in a table of errors: the short block does not weigh as the long one.
    assert test["mean_difference"] == pytest.approx(-(192 * 1.0 + 8 * 3.0) / 200)
    unknown = ("p_value", "p_two_sided", "rank_sign", "interval_low", "interval_high")
    assert [test[name] for name in unknown] == [None] * 5


def test_series_of_a_day_count_once():
    rng = np.random.default_rng(0)
    by_day = np.repeat(rng.normal(0.3, 1.0, 12), 2)
    of_all = {"a": [TRUTH_NH + 5], "b": [TRUTH_NH + 5 + by_day[:, None]]}
    of_one = scopes.Scope(subset="test", windows=make_windows("test", 12, entities=("NSW1",)))
    one_NH = of_one.windows.truth()
    by_window = {"a": [one_NH + 5], "b": [one_NH + 5 + by_day[::2, None]]}

    (both,) = compare_methods(SCOPE, of_all, "a")
    (single,) = compare_methods(of_one, by_window, "a")

    assert (both["n"], single["n"], both["n_blocks"], single["n_blocks"]) == (24, 12, 12, 12)
    # A second series that errs alike says nothing new.
    for name in ("mean_difference", "p_two_sided", "interval_low", "interval_high"):
        assert both[name] == pytest.approx(single[name])


def test_exact_p_values_equal_those_of_scipy():
    sides, exact = ("less", "two-sided"), stats.PermutationMethod()
    for difference in ([1.0, -1.0, 2.0, 0.0], [-3.0, -3.0, 1.0, -2.0], [0.0, 0.0, 5.0]):
        *p_values, sign = paired_test(np.array(difference), np.zeros(len(difference))).values()
        one, both = (stats.wilcoxon(difference, alternative=side, method=exact) for side in sides)
        assert p_values == [one.pvalue, both.pvalue]
        n = np.count_nonzero(difference)
        assert sign == np.sign(one.statistic - n * (n + 1) / 4)


def test_blocks_of_independent_days_give_students_t():
    errors, days = np.random.default_rng(0).exponential(100, 200), np.arange(200)
    expected = stats.t.interval(0.95, 199, errors.mean(), stats.sem(errors))
    assert measure_interval(errors, 10 * days, days) == pytest.approx(expected, rel=1e-12)
    # Two blocks leave one degree of freedom.
    assert np.ptp(measure_interval(errors, 10 * days, days // 100)) > 2 * np.ptp(expected)


@pytest.mark.parametrize(("days", "length"), [(12, 1), (100, 5), (365, 14)])
def test_a_block_is_two_weeks_where_possible(days, length):
    views = make_windows("test", days, entities=("NSW1",)).views()
    assert choose_block_days(views) == length


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_the_interval_holds_the_mean_as_promised(correlation):
    coverage = measure_coverage(days=100, correlation=correlation, block_days=5, runs=600)
    # Of 600 the share has a standard error of 0.9 points; by single days it would be 65 % at 0.6.
    assert 0.93 <= coverage <= 0.975


PAIRING_SCOPE = scopes.Scope(subset="test", windows=make_windows("test", 20))
OTHER = scopes.Scope(subset="later", windows=make_windows("test", 15, first_day=60))
TRUTH = PAIRING_SCOPE.windows.truth()
BOLT = "zero-shot-chronos-bolt-small"


def store(folder, name, by_method, scope=PAIRING_SCOPE):
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.parquet"
    scopes.write_forecasts(path, [(scope, {name: [values] for name, values in by_method.items()})])
    return path


def test_of_two_budgets_the_usual_one_is_paired(tmp_path):
    budgets = ("quick", "small", "standard")
    for name in (*(f"film-{one}-seed0" for one in budgets), "film-standard-seed1"):
        store(tmp_path, name, {name.split("-")[0]: TRUTH})
    store(tmp_path, "theta-seed0", {"theta": TRUTH, "theta-recalibrated": TRUTH})
    (tmp_path / "notes.parquet").write_bytes(b"")
    run = store(tmp_path / "runs", "run", {"compevo": TRUTH})

    tests = pair_stored([PAIRING_SCOPE], [run], tmp_path, "compevo")

    seeds = dict(tests.select("method_b", "seeds_b").iter_rows())
    assert seeds == {"film": 2, "theta": 1, "theta-recalibrated": 1}


@pytest.mark.parametrize(
    ("own", "stored", "expected"),
    [
        # FiLM had another budget than the stored training; Theta spends nothing.
        (
            1.0,
            {"compevo-small": 3.0, "mael-small": 5.0, "film-tuned": 2.0, "theta": 9.0},
            {(None, "mael"): -4.0, (None, "film"): -1.0, (None, "theta"): -8.0}
            | {("small", "mael"): -2.0, ("small", "theta"): -6.0},
        ),
        # Without a run of its own a method is paired as the benchmark trained it.
        (None, {"compevo-small": 3.0, "mael-small": 5.0}, {("small", "mael"): -2.0}),
        # A pretrained model that is called small spends no budget.
        (None, {"compevo-tuned": 3.0, BOLT: 5.0}, {("tuned", BOLT): -2.0}),
    ],
)
def test_a_stored_method_is_paired_under_shared_budgets(own, stored, expected, tmp_path):
    runs = [] if own is None else [store(tmp_path, "run", {"compevo": TRUTH + own})]
    folder = tmp_path / "benchmark"
    for name, shift in stored.items():
        method = name if name == BOLT else name.split("-")[0]
        store(folder, f"{name}-seed0", {method: TRUTH + shift})
    tests = pair_stored([PAIRING_SCOPE], runs, folder, "compevo")
    found = {(row["budget"], row["method_b"]): row["mean_difference"] for row in tests.to_dicts()}
    assert found == pytest.approx(expected) and tests.height == len(expected)
    assert BOLT not in stored or pair_stored([PAIRING_SCOPE], [], folder, BOLT).height == 0


def test_an_unanswerable_scope_has_no_pair(tmp_path):
    path, elsewhere = tmp_path / "run.parquet", {"compevo": [OTHER.windows.truth()]}
    scopes.write_forecasts(path, [(PAIRING_SCOPE, {"compevo": [TRUTH]}), (OTHER, elsewhere)])
    stored = tmp_path / "benchmark"
    store(stored, "film-standard-seed0", {"film": TRUTH + 1.0})
    tests = pair_stored([PAIRING_SCOPE, OTHER], [path], stored, "compevo")
    assert tests["subset"].to_list() == ["test"]


def test_without_forecasts_the_making_command_is_named(tmp_path):
    run = store(tmp_path, "run", {"other": TRUTH})
    with pytest.raises(DataError, match="compevo paper benchmark"):
        pair_stored([PAIRING_SCOPE], [run], tmp_path / "none", "compevo")
    store(tmp_path / "benchmark", "film-seed0", {"film": TRUTH})
    with pytest.raises(DataError, match="0 of 1 runs"):
        pair_stored([PAIRING_SCOPE], [run], tmp_path / "benchmark", "compevo")
    with pytest.raises(DataError, match=r"benchmark --methods compevo"):
        pair_stored([PAIRING_SCOPE], [], tmp_path / "benchmark", "compevo")


OPERATIONAL = "AEMO/OPERATIONAL_DEMAND/NSW1"


def make_test_windows(days=4, subset="aemo-2021"):
    return samples.change_views(make_windows("test", days), lambda _: {"subsets": (subset,)})


def test_scopes_are_named_subsets_whole_or_thinned():
    assert [s.subset for s in scopes.select_test_scopes(make_test_windows())] == ["aemo-2021"]
    unnamed = make_test_windows(subset="other")
    assert [s.subset for s in scopes.select_test_scopes(unnamed)] == ["test"]
    with pytest.raises(DataError, match="no test window"):
        scopes.select_test_scopes(samples.make_set([]))

    scope = scopes.thin_windows(make_test_windows(), "aemo-2021", 2)
    assert scope.subset == "aemo-2021-every-2"
    ids = [f"test-{name}" for name in ("NSW1-0", "SA1-0", "NSW1-2", "SA1-2")]
    assert [view.window_id for view in scope.windows.views()] == ids
    assert scopes.thin_windows(make_test_windows(), "aemo-2021", 1).subset == "aemo-2021"
    with pytest.raises(ConfigError):
        scopes.thin_windows(make_test_windows(), "aemo-2021", 0)

    held_out = make_test_windows(1)[0].change_view(window_id="v", split="val")
    with_val = samples.make_set([*make_test_windows(), held_out])
    (test,), (val,) = scopes.select_scopes(with_val), scopes.select_scopes(with_val, split="val")
    (thinned,) = scopes.select_scopes(with_val, subset="aemo-2021", every=2)
    assert [test.subset, val.subset, thinned.subset] == ["aemo-2021", "val", scope.subset]
    assert [view.window_id for view in val.windows.views()] == ["v"]


def test_forecasts_return_in_the_asked_window_order(tmp_path):
    whole = scopes.thin_windows(make_test_windows(), "aemo-2021", 1)
    values = np.arange(8)[:, None] * np.ones((8, 48))
    of_seeds = {"gbm": [values, values + 1], "persistence": [-values]}
    path = tmp_path / "f.parquet"
    scopes.write_forecasts(path, [(whole, of_seeds)])
    # Rows of a file are in any order.
    rows = pl.read_parquet(path).sort("window_id", descending=True, maintain_order=True)
    rows.write_parquet(path)

    stored = scopes.read_forecasts(path, whole)

    assert np.array_equal(stored["gbm"], [values, values + 1])
    assert np.array_equal(stored["persistence"], [-values])
    with pytest.raises(DataError, match="same settings"):
        scopes.read_forecasts(path, scopes.thin_windows(make_test_windows(), "aemo-2021", 2))

    few = scopes.thin_windows(make_test_windows(2), "aemo-2021", 1)
    scopes.write_forecasts(path, [(few, {"gbm": [np.ones((4, 48))]})])
    with pytest.raises(DataError, match="lacks 4 window"):
        scopes.read_forecasts(path, whole)
    with pytest.raises(DataError, match="evaluation/baselines"):
        scopes.read_forecasts(tmp_path / "none.parquet", whole)


def test_views_of_less_knowledge_are_own_scopes():
    first = samples.from_nem(2026, 1, 5)
    series = samples.make_series(samples.make_daily_values(8), first=first, series_id=OPERATIONAL)
    windows = build_windows(ELECTRICITY_OPERATIONAL, series)

    for split in ("val", "test", "inference"):
        placed = samples.change_views(windows, lambda _, split=split: {"split": split})
        midnight, five = scopes.select_scopes(placed, split=split)
        # The ending is that of the subsets of the test split.
        assert (midnight.subset, five.subset) == (split, f"{split}-known-1700")
        assert len(midnight.windows) + len(five.windows) == len(placed)
        for scope, unknown in ((midnight, 0), (five, 14)):
            assert {view.unknown_steps for view in scope.windows.views()} == {unknown}
            # A population in daily use lives through all days once, for both.
            assert scope.days.hash == placed.hash


def build_until(last_day):
    """Windows of operational demand from 18 February 2026 up to a day."""
    days = (last_day - date(2026, 2, 18)).days + 1
    values = samples.make_daily_values(100, 5)[: 48 * days]
    series = samples.make_series(values, first=samples.from_nem(2026, 2, 18), series_id=OPERATIONAL)
    return build_windows(ELECTRICITY, series)


def test_a_later_month_changes_no_earlier_window():
    before, after = build_until(date(2026, 3, 30)), build_until(date(2026, 5, 2))
    names = [scope.subset for scope in scopes.select_month_scopes(before)]
    assert names == ["inference-2026-02", "inference-2026-03"]

    months = {scope.subset: scope.windows for scope in scopes.select_month_scopes(after)}
    days = {name.removeprefix("inference-2026-"): len(of) for name, of in months.items()}
    assert days == {"02": 10, "03": 31, "04": 30, "05": 2}
    for name in ("inference-2026-100", "inference-2026-200"):
        assert after.subset(name).hash == before.subset(name).hash
    february = scopes.select_month_scopes(before)[0]
    assert months["inference-2026-02"].hash == february.windows.hash
    thinned, *_ = scopes.select_month_scopes(after, every=2)
    assert thinned.subset == "inference-2026-02-every-2"
