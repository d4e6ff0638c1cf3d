"""The names that the package promises exist, and importing it loads nothing heavy."""

import subprocess
import sys

import pytest

import compevo_core


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Forecasters'"):
        _ = compevo_core.Forecasters


HEAVY = "torch transformers peft sympy scipy sklearn lightgbm statsmodels pandas pyarrow"
HEAVY += " matplotlib jinja2"
FIRST_FORECAST = """
import polars as pl
from datetime import datetime, timedelta
from compevo_core import Forecaster
hours = [datetime(2026, 1, 1) + timedelta(hours=i) for i in range(24 * 40)]
table = pl.DataFrame({"ds": hours, "y": [float(hour.hour) for hour in hours]})
Forecaster("calendar-ridge", horizon=24, lookback=48).fit(table).predict()"""


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import compevo_core", "torch polars"),
        ("from compevo_core import CompEvoForecaster", HEAVY),
        (FIRST_FORECAST, HEAVY),
    ],
)
def test_the_package_loads_nothing_heavy(statement, heavy):
    code = f"{statement}\nimport sys; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
