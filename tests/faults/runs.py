"""Materializations by ``dagster asset materialize`` that share one home, each in its own process.

What belongs here: the assets, starting runs at once, reading what they left. What does not: faults
of the stores below them (``tests.faults.campaign``).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from compevo_core.data.window import WindowSet
from compevo_core.errors import CompEvoError
from compevo_pipeline.settings import REPOSITORY, Layout
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore
from tests.faults.children import CLEAR, CRASH, DONE, End
from tests.faults.rows import Row

PATIENCE_S = 1800.0


@dataclass(frozen=True)
class Asset:
    """An asset, what it is made of, and its end as lines."""

    key: str
    read: Callable[[Layout], Iterator[str]]
    needs: tuple[str, ...] = ()


def read_series(dataset: str) -> Callable[[Layout], Iterator[str]]:
    """Return a function that yields each stored value of a data set."""

    def read(layout: Layout) -> Iterator[str]:
        rows = SeriesStore(layout.root).read(dataset)
        yield from map(repr, rows.select("series_id", "variable", "start_utc", "value").iter_rows())

    return read


def read_articles(layout: Layout) -> Iterator[str]:
    """Yield each stored article."""
    yield from NewsStore(layout.news_database).read_articles()["article_id"].to_list()


def read_windows(layout: Layout) -> Iterator[str]:
    """Yield the hash of the windows."""
    yield WindowSet.read(layout.windows("exchange")).hash


SERIES = Asset("series/exchange", read_series("exchange"))
OTHER_SERIES = Asset("series/bitcoin", read_series("bitcoin"))
ARTICLES = Asset("news/articles", read_articles)
WINDOWS = Asset("windows/exchange", read_windows, needs=(SERIES.key, ARTICLES.key))
TOGETHER: tuple[tuple[Asset, ...], ...] = (
    (SERIES, SERIES),
    (ARTICLES, ARTICLES),
    (WINDOWS, WINDOWS),
    (SERIES, ARTICLES),
    (SERIES, SERIES, OTHER_SERIES, OTHER_SERIES, ARTICLES, ARTICLES, WINDOWS, WINDOWS),
)
"""What is materialized at once, in one home."""


class Runs:
    """Runs at once, and the same assets made one after the other to compare them with.

    Args:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._one_by_one = root / "one-by-one"
        self._made: set[str] = set()
        self._homes = 0

    def materialize(self, assets: tuple[Asset, ...]) -> Row:
        """Materialize assets at once; count how each run, and what is stored, ended."""
        names = ", ".join(dict.fromkeys(asset.key for asset in assets))
        row = Row(f"{len(assets)} runs at once by Dagster", names)
        home = self._new_home([need for asset in assets for need in asset.needs])

        started = [start(home, asset.key) for asset in assets]
        for end in map(wait, started):
            if end.kind != DONE:
                row.count(end, (), disturbed=True)

        for asset in dict.fromkeys(assets):
            self._make(asset.key)
            expected = tuple(asset.read(layout_of(self._one_by_one)))
            found = End(DONE, "", tuple(asset.read(layout_of(home))))
            row.count(found, expected, disturbed=True)
        shutil.rmtree(home)
        return row

    def _new_home(self, keys: list[str]) -> Path:
        """Return a home in which assets were made one after the other."""
        for key in keys:
            self._make(key)
        self._homes += 1
        home = self._root / f"home-{self._homes}"
        if keys:
            shutil.copytree(self._one_by_one, home)
        return prepare(home)

    def _make(self, key: str) -> None:
        if key not in self._made:
            end = wait(start(prepare(self._one_by_one), key))
            assert end.kind == DONE, end
            self._made.add(key)


def prepare(home: Path) -> Path:
    """Give a home the project's settings of Dagster, and Dagster's own tables.

    Two runs that make the tables at once stop each other: SQLite knows no lock around all of them,
    and Dagster takes none.
    """
    (home / "dagster").mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", home / "dagster")
    with dg.DagsterInstance.from_config(str(home / "dagster")):
        return home


def layout_of(home: Path) -> Layout:
    """Return the folders of a home's sample mode."""
    return Layout(root=home / "sample")


def start(home: Path, key: str) -> "subprocess.Popen[str]":
    """Materialize an asset from a shell."""
    command = [sys.executable, "-m", "dagster", "asset", "materialize"]
    own = {"COMPEVO_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
    return subprocess.Popen(
        [*command, "-m", "compevo_pipeline.definitions", "--select", f'key:"{key}"'],
        env={**os.environ, **own, "COMPEVO_MODE": "sample"},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(run: "subprocess.Popen[str]") -> End:
    """Wait for a run; an error of this project in its log is a clear one."""
    output, _ = run.communicate(timeout=PATIENCE_S)
    if run.returncode == 0:
        return End(DONE)
    found = re.search(rf"\b(?:{'|'.join(find_errors(CompEvoError))}): .*", output)
    return End(CLEAR, found[0]) if found else End(CRASH, find_cause(output))


def find_cause(output: str) -> str:
    """Return the last line of a log that names an error."""
    named = [line for line in output.splitlines() if re.match(r"\S*(Error|Exception)\b", line)]
    return named[-1] if named else output[-200:]


def find_errors(kind: type[CompEvoError]) -> Iterator[str]:
    """Yield the names of an error and of all that are of its kind."""
    yield kind.__name__
    for one in kind.__subclasses__():
        yield from find_errors(one)
