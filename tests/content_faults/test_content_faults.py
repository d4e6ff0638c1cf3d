"""Each fault of content is refused or waits, nothing known is lost, and the file is asked again."""

import contextlib
import functools
import shutil

import polars as pl
import pytest

from compevo_core.errors import DataError, SourceError
from compevo_pipeline.defs.asset_checks import judge_known_values
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.common.ledger import EntryState
from tests.content_faults.cases import FAULTS, WAITS

KINDS = (FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES)


def read_all(home, world):
    """Everything that is stored, by frame."""
    if world.dataset == "news":
        return {"articles": home.articles()}
    tables = home.workspace.frame_store()
    frames = {kind.value: tables.read(world.dataset, kind) for kind in KINDS}
    with contextlib.suppress(DataError):  # the weather is not a series
        frames["series"] = home.series(world.dataset)
    return {kind: rows for kind, rows in frames.items() if rows is not None}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A home of each publisher in which its known files are stored, made once."""
    worlds = {fault.world.name: fault.world for fault in FAULTS}

    @functools.cache
    def make(name):
        home = worlds[name].open(tmp_path_factory.mktemp(name))
        worlds[name].deliver(home, worlds[name].known)
        return home.home

    return make


def find_entry(home, name):
    return next(entry for entry in home.ledger.list_entries() if entry.name == name)


def test_there_are_sixty_faults_of_every_publisher():
    assert len({(fault.world.name, fault.role, fault.name) for fault in FAULTS}) == len(FAULTS)
    assert len(FAULTS) >= 60
    assert len({fault.world.name for fault in FAULTS}) == 9


def group_faults():
    """Refused faults of a file follow each other in one home; one that waits is alone."""
    groups = {}
    for fault in FAULTS:
        name = f": {fault.name}" if fault.says is WAITS else ""
        groups.setdefault(f"{fault.world.name} {fault.role}{name}", []).append(fault)
    return groups


@pytest.mark.parametrize("faults", group_faults().values(), ids=group_faults())
def test_faults_are_refused_or_wait_and_their_correction_is_taken(faults, stored, tmp_path):
    world, role = faults[0].world, faults[0].role
    home = world.open(shutil.copytree(stored(world.name), tmp_path / "home"))
    before = read_all(home, world)
    name, good = world.files[role]
    for fault in faults:
        home.wait(hours=1)
        assert fault.content != good
        with contextlib.suppress(SourceError):
            world.deliver(home, [(name, fault.content)])
        entry = find_entry(home, name)
        assert (entry.state, fault.says in entry.note) == (EntryState.FAILED, True), fault.name
        assert_all_is_known(fault, home, before)

    # Asked for again, the file without the fault is stored, and nothing waits any more.
    home.wait(hours=1)
    world.deliver(home, [(name, good)])
    assert find_entry(home, name).state is EntryState.STORED
    assert home.workspace.series_store().read_waiting(world.dataset).is_empty()
    after = read_all(home, world)
    for kind, rows in before.items():
        known = rows.select(pl.exclude("fetched_at", "source"))
        kept = known.join(after[kind], on=known.columns, how="semi", nulls_equal=True)
        assert kept.height == known.height


def assert_all_is_known(fault, home, before):
    """Every row that was known is there, and none came to a series that is in doubt."""
    dataset = fault.world.dataset
    waiting = home.workspace.series_store().read_waiting(dataset)
    assert (waiting.height > 3) == (fault.says is WAITS), fault.name
    assert judge_known_values(home.workspace, dataset).passed == (fault.says is not WAITS)
    for kind, rows in read_all(home, fault.world).items():
        left = rows.join(before[kind], on=rows.columns, how="semi", nulls_equal=True)
        assert left.height == before[kind].height - fault.changed, fault.name
        known = before[kind]
        if waiting.height:
            rows = rows.filter(pl.col("series_id").is_in(waiting["series_id"].to_list()))
            known = known.filter(pl.col("series_id").is_in(rows["series_id"].to_list()))
        assert rows.height == known.height, fault.name
