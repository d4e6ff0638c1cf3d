"""PeMS: files of stations and sensors, and the clearinghouse over the replay server."""

import functools
import gzip
import json
import logging
import traceback
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import polars as pl
import pytest

from compevo_core.data.series import regularise_series, validate_series
from compevo_core.errors import SchemaDrift, SourceAbsent, SourceBlocked
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.ledger import ABSENT_PAUSES, EntryState
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.pems import source as pems
from tests.support.commands import invoke
from tests.support.live import LiveHome
from tests.support.replay import Answer
from tests.support.sources import clock, raw

NAME = "d04_text_station_hour_2016_03.txt"
HOUR = timedelta(hours=1)
NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)
USER, PASSWORD = "canary-user@example.org", "canary-Passw0rd/+&="
ACCOUNT = {"pems_user": USER, "pems_password": PASSWORD}
HOUR_FILE = "d04_text_station_hour_2026_10.txt.gz"
META_FILE = "d04_text_meta_2026_11_05.txt"
LOGIN_PAGE = Answer(body=b"<html><form>Username: Password:</form></html>", kind="text/html")
SIGNED_IN = Answer(body=b"<html><a href='/?dnode=Logout'>Logout</a></html>", kind="text/html")
DAY_FILE = "d04_text_station_5min_2026_11_17.txt.gz"


def line(stamp="03/01/2016 00:00:00", station="400001", percent="100", occupancy=".0123"):
    lane = ["4", "101", "S", "ML", ".415", "480"]
    cells = [stamp, station, *lane, percent, "1200", occupancy, "65.1"]
    return ",".join([*cells, *["0"] * 6, *[""] * 24])


def parse(*lines, name=NAME):
    return validate_series(pems.parse(raw(name, "\n".join(lines) + "\n", "pems")))


def occupancy(frame):
    return frame.filter(pl.col("variable") == "occupancy").sort("start_utc")


def test_a_name_says_what_a_file_holds():
    names = ("d04_text_station_hour_2020_01.txt.gz", "traffic.csv", "d04_text_meta.txt")
    assert [pems.has_values(name) for name in names] == [True, True, False]


def test_a_local_hour_becomes_utc():
    frame = occupancy(parse(line("03/13/2016 01:00:00"), line("03/13/2016 03:00:00")))
    starts = [datetime(2016, 3, 13, hour, tzinfo=UTC) for hour in (9, 10)]
    assert frame["start_utc"].to_list() == starts
    assert frame["series_id"].unique().to_list() == ["PEMS/400001"]
    assert frame["value"].to_list() == [0.0123, 0.0123]


@pytest.mark.parametrize("copies", [1, 2])
def test_the_repeated_hour_is_nulled(copies):
    hours = [0, *[1] * copies, 2]
    frame = occupancy(parse(*(line(f"11/06/2016 0{hour}:00:00") for hour in hours)))
    assert frame["flag"].to_list() == ["observed", *["nulled:ambiguous-dst-hour"] * 2, "observed"]
    assert regularise_series(frame, HOUR)[1]["missing"] == 0


def test_occupancies_have_flags():
    cells = [("0", ".02"), ("100", ""), ("100", "1.7"), ("1", "0")]
    lines = [
        line(f"03/01/2016 0{hour}:00:00", percent=percent, occupancy=value)
        for hour, (percent, value) in enumerate(cells)
    ]
    frame = occupancy(parse(*lines))
    flags = ["filled:pems-imputed", "missing", "nulled:out-of-range", "observed"]

    assert frame["flag"].to_list() == flags
    assert frame["value"].to_list() == [0.02, None, None, 0.0]


