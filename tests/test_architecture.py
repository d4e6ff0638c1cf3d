"""The shape of the code: imports go one way, files and functions stay short, the edges stay at the edge."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
CORE, PIPELINE = "compevo_core", "compevo_pipeline"
LONGEST_FILE, LONGEST_FUNCTION = 400, 80
LAYERS = (
    ("errors", "config", "metrics"),
    ("series",),
    ("news",),
    ("windows", "leakage"),
    ("backbone", "encoder", "prompts", "decoding", "baselines"),
    ("population",),
    ("strategy", "selection", "evolution", "grpo", "objective"),
    ("trainer",),
    ("forecaster",),
    ("evaluation", "experiments"),
    ("report",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
NETWORK = {"requests", "httpx", "socket", "urllib.request", "http.client"}
FORBIDDEN_IN_CORE = {"dagster", "duckdb", "great_expectations", PIPELINE} | NETWORK
MAY_READ_ENVIRONMENT = {f"{CORE}/cli.py", f"{PIPELINE}/settings.py"}
MAY_PRINT = {f"{CORE}/cli.py", f"{PIPELINE}/run_demo.py"}


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (REPO / package).rglob("*.py"))


ALL = sources(CORE, PIPELINE)


def name_of(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Dotted names a file imports anywhere in it, also inside functions."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: write the import in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unit_of(dotted: str) -> str | None:
    """The part of the core a dotted name belongs to: a module, or a sub-package as a whole."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == CORE and len(parts) > 1 else None


@cache
def core_graph() -> dict[str, frozenset[str]]:
    """Which unit of the core imports which."""
    edges: dict[str, set[str]] = {}
    for path in sources(CORE):
        unit = path.relative_to(REPO / CORE).parts[0].removesuffix(".py")
        found = {unit_of(one) for one in imported(path)} - {None, unit}
        edges.setdefault(unit, set()).update(
            one for one in found if (REPO / CORE / one).exists() or (REPO / CORE / f"{one}.py").exists()
        )
    edges.pop("__init__", None)
    return {unit: frozenset(targets) for unit, targets in edges.items()}


def reachable(start: str, graph: dict[str, frozenset[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def back_edges(graph: dict[str, frozenset[str]]) -> list[str]:
    """Ranked units that reach a higher one, directly or through unranked ones."""
    return [
        f"{unit} reaches {target}"
        for unit in graph
        if unit in RANK
        for target in sorted(reachable(unit, graph))
        if RANK.get(target, -1) > RANK[unit]
    ]


def test_imports_in_the_core_go_one_way():
    assert back_edges(core_graph()) == []


def test_no_unit_of_the_core_imports_itself_through_others():
    assert [unit for unit in core_graph() if unit in reachable(unit, core_graph())] == []


def test_a_back_edge_would_be_found():
    graph = {"series": frozenset({"helper"}), "helper": frozenset({"trainer"}), "trainer": frozenset()}
    assert back_edges(graph) == ["series reaches trainer"]


def test_the_core_knows_no_dagster_no_database_and_no_network():
    found = [
        f"{name_of(path)} imports {one}"
        for path in sources(CORE)
        for one in imported(path)
        if {one.split(".")[0], ".".join(one.split(".")[:2])} & FORBIDDEN_IN_CORE
    ]
    assert found == []


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_a_file_is_short_and_says_what_belongs_in_it(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST_FILE
    assert ast.get_docstring(tree_of(path)) or path.stat().st_size == 0


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_function_is_short(path):
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in functions(path)
        if node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == []


def reads_environment(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv", "environb")
        for node in ast.walk(tree_of(path))
    ) or any(one in ("os.environ", "os.getenv") for one in imported(path))


def test_only_the_edges_read_the_environment():
    assert {name_of(path) for path in ALL if reads_environment(path)} <= MAY_READ_ENVIRONMENT


def test_only_the_command_line_prints():
    printing = {
        name_of(path)
        for path in ALL
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing <= MAY_PRINT


def test_nothing_is_pickled():
    banned = {"pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal"}
    assert [
        f"{name_of(path)} imports {one}" for path in ALL for one in imported(path) if one.split(".")[0] in banned
    ] == []


def hides_errors(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes every error and does not pass it on."""
    broad = handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_no_error_is_swallowed_whole():
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in ALL
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and hides_errors(node)
    ]
    assert found == []
