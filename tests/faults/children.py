"""Work in forked children that can be killed, and what became of it.

The parent has imported everything and touches no library with threads of its own, so that a child
starts in a tenth of a second, and a kill falls on work and not on imports.
"""

import gc
import json
import os
import resource
import signal
import time
from dataclasses import asdict, dataclass

from compevo_core.errors import CompEvoError
from compevo_core.runtime.files import translate_storage_errors
from tests.faults.works import WORKS

KILLED = "killed"
DONE = "done"
CLEAR = "clear error"
CRASH = "crash"


@dataclass(frozen=True)
class End:
    """How a child ended."""

    kind: str
    message: str = ""
    lines: tuple[str, ...] = ()
    seconds: float = 0.0


def start(work, *, file_limit=0):
    """Run ``work`` in a child; return its process id and the pipe that its end comes through."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading

    gc.disable()
    os.close(reading)
    try:
        if file_limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        end = _run(work)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(asdict(end)).encode())
    finally:
        os._exit(0)


def wait(child, pipe, *, kill_after=None):
    """Wait for a child, or kill it after so many seconds."""
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(pipe, "rb") as stream:
        content = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return End(KILLED, f"signal {os.WTERMSIG(status)}")
    values = json.loads(content)
    return End(**values | {"lines": tuple(values["lines"])})


def run(work):
    """Run ``work`` in a child to its end."""
    return wait(*start(work))


def do(name, home, *, kill_after=None, file_limit=0):
    """Do a work in a child."""
    child, pipe = start(lambda: WORKS[name].do(home), file_limit=file_limit)
    return wait(child, pipe, kill_after=kill_after)


def read(name, home):
    """Read the end of a work in a child."""
    return run(lambda: sorted(WORKS[name].read(home)))


def _run(work):
    started = time.monotonic()
    try:
        with translate_storage_errors():
            result = work()
    except CompEvoError as error:
        return End(CLEAR, f"{type(error).__name__}: {error}")
    except BaseException as error:  # noqa: BLE001 - a crash is what the campaign looks for
        return End(CRASH, f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - started
    return End(DONE, "", tuple(result or ()), seconds)
