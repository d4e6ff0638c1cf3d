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


@pytest.mark.parametrize(
    ("platform", "own", "with_children"), [("linux", 2.048, 2.56), ("darwin", 0.002, 0.0025)]
)
def test_linux_reports_kibibytes_and_macos_bytes(platform, own, with_children, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=MEASURED[who]))
    module = importlib.reload(process_memory)
    assert module.peak_memory_gigabytes() == pytest.approx(own)
    assert module.peak_memory_gigabytes(include_children=True) == pytest.approx(with_children)
    monkeypatch.undo()
    importlib.reload(process_memory)


def test_a_child_process_that_used_memory_shows_among_children():
    alone = peak_memory_gigabytes()
    subprocess.run([sys.executable, "-c", "x = b'x' * 10**8"], check=True)
    assert peak_memory_gigabytes(include_children=True) > alone + 0.1