def test_the_archive_gives_chosen_stations(tmp_path):
    stations = ("400001", "400017", "400030")
    lines = "\n".join(line(station=station) for station in stations) + "\n"
    (tmp_path / "traffic").mkdir()
    (tmp_path / "traffic" / f"{NAME}.gz").write_bytes(gzip.compress(lines.encode()))

    def parse_archive(*chosen):
        (feed,) = default_feeds(pems_stations=chosen)["traffic"]
        files = list(feed.read_files(Mode.ARCHIVE, tmp_path, clock))
        frame = feed.parsers[FrameKind.SERIES](files)
        return set(frame["series_id"].str.extract("^PEMS/(.*)$").drop_nulls())

    assert parse_archive() == set(stations)
    assert parse_archive(*stations[1:]) == set(stations[1:])
    with pytest.raises(SchemaDrift, match=f"{NAME}.* 999, 1000"):
        parse_archive("999", "1000")


def dated(first, header="date,0,OT"):
    start = datetime.fromisoformat(first)
    lines = (f"{start + timedelta(hours=hour)},0.0{hour % 9},0.5" for hour in range(pems.HOURS))
    return header + "\n" + "\n".join(lines)


def test_the_misdated_common_table_is_put_right():
    frame = pems.parse(raw("traffic.csv", dated("2016-07-01 02:00")))
    last = frame.filter(pl.col("series_id") == "PEMS862/861")
    assert last.height == pems.HOURS
    assert last["start_utc"][0] == datetime(2015, 1, 1, 8, tzinfo=UTC)
    assert last["start_utc"][-1] == datetime(2017, 1, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (dated("2015-01-02"), "line 2: .* 2015-01-02"),
        (dated("2015-01-01").replace("2015-01-03 00:00:00,0.03,0.5\n", ""), "line 50: "),
        (dated("2015-01-01", header="date,0,862"), "861"),
        (dated("2015-01-01", header="date,0,0"), "861"),
    ],
    ids=["late", "hour-left-out", "862", "twice"],
)
def test_another_table_is_refused(text, facts):
    with pytest.raises(SchemaDrift, match=facts):
        pems.parse(raw("traffic.csv", text))


def test_the_headerless_original_is_read(monkeypatch):
    monkeypatch.setattr(pems, "HOURS", 48)
    row = ",".join(f"0.{sensor:03d}" for sensor in range(pems.SENSORS))
    frame = pems.parse(raw("traffic.txt", (row + "\n") * pems.HOURS))
    assert frame["series_id"].n_unique() == pems.SENSORS
    assert frame.filter(series_id="PEMS862/7")["value"].unique().to_list() == [0.007]


EIGHT = [datetime(2026, 10, 31, 8, 5 * step, tzinfo=UTC) for step in range(12)]  # on the wall


def minute(stamp, occupancy=".03", **changes):
    return line(f"{stamp:%m/%d/%Y %H:%M:%S}", occupancy=occupancy, **changes) + "," * 10


def hour(*, drop=(), **changes):
    return [minute(stamp, **changes) for step, stamp in enumerate(EIGHT) if step not in drop]


parse_minutes = functools.partial(parse, name="d04_text_station_5min_2026_11_01.txt")


def test_twelve_intervals_are_an_hour():
    rising = [
        minute(stamp, occupancy=f"{0.01 * (step + 1):.2f}", percent="100" if step < 6 else "50")
        for step, stamp in enumerate(EIGHT)
    ]
    frame = parse_minutes(*rising)
    rows = {row["series_id"]: row for row in frame.iter_rows(named=True)}

    assert rows["PEMS/400001"]["value"] == pytest.approx(0.065)
    assert rows["PEMS/400001"]["start_utc"] == datetime(2026, 10, 31, 15, tzinfo=UTC)
    assert rows["PEMS_OBSERVED/400001"]["value"] == 75.0


@pytest.mark.parametrize("occupancy_cell", [None, "", "5.3", "-.01"])
def test_a_broken_hour_has_no_value(occupancy_cell):
    lines = hour(drop=[3])
    if occupancy_cell is not None:
        lines.append(minute(EIGHT[3], occupancy=occupancy_cell))
    assert occupancy(parse_minutes(*lines)).select("value", "flag").rows() == [(None, "missing")]


