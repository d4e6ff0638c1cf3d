"""The mutation runner says what a suite notices, and names faults that the code left behind."""

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
TESTS = """import pytest
from compevo_core.sums import add, double


@pytest.mark.parametrize("one", [1], ids=["a name of words"])
def test_sums(one):
    assert (add(one, 2), double(0), double(-1)) == (3, 0, 0)
"""
KILLED = {"id": "minus", "old": "a + b", "new": "a - b"}
SURVIVING = {"id": "triple", "old": "2 * a", "new": "3 * a"}
ENDLESS = {"id": "endless", "old": "        a = 0", "new": "        a = -1"}
LIMIT = 12.0  # seconds; a busy machine takes several to import pytest


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
    subprocess.run(["git", "-C", str(root), "add", "."], check=True)
    return root


def run(root: Path, *faults: dict[str, str], options: tuple[str, ...] = ()) -> tuple[int, str]:
    common = {"room": "compevo_core", "reason": "made up", "tests": "tests/test_sums.py"}
    entries = []
    for fault in faults:
        values = common | fault
        tests = values.pop("tests")
        lines = [f"{key} = '''{value}'''" for key, value in values.items()]
        entries.append("\n".join(["[[fault]]", *lines, f"tests = ['{tests}']"]))
    runner = root / ".ci" / "mutations"
    (runner / "faults.toml").write_text("\n".join(entries), encoding="utf-8")

    code = (root / "compevo_core" / "sums.py").read_text(encoding="utf-8")
    command = [sys.executable, str(runner / "run.py"), "--seed", "a", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)

    assert (root / "compevo_core" / "sums.py").read_text(encoding="utf-8") == code
    return done.returncode, done.stdout


@pytest.mark.slow
def test_every_listed_fault_must_be_noticed(repository):
    assert run(repository, KILLED)[0] == 0

    code, output = run(repository, KILLED, SURVIVING)
    assert code == 1
    assert "triple: survived" in output
    assert "1 killed, 1 survived" in output


@pytest.mark.slow
def test_a_fault_without_end_is_ended_and_named(repository):
    code, output = run(repository, ENDLESS, options=("--limit", str(LIMIT)))
    assert code == 1
    assert "endless: timeout" in output


@pytest.mark.slow
def test_tests_that_fail_anyway_kill_nothing(repository):
    path = repository / "tests" / "test_sums.py"
    path.write_text(TESTS.replace("(3, 0, 0)", "(4, 0, 0)"), encoding="utf-8")

    code, output = run(repository, KILLED)
    assert code == 1
    assert "minus: error: without the mutation fails tests/test_sums.py::test_sums" in output


@pytest.mark.slow
def test_a_share_of_the_changes_must_be_noticed(repository):
    path = repository / "compevo_core" / "sums.py"
    path.write_text(CODE.replace("    while a < 0:\n        a = 0\n", ""), encoding="utf-8")
    test = repository / "tests" / "test_sums.py"
    test.write_text(TESTS.replace("double(-1)) == (3, 0, 0)", "4) == (3, 0, 4)"), encoding="utf-8")

    code, output = run(repository, options=("--changes", "99"))
    assert code == 0
    assert "2 killed, 1 survived" in output
    assert "2  ->  3" in output

    test.write_text("import compevo_core.sums\n\n\ndef test_nothing():\n    pass\n", "utf-8")
    assert run(repository, options=("--changes", "99"))[0] == 1


@pytest.mark.slow
def test_changes_can_be_limited_to_changed_lines(repository):
    git = ("git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "commit", "--quiet", "-m", "all"], check=True)
    path = repository / "compevo_core" / "more.py"
    path.write_text("def less(a):\n    return a - 1\n", encoding="utf-8")
    subprocess.run([*git, "add", "."], check=True)

    output = run(repository, options=("--list", "--changes", "99", "--since", "HEAD"))[1]
    assert {line.split(":")[0] for line in output.splitlines()} == {"compevo_core/more.py"}
    assert "a - 1  ->  a + 1" in output


def test_faults_that_do_not_fit_are_named(repository):
    misfit = {"id": "gone", "old": "a / b", "new": "a // b"}
    renamed = {**KILLED, "id": "renamed", "tests": "test_sum"}
    same = {**KILLED, "id": "same", "new": "(a + b)"}

    code, output = run(repository, misfit, renamed, same, options=("--list",))
    assert code == 1
    assert "gone: the old text occurs 0 times" in output
    assert "renamed: 0 tests are named test_sum" in output
    assert "same: nothing would change" in output


def test_every_listed_fault_fits_the_code():
    command = [sys.executable, str(REPO / ".ci" / "mutations" / "run.py"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
