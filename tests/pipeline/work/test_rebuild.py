"""What a home has lost comes back: from raw files, from a publisher, from a copy."""

import errno
import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import dagster as dg
import numpy as np
import pytest

from compevo_core.errors import CompEvoError, ConfigError, DataError
from compevo_core.runtime.files import StoreBusy, file_lock
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_manifest
from compevo_pipeline.defs.dead_runs import sweep_dead_runs
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work import backup, ingest
from compevo_pipeline.work.next_day import StoredFrames
from tests.content_faults.worlds import NEWS, PRICES, REPORTS
from tests.support.commands import invoke
from tests.support.live import LOG
from tests.support.nemweb import price_file, usual
from tests.support.population import windows
from tests.support.trees import read_tree
from tests.support.window_samples import flip_a_bit

LOSSES = {
    "a series": (REPORTS, lambda layout: next(layout.series.glob("*/*NSW1-*.parquet")).unlink()),
    "the series": (REPORTS, lambda layout: shutil.rmtree(layout.series / REPORTS.dataset)),
    "the forecasts": (REPORTS, lambda layout: shutil.rmtree(layout.tables / REPORTS.dataset)),
    "the news": (NEWS, lambda layout: layout.news_database.unlink()),
}
ROTTEN = ("series/**/*.parquet", "tables/*/published/*", "tables/*/step_covariates/*")
FLIPS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 1 else ()) for seed in range(40)]
NOW = datetime(2026, 7, 21, tzinfo=UTC)
OUTSIDE = ("home/../../x", "home/a/../../../x", "home//{}/x", "../x", "x", "home", "home/\0")


@pytest.fixture
def reports(open_known):
    return open_known(REPORTS)


def assert_stored(home, world, before):
    after = world.read(home)
    assert after.keys() == before.keys()
    for kind, rows in after.items():
        assert rows.sort(rows.columns).equals(before[kind].sort(rows.columns))


@pytest.mark.parametrize(("world", "lose"), LOSSES.values(), ids=LOSSES)
def test_lost_rows_come_back_from_raw_files(open_known, world, lose):
    home = open_known(world)
    before = world.read(home)
    assert before and all(rows.height for rows in before.values())
    lose(home.workspace.layout)
    world.deliver(home, [])
    assert_stored(home, world, before)
    assert ingest.mend_store(home.workspace, world.dataset, log=LOG) == {}


@pytest.mark.parametrize("pattern", ROTTEN)
@pytest.mark.parametrize("seed", FLIPS)
def test_a_file_with_a_flipped_bit_is_remade(reports, pattern, seed, caplog):
    before = REPORTS.read(reports)
    layout, draw = reports.workspace.layout, np.random.default_rng(seed)
    files = sorted(path for path in layout.root.glob(pattern) if path.suffix)
    flip_a_bit(files[draw.integers(len(files))], draw)
    spec = reports.workspace.registry[REPORTS.dataset].spec
    with pytest.raises(CompEvoError):
        StoredFrames.read(reports.workspace, spec, reads_news=False)
    with pytest.raises(DataError, match="compevo refresh"):
        invoke("verify", home=reports.home, mode="live")

    ingest.ingest_dataset(reports.workspace, REPORTS.dataset, [], log=LOG)
    assert_stored(reports, REPORTS, before)
    assert "set aside" in caplog.text
    invoke("verify", home=reports.home, mode="live")


def test_what_raw_files_lack_is_asked_for_again(reports):
    layout = reports.workspace.layout
    shutil.rmtree(layout.series / REPORTS.dataset)
    name = REPORTS.known[0][0]
    (layout.raw / REPORTS.source / name).unlink()
    REPORTS.deliver(reports, [])

    assert reports.ledger.get(REPORTS.source, name).state is EntryState.FAILED
    others = [entry for entry in reports.ledger.list_entries() if entry.name != name]
    assert {entry.state for entry in others} == {EntryState.STORED}
    REPORTS.deliver(reports, REPORTS.known[:1])
    assert reports.series(REPORTS.dataset).height == 40 * 5


