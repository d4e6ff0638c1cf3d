"""The campaign: work disturbed by faults, done again, and compared with undisturbed work.

    python -m tests.faults.campaign --moments 20        # writes tests/faults/results.csv

A trial ends identical to the undisturbed work, in one clear error of this project, or badly: rows
lost, rows doubled, or a raw exception. Small file systems are mounted, which needs root; without
it those cases are left out, and said so.

Work is done in forked children. The parent has imported everything and touches no library with
threads of its own, so that a kill falls on work and not on imports.
"""

import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.rows import read_rows, write_rows
from compevo_core.errors import CompEvoError
from compevo_core.runtime.files import translate_storage_errors
from compevo_pipeline.storage.news_store import NewsStore
from tests.faults.flips import KINDS, SEALED, build_home, flip, pass_night
from tests.faults.works import WORKS, ingest, read_ingested

STORES = [name for name in WORKS if name != "training"]
RESULTS = Path(__file__).with_name("results.csv")
FLIP = "one flipped bit"
KILLED = "killed"
DONE = "done"
CLEAR = "clear error"
CRASH = "crash"


@dataclass(frozen=True)
class End:
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
    return wait(*start(work))


def do(name, home, *, kill_after=None, file_limit=0):
    child, pipe = start(lambda: WORKS[name].do(home), file_limit=file_limit)
    return wait(child, pipe, kill_after=kill_after)


def read(name, home):
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


@dataclass
class Row:
    fault: str
    work: str
    trials: int = 0
    disturbed: int = 0  # the fault fell while it worked
    identical: int = 0  # to the undisturbed work
    clear_error: int = 0  # one error of this project
    lost: int = 0  # rows of the undisturbed work that were missing
    doubled: int = 0  # rows that were there more often
    crashed: int = 0  # a raw exception
    message: str = ""

    def count(self, end, expected, *, disturbed):
        self.trials += 1
        self.disturbed += disturbed
        if end.kind == CLEAR:
            self.clear_error += 1
            self.message = self.message or end.message
        elif end.kind == DONE:
            wanted, found = Counter(expected), Counter(end.lines)
            self.lost += (wanted - found).total()
            self.doubled += (found - wanted).total()
            self.identical += wanted == found
        else:
            self.crashed += 1
            self.message = end.message


def add_row(path, row):
    """Put a row into the table of results, in the place of an older one."""
    kept = read_rows(path) if path.exists() else []
    table = {(old["fault"], old["work"]): old for old in [*kept, asdict(row)]}
    write_rows([table[key] for key in sorted(table)], path, [field.name for field in fields(Row)])


