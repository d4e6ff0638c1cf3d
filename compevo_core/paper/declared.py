"""What the wing declares in TOML files beside its code: arms, budgets, settings, texts, sweeps."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_declared(name: str) -> dict[str, Any]:
    """Return the content of one of the files, by its name without an ending."""
    file = resources.files("compevo_core.paper") / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
