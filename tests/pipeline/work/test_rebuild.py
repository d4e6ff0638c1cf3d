"""What the store has lost comes back from raw files, or is asked for again."""

import shutil
from datetime import timedelta

import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.cli.main import main
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work import ingest
from compevo_pipeline.work.ingest import mend_store, rebuild
from compevo_pipeline.work.kept_files import ask_for_gone
from tests.content_faults.worlds import NEWS, PRICES, REPORTS, price_file, usual
from tests.support.live import LOG

KINDS = (FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Homes in which the known files of publishers are stored; tests copy them."""
    homes = {}
    for world in (PRICES, REPORTS, NEWS):
        home = world.open(tmp_path_factory.mktemp(world.name))
        world.deliver(home, world.known)
        homes[world.name] = home.home
    return homes


@pytest.fixture
def reports(stored, tmp_path):
    return REPORTS.open(shutil.copytree(stored["reports"], tmp_path / "home"))


def read(home, dataset=REPORTS.dataset):
    tables = home.workspace.frame_store()
    return [home.series(dataset), *(tables.read(dataset, kind) for kind in KINDS)]


def assert_same(rows, before):
    assert len(rows) == len(before)
    for now, then in zip(rows, before, strict=True):
        assert now.sort(now.columns).equals(then.sort(then.columns))


def lose_a_series(layout):
    next(layout.series.glob("*/*NSW1.parquet")).unlink()


def lose_the_series(layout):
    shutil.rmtree(layout.series / REPORTS.dataset)


def lose_the_forecasts(layout):
    shutil.rmtree(layout.tables / REPORTS.dataset)


@pytest.mark.parametrize("lose", [lose_a_series, lose_the_series, lose_the_forecasts])
def test_the_next_refresh_notices_and_reads_raw_files_again(reports, lose, caplog):
    before = read(reports)
    lose(reports.workspace.layout)
    REPORTS.deliver(reports, [])
    assert_same(read(reports), before)
    assert "lacks rows that were stored" in caplog.text
    assert mend_store(reports.workspace, REPORTS.dataset, clock=reports.clock, log=LOG) == {}


def test_news_comes_back_from_raw_files(stored, tmp_path):
    home = NEWS.open(shutil.copytree(stored["news"], tmp_path / "home"))
    before = home.articles()
    assert before.height
    home.workspace.layout.news_database.unlink()
    NEWS.deliver(home, [])
    assert_same([home.articles()], [before])


def test_what_raw_files_lack_too_is_asked_for_again(reports, caplog):
    layout = reports.workspace.layout
    lose_the_series(layout)
    name = REPORTS.known[0][0]
    (layout.raw / REPORTS.source / name).unlink()
    REPORTS.deliver(reports, [])
    assert reports.ledger.get(REPORTS.source, name).state is EntryState.FAILED
    assert "of 1 stored files are gone too" in caplog.text
    others = [entry for entry in reports.ledger.list_entries() if entry.name != name]
    assert {entry.state for entry in others} == {EntryState.STORED}
    REPORTS.deliver(reports, REPORTS.known[:1])
    assert read(reports)[0].height == 40 * 5


def test_a_rebuild_needs_no_ledger_and_the_command_says_what_it_read(reports, monkeypatch, capsys):
    before = read(reports)
    layout = reports.workspace.layout
    for folder in (layout.series, layout.tables):
        shutil.rmtree(folder)
    layout.ledger.unlink()
    monkeypatch.setenv("COMPEVO_HOME", str(reports.home))
    monkeypatch.setenv("COMPEVO_MODE", "live")
    with pytest.raises(SystemExit) as ended:
        main(["rebuild", REPORTS.dataset])
    assert ended.value.code == 0
    assert "44 files read again" in capsys.readouterr().out
    assert_same(read(reports), before)


def test_a_rebuild_of_files_that_are_all_refused_counts_them_and_reads_none(reports, monkeypatch):
    before = read(reports)

    def refuse(ingest, files):
        assert files, "parsers are not made for no file at all"
        raise SchemaDrift("another header")

    monkeypatch.setattr(ingest._Ingest, "read", refuse)
    counts = rebuild(reports.workspace, REPORTS.dataset, clock=reports.clock, log=LOG)
    assert [set(of_feed) for of_feed in counts.values()] == [{"rejected"}] * len(counts) != []
    assert_same(read(reports), before)


def test_packed_files_are_not_gone_and_are_read_again(reports):
    before = read(reports)
    layout = reports.workspace.layout
    ((pack, count, _),) = reports.workspace.raw_store().pack(reports.clock() + timedelta(days=70))
    # A weekly zip holds reports that have no bytes of their own.
    assert count == len(REPORTS.known) and pack.exists()
    assert not list(layout.raw.glob(f"{REPORTS.source}/[!.]*"))
    assert ask_for_gone(reports.workspace, default_feeds()[REPORTS.dataset]) == 0

    lose_the_series(layout)
    REPORTS.deliver(reports, [])
    assert_same(read(reports), before)


def test_versions_of_a_file_are_read_in_the_order_in_which_they_came(stored, tmp_path):
    home = PRICES.open(shutil.copytree(stored["prices"], tmp_path / "home"))
    home.wait(hours=1)
    name, whole = price_file("NSW1", days=4)
    PRICES.deliver(home, [(name, whole.replace(b",7005,", b",7999,"))])
    before = home.series(PRICES.dataset)
    shutil.rmtree(home.workspace.layout.series)
    counts = rebuild(home.workspace, PRICES.dataset, clock=home.clock, log=LOG)
    assert counts["aemo"]["files"] == len(PRICES.known) + 1
    after = home.series(PRICES.dataset)
    assert_same([after], [before])


def test_every_feed_says_which_raw_files_are_its_own():
    for dataset, feeds in default_feeds().items():
        for feed in feeds:
            assert feed.labels, (dataset, feed.name)
            assert all(label.startswith(("live:", "archive:")) for label in feed.labels)


def test_what_waits_is_accepted_by_a_command(stored, tmp_path, monkeypatch, capsys):
    home = PRICES.open(shutil.copytree(stored["prices"], tmp_path / "home"))
    halved = price_file("NSW1", level=lambda step: usual(step) / 2)
    home.wait(hours=1)
    PRICES.deliver(home, [halved])
    monkeypatch.setenv("COMPEVO_HOME", str(home.home))
    monkeypatch.setenv("COMPEVO_MODE", "live")
    with pytest.raises(SystemExit):
        main(["accept", PRICES.dataset])
    assert "accepted 144: the next run of the source applies them" in capsys.readouterr().out

    home.wait(hours=1)
    assert PRICES.deliver(home, [halved])["changed"] == 144
    changes = home.workspace.series_store().read_changes(PRICES.dataset)
    assert changes["kind"].unique().to_list() == ["changed"]
