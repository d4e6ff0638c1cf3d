"""The shape of the code: every file has a room, imports go one way, no call is dangerous."""

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
CORE, PIPELINE = "compevo_core", "compevo_pipeline"
LAYERS = (
    # compevo_core, from the bottom up
    "compevo_core.errors",
    "compevo_core.runtime",
    "compevo_core.lora",
    "compevo_core.data",
    "compevo_core.baselines",
    "compevo_core.config",
    "compevo_core.lm",
    "compevo_core.agents",
    "compevo_core.training",
    "compevo_core.forecast",
    "compevo_core.evaluation",
    "compevo_core.table",
    "compevo_core.report",
    "compevo_core",
    # compevo_pipeline
    "compevo_pipeline.errors",
    "compevo_pipeline.sources",
    "compevo_pipeline.config",
    "compevo_pipeline.storage",
    "compevo_pipeline.launchers",
    "compevo_pipeline.work",
    "compevo_pipeline.checks",
    "compevo_pipeline.defs",
    "compevo_pipeline.definitions",
    "compevo_pipeline.cli",
    # the wing for the paper, which nothing of the product needs
    "compevo_core.paper.declared",
    "compevo_core.paper.networks",
    "compevo_core.paper",
    "compevo_core.paper.report",
    "compevo_pipeline.paper",
)
"""The folders: a module imports only its own folder and those above it in this list."""

COMPOSING = {"compevo_pipeline.definitions", "compevo_pipeline.cli.main"}
"""The two modules that add ``compevo_pipeline.paper``: its assets and its commands."""

RANK = {name: rank for rank, name in enumerate(LAYERS)}
NETWORK = {"requests", "httpx", "socket", "urllib.request", "http.client"}
FORBIDDEN_IN_CORE = {"dagster", "duckdb", "great_expectations", PIPELINE} | NETWORK
RETIRED = {"told", "beside", "owes", "late", "wall", "_beside", "_behind", "_tell", "_straightened"}
"""Words that the field's own words have replaced (docs/reference/naming.md)."""
TRICKS = ('f(*("a", "b"))', "[x, *[1, 2]]", '"s" * (n > 1)', 'f"{x}s" * bool(y)', "-(-a // b)")
DANGERS = (
    "import pickle",
    "from joblib import load",
    "torch.load(path)",
    "np.load(path, allow_pickle=True)",
    "AutoTokenizer.from_pretrained(name, trust_remote_code=True)",
    "AutoModelForCausalLM.from_pretrained(name)",
)


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (REPO / package).rglob("*.py"))


ALL = sources(CORE, PIPELINE)


