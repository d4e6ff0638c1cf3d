"""The PeMS clearinghouse over the replay server: log-in, lists, files, what is never written."""

import functools
import gzip
import json
import logging
import traceback
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceBlocked, SourceError
from compevo_core.runtime.files import StoreBusy
from compevo_pipeline.cli.main import main
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.ledger import ABSENT_PAUSES, EntryState
from compevo_pipeline.sources.pems.live import parse_list
from compevo_pipeline.sources.pems.source import describe_short
from compevo_pipeline.storage.series_store import SeriesStore
from tests.pipeline.sources.pems.test_pems import line
from tests.support.live import LiveHome
from tests.support.replay import Answer

NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)
USER, PASSWORD = "canary-user@example.org", "canary-Passw0rd/+&="
HOUR_FILE = "d04_text_station_hour_2026_10.txt.gz"
META_FILE = "d04_text_meta_2026_11_05.txt"
LOGIN_PAGE = Answer(body=b"<html><form>Username: Password:</form></html>", kind="text/html")
SIGNED_IN = Answer(body=b"<html><a href='/?dnode=Logout'>Logout</a></html>", kind="text/html")


def hours(month, count=3):
    lines = [line(f"{month}/01/2026 0{hour}:00:00") for hour in range(count)]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


FILES = {
    HOUR_FILE: ("October", hours(10)),
    "d04_text_station_hour_2026_09.txt.gz": ("September", hours("09")),
    "d04_text_station_hour_2026_01.txt.gz": ("January", hours("01")),
}
META = "ID\tFwy\tDir\tDistrict\n400001\t101\tS\t4\n"


class Site:
    """The clearinghouse: one address for everything, told apart by the query."""

    def __init__(self, accepts=(USER, PASSWORD)):
        self.accepts = accepts
        self.is_open = False
        self.faults = {}  # answers that come once, in place of the list or file of that name
        self.log = []

    def __call__(self, seen):
        if seen.method == "POST":
            form = {key: values[0] for key, values in parse_qs(seen.body.decode()).items()}
            self.log.append("login")
            self.is_open = (form["username"], form["password"]) == tuple(self.accepts)
            return SIGNED_IN if self.is_open else LOGIN_PAGE
        name = (seen.query.get("type") or seen.query["download"])[0]
        self.log.append(name)
        if name in self.faults:
            fault = self.faults.pop(name)
            self.is_open = fault is not LOGIN_PAGE
            return fault
        if not self.is_open:
            return LOGIN_PAGE
        return (
            self.list_files(name, seen.query["yy"][0]) if "type" in seen.query else self.send(name)
        )

    def list_files(self, kind, year):
        months = {}
        for name, (month, content) in FILES.items():
            if f"_{kind}_{year}" in name:
                entry = {"file_name": name, "url": f"/?download={name}&dnode=Clearinghouse"}
                months.setdefault(month, []).append(entry | {"bytes": len(content)})
        if kind == "meta" and year == "2026":
            entry = {"file_name": META_FILE, "url": f"/?download={META_FILE}"}
            months["November"] = [entry]
        return Answer(body=json.dumps({"data": months or []}).encode(), kind="text/plain")

    def send(self, name):
        if name == META_FILE:
            return Answer(body=META.encode(), kind="text/plain")
        return Answer(body=FILES[name][1], kind="application/octet-stream")


@pytest.fixture
def site(replay):
    site = Site()
    replay.serve({("pems.dot.ca.gov", "/"): site})
    return site


@pytest.fixture
def home(tmp_path, site):
    archive = tmp_path / "archive"
    (archive / "traffic").mkdir(parents=True)
    return LiveHome(
        tmp_path / "home", NOW, {"archive": archive, "pems_user": USER, "pems_password": PASSWORD}
    )


def downloads(site):
    return [name for name in site.log if name.endswith((".gz", ".txt"))]


def test_the_asset_logs_in_once_and_stores_the_new_months(home, site):
    assert home.materialize("traffic").success
    assert site.log[0] == "login"
    assert site.log.count("login") == 1
    assert downloads(site) == ["d04_text_station_hour_2026_09.txt.gz", HOUR_FILE, META_FILE]
    frame = home.series("traffic")
    assert set(frame["series_id"]) == {"PEMS/400001", "PEMS_OBSERVED/400001"}
    assert frame.height == 2 * 2 * 3
    assert (home.workspace.layout.raw / "pems" / META_FILE).exists()


@pytest.mark.parametrize("fault", [Answer(status=404, body=b"none"), Answer(status=500)])
def test_a_file_that_failed_is_asked_for_again_on_the_same_day(home, site, fault):
    send = site.send
    site.send = lambda name: fault if name == HOUR_FILE else send(name)
    with pytest.raises(SourceError):
        home.ingest("traffic")
    site.send = send
    home.wait(minutes=2)
    assert home.ingest("traffic")["pems"]["files"] == 1
    assert home.series("traffic").height == 2 * 2 * 3