def test_a_rebuild_needs_no_ledger(reports):
    before = REPORTS.read(reports)
    layout = reports.workspace.layout
    for folder in (layout.series, layout.tables):
        shutil.rmtree(folder)
    layout.ledger.unlink()
    assert "44 files" in invoke("rebuild", REPORTS.dataset, home=reports.home, mode="live")
    assert_stored(reports, REPORTS, before)


def test_versions_of_a_file_are_read_in_order(open_known):
    home = open_known(PRICES)
    home.wait(hours=1)
    name, whole = price_file("NSW1", days=4)
    PRICES.deliver(home, [(name, whole.replace(b",8000.00,", b",8100.00,"))])
    before = PRICES.read(home)
    shutil.rmtree(home.workspace.layout.series)
    counts = ingest.rebuild(home.workspace, PRICES.dataset, log=LOG)

    assert counts["aemo"]["files"] == len(PRICES.known) + 1
    assert_stored(home, PRICES, before)


def test_every_feed_knows_its_raw_files():
    for dataset, feeds in default_feeds().items():
        for feed in feeds:
            assert feed.labels, (dataset, feed.name)
            assert all(label.startswith(("live:", "archive:")) for label in feed.labels)


def test_what_waits_is_accepted_by_a_command(open_known):
    home = open_known(PRICES)
    halved = price_file("NSW1", level=lambda step: usual(step) / 2)
    home.wait(hours=1)
    PRICES.deliver(home, [halved])
    assert "144" in invoke("accept", PRICES.dataset, home=home.home, mode="live")

    home.wait(hours=1)
    assert PRICES.deliver(home, [halved])["changed"] == 144
    changes = home.workspace.series_store().read_changes(PRICES.dataset)
    assert changes["kind"].unique().to_list() == ["changed"]


def read_all(home, dagster):
    with closing(sqlite3.connect(dagster / "storage" / "runs.db")) as database:
        runs = database.execute("SELECT * FROM runs").fetchall()
    stored = REPORTS.read(home) | NEWS.read(home)
    tree = read_tree(home.home)
    kept = [name for name in tree if not name.endswith((".duckdb", ".sqlite"))]
    return {
        "entries": home.ledger.list_entries(),
        "rows": home.workspace.receipts().find(f"rows {REPORTS.dataset}", ""),
        "stored": {kind: rows.to_dicts() for kind, rows in stored.items()},
        "runs": runs,
        "files": {name: tree[name][0] for name in kept},
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = REPORTS.open(tmp_path_factory.mktemp("made"))
    REPORTS.deliver(home, REPORTS.known[-8:])
    NEWS.deliver(home, NEWS.known)
    for name in ("runs/one/model.json", "forecasts/issued/x/2026-07-20/facts.json", "fits/a"):
        path = home.workspace.layout.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(name))
    return home.home


@pytest.fixture
def home(made, tmp_path):
    return REPORTS.open(shutil.copytree(made, tmp_path / "home"))


