"""What the machine can do and hold; the peak memory of a process, on every platform."""

import importlib
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from compevo_core.config.run import RunConfig
from compevo_core.runtime import machine
from compevo_core.runtime.machine import lacks_bfloat16, memory_bytes, peak_memory_gigabytes

MEASURED = {resource.RUSAGE_SELF: 2_000_000, resource.RUSAGE_CHILDREN: 500_000}


@pytest.mark.parametrize(
    ("platform", "own", "with_children"), [("linux", 2.048, 2.56), ("darwin", 0.002, 0.0025)]
)
def test_linux_reports_kibibytes_and_macos_bytes(platform, own, with_children, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=MEASURED[who]))
    module = importlib.reload(machine)
    assert module.peak_memory_gigabytes() == pytest.approx(own)
    assert module.peak_memory_gigabytes(include_children=True) == pytest.approx(with_children)
    monkeypatch.undo()
    importlib.reload(machine)


def test_a_child_process_that_used_memory_shows_among_children():
    alone = peak_memory_gigabytes()
    subprocess.run([sys.executable, "-c", "x = b'x' * 10**8"], check=True)
    assert peak_memory_gigabytes(include_children=True) > alone + 0.1


def test_a_processor_without_bfloat16_is_known_by_its_features():
    assert lacks_bfloat16("flags\t\t: fma avx2 avx512f\n")
    assert not lacks_bfloat16("flags\t\t: fma avx2 avx512_bf16\n")
    assert not lacks_bfloat16("flags\t\t: fma avx2 amx_bf16 amx_tile\n")
    assert not lacks_bfloat16("")


@pytest.mark.parametrize(
    ("facts", "has_gpu", "dtype"),
    [
        ("flags\t\t: fma avx512_bf16\n", False, "mixed"),
        ("flags\t\t: fma avx2\n", False, "float32"),
        ("flags\t\t: fma avx2\n", True, "mixed"),
        ("", False, "float32"),
    ],
)
def test_the_type_that_a_machine_chooses_stands_in_the_settings(facts, has_gpu, dtype, monkeypatch):
    monkeypatch.setattr(machine, "read_cpu_facts", lambda: facts)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    chosen = RunConfig().with_overrides({"backbone.dtype": "auto"})
    assert chosen == RunConfig().with_overrides({"backbone.dtype": dtype})
    assert chosen.to_dict()["backbone"]["dtype"] == dtype


@pytest.mark.parametrize(
    ("limit", "bytes_"), [("4096\n", 4096), ("max\n", 64 * 2**30), (None, 64 * 2**30)]
)
def test_a_container_may_use_its_own_limit_of_the_machines_memory(
    limit, bytes_, tmp_path, monkeypatch
):
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(machine, "_CONTAINER_LIMIT", file)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**24}.get)
    assert memory_bytes(torch.device("cpu")) == bytes_
