"""Names and numbers as readers see them."""

import math

import pytest

from compevo_core.report import tables


@pytest.mark.parametrize(
    ("metric", "values", "shown"),
    [
        ("mae", [1234.5, 20.04], ["1,234.5", "20.0"]),
        ("mae", [0.0312, 0.004], ["0.03120", "0.00400"]),
        ("mae", [5.125, None], ["5.125", "n/a"]),
        ("mape_pct", [12.3456, math.inf], ["12.35", "n/a"]),
        ("mase", [1.0], ["1.000"]),
        ("mase", [-0.0001], ["0.000"]),
    ],
)
def test_numbers_of_a_column_have_equal_decimals(metric, values, shown):
    assert tables.format_column(metric, values) == shown


def test_a_month_of_inference_is_named_by_its_month():
    names = [
        tables.scope_name("electricity", subset)
        for subset in ("inference-2026-02", "inference-2026-100", "operational-2026-200")
    ]
    assert names == [
        "Electricity, inference split, February 2026",
        "Electricity, leakage check, Feb-Mar 2026",
        "Electricity, operational demand, Feb-Mar 2026, known to midnight",
    ]
    assert tables.scope_name("own", "summer-2026-13") == "Own, summer-2026-13"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (12345, "12,345"),
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (-123.45, "-123.5"),
        (1.005, "1.00"),
        (0.03, "0.0300"),
        (0.0003, "3.00e-04"),
    ],
)
def test_a_number_has_decimals_that_fit_its_size(value, shown):
    assert tables.format_number(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"), [(-0.0002, "0.0 %"), (-0.002, "-0.2 %"), (None, "n/a")]
)
def test_a_share_that_rounds_to_zero_has_no_sign(share, shown):
    assert tables.format_percent(share) == shown
