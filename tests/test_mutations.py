"""The mutation runner says what a suite notices, and names entries that the code left behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]

CODE = """def add(a, b):
    return a + b


def double(a):
    while a < 0:
        a = 0
    return 2 * a
"""
TESTS = """from compevo_core.sums import add, double


def test_sums():
    assert (add(1, 2), double(0), double(-1)) == (3, 0, 0)
"""
KILLED = {"id": "minus", "old": "a + b", "new": "a - b"}
SURVIVING = {"id": "triple", "old": "2 * a", "new": "3 * a"}
ALLOWED = {**SURVIVING, "id": "triple-allowed", "survives": "nobody doubles"}
ENDLESS = {"id": "endless", "old": "        a = 0", "new": "        a = -1"}
MISFIT = {"id": "gone", "old": "a / b", "new": "a // b"}
LIMIT = 12.0  # seconds; a busy machine takes several to import pytest
USELESS = {**KILLED, "id": "minus-allowed", "survives": "not any more"}


@pytest.fixture
def repository(tmp_path):
    """A repository of one module and one test, with the runner in it."""
    root = tmp_path / "repository"
    runner = root / ".ci" / "mutations"
    shutil.copytree(REPO / ".ci" / "mutations", runner, ignore=shutil.ignore_patterns("*.toml"))
    shutil.copytree(REPO / "dagster_home", root / "dagster_home")
    for path, text in {"compevo_core/sums.py": CODE, "tests/test_sums.py": TESTS}.items():
        (root / path).parent.mkdir()
        (root / path).write_text(text, encoding="utf-8")
    (root / "compevo_core" / "__init__.py").write_text("", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def run(root: Path, *mutations: dict[str, str], limit: float = 60.0) -> tuple[int, dict[str, str]]:
    """Return the exit code, and the status of every mutation in the table."""
    common = {"room": "compevo_core", "reason": "made up", "tests": "tests/test_sums.py"}
    entries = []
    for mutation in mutations:
        values = common | mutation
        tests = values.pop("tests")
        lines = [f"{key} = '''{value}'''" for key, value in values.items()]
        entries.append("\n".join(["[[mutation]]", *lines, f"tests = ['{tests}']"]))
    (root / ".ci" / "mutations" / "list.toml").write_text("\n".join(entries), encoding="utf-8")

    command = [sys.executable, str(root / ".ci" / "mutations" / "run.py"), "--limit", str(limit)]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert (root / "compevo_core" / "sums.py").read_text(encoding="utf-8") == CODE

    rows = [line.split() for line in done.stdout.splitlines()]
    names = {mutation["id"] for mutation in mutations}
    return done.returncode, {row[0]: row[1] for row in rows if row and row[0] in names}


@pytest.mark.slow
def test_what_is_noticed_and_what_is_allowed_to_survive_is_in_order(repository):
    code, statuses = run(repository, KILLED, ALLOWED)
    assert (code, statuses) == (0, {"minus": "killed", "triple-allowed": "allowed"})


@pytest.mark.slow
def test_a_survivor_a_misfit_and_a_needless_allowance_are_not(repository):
    renamed = {**KILLED, "id": "renamed", "tests": "test_sum"}
    code, statuses = run(repository, SURVIVING, MISFIT, USELESS, renamed)
    assert code == 1
    misfits = dict.fromkeys(("gone", "minus-allowed", "renamed"), "error")
    assert statuses == {"triple": "survived", **misfits}


@pytest.mark.slow
def test_a_mutation_without_end_is_ended_named_and_an_error(repository):
    assert run(repository, ENDLESS, limit=LIMIT) == (1, {"endless": "timeout"})


@pytest.mark.slow
def test_tests_that_hang_once_are_run_again(repository, tmp_path):
    # The first time it leaves a mark and sleeps, as a child that inherited a closed lock would.
    mark = f"__import__('pathlib').Path({str(tmp_path / 'mark')!r})"
    sleep = f"__import__('time').sleep({mark}.touch() or 60)"
    hanging = {"id": "once", "old": "a + b", "new": f"a - b if {mark}.exists() else {sleep}"}
    assert run(repository, hanging, limit=LIMIT) == (0, {"once": "killed"})


def test_every_mutation_of_the_list_fits_the_code():
    command = [sys.executable, str(REPO / ".ci" / "mutations" / "run.py"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
def test_tests_that_fail_anyway_kill_nothing(repository):
    path = repository / "tests" / "test_sums.py"
    path.write_text(TESTS.replace("(3, 0, 0)", "(4, 0, 0)"), encoding="utf-8")
    assert run(repository, KILLED) == (1, {"minus": "error"})
