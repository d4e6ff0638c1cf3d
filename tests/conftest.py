"""Fixtures shared by every test: where the real archive is, if there is one."""

import gc
import os
import shutil
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.replay import run_replay

REPO = Path(__file__).resolve().parents[1]
LONGEST = ("test_demo", "test_golden")  # a file last in the queue leaves the other processes idle


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests on the real archive slow: they read all of it. Begin with the longest files."""
    for item in items:
        if "archive_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Search for garbage rarely, and never in what was imported: it stays to the end."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk():
    """No test cuts the power: files and databases are not waited for until they are on the disk."""
    connect = sqlite3.connect

    def connect_without_waiting(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        for module in (sqlite3, sqlite3.dbapi2):
            patch.setattr(module, "connect", connect_without_waiting)
        yield


@pytest.fixture(scope="session")
def archive_dir() -> Path:
    """Folder of real archive files; the test is skipped, saying so, where there is none."""
    named = os.environ.get("COMPEVO_ARCHIVE")
    path = Path(named) if named else REPO.parent / "shared" / "data"
    if not (path / "MANIFEST.csv").exists():
        pytest.skip(f"no real archive is at {path}; set COMPEVO_ARCHIVE to test against one")
    return path


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process of a session makes, and the others find."""
    from compevo_core.runtime.files import file_lock

    # The processes of a session have a folder each in one folder.
    out = factory.getbasetemp()
    out = out.parent if "PYTEST_XDIST_WORKER" in os.environ else out
    with file_lock(out / f"{name}.lock", exclusive=True, wait_seconds=600):
        if not (out / name).exists():
            make(out / f"making-{name}")
            (out / f"making-{name}").rename(out / name)
    return out / name


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of one finished tiny run; a test that changes it copies it first."""
    from tests.support.tiny_run import train_tiny  # torch, for the tests that ask for it

    return make_once(tmp_path_factory, "tiny", train_tiny)


@pytest.fixture(scope="session")
def operational_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run of operational demand, for deployments that forecast with it."""
    from tests.support.operational import train_population

    return make_once(tmp_path_factory, "operational", train_population)


@pytest.fixture
def replay(tmp_path, monkeypatch):
    """Publishers' hosts as the test says, over real TLS; everything else is 404."""
    with run_replay(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="session")
def known_home(tmp_path_factory):
    """Return a function that stores the known files of a publisher in a home, once."""

    @cache
    def make(world):
        home = world.open(tmp_path_factory.mktemp(world.source))
        world.deliver(home, world.known)
        return home.home

    return make


@pytest.fixture
def open_known(known_home, tmp_path):
    """Open a copy of a home with the known files of a publisher."""
    return lambda world: world.open(shutil.copytree(known_home(world), tmp_path / world.source))


@pytest.fixture
def spy(monkeypatch):
    """Keep arguments and options of every call of a function, which works as before."""

    def watch(owner, name):
        calls, original = [], getattr(owner, name)

        def keep(*arguments, **options):
            calls.append((arguments, options))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, keep)
        return calls

    return watch
