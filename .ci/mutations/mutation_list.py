"""Wrong lines: listed faults, and single changes that operators make on the syntax tree.

What belongs here: where a wrong line is, what it says, and which tests are closest to it. What does
not: running tests, choosing and reporting (``run``).
"""

import ast
import copy
import hashlib
import py_compile
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

PACKAGES = {"compevo_core": "core", "compevo_pipeline": "pipeline"}
MOST_TEST_FILES = 4
_SAID = ("_log", "logger", "log.", "warnings.", "context.log", "say(")
_KEYS = {"id", "room", "old", "new", "reason", "tests"}

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


class ListError(Exception):
    """The list does not fit the code, or is not well formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One wrong change.

    Attributes:
        id: unique name.
        path: the file, from the root of the repository.
        old: the text that is replaced.
        start: its first character in the file.
        new: what replaces it.
        reason: what would be wrong.
        tests: node ids of the closest tests, or test files.
        is_listed: whether it is a fault of the list, none of which may survive.
    """

    id: str
    path: str
    old: str
    start: int
    new: str
    reason: str
    tests: tuple[str, ...]
    is_listed: bool

    def change(self, text: str) -> str:
        """Return the text of the file with the wrong line in it."""
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


def read_faults(listed: Path, root: Path) -> list[Mutation]:
    """Read the listed faults: a line is found by its text and a test by its name.

    Raises:
        ListError: an entry is not well formed, comes twice, or no longer fits the code.
    """
    faults: dict[str, Mutation] = {}
    problems = []

    for entry in tomllib.loads(_read(listed)).get("fault", []):
        try:
            fault = _place_fault(entry, root)
            if fault.id in faults:
                raise ListError("comes twice; rename one")
        except ListError as error:
            problems.append(f"{entry.get('id', 'an entry without id')}: {error}")
        else:
            faults[fault.id] = fault

    if problems:
        raise ListError("\n".join(problems))
    return list(faults.values())


def _place_fault(entry: dict[str, str], root: Path) -> Mutation:
    if entry.keys() != _KEYS:
        raise ListError(f"its keys must be {sorted(_KEYS)}, and are {sorted(entry)}")

    room = root / entry["room"]
    files = sorted(room.rglob("*.py")) if room.is_dir() else [room] if room.is_file() else []
    places = [path for path in files for _ in range(_read(path).count(entry["old"]))]
    if len(places) != 1:
        raise ListError(f"the old text occurs {len(places)} times in {entry['room']}")

    text = _read(places[0])
    fault = Mutation(
        id=entry["id"],
        path=places[0].relative_to(root).as_posix(),
        old=entry["old"],
        start=text.index(entry["old"]),
        new=entry["new"],
        reason=entry["reason"],
        tests=tuple(_find_test(root, test) for test in entry["tests"]),
        is_listed=True,
    )
    try:
        changed = ast.parse(fault.change(text))
    except SyntaxError as error:
        raise ListError(f"the changed {fault.path} is not Python: {error}") from error
    if ast.dump(changed) == ast.dump(ast.parse(text)):
        raise ListError("nothing would change")
    return fault


def _find_test(root: Path, test: str) -> str:
    if (root / test).is_file():
        return test

    places = _index_tests(root).get(test, [])
    if len(places) != 1:
        raise ListError(f"{len(places)} tests are named {test}; follow its name, or make it unique")
    return places[0]


@cache
def _index_tests(root: Path) -> dict[str, list[str]]:
    """Return the node ids of all tests, by the name of the function."""
    places: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        for node in ast.parse(_read(path)).body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            owner = f"{file}::{node.name}" if isinstance(node, ast.ClassDef) else file
            for item in inside:
                if isinstance(item, ast.FunctionDef) and item.name.startswith("test"):
                    places.setdefault(item.name, []).append(f"{owner}::{item.name}")
    return places


def list_changes(root: Path, path: str, lines: Collection[int] | None) -> list[Mutation]:
    """Return every single change of a file that an operator makes.

    Args:
        root: of the repository.
        path: the file, from the root.
        lines: where a change may begin, counted from 1; None for everywhere.
    """
    text = _read(root / path)
    tests = find_closest_tests(root, path)
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def place(line: int, column: int) -> int:
        """Return the number of the character; a column counts bytes."""
        begin, end = begins[line - 1 : line + 1]
        return begin + len(text[begin:end].encode()[:column].decode())

    changes = []
    for node, wrong in _vary(ast.parse(text)):
        if lines is not None and node.lineno not in lines:
            continue
        start = place(node.lineno, node.col_offset)
        old = text[start : place(node.end_lineno or node.lineno, node.end_col_offset or 0)]
        new = ast.unparse(wrong)
        changes.append(
            Mutation(
                id=f"{path}:{node.lineno}:{node.col_offset} {type(node).__name__} {len(old)}",
                path=path,
                old=old,
                start=start,
                new=f"({new})" if isinstance(node, ast.expr) else new,
                reason=f"{' '.join(old.split())}  ->  {new}",
                tests=tests,
                is_listed=False,
            )
        )
    return changes


