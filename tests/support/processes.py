"""Processes that talk to each other over Gloo, as torchrun would start them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def run_processes(module, count, argument):
    """Run ``python -m module <argument as JSON>``; return exit codes and standard errors."""
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
            [sys.executable, "-m", module, json.dumps(argument)],
            text=True,
            env=os.environ | environment | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    return [process.returncode for process in started], errors