@pytest.fixture
def dagster(tmp_path):
    folder = tmp_path / "dagster"
    (folder / "storage").mkdir(parents=True)
    (folder / "dagster.yaml").write_text("telemetry: {}")
    with closing(sqlite3.connect(folder / "storage" / "runs.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE runs (id TEXT)")
        database.execute("INSERT INTO runs VALUES ('a')")
        database.commit()
    return folder


def test_a_restored_home_is_equal(home, dagster, tmp_path):
    shutil.rmtree(home.workspace.layout.fits)  # made again when it is missing
    model = RunFolder(home.workspace.layout.run("one")).model
    windows("train", 2).write(model / "prior" / "known")
    sealed = write_manifest(model, {})
    before = read_all(home, dagster)
    # A running process has its ledger open, with an entry that is not in the file's own pages.
    writer = sqlite3.connect(dagster / "storage" / "runs.db")
    with closing(writer):
        writer.execute("INSERT INTO runs VALUES ('b')")
        writer.commit()
        count = backup.back_up(home.home, dagster, tmp_path / "copy", NOW)
    shutil.rmtree(home.home)
    shutil.rmtree(dagster / "storage")

    assert backup.restore(tmp_path / "copy", home.home, dagster) == count
    assert read_all(home, dagster) == before | {"runs": [("a",), ("b",)]}
    assert verify_manifest(model)["hash"] == sealed
    assert REPORTS.deliver(home, [])["files"] == 0


def test_caches_and_locks_are_not_copied(home, dagster, tmp_path):
    backup.back_up(home.home, dagster, tmp_path / "copy", NOW)
    names = [path.name for path in (tmp_path / "copy").rglob("*")]
    assert not {"fits", "locks", ".lock", "dagster.yaml"} & set(names)


def test_a_copy_waits_for_a_writer(home, dagster, tmp_path, monkeypatch):
    monkeypatch.setattr(
        backup, "file_lock", lambda path, **_: file_lock(path, exclusive=False, wait_seconds=0.1)
    )
    lock = home.workspace.layout.series / REPORTS.dataset / ".lock"
    with file_lock(lock, exclusive=True), pytest.raises(StoreBusy):
        backup.back_up(home.home, dagster, tmp_path / "copy", NOW)
    assert not (tmp_path / "copy").exists()


def test_nothing_is_overwritten_by_a_copy(home, dagster, tmp_path):
    copy = tmp_path / "copy"
    backup.back_up(home.home, dagster, copy, NOW)
    with pytest.raises(ConfigError, match="new folder"):
        backup.back_up(home.home, dagster, copy, NOW)
    with pytest.raises(ConfigError, match="copied"):
        backup.back_up(home.home, dagster, home.home / "copy", NOW)
    with pytest.raises(ConfigError, match=r"move .* away"):
        backup.restore(copy, home.home, dagster)
    with pytest.raises(ConfigError, match=r"backup\.json"):
        backup.restore(tmp_path, home.home, dagster)

    next(copy.rglob("*.parquet")).write_bytes(b"torn")
    with pytest.raises(DataError, match="altered"):
        backup.restore(copy, tmp_path / "other", tmp_path / "empty")
    assert not (tmp_path / "other").exists()


def test_a_copy_with_a_torn_list_is_refused(home, dagster, tmp_path):
    backup.back_up(home.home, dagster, tmp_path / "copy", NOW)
    for text in ("{", "[]", "{}", '{"files": []}', '{"files": {"home/a": 1}}'):
        (tmp_path / "copy" / backup.LIST_FILE).write_text(text)
        with pytest.raises(DataError, match="another copy"):
            backup.restore(tmp_path / "copy", tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", [*OUTSIDE, "home/link/x", "home/loop/x"])
@pytest.mark.parametrize("linked", ["copy/home", "homes/home"])
def test_a_copy_cannot_write_outside_the_homes(tmp_path, name, linked):
    copy, home, away = (tmp_path / "a" / part for part in ("copy", "homes/home", "away"))
    # Whatever the name leads to in the copy has the content that the list names.
    inside = [copy / "home" / part for part in ("", "link", "loop")]
    for place in (away, copy, copy.parent, *inside):
        place.mkdir(parents=True, exist_ok=True)
        (place / "x").write_text("planted")
    folder = tmp_path / "a" / linked
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(away)
    (folder / "loop").symlink_to("loop")
    listed = {"files": {name.format(away): hashlib.sha256(b"planted").hexdigest()}}
    (copy / backup.LIST_FILE).write_text(json.dumps(listed))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="link"):
        backup.restore(copy, home, tmp_path / "dagster")

    assert sorted(tmp_path.rglob("*")) == before


def test_a_copy_on_a_full_disk_leaves_nothing(home, dagster, tmp_path, monkeypatch):
    def fill(path, target):
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copy2", fill)
    with pytest.raises(OSError, match="No space"):
        backup.back_up(home.home, dagster, tmp_path / "copy", NOW)
    assert list(tmp_path.glob("copy*")) == []


def test_an_unfinished_backup_is_named(home, dagster, tmp_path, monkeypatch):
    left = tmp_path / "yesterday.part"
    (left / "home" / "live").mkdir(parents=True)
    (tmp_path / "another.part").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(dagster))

    (_, line) = invoke("backup", tmp_path / "today", home=home.home).splitlines()

    assert str(left) in line