def test_a_file_in_parts_is_the_same(monkeypatch):
    lines = [*hour(), *hour(station="400002"), *hour(station="400003", occupancy=".09")]
    whole = parse_minutes(*lines)
    monkeypatch.setattr(pems.tables, "PART_CHARACTERS", 150)
    assert parse_minutes(*lines).equals(whole)
    with pytest.raises(SchemaDrift, match=r"line 30: .*'low'"):
        parse_minutes(*lines[:29], lines[29].replace(".09", "low"), *lines[30:])


def hours(month):
    lines = [line(f"{month}/01/2026 0{hour}:00:00") for hour in range(3)]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


FILES = {
    HOUR_FILE: ("October", hours(10)),
    "d04_text_station_hour_2026_09.txt.gz": ("September", hours("09")),
    "d04_text_station_hour_2026_01.txt.gz": ("January", hours("01")),
    META_FILE: ("November", b"ID\tFwy\tDir\tDistrict\n400001\t101\tS\t4\n"),
}


class Site:
    """The clearinghouse: one address for everything; the query selects."""

    def __init__(self, accepts=(USER, PASSWORD)):
        self.accepts = accepts
        self.files = dict(FILES)
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
        if "type" in seen.query:
            return self.list_files(name, seen.query["yy"][0])
        return self.send(name)

    def list_files(self, kind, year):
        months = {}
        for name, (month, content) in self.files.items():
            if f"_{kind}_{year}" in name:
                entry = {"file_name": name, "url": f"/?download={name}&dnode=Clearinghouse"}
                months.setdefault(month, []).append(entry | {"bytes": len(content)})
        return Answer(body=json.dumps({"data": months or []}).encode(), kind="text/plain")

    def send(self, name):
        return Answer(body=self.files[name][1])


@pytest.fixture
def site(replay):
    site = Site()
    replay.serve({("pems.dot.ca.gov", "/"): site})
    return site


@pytest.fixture
def home(tmp_path, site):
    archive = tmp_path / "archive"
    (archive / "traffic").mkdir(parents=True)
    return LiveHome(tmp_path / "home", NOW, {"archive": archive} | ACCOUNT)


def downloads(site):
    return [name for name in site.log if name.endswith((".gz", ".txt"))]


def test_the_asset_logs_in_once(home, site):
    assert home.materialize("traffic").success
    assert site.log[0] == "login"
    assert site.log.count("login") == 1
    assert downloads(site) == ["d04_text_station_hour_2026_09.txt.gz", HOUR_FILE, META_FILE]
    frame = home.series("traffic")
    assert set(frame["series_id"]) == {"PEMS/400001", "PEMS_OBSERVED/400001"}
    assert frame.height == 2 * 2 * 3
    assert (home.workspace.layout.raw / "pems" / META_FILE).exists()


def minutes(day, end=288):
    """Returns a five-minute file: the first slots of a day's clock."""
    start = datetime(*map(int, day.split("-")))  # noqa: DTZ001  # naive, as in the file
    stamps = [start + slot * timedelta(minutes=5) for slot in range(end)]
    return gzip.compress(("\n".join(map(minute, stamps)) + "\n").encode(), mtime=0)


@pytest.fixture
def days(home, site):
    """A publisher of one day, whose file lacks the last four hours."""
    settings = home.settings | {"pems_files": "station_5min"}
    site.files = {DAY_FILE: ("November", minutes("2026-11-17", end=240))}
    return LiveHome(home.home, NOW, settings)


def count_values(home):
    return home.series("traffic").drop_nulls("value").filter(series_id="PEMS/400001").height


def test_a_short_day_is_asked_until_whole(days, site):
    days.ingest("traffic")
    assert count_values(days) == 20
    for slots in (264, 288):
        days.wait(days=1)
        site.files[DAY_FILE] = ("November", minutes("2026-11-17", end=slots))
        assert days.ingest("traffic")["pems"]["files"] == 1
        assert count_values(days) == slots // 12
    assert days.ledger.get("pems", DAY_FILE).state is EntryState.STORED

    days.wait(days=1)
    assert days.ingest("traffic")["pems"]["files"] == 0
    assert downloads(site) == [DAY_FILE] * 3


