"""Processes that talk to each other; no test lives here."""

import json
import os
import socket
import subprocess
import sys

from benchmarks.rows import REPO


def run_processes(module, count, job):
    """Run a module on a job in processes, as torchrun would; return exit codes and errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(REPO),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(job)],
            text=True,
            env=os.environ | environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], errors