def test_files_that_were_fetched_and_not_stored_are_stored_on_the_same_day(home, site, monkeypatch):
    def is_busy(*args, **kwargs):
        raise StoreBusy("another run writes")

    with monkeypatch.context() as patch, pytest.raises(StoreBusy):
        patch.setattr(SeriesStore, "write", is_busy)
        home.ingest("traffic")
    asked = len(downloads(site))
    assert home.ingest("traffic")["pems"]["files"] == 2
    assert len(downloads(site)) == asked


DAY_FILE = "d04_text_station_5min_2026_11_17.txt.gz"


def minutes(day, first=0, end=288):
    """Returns a five-minute file: the slots of a day's clock from one number to another."""
    start = datetime(*map(int, day.split("-")))  # noqa: DTZ001  # naive, as in the file
    stamps = [start + slot * timedelta(minutes=5) for slot in range(first, end)]
    lines = [line(f"{stamp:%m/%d/%Y %H:%M:%S}") + "," * 10 for stamp in stamps]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


@pytest.fixture
def days(home, site):
    """A publisher of one day, whose file lacks the last four hours."""
    settings = home.settings | {"pems_files": "station_5min"}
    home = LiveHome(home.home, NOW, settings)
    site.days = {DAY_FILE: minutes("2026-11-17", end=240)}
    entry = {"file_name": DAY_FILE, "url": f"/?download={DAY_FILE}"}
    body = json.dumps({"data": {"November": [entry]}}).encode()
    site.list_files = lambda kind, year: Answer(
        body=body if (kind, year) == ("station_5min", "2026") else b"[]", kind="text/plain"
    )
    site.send = lambda name: Answer(body=site.days[name], kind="application/octet-stream")
    return home


def count_values(home):
    rows = home.series("traffic").drop_nulls("value")
    return rows.filter(series_id="PEMS/400001").height


def test_a_day_that_lacks_its_last_hours_is_asked_for_again_until_it_is_whole(days, site):
    days.ingest("traffic")
    assert count_values(days) == 20
    days.wait(days=1)
    site.days[DAY_FILE] = minutes("2026-11-17")
    assert days.ingest("traffic")["pems"]["files"] == 1
    assert count_values(days) == 24
    assert days.ledger.get("pems", DAY_FILE).state is EntryState.STORED

    days.wait(days=1)
    assert days.ingest("traffic")["pems"]["files"] == 0
    assert downloads(site) == [DAY_FILE] * 2


@pytest.mark.parametrize("is_packed_anew", [False, True])
def test_a_day_that_stays_short_is_final_after_the_last_pause_and_said_so(
    days, site, monkeypatch, capsys, is_packed_anew
):
    content = gzip.decompress(site.days[DAY_FILE])
    if is_packed_anew:
        pack = functools.partial(gzip.compress, content)
        site.send = lambda name: Answer(
            body=pack(mtime=len(site.log)), kind="application/octet-stream"
        )

    for _ in range(30):
        days.ingest("traffic")
        # A second refresh of the same day asks nothing.
        days.ingest("traffic")
        days.wait(days=1)
    assert len(downloads(site)) == 1 + len(ABSENT_PAUSES)
    assert count_values(days) == 20

    monkeypatch.setenv("COMPEVO_HOME", str(days.home))
    monkeypatch.setenv("COMPEVO_MODE", "live")
    with pytest.raises(SystemExit, match="0"):
        main(["sources", "--dataset", "pems"])
    shown = capsys.readouterr().out
    assert "short, asked again never: 240 of 288 five-minute slots" in " ".join(shown.split())
    assert "100 %" in shown


def test_a_day_that_grew_to_less_than_a_day_is_stored_and_asked_for_again(days, site):
    days.ingest("traffic")
    for slots in (264, 288):
        days.wait(days=1)
        site.days[DAY_FILE] = minutes("2026-11-17", end=slots)
        days.ingest("traffic")
        assert count_values(days) == slots // 12


def test_a_short_day_that_fails_again_keeps_no_new_file_waiting(days, site):
    days.ingest("traffic")
    days.wait(days=1)
    site.faults[DAY_FILE] = Answer(status=404, body=b"none")
    days.ingest("traffic")
    entry = days.ledger.get("pems", DAY_FILE)
    assert (entry.state, entry.tries) == (EntryState.SHORT, 1)
    assert entry.note == "240 of 288 five-minute slots"


def test_a_day_that_takes_known_hours_away_waits_as_any_removal(days, site):
    days.ingest("traffic")
    days.wait(days=1)
    hole = minutes("2026-11-17", end=60) + minutes("2026-11-17", first=120)
    site.days[DAY_FILE] = hole
    days.ingest("traffic")
    assert count_values(days) == 24
    days.wait(days=1)
    days.ingest("traffic")
    assert count_values(days) == 19


