"""The names that the package promises exist, and importing it loads nothing heavy."""

import subprocess
import sys

import pytest

import compevo_core


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Forecasters'"):
        _ = compevo_core.Forecasters


def test_importing_the_package_loads_neither_torch_nor_polars():
    assert find_imported("import compevo_core", ("torch", "polars")) == "[]"


_HEAVY = (
    *("torch", "transformers", "peft", "sympy", "scipy", "sklearn", "lightgbm", "statsmodels"),
    *("pandas", "pyarrow", "matplotlib", "jinja2"),
)


def test_the_forecaster_imports_no_heavy_library():
    assert find_imported("from compevo_core import CompEvoForecaster", _HEAVY) == "[]"


def test_a_ridges_first_forecast_loads_nothing_heavy():
    statement = """
import polars as pl
from datetime import datetime, timedelta
from compevo_core import Forecaster
hours = [datetime(2026, 1, 1) + timedelta(hours=i) for i in range(24 * 40)]
table = pl.DataFrame({"ds": hours, "y": [float(hour.hour) for hour in hours]})
Forecaster("calendar-ridge", horizon=24, lookback=48).fit(table).predict()"""
    assert find_imported(statement, _HEAVY) == "[]"


def find_imported(statement, names):
    code = f"{statement}\nimport sys; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
