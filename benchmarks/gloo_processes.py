"""Start processes of this machine that talk to each other over Gloo, as torchrun would.

What belongs here: their environment, starting them, waiting. What does not: what they do
(``benchmarks.sharded_backbone``, the workers of the tests).
"""

import os
import socket
import subprocess
import sys

from benchmarks.rows import REPO


def run_processes(
    module: str, count: int, *arguments: str, timeout: float | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run ``python -m module arguments`` in processes with one thread each, and no GPU.

    Args:
        module: name of the module; it reads rank and number of processes from its environment.
        count: how many processes.
        arguments: the same ones for each.
        timeout: longest wait in seconds; none unless given.

    Returns:
        Exit code, output and standard error of each, in order of rank.
    """
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
    command = [sys.executable, "-m", module, *arguments]
    started = [
        subprocess.Popen(  # noqa: S603 - our own command
            command,
            text=True,
            env=os.environ | environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    try:
        texts = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            # Nothing where it has ended.
            process.kill()
    return [
        subprocess.CompletedProcess(command, process.returncode, output, error)
        for process, (output, error) in zip(started, texts, strict=True)
    ]