class Campaign:
    """All faults, in an empty folder of their own; each kill is tried at random ``moments``."""

    def __init__(self, root, moments, seed=63):
        self._root = root
        self._moments = moments
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._expected: dict[str, End] = {}
        self._homes = 0

    def new_home(self):
        self._homes += 1
        home = self._root / f"home-{self._homes}"
        home.mkdir(parents=True)
        return home

    def expect(self, name):
        if name not in self._expected:
            home = self.new_home()
            done = do(name, home)
            found = read(name, home)
            assert done.kind == found.kind == DONE, (name, done, found)
            self._expected[name] = End(DONE, "", found.lines, done.seconds)
        return self._expected[name]

    def go_on(self, row, name, home, end):
        """Do a work again that was not killed, unless it ended by a raw exception."""
        if end.kind == CRASH:
            row.count(end, (), disturbed=True)
            return
        row.message = row.message or end.message
        self.finish(row, name, home, disturbed=end.kind != DONE)

    def finish(self, row, name, home, *, disturbed):
        """Do the work again, and count how it ended."""
        again = do(name, home)
        end = read(name, home) if again.kind == DONE else again
        row.count(end, self.expect(name).lines, disturbed=disturbed)
        shutil.rmtree(home, ignore_errors=True)

    def harm(self, row, shares, harm=lambda home: None):
        """Kill a work after each share of its time, harm what it left, and do it again."""
        for share in shares:
            home = self.new_home()
            kill_after = share * self.expect(row.work).seconds
            end = do(row.work, home, kill_after=kill_after)
            harm(home)
            self.finish(row, row.work, home, disturbed=end.kind == KILLED)
        return row

    def kill(self, name):
        shares = [self._random.random() for _ in range(self._moments)]
        return self.harm(Row("kill -9", name), shares)

    def cut_power(self, name):
        """Kill, then cut the file that was written last in half: what a power cut leaves."""

        def cut(home):
            files = [path for path in home.rglob("*") if path.is_file() and path.stat().st_size]
            if files:
                newest = max(files, key=lambda path: path.stat().st_mtime_ns)
                os.truncate(newest, newest.stat().st_size // 2)

        shares = [self._random.uniform(0.3, 1.0) for _ in range(max(3, self._moments // 4))]
        return self.harm(Row("power cut: newest file cut in half", name), shares, cut)

    def jump_clock(self, name):
        """Date everything that a killed work left a year ahead, or ten years back."""
        row = Row("clock jumps", name)
        for days in (365, -3650):
            then = time.time() + days * 86_400

            def date(home, then=then):
                for path in home.rglob("*"):
                    os.utime(path, (then, then))

            self.harm(row, [0.7], date)
        return row

    def fill_disk(self, name):
        """Work on a disk that fills up, then on a larger one."""
        row, home = Row("disk full, then larger", name), self.new_home()
        do(name, home)
        whole = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
        home = self.new_home()
        for share in (0.2, 0.5, 0.8):
            size = int(share * whole)
            with mount(home, size):
                end = do(name, home)
                remount(home, f"size={2**30}")
                self.go_on(row, name, home, end)
        return row

    def limit_files(self, name):
        """Work where no file may grow beyond a limit, then without it."""
        row = Row("file size limit, then none", name)
        for limit in (1000, 20_000):
            home = self.new_home()
            self.go_on(row, name, home, do(name, home, file_limit=limit))
        return row

    def read_only(self, name):
        """Work in a home that is read-only, then read what was there."""
        row, home = Row("read-only home", name), self.new_home()
        with mount(home, 2**30):
            do(name, home)
            remount(home, "ro")
            ends = read(name, home), do(name, home)
            remount(home, "rw")
            # A finished training is returned, and windows are read, without writing anything.
            for end in ends:
                lines = end.lines or self.expect(name).lines
                found = End(end.kind, end.message, lines)
                row.count(found, self.expect(name).lines, disturbed=True)
        return row

    def at_once(self, name, count):
        row, home = Row(f"{count} at once, the same", name), self.new_home()
        self._start_together(row, home, [name] * count)
        self.finish(row, name, home, disturbed=True)
        return row

    def all_at_once(self, count):
        names = (STORES * 2)[:count]
        row, home = Row(f"{count} at once, of all kinds", "all stores"), self.new_home()
        self._start_together(row, home, names)
        # Articles of the embedding work are in the store of the article work, and the same ones.
        for name in set(names) - {"article upsert", "embedding"}:
            row.count(read(name, home), self.expect(name).lines, disturbed=True)
        shutil.rmtree(home)
        return row

    def _start_together(self, row, home, names):
        started = [start(lambda name=name: WORKS[name].do(home)) for name in names]
        for end in [wait(child, pipe) for child, pipe in started]:
            if end.kind != DONE:
                row.count(end, (), disturbed=True)

    def tear_wal(self, name):
        """Kill an upsert before DuckDB empties its write-ahead log, and cut the log at random."""
        row = Row("torn DuckDB WAL", name)
        for _ in range(self._moments):
            home = self.new_home()
            number = self._random.randrange(1, 5)
            child, pipe = start(lambda n=number, home=home: _die_in_close(name, home, n))
            wait(child, pipe)
            log = home / "news.duckdb.wal"
            torn = log.exists() and log.stat().st_size > 0
            if torn:
                os.truncate(log, self._random.randrange(log.stat().st_size))
            self.finish(row, name, home, disturbed=torn)
        return row

    def jump_ingest(self, days):
        """Read and store files while the clock is wrong by days, then by the true clock."""
        row = Row(f"clock wrong by {days} days, then right", "ingest")
        alone, home = self.new_home(), self.new_home()
        run(lambda: ingest(alone, days=0))
        expected = run(lambda: sorted(read_ingested(alone)))
        assert expected.kind == DONE, expected

        wrong = run(lambda: ingest(home, days=days))
        row.message = wrong.message
        again = run(lambda: ingest(home, days=0))
        end = run(lambda: sorted(read_ingested(home))) if again.kind == DONE else again
        # What the wrong clock makes impossible may be refused; the true clock's end is another.
        if wrong.kind != DONE:
            row.count(wrong, (), disturbed=True)
        row.count(end, expected.lines, disturbed=True)
        return row

    def flip_bits(self, kind):
        """Flip one bit of a kind of file in a home after a night, and pass the next night.

        An error that ends once the file is put back is clear only where nothing brings it again.
        """
        row, home = Row(FLIP, kind), self._root / "night"
        if FLIP not in self._expected:
            home.mkdir(parents=True)
            build_home(home)
            second = shutil.copytree(home, self._root / "second")
            self._expected[FLIP] = End(DONE, lines=tuple(pass_night(second)))

        rng = np.random.default_rng(sorted(KINDS).index(kind))
        for number in range(2 * self._moments):
            try:
                values, message = flip(home, self._root / f"flip-{number}", kind, rng)
            except Exception as error:  # noqa: BLE001 - a crash is what the campaign looks for
                end = End(CRASH, f"{type(error).__name__}: {error}")
            else:
                row.message = row.message or message
                row.disturbed += bool(message)
                stops = bool(message) and kind not in SEALED
                end = End(CRASH if stops else DONE, message, tuple(values))
            row.count(end, self._expected[FLIP].lines, disturbed=False)
        return row


def _die_in_close(name, home, number):
    """Do a work, and die by kill -9 when the n-th writer of DuckDB has committed."""
    open_file, left = NewsStore._open, iter(range(number, 0, -1))

    @contextmanager
    def open_or_die(file, *, read_only):
        with open_file(file, read_only=read_only) as connection:
            yield connection
            if not read_only and next(left) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    NewsStore._open = open_or_die
    WORKS[name].do(home)


@contextmanager
def mount(folder, size):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder, option):
    """Change a mounted file system: its room, or whether it can be written."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


@cache
def can_mount():
    """Whether this process may mount a file system; root in a container often may not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mount(Path(folder), 1 << 20):
                return True
        except (subprocess.CalledProcessError, FileNotFoundError):
            sys.stdout.write("no file system can be mounted: full and read-only disks left out\n")
            return False


def list_cases(campaign, names):
    """Yield every case: kills of all works first."""
    yield from (partial(campaign.kill, name) for name in names)
    for name in names:
        yield partial(campaign.cut_power, name)
        yield partial(campaign.jump_clock, name)
        yield partial(campaign.limit_files, name)
        yield partial(campaign.at_once, name, 2)
        if name in STORES:
            yield partial(campaign.at_once, name, 8)
        if name in ("article upsert", "embedding"):
            yield partial(campaign.tear_wal, name)
        if can_mount():
            yield partial(campaign.fill_disk, name)
            yield partial(campaign.read_only, name)
    if set(STORES) <= set(names):
        yield partial(campaign.all_at_once, 2)
        yield partial(campaign.all_at_once, 8)
        for days in (365, -3650):
            yield partial(campaign.jump_ingest, days)
        # Last: it works in this process, whose threads no child of it may inherit.
        yield from (partial(campaign.flip_bits, kind) for kind in KINDS)


def main(moments, names, cases, out):
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder) / "stores", moments)
        for case in list_cases(campaign, names):
            if cases and case.func.__name__ not in cases:
                continue
            row = case()
            # No path of this machine belongs in the table.
            row.message = row.message.replace(folder, "...")[:200]
            sys.stdout.write(f"{time.strftime('%T')} {row}\n")
            sys.stdout.flush()
            add_row(out, row)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--work", action="append", choices=list(WORKS))
    parser.add_argument("--case", action="append", help="such as kill or jump_clock; else all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    main(chosen.moments, chosen.work or list(WORKS), chosen.case or [], chosen.out)
