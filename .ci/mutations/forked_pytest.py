"""pytest in forked children of a process that has imported the heavy third-party modules.

What belongs here: copies of the tree, the imports, the child, what it says of its tests. What does
not: mutations (``mutation_list``), choosing and reporting (``run``).

A child needs a tenth of a second in place of ten for torch, transformers, dagster and the like. No
module of the project is imported before the fork: a child reads the copy as it is then.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation_list import PACKAGES, read_imports

_OUTCOME_FILE = "outcome.json"


@dataclass(slots=True)
class Outcome:
    """What a child said of its tests.

    Attributes:
        exit_code: of pytest; negative is the signal that ended the child, None means the time was
            up.
        failed: node ids, and files that could not be collected, in order.
        seconds: of each test that ran, setup included.
        skipped: number of tests.
        foreign: modules of the project that came from elsewhere than the copy.
        output: of pytest.
    """

    exit_code: int | None
    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    foreign: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def n_passed(self) -> int:
        """Number of tests that ran and passed."""
        return len(self.seconds) - self.skipped - len(self.failed)


class _Recorder:
    """Keeps what pytest reports, and writes it at the end of the session."""

    def __init__(self, copy: Path, folder: Path) -> None:
        self._copy = copy
        self._file = folder / _OUTCOME_FILE
        self._failed: list[str] = []
        self._seconds: dict[str, float] = {}
        self._skipped: set[str] = set()

    def pytest_collectreport(self, report: Any) -> None:  # noqa: ANN401 - pytest's own report
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401 - pytest's own report
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.failed and name not in self._failed:
            self._failed.append(name)
        if report.skipped:
            self._skipped.add(name)

    def pytest_sessionfinish(self) -> None:
        foreign = [
            name
            for name, module in sys.modules.items()
            if name.partition(".")[0] in PACKAGES
            and not str(getattr(module, "__file__", None) or self._copy).startswith(str(self._copy))
        ]
        content = {
            "failed": self._failed,
            "seconds": self._seconds,
            "skipped": len(self._skipped),
            "foreign": foreign,
        }
        self._file.write_text(json.dumps(content), encoding="utf-8")


class Child:
    """One running pytest."""

    def __init__(self, copy: Path, folder: Path, tests: Sequence[str]) -> None:
        """Fork it.

        Args:
            copy: the tree it works in.
            folder: an own, empty folder for its output.
            tests: files or node ids, and options of pytest.
        """
        self._folder = folder
        self._started = time.monotonic()

        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run_and_exit(copy, folder, tests)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def poll(self, limit: float) -> Outcome | None:
        """Return the outcome if the child has ended; end it when its time is up."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            return self._read(os.waitstatus_to_exitcode(status))
        if self.seconds < limit:
            return None

        self.stop()
        return self._read(None)

    def stop(self) -> None:
        """End the child and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _read(self, exit_code: int | None) -> Outcome:
        log = self._folder / "output.txt"
        output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        path = self._folder / _OUTCOME_FILE
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

        shutil.rmtree(self._folder, ignore_errors=True)
        return Outcome(exit_code=exit_code, output=output, **content)


def copy_tree(repo: Path, target: Path) -> None:
    """Copy the files that git knows or would add, and nothing that was built."""
    command = ["git", "-C", str(repo), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run(  # noqa: S603 - a fixed command
        [*command, "--exclude-standard"], check=True, capture_output=True, text=True
    )

    for name in filter(None, listed.stdout.split("\0")):
        source = repo / name
        if source.is_file():  # a deleted file is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def set_environment(repo: Path, work: Path) -> None:
    """Set what children inherit: no network, one thread, own folders, the tests' archive."""
    for name in ("home", "dagster", "tmp"):
        (work / name).mkdir(parents=True)
    shutil.copy2(repo / "dagster_home" / "dagster.yaml", work / "dagster")

    # Where CI is set, pytest shows differences whole: for long bytes that takes minutes.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "COMPEVO_MODE": "sample",
        "COMPEVO_HOME": str(work / "home"),
        "DAGSTER_HOME": str(work / "dagster"),
        "TMPDIR": str(work / "tmp"),
    }
    # Tests look for the archive beside the checkout, and beside the copy there is none.
    archive = repo.parent / "shared" / "data"
    if archive.is_dir():
        os.environ.setdefault("COMPEVO_ARCHIVE", str(archive))


def preload(root: Path) -> None:
    """Import every third-party module and name that the project and its tests name."""
    for name in sorted(set().union(*read_imports(root).values())):
        if not (root / name.partition(".")[0]).exists():
            # Optional packages are absent; transformers loads its modules when a name is asked for.
            with contextlib.suppress(ImportError, AttributeError):
                pkgutil.resolve_name(name)

    gc.collect()
    gc.freeze()


def _run_and_exit(copy: Path, folder: Path, tests: Sequence[str]) -> None:
    """Run pytest in the forked child; never return."""
    code = 70  # pytest uses 0 to 5
    try:
        # A group of its own, so that what the tests start can be ended with it.
        os.setsid()
        os.chdir(copy)
        log = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

        # Ahead of the installed project, here and in processes that tests start.
        os.environ["PYTHONPATH"] = str(copy)
        sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(copy)))]
        importlib.invalidate_caches()

        import pytest

        options = [
            "-qx",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            "--disable-warnings",
            f"--basetemp={folder / 'basetemp'}",
        ]
        code = int(pytest.main([*options, *tests], plugins=[_Recorder(copy, folder)]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