def test_a_killed_restore_continues_from_its_copy(home, dagster, tmp_path, monkeypatch):
    shutil.rmtree(home.workspace.layout.fits)
    before = read_all(home, dagster)
    for number in (1, 2):
        made_at = NOW + timedelta(days=number)
        backup.back_up(home.home, dagster, tmp_path / f"copy{number}", made_at)
    shutil.rmtree(home.home)
    shutil.rmtree(dagster / "storage")

    whole, done = shutil.copy2, []

    def kill(path, target):
        if len(done) == 5:
            target.write_bytes(path.read_bytes()[:1])
            raise KeyboardInterrupt
        done.append(whole(path, target))

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "copy2", kill)
        backup.restore(tmp_path / "copy1", home.home, dagster)
    with pytest.raises(ConfigError, match=r"move .* away"):
        backup.restore(tmp_path / "copy2", home.home, dagster)
    backup.restore(tmp_path / "copy1", home.home, dagster)
    assert read_all(home, dagster) == before
    with pytest.raises(ConfigError, match=r"move .* away"):
        backup.restore(tmp_path / "copy1", home.home, dagster)


def test_links_to_other_disks_are_followed(tmp_path):
    home, disk, copy = tmp_path / "home", tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    (disk / "a.parquet").write_text("a")
    # The names of folders that are left out nearer to the root.
    issued = home / "real" / "forecasts" / "issued" / "stages" / "facts.json"
    for path in (issued, home / "real" / "stages" / "b"):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    (home / "real" / "series").symlink_to(disk)
    assert backup.back_up(home, tmp_path / "dagster", copy, NOW) == 2
    assert (copy / "home" / "real" / "series" / "a.parquet").read_text() == "a"

    # Its disk is not mounted: a copy without it must not look whole.
    disk.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="real/series"):
        backup.back_up(home, tmp_path / "dagster", tmp_path / "next", NOW)


def test_a_vanishing_folder_ends_no_backup(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "real" / "a").mkdir(parents=True)
    (home / "real" / "b.json").write_text("{}")
    copy_folder = backup._copy_folder

    def remove_first(folder, *others):
        if folder.name == "a":
            folder.rmdir()
        copy_folder(folder, *others)

    monkeypatch.setattr(backup, "_copy_folder", remove_first)
    assert backup.back_up(home, tmp_path / "dagster", tmp_path / "copy", NOW) == 1


def test_a_restored_run_under_way_is_ended(tmp_path):
    def open_dagster(name):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "dagster.yaml").write_text("telemetry: {enabled: false}")
        return dg.DagsterInstance.from_config(str(tmp_path / name))

    @dg.job
    def works():
        pass

    with open_dagster("dagster") as instance:
        started, queued = instance.create_run_for_job(works), instance.create_run_for_job(works)
        event = dg.DagsterEvent(event_type_value="PIPELINE_START", job_name="works")
        instance.report_dagster_event(event, started.run_id)
        backup.back_up(tmp_path / "home", tmp_path / "dagster", tmp_path / "copy", NOW)

    backup.restore(tmp_path / "copy", tmp_path / "other", tmp_path / "restored")
    with open_dagster("restored") as instance:
        assert sweep_dead_runs(instance) == [started.run_id]
        states = [instance.get_run_by_id(run.run_id).status.value for run in (started, queued)]
        assert states == ["CANCELED", "NOT_STARTED"]