@pytest.mark.parametrize("slots", [288, 240])
@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01"])
def test_a_day_of_a_clock_change_is_whole_by_the_slots_of_its_clock(day, slots):
    content = minutes(day, end=slots)
    if day == "2026-03-08":
        # The clock has no hour from two to three.
        lines = gzip.decompress(content).splitlines(keepends=True)
        content = gzip.compress(b"".join(lines[:24] + lines[36:]))
    name = f"d04_text_station_5min_{day.replace('-', '_')}.txt.gz"
    raw = RawFile(
        source="pems", name=name, content=content, url="u", fetched_at=NOW, mode=Mode.LIVE
    )
    whole = 276 if day == "2026-03-08" else 288
    missing = 288 - slots
    expected = f"{whole - missing} of {whole} five-minute slots" if missing else ""
    assert describe_short(raw) == expected


def test_a_backfill_fetches_the_months_of_its_span(home, site):
    span = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC))
    home.ingest("traffic", span=span)
    assert downloads(site) == ["d04_text_station_hour_2026_01.txt.gz"]


@pytest.mark.parametrize("name", ["station_hour", HOUR_FILE])
def test_a_lost_session_is_opened_again_once(home, site, name):
    site.faults[name] = LOGIN_PAGE
    assert home.ingest("traffic")["pems"]["files"] == 2
    assert site.log.count("login") == 2


def test_a_session_that_is_lost_at_once_again_ends_the_run_and_keeps_the_other_files(home, site):
    site.send = lambda name: LOGIN_PAGE if name == HOUR_FILE else Answer(body=FILES[name][1])
    with pytest.raises(SourceBlocked, match=HOUR_FILE):
        home.ingest("traffic")
    assert site.log.count("login") == 2
    assert home.series("traffic").height == 2 * 3


def test_a_refused_log_in_names_the_variables_and_asks_for_nothing(home, site):
    site.accepts = (USER, "another")
    with pytest.raises(SourceBlocked, match="COMPEVO_PEMS_USER and COMPEVO_PEMS_PASSWORD"):
        home.ingest("traffic")
    assert site.log == ["login"]


def test_a_year_without_files_is_an_empty_list():
    assert parse_list(b"[]", "x") == parse_list(b'{"data": []}', "x") == []
    assert parse_list(b'{"data": {}}', "x") == []


@pytest.mark.parametrize(
    "content",
    [b"{", b'{"data": ["a"]}', b'{"data": {"May": [{"url": "/"}]}}', b'{"data": {"May": [3]}}',
     b'{"data": {"May": [{"file_name": "../../etc/passwd", "url": "/"}]}}', b"[" * 100_000],
)  # fmt: skip
def test_a_list_of_another_form_is_drift(content):
    with pytest.raises(SchemaDrift):
        parse_list(content, "d04.json")


def test_a_list_may_send_to_no_other_host(home, site):
    entry = {"file_name": HOUR_FILE, "url": "https://elsewhere.example/steal"}
    body = json.dumps({"data": {"October": [entry]}}).encode()
    site.list_files = lambda kind, year: Answer(body=body, kind="text/plain")
    with pytest.raises(SourceError, match=r"elsewhere\.example"):
        home.ingest("traffic")


def test_without_an_account_the_error_names_the_variables_and_the_folder(tmp_path, site):
    home = LiveHome(tmp_path / "home", NOW)
    with pytest.raises(SourceAbsent, match=r"COMPEVO_PEMS_USER and .*folder traffic"):
        home.ingest("traffic")
    assert site.log == []


def test_files_fetched_by_hand_need_no_account_and_are_read_once(tmp_path, site):
    folder = tmp_path / "archive" / "traffic"
    folder.mkdir(parents=True)
    (folder / HOUR_FILE).write_bytes(FILES[HOUR_FILE][1])
    (folder / "d04_text_station_hour_2026").mkdir()
    home = LiveHome(tmp_path / "home", NOW, {"archive": folder.parent})
    assert home.ingest("traffic")["pems"]["new"] == 6
    assert home.ingest("traffic")["pems"]["files"] == 0
    assert site.log == []


def test_the_account_reaches_no_text_log_or_file(home, site, caplog):
    caplog.set_level(logging.DEBUG)
    texts = [repr(home.workspace.settings), str(home.workspace.settings.pems)]
    result = home.materialize("traffic")
    texts += [str(event) for event in result.all_events]
    home.wait(days=1)
    site.accepts = ("", "")
    try:
        home.ingest("traffic")
    except SourceBlocked as error:
        texts += ["".join(traceback.format_exception(error)), repr(error)]
    texts.append(caplog.text)

    secrets = [secret.encode() for secret in (USER, PASSWORD, "canary-Passw0rd")]
    assert len(texts) > 5
    assert not any(secret.decode() in text for text in texts for secret in secrets)
    written = [path for path in home.home.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not any(secret in path.read_bytes() for path in written for secret in secrets)
