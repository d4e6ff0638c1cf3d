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
from importlib.util import cache_from_source
from pathlib import Path

_KEYS = {"id", "file", "old", "new", "reason", "tests", "survives"}


class ListError(Exception):
    """The list does not fit the code, or is not well formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One wrong change.

    Attributes:
        id: unique name.
        file: the file to change, from the root of the repository.
        old: text that the file holds exactly once.
        new: what replaces it.
        reason: what would be wrong.
        tests: closest test files or node ids.
        survives: why it may survive; "" if it may not.
    """

    id: str
    file: str
    old: str
    new: str
    reason: str
    tests: tuple[str, ...]
    survives: str = ""

    def mutate(self, text: str) -> str:
        """Return the changed text of the file.

        Raises:
            ListError: the old text is not there exactly once, or nothing changes.
        """
        count = text.count(self.old)
        if count != 1:
            raise ListError(
                f"{self.id}: the old text occurs {count} times in {self.file}; "
                "follow the code, or add a line before or after it"
            )
        if self.old == self.new:
            raise ListError(f"{self.id}: old and new are equal")
        return text.replace(self.old, self.new)

    def check(self, root: Path) -> str:
        """Return what is wrong with this entry for the tree below ``root``, "" if nothing is."""
        path = root / self.file
        if not path.is_file():
            return f"{self.id}: no file {self.file}; follow the code"

        try:
            compile(self.mutate(path.read_text(encoding="utf-8")), self.file, "exec")
        except ListError as error:
            return str(error)
        except SyntaxError as error:
            return f"{self.id}: the changed {self.file} is not Python: {error}"

        missing = [test for test in self.tests if not _is_there(root, test)]
        return f"{self.id}: no test {', '.join(missing)}; follow its name" if missing else ""


def _is_there(root: Path, test: str) -> bool:
    """Whether the file of a node id exists, and defines the classes and functions it names."""
    file, *names = test.partition("[")[0].split("::")
    path = root / file
    if not names:
        return path.exists()
    if not path.is_file():
        return False

    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return set(names) <= {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def read_mutations(folder: Path) -> list[Mutation]:
    """Read every ``*.toml`` of the folder, in the order of their names.

    Raises:
        ListError: an entry is not well formed, or an id comes twice.
    """
    mutations: dict[str, Mutation] = {}

    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
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
    """Change the file below ``root`` within the block."""
    path = root / mutation.file
    text = path.read_text(encoding="utf-8")

    _replace(path, mutation.mutate(text))
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
