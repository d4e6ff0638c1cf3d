"""Runs that several processes trained, and what their folders hold."""

import json

import torch
from safetensors.torch import load_file

from benchmarks.gloo_processes import run_processes


def train_in_processes(count, jobs):
    """Train the jobs in ``count`` processes; return their exit codes and standard error."""
    done = run_processes("tests.support.shard_worker", count, json.dumps(jobs), timeout=300)
    return [process.returncode for process in done], [process.stderr for process in done]


def read_rounds(run):
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def read_tensors(run):
    files = sorted((run / "model").rglob("*.safetensors"))
    return {f"{file.relative_to(run)}/{k}": v for file in files for k, v in load_file(file).items()}


def assert_same_model(one, other):
    ours, theirs = read_tensors(one), read_tensors(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=0, atol=1e-5, equal_nan=True), name
    assert (one / "model" / "logics.json").read_text() == (
        other / "model" / "logics.json"
    ).read_text()