@pytest.mark.parametrize("is_packed_anew", [False, True])
def test_a_day_that_stays_short_becomes_final(days, site, is_packed_anew):
    content = gzip.decompress(site.files[DAY_FILE][1])
    if is_packed_anew:
        site.send = lambda name: Answer(body=gzip.compress(content, mtime=len(site.log)))

    for pause in (*ABSENT_PAUSES, timedelta(days=30)):
        days.ingest("traffic")
        days.ingest("traffic")
        days.clock.now += max(pause, timedelta(days=1))
    days.ingest("traffic")
    assert len(downloads(site)) == 1 + len(ABSENT_PAUSES)
    assert count_values(days) == 20

    shown = invoke("sources", "--dataset", "pems", home=days.home, mode="live")
    assert "240 of 288" in " ".join(shown.split()) and "100 %" in shown


@pytest.mark.parametrize("slots", [288, 240])
@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01"])
def test_a_clock_change_changes_the_slots(day, slots):
    content = minutes(day, end=slots)
    if day == "2026-03-08":
        # The clock has no hour from two to three.
        lines = gzip.decompress(content).splitlines(keepends=True)
        content = gzip.compress(b"".join(lines[:24] + lines[36:]))
    name = f"d04_text_station_5min_{day.replace('-', '_')}.txt.gz"
    whole = 276 if day == "2026-03-08" else 288
    missing = 288 - slots
    expected = f"{whole - missing} of {whole} five-minute slots" if missing else ""

    assert pems.describe_short(raw(name, content, "pems", Mode.LIVE)) == expected


def test_a_backfill_fetches_the_months_of_its_span(home, site):
    span = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC))
    home.ingest("traffic", span=span)
    assert downloads(site) == ["d04_text_station_hour_2026_01.txt.gz"]


@pytest.mark.parametrize("name", ["station_hour", HOUR_FILE])
def test_a_lost_session_is_opened_again_once(home, site, name):
    site.faults[name] = LOGIN_PAGE
    assert home.ingest("traffic")["pems"]["files"] == 2
    assert site.log.count("login") == 2


def test_a_session_lost_twice_ends_the_run(home, site):
    site.send = lambda name: LOGIN_PAGE if name == HOUR_FILE else Answer(body=FILES[name][1])
    with pytest.raises(SourceBlocked, match=HOUR_FILE):
        home.ingest("traffic")
    assert site.log.count("login") == 2
    assert home.series("traffic").height == 2 * 3


def test_a_refused_login_asks_for_nothing(home, site):
    site.accepts = (USER, "another")
    with pytest.raises(SourceBlocked, match="COMPEVO_PEMS_USER"):
        home.ingest("traffic")
    assert site.log == ["login"]


def test_an_account_or_files_by_hand_are_needed(tmp_path, site):
    folder = tmp_path / "archive" / "traffic"
    (folder / "d04_text_station_hour_2026").mkdir(parents=True)
    home = LiveHome(tmp_path / "home", NOW, {"archive": folder.parent})
    with pytest.raises(SourceAbsent, match=r"COMPEVO_PEMS_USER.*traffic"):
        home.ingest("traffic")

    (folder / HOUR_FILE).write_bytes(FILES[HOUR_FILE][1])
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
    with pytest.raises(SourceBlocked) as caught:
        home.ingest("traffic")
    texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value), caplog.text]

    secrets = [secret.encode() for secret in (USER, PASSWORD, "canary-Passw0rd")]
    assert len(texts) > 5
    assert not any(secret.decode() in text for text in texts for secret in secrets)
    written = [path for path in home.home.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not any(secret in path.read_bytes() for path in written for secret in secrets)
