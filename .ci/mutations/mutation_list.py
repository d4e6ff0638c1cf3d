"""The list of mutations: read, checked against the code, applied to a copy of the tree.

What belongs here: the form of a mutation and its place in a file. What does not: running tests
(``forked_pytest``), choosing and reporting (``run``).
"""

import ast
import hashlib
import py_compile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

_KEYS = {"id", "room", "old", "new", "reason", "tests", "survives"}


class ListError(Exception):
    """The list does not fit the code, or is not well formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One wrong change.

    A line is found by its text and a test by its name, so that files can move and merge.

    Attributes:
        id: unique name.
        room: the folder (or file) of the line, from the root of the repository.
        old: text that the files of the room hold exactly once.
        new: what replaces it.
        reason: what would be wrong.
        tests: names of the closest tests, or test files.
        survives: why it may survive; "" if it may not.
    """

    id: str
    room: str
    old: str
    new: str
    reason: str
    tests: tuple[str, ...]
    survives: str = ""

    def locate(self, root: Path) -> Path:
        """Return the file below ``root`` that holds the line.

        Raises:
            ListError: no file or more than one place holds it, or nothing would change.
        """
        if self.old == self.new:
            raise ListError(f"{self.id}: old and new are equal")

        room = root / self.room
        files = sorted(room.rglob("*.py")) if room.is_dir() else [room] if room.is_file() else []
        counts = {path: n for path in files if (n := _read(path).count(self.old))}
        if sum(counts.values()) != 1:
            raise ListError(
                f"{self.id}: the old text occurs {sum(counts.values())} times in {self.room}; "
                "follow the code, or add a line before or after it"
            )
        return next(iter(counts))

    def find_tests(self, root: Path) -> tuple[str, ...]:
        """Return the node ids of the tests.

        Raises:
            ListError: a name belongs to no test, or to several.
        """
        return tuple(self._find_test(root, test) for test in self.tests)

    def _find_test(self, root: Path, test: str) -> str:
        if (root / test.partition("::")[0]).is_file() and "::" not in test:
            return test

        places = index_tests(root).get(test, [])
        if len(places) != 1:
            raise ListError(
                f"{self.id}: {len(places)} tests are named {test}; follow its name"
                + (f", or make it unique ({', '.join(places)})" if places else "")
            )
        return places[0]

    def check(self, root: Path) -> str:
        """Return what is wrong with this entry for the tree below ``root``, "" if nothing is."""
        try:
            path = self.locate(root)
            compile(_read(path).replace(self.old, self.new), str(path), "exec")
            self.find_tests(root)
        except ListError as error:
            return str(error)
        except SyntaxError as error:
            return f"{self.id}: the changed {path.relative_to(root)} is not Python: {error}"
        return ""


@cache
def index_tests(root: Path) -> dict[str, list[str]]:
    """Return the node ids of all tests below ``root``, by the name of the function."""
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


def read_mutations(folder: Path) -> list[Mutation]:
    """Read every ``*.toml`` of the folder, in the order of their names.

    Raises:
        ListError: an entry is not well formed, or an id comes twice.
    """
    mutations: dict[str, Mutation] = {}

    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(_read(path))["mutation"]:
            unknown, missing = entry.keys() - _KEYS, _KEYS - {"survives"} - entry.keys()
            if unknown or missing:
                raise ListError(
                    f"{path.name}, {entry.get('id', 'an entry without id')}: unknown keys "
                    f"{sorted(unknown)}, missing keys {sorted(missing)}"
                )
            if entry["id"] in mutations:
                raise ListError(f"{path.name}: the id {entry['id']} comes twice; rename one")
            mutations[entry["id"]] = Mutation(**(entry | {"tests": tuple(entry["tests"])}))

    return list(mutations.values())


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def sample_mutations(mutations: Sequence[Mutation], count: int, seed: str) -> list[Mutation]:
    """Choose ``count`` mutations by a text, in the order of the list.

    The same text gives the same choice: a commit's sample can be repeated.
    """

    def draw(mutation: Mutation) -> str:
        return hashlib.sha256(f"{seed} {mutation.id}".encode()).hexdigest()

    chosen = {mutation.id for mutation in sorted(mutations, key=draw)[:count]}
    return [mutation for mutation in mutations if mutation.id in chosen]


@contextmanager
def apply(mutation: Mutation, root: Path) -> Iterator[None]:
    """Change the line below ``root`` within the block."""
    path = mutation.locate(root)
    text = _read(path)

    _replace(path, text.replace(mutation.old, mutation.new))
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
