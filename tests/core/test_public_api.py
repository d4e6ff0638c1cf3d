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
    code = "import sys, compevo_core; print([m for m in ('torch', 'polars') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
