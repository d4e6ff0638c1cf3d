"""Each fault of content is refused or marked, and nothing known is lost."""

import contextlib
import functools
import shutil

import pytest

from compevo_core.errors import SourceError
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.common.ledger import EntryState
from tests.content_faults.cases import FAULTS
from tests.content_faults.worlds import World

KINDS = (FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES)


def read_all(home, world):
    """Everything that is stored, by frame."""
    tables = home.workspace.frame_store()
    frames = {kind.value: tables.read(world.dataset, kind) for kind in KINDS}
    return {"series": home.series(world.dataset)} | frames


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A home of each publisher in which its known files are stored, made once."""

    @functools.cache
    def make(name):
        world = next(fault.world for fault in FAULTS if fault.world.name == name)
        home = world.open(tmp_path_factory.mktemp("world"))
        world.deliver(home, world.known)
        return home.home

    return make


def find_entry(home, name):
    return next(entry for entry in home.ledger.list_entries() if entry.name == name)


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.world.name}: {f.name}" for f in FAULTS])
def test_a_fault_is_refused_and_its_correction_is_taken(fault, stored, tmp_path):
    world: World = fault.world
    home = world.open(shutil.copytree(stored(world.name), tmp_path / "home"))
    before = read_all(home, world)
    name, good = world.files[fault.role]
    damaged = fault.make(good)

    home.wait(hours=1)
    with contextlib.suppress(SourceError):
        world.deliver(home, [(name, damaged)])
    entry = find_entry(home, name)
    assert entry.state is EntryState.FAILED and fault.says in entry.note
    after = read_all(home, world)
    assert {
        kind: rows
        for kind, rows in after.items()
        if rows is not None and not rows.equals(before[kind])
    } == {}

    # Asked for again, the file without the fault is stored.
    home.wait(hours=1)
    world.deliver(home, [(name, good)])
    assert find_entry(home, name).state is EntryState.STORED
