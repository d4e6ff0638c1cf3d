"""The peak memory of a process, in gigabytes on every platform."""

import importlib
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from compevo_core.runtime import process_memory
from compevo_core.runtime.process_memory import peak_memory_gigabytes

MEASURED = {resource.RUSAGE_SELF: 2_000_000, resource.RUSAGE_CHILDREN: 500_000}


@pytest.fixture
def module_on(monkeypatch):
    """The module as it is on another platform, with fixed readings of the operating system."""

    def load(platform):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(
            resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=MEASURED[who])
        )
        return importlib.reload(process_memory)

    yield load
    monkeypatch.undo()
    importlib.reload(process_memory)


def test_linux_reports_kibibytes(module_on):
    assert module_on("linux").peak_memory_gigabytes() == pytest.approx(2.048)


def test_macos_reports_bytes(module_on):
    assert module_on("darwin").peak_memory_gigabytes() == pytest.approx(0.002)


def test_the_largest_child_is_added_on_request(module_on):
    assert module_on("linux").peak_memory_gigabytes(include_children=True) == pytest.approx(2.56)


def test_memory_that_was_used_counts_after_it_is_freed():
    block = b"x" * 10**8
    del block
    assert 0.1 < peak_memory_gigabytes() < 100


def test_a_child_process_that_used_memory_shows_among_children():
    alone = peak_memory_gigabytes()
    subprocess.run([sys.executable, "-c", "x = b'x' * 10**8"], check=True)
    assert peak_memory_gigabytes(include_children=True) > alone + 0.1
