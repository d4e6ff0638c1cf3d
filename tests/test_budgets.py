"""What the house weighs is counted by folder, and may grow only where as much is taken away."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
TOPS = ("compevo_core", "compevo_pipeline", "wing", "tests", ".ci", "benchmarks", "tools")


@pytest.fixture
def repository(tmp_path):
    """A repository of one core module of three lines, with the counter in it."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPO / ".ci" / "budgets.py", tmp_path / ".ci")
    (tmp_path / "compevo_core" / "paper").mkdir(parents=True)
    (tmp_path / "compevo_core" / "model.py").write_text("a = 1\nb = 2\nc = 3\n", "utf-8")
    (tmp_path / "compevo_core" / "paper" / "table.py").write_text("d = 4\n", "utf-8")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    commit(tmp_path, compevo_core=3)
    return tmp_path


def commit(root: Path, **lines: int) -> None:
    limits = dict.fromkeys(TOPS, 200) | lines
    text = "\n".join(["[lines]", *(f'"{name}" = {limit:_}' for name, limit in limits.items())])
    text += '\n\n[files]\n"both packages" = 2\n\n[words]\n"docs" = 0\n'
    (root / ".ci" / "budgets.toml").write_text(text, "utf-8")

    git = ("git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "numbers"], check=True)


def count(root: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, str(root / ".ci" / "budgets.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_package_is_counted_without_its_wing(repository):
    assert count(repository)[0] == 0

    (repository / "compevo_core" / "more.py").write_text("e = 5\n", "utf-8")
    code, output = count(repository)
    assert code == 1
    assert "over budget: compevo_core: 4 lines where 3 are budgeted" in output


def test_a_rise_that_nothing_pays_for_is_refused(repository):
    commit(repository, compevo_core=4, tests=199)
    assert count(repository)[0] == 0

    commit(repository, compevo_core=5, tests=199)
    commit(repository, compevo_core=5, tests=190)  # too late: the commit before has raised the sum
    code, output = count(repository)
    assert code == 1
    assert "lines rose from 1,203 to 1,204" in output


def test_lower_counts_are_written_down(repository):
    count(repository, "--lower")
    text = (repository / ".ci" / "budgets.toml").read_text("utf-8")
    assert '"wing" = 1\n' in text
    assert '"compevo_core" = 3\n' in text