def name_of(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names a file imports anywhere in it, also inside functions and by name."""
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: write the import in full"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            found += imported_by_name(node)
    return tuple(found)


def imported_by_name(call: ast.Call) -> Iterator[str]:
    """A project module that a call of importlib or runpy loads by its name."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in ("import_module", "__import__", "run_module", "find_spec") or not call.args:
        return
    target = call.args[0]
    if isinstance(target, ast.Constant) and str(target.value).startswith((CORE, PIPELINE)):
        yield str(target.value)


@cache
def modules() -> dict[str, Path]:
    names = {".".join(path.relative_to(REPO).with_suffix("").parts): path for path in ALL}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def resolve(dotted: str) -> str | None:
    """The project module that a dotted name is in."""
    while dotted:
        if dotted in modules():
            return dotted
        dotted = dotted.rpartition(".")[0]
    return None


def unit_of(module: str) -> str | None:
    """The entry of LAYERS that a module belongs to; a package's own ``__init__`` is its unit."""
    if module in (CORE, PIPELINE):
        return module if module in RANK else None
    while module and module not in (CORE, PIPELINE):
        if module in RANK:
            return module
        module = module.rpartition(".")[0]
    return None


@cache
def import_graph() -> dict[str, frozenset[str]]:
    return {
        module: frozenset(
            found for one in imported(path) if (found := resolve(one)) and found != module
        )
        for module, path in modules().items()
    }


def upward_imports(graph: dict[str, frozenset[str]]) -> list[str]:
    """Imports of a unit that is not below the importing one."""
    return [
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in sorted(targets)
        if (mine := unit_of(module)) != (other := unit_of(target))
        and mine in RANK
        and other in RANK
        and RANK[other] >= RANK[mine]
        and not (module in COMPOSING and other == "compevo_pipeline.paper")
    ]


def test_every_module_belongs_to_an_existing_layer():
    # The package itself holds only a docstring.
    assert {module for module in modules() if unit_of(module) is None} <= {PIPELINE}
    assert [unit for unit in RANK if unit not in modules()] == []


def test_imports_go_down_without_circles():
    assert upward_imports(import_graph()) == []
    graphlib.TopologicalSorter(import_graph()).prepare()


def test_upward_imports_are_found():
    graph = {"compevo_core.data.news": frozenset({"compevo_core.training.trainer"})}
    assert upward_imports(graph) == ["compevo_core.data.news imports compevo_core.training.trainer"]
    graph = {"compevo_pipeline.defs.jobs": frozenset({"compevo_core.paper.changes"})}
    assert len(upward_imports(graph)) == 1, "the product needs the wing"


def test_the_core_knows_no_pipeline_library():
    found = [
        f"{name_of(path)} imports {one}"
        for path in sources(CORE)
        for one in imported(path)
        if {one.split(".")[0], ".".join(one.split(".")[:2])} & FORBIDDEN_IN_CORE
    ]
    assert found == []
    assert [path for path in sources(CORE) if PIPELINE in path.read_text("utf-8")] == []


def test_only_the_definitions_import_dagster():
    wiring = (f"{PIPELINE}/definitions.py", f"{PIPELINE}/paper/definitions.py")
    rooms = (f"{PIPELINE}/defs/", *wiring, f"{PIPELINE}/paper/assets.py")
    files = [path for path in sources(PIPELINE) if not name_of(path).startswith(rooms)]
    named = {(name_of(path), one.split(".")[0]) for path in files for one in imported(path)}
    outside = {(path, one) for path, one in named if one.startswith("dagster")}
    # A training process reports by a package without Dagster.
    assert outside == {(f"{PIPELINE}/launchers/worker.py", "dagster_pipes")}


def test_a_packages_top_holds_no_other_module():
    at_the_top = {path.name for path in ALL if path.parent.parent == REPO}
    assert at_the_top == {"__init__.py", "errors.py", "definitions.py"}


def reads_environment(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv", "environb")
        and ast.unparse(node.value) == "os"
        for node in ast.walk(tree_of(path))
    ) or any(one in ("os.environ", "os.getenv") for one in imported(path))


def test_only_the_edges_read_the_environment():
    reading = {name_of(path) for path in ALL if reads_environment(path)}
    assert reading <= {f"{PIPELINE}/config/settings.py"}


def names_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_names_are_the_fields_words():
    names = [(name_of(path), name) for path in ALL for name in names_in(tree_of(path))]
    assert [(path, name) for path, name in names if name.lower() in RETIRED] == []


def test_one_class_name_is_one_class():
    homes: dict[str, list[str]] = {}
    for path in ALL:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def find_tricks(tree: ast.AST) -> list[str]:
    """Expressions that are shorter than they are plain, and what to write in their place."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=items) | ast.Tuple(elts=items) | ast.List(elts=items):
                starred = [item.value for item in items if isinstance(item, ast.Starred)]
                if any(isinstance(value, ast.Tuple | ast.List) for value in starred):
                    found.append("a starred literal: pass the arguments themselves")
            case ast.BinOp(
                ast.Constant(str()) | ast.JoinedStr(),
                ast.Mult(),
                ast.Compare() | ast.BoolOp() | ast.Call(ast.Name("bool")),
            ):
                found.append("a text times a truth: write 'text if ... else ...'")
            case ast.UnaryOp(ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub()), ast.FloorDiv())):
                found.append("a floor between two signs: write math.ceil")
    return found


SOURCES = sources(CORE, PIPELINE, "benchmarks", ".ci", "docs", "deploy")
CODE_FROM_BYTES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
"""Modules that run what a file says."""


def find_dangers(tree: ast.AST) -> list[str]:
    """Calls and imports that run code from data; ruff sees shells, eval and the known loaders."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            found += [name for name in modules if name.split(".")[0] in CODE_FROM_BYTES]
        if not isinstance(node, ast.Call):
            continue

        name = ast.unparse(node.func)
        options = {one.arg: ast.unparse(one.value) for one in node.keywords}
        if name == "torch.load":
            found.append(name)
        harmless = dict.fromkeys(("trust_remote_code", "allow_pickle"), "False")
        for option, value in (harmless | {"use_safetensors": "True"}).items():
            if options.get(option, value) != value:
                found.append(f"{name}({option}=...)")
        # Weights come as safetensors or GGUF: the default would fall back to pickled ones.
        loads_a_model = re.search(r"Model\w*\.from_pretrained$", name)
        if loads_a_model and not {"use_safetensors", "gguf_file"} & set(options):
            found.append(f"{name} of any kind of weights")
    return found


@pytest.mark.parametrize(
    ("find", "line"),
    [*((find_tricks, line) for line in TRICKS), *((find_dangers, line) for line in DANGERS)],
)
def test_each_trick_and_danger_would_be_seen(find, line):
    assert len(find(ast.parse(line))) == 1


TESTS = [path for path in (REPO / "tests").rglob("*.py") if path != Path(__file__).resolve()]


@pytest.mark.parametrize(
    ("find", "files"), [(find_tricks, TESTS + SOURCES), (find_dangers, SOURCES)]
)
def test_no_file_holds_tricks_or_dangers(find, files):
    found = {name_of(path): find(tree_of(path)) for path in files}
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_no_file_of_the_repository_holds_a_pickle():
    endings = {".pkl", ".pickle", ".pt", ".pth", ".joblib", ".ckpt", ".bin"}
    folders = ("compevo_core", "compevo_pipeline", "tests", "results", "docs", "benchmarks")
    held = [path for folder in folders for path in (REPO / folder).rglob("*")]
    assert [path.name for path in held if path.suffix in endings] == []


def test_the_ui_listens_on_this_machine_alone():
    starts = re.findall(r"dagster dev[^\n]*", (REPO / "Makefile").read_text(encoding="utf-8"))
    assert starts and all("--host 127.0.0.1" in start for start in starts)