def _vary(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield the nodes that an operator changes, each with what it becomes.

    Texts, types, decorators, errors and logs are left out: tests should not hold them.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            continue
        if isinstance(node, ast.Expr) and ast.unparse(node).lower().startswith(_SAID):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.AnnAssign):
            inside: ast.AST = ast.Tuple(elts=[node.value] if node.value else [])
        elif isinstance(node, ast.arguments):
            inside = ast.Tuple(elts=[*node.defaults, *filter(None, node.kw_defaults)])
        elif isinstance(node, ast.FunctionDef):
            inside = ast.Module(body=[node.args, *node.body])
        elif isinstance(node, ast.ClassDef):
            inside = ast.Module(body=node.body)
        else:
            yield from _change(node)
            inside = node
        yield from _vary(inside)


def _change(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    wrong = copy.copy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            wrong.ops = [_COMPARISONS[type(op)]()]
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            wrong.op = _ARITHMETIC[type(op)]()
        case ast.BoolOp(op=op):
            wrong.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            wrong = operand
        case ast.IfExp():
            wrong.body, wrong.orelse = node.orelse, node.body
        case ast.Constant(value=bool()):
            wrong.value = not node.value
        case ast.Constant(value=int()):
            wrong.value = node.value + 1
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            wrong = ast.Pass()
        case ast.Call(keywords=[*_, last]) if last.arg is not None:
            wrong.keywords = node.keywords[:-1]
        case _:
            return
    yield node, wrong


@cache
def find_closest_tests(root: Path, path: str) -> tuple[str, ...]:
    """Return the test files that import a module: the one of its name first, then the narrowest.

    Where none does, those of the modules that import it are returned.
    """
    package, _, rest = path.partition("/")
    mirrored = Path("tests", PACKAGES[package], rest).with_name(f"test_{Path(path).stem}.py")
    imports = read_imports(root)

    wanted = {_name_module(path)}
    while True:
        importers = {file for file, names in imports.items() if wanted & names}
        tests = {file for file in importers if Path(file).name.startswith("test_")}
        tests |= {mirrored.as_posix()} & imports.keys()
        if tests or not importers:
            break
        wanted = {_name_module(file) for file in importers}

    def rank(file: str) -> tuple[bool, int, str]:
        own = [name for name in imports[file] if name.startswith(tuple(PACKAGES))]
        return file != mirrored.as_posix(), len(own), file

    return tuple(sorted(tests, key=rank)[:MOST_TEST_FILES])


def _name_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def read_imports(root: Path) -> dict[str, set[str]]:
    """Return the modules, and what may be modules, that each file of the project imports."""
    index = {}
    for path in sorted(
        path for folder in (*PACKAGES, "tests") for path in (root / folder).rglob("*.py")
    ):
        names: set[str] = set()
        for node in ast.walk(ast.parse(_read(path))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        index[path.relative_to(root).as_posix()] = names
    return index


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def draw(mutations: Sequence[Mutation], count: int, seed: str, root: Path) -> list[Mutation]:
    """Choose ``count`` mutations by a text: a commit's sample can be repeated."""

    def key(mutation: Mutation) -> bytes:
        return hashlib.sha256(f"{seed} {mutation.id}".encode()).digest()

    drawn: list[Mutation] = []
    for mutation in sorted(mutations, key=key):
        if len(drawn) < count and _is_python(mutation.change(_read(root / mutation.path))):
            drawn.append(mutation)
    return drawn


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:  # parts of a pattern take no brackets
        return False
    return True


@contextmanager
def apply(mutation: Mutation, root: Path) -> Iterator[None]:
    """Change the file below ``root`` within the block."""
    path = root / mutation.path
    text = _read(path)

    _replace(path, mutation.change(text))
    try:
        yield
    finally:
        _replace(path, text)


def _replace(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

    # Python takes bytecode for current by the second and size of its source: two versions of equal
    # length within one second would be one.
    Path(cache_from_source(str(path))).unlink(missing_ok=True)
    py_compile.compile(
        str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
    )
