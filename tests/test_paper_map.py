"""The paper map names what exists, and leaves out no equation and no default."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from compevo_core.config.run import RunConfig

REPO = Path(__file__).resolve().parents[1]
# As the paper's source typesets them: 1 to 18 in the text, 19 to 52 in appendix B, 53 and 54 in C,
# 55 in E.8.
EQUATIONS = set(range(1, 56))
PROOF_ONLY = set(range(26, 48)) | {49, 50}
# Table "Main implementation hyperparameters" but the folds, and the values that sections 5.7 and E
# settle.
SETTINGS = {
    "population.agents",
    "population.rank",
    "population.alpha",
    "population.dropout",
    "grpo.group_size",
    "grpo.kl_coefficient",
    "grpo.clip_range",
    "optim.policy_lr",
    "optim.forecast_lr",
    "optim.warmup_ratio",
    "backbone.context_length",
    "selection.temperature",
    "objective.lambda_pg",
    "objective.lambda_div",
    "objective.lambda_prune",
    "evolution.temperature",
    "selection.ema",
    "run.epochs",
}
CODE = re.compile(r"`((?:[\w/]+/)?\w+\.py)(?::([\w.]+))?`")
TEST = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")


def paper_map() -> str:
    return (REPO / "docs" / "paper-map.md").read_text(encoding="utf-8")


def rows(table: str) -> list[list[str]]:
    """Cells of one table, without its head."""
    text = paper_map().split(f"## {table}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, methods and class fields a file defines, dotted."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef)
            }
    return frozenset(found)


def located(name: str, home: str) -> Path:
    """A file as the map names it: below ``home``, or from the root where a top folder is named."""
    inside = REPO / home / name
    return inside if inside.exists() else REPO / name


def missing_code(text: str) -> list[str]:
    named = [
        (file, name) for file, name in CODE.findall(text) if not Path(file).name.startswith("test_")
    ]
    return [
        f"{file}:{name}"
        for file, name in named
        if not located(file, "compevo_core").is_file()
        or (name and name not in names_in(located(file, "compevo_core")))
    ]


def missing_tests(text: str) -> list[str]:
    return [
        f"{file}::{name}"
        for file, name in TEST.findall(text)
        if not located(file, "tests/core").is_file()
        or name not in names_in(located(file, "tests/core"))
    ]


def numbers(cell: str) -> set[int]:
    """``16, 54`` and ``26-37`` as numbers."""
    spans = [part.strip().split("-") for part in cell.split(",")]
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


def test_every_file_function_and_class_of_the_map_exists():
    assert len(CODE.findall(paper_map())) > 50
    assert missing_code(paper_map()) == []


def test_every_test_of_the_map_exists():
    assert len(TEST.findall(paper_map())) > 50
    assert missing_tests(paper_map()) == []


@pytest.mark.parametrize(
    "text", ["`selection.py:rewards`", "`choice.py`", "`selection.py:FitnessSelection.weight`"]
)
def test_a_wrong_name_of_code_would_be_found(text):
    assert len(missing_code(text)) == 1


@pytest.mark.parametrize(
    "text", ["`test_grpo.py::test_nothing`", "`test_nowhere.py::test_nothing`"]
)
def test_a_wrong_name_of_a_test_would_be_found(text):
    assert len(missing_tests(text)) == 1


def test_every_equation_of_the_paper_has_one_row():
    listed = [n for row in rows("Equations") for n in sorted(numbers(row[0]))]
    assert sorted(listed) == sorted(EQUATIONS)


def test_only_equations_of_proofs_have_neither_code_nor_test():
    for number, _, here, test, remark in rows("Equations"):
        if numbers(number) <= PROOF_ONLY:
            assert (here, test) == ("none", "none")
            assert remark
        else:
            assert CODE.search(here), number
            assert TEST.search(test), number


def test_every_step_template_and_theorem_names_code_and_a_test():
    for table in ("Steps of a round", "Templates", "Theorems, tables and figures"):
        for row in rows(table):
            assert CODE.search(" ".join(row)), row[0]
            assert TEST.search(" ".join(row)), row[0]


def test_the_hyperparameter_table_holds_every_value_of_the_paper_and_equals_the_defaults():
    defaults, seen = RunConfig().to_dict(), set()
    for name, value, setting, _, _ in rows("Hyperparameters"):
        section, key = setting.strip("`").split(".")
        assert defaults[section][key] == float(value), name
        seen.add(f"{section}.{key}")
    assert seen >= SETTINGS
