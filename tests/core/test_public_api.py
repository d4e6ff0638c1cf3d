"""The names that the package promises exist, and importing it loads nothing heavy."""

import subprocess
import sys

import pytest

import compevo_core


@pytest.mark.parametrize("name", compevo_core.__all__)
def test_every_public_name_exists(name):
    assert getattr(compevo_core, name) is not None


def test_public_names_are_documented():
    undocumented = [
        name
        for name in compevo_core.__all__
        if callable(value := getattr(compevo_core, name)) and not value.__doc__
    ]
    assert undocumented == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Forecasters'"):
        _ = compevo_core.Forecasters


def test_importing_the_package_loads_neither_torch_nor_polars():
    assert find_imported("import compevo_core", ("torch", "polars")) == "[]"


def test_the_forecaster_is_imported_without_what_only_a_language_model_or_trees_need():
    heavy = ("transformers", "torch._dynamo", "sympy", "scipy", "lightgbm", "pandas", "peft")
    assert find_imported("from compevo_core import CompEvoForecaster", heavy) == "[]"


def find_imported(statement: str, names: tuple[str, ...]) -> str:
    code = f"import sys; {statement}; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
