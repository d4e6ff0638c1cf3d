"""Parsing GDELT's 15-minute GKG files at their real size, compared with other readers.

What belongs here: made-up files, one function and one process per way. What does not: the parser
(``compevo_pipeline.sources.gdelt.parse``).

    python -m benchmarks.gkg run --files 96 --folder DIR --gdelt-python VENV/bin/python

Files are as published ones: 27 tab-separated columns, 26 MB, 8 MB zipped; four of them, and copies
of these. Every way reads one file after the other and keeps what it made of each, as one table in
the end. The package gdelt is run by the interpreter of an environment of its own, since this
project does not depend on it: libraries are imported where they are used.
"""

import argparse
import csv
import random
import resource
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from benchmarks.rows import (
    RESULTS,
    Row,
    describe_surroundings,
    measure_in_process,
    measure_seconds,
    print_row,
    write_rows,
)

ROWS_PER_FILE = 2_000
DIFFERENT_FILES = 4  # making one takes ten times as long as reading it
FILE_NAME = "{:014d}.gkg.csv.zip"
FIRST_STAMP = 20260301000000
GKG_COLUMNS = 27
_ROW_BYTES = 10_200
_WORDS = 500

Read = Callable[[list[Path]], tuple[int, str]]


def make_files(folder: Path, count: int) -> list[Path]:
    """Write files of a day and return them; after the first four, each is a copy of one."""
    generator = random.Random(0)  # noqa: S311 - made-up text, not a secret
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(generator.choices(letters, k=generator.randint(3, 11))) for _ in range(_WORDS)]

    paths = []
    for number in range(count):
        hour, quarter = divmod(number, 4)
        stamp = FIRST_STAMP + (hour % 24) * 10_000 + quarter * 1_500
        path = folder / f"{number:03d}" / FILE_NAME.format(stamp)
        path.parent.mkdir()
        paths.append(path)
        if number >= DIFFERENT_FILES:
            path.hardlink_to(paths[number % DIFFERENT_FILES])
            continue

        rows = [_make_row(generator, words, stamp, row) for row in range(ROWS_PER_FILE)]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr(path.stem, "\n".join(rows) + "\n")
    return paths


def _make_row(generator: random.Random, words: list[str], stamp: int, number: int) -> str:
    cells = [""] * GKG_COLUMNS
    address = f"https://news.example/{stamp}/{generator.getrandbits(48):x}"
    cells[0:5] = [f"{stamp}-{number}", str(stamp), "1", "news.example", address]

    # Themes, places and the counts of word lists (GCAM) make up most of a row.
    for column, share in ((7, 0.1), (8, 0.15), (9, 0.05), (10, 0.1), (11, 0.05), (23, 0.05)):
        chosen = generator.choices(words, k=int(_ROW_BYTES * share / 8))
        cells[column] = ";".join(f"{word},{i * 37}" for i, word in enumerate(chosen))
    counts = sorted(generator.choices(range(1, 1_500), k=_ROW_BYTES // 20))
    cells[17] = ",".join(f"c{code % 30}.{code}:{code % 9}" for code in counts)

    title = " ".join(generator.choices(words, k=9)).capitalize()
    cells[26] = (
        f"<PAGE_LINKS>https://news.example/{number}</PAGE_LINKS>"
        f"<PAGE_PRECISEPUBTIMESTAMP>{stamp}</PAGE_PRECISEPUBTIMESTAMP>"
        f"<PAGE_TITLE>{title} &amp; more</PAGE_TITLE>"
    )
    return "\t".join(cells)


def read_by_compevo(paths: list[Path]) -> tuple[int, str]:
    """Read with this project's parser; return the rows and its version."""
    import polars as pl

    from compevo_pipeline.sources.gdelt.parse import parse_gkg
    from tests.support.sources import raw

    frame = pl.concat(parse_gkg(raw(path.name, path.read_bytes()))[0] for path in paths)
    return frame.height, version("compevo")


def read_by_pandas(paths: list[Path]) -> tuple[int, str]:
    """Read the needed columns with pandas; return the rows and its version."""
    import pandas as pd

    frames = []
    for path in paths:
        frame = pd.read_csv(
            path,
            compression="zip",
            sep="\t",
            header=None,
            quoting=csv.QUOTE_NONE,
            usecols=[1, 2, 3, 4, 25, 26],
            dtype=str,
            encoding_errors="replace",
        )
        frame["title"] = frame.pop(26).str.extract(r"<PAGE_TITLE>(.*?)</PAGE_TITLE>", expand=False)
        frames.append(frame)
    return len(pd.concat(frames)), pd.__version__


def read_by_gdelt(paths: list[Path]) -> tuple[int, str]:
    """Read with the package's own worker, given the bytes in place of a download."""
    import pandas as pd
    import requests

    class Answer:
        def __init__(self, content: bytes) -> None:
            self.content = content
            self.status_code = 200

    # Importing the package asks for a table of codes, which no file of ours needs.
    contents = {str(path): path.read_bytes for path in paths}
    requests.get = lambda url, **_: Answer(contents.get(url, lambda: b"{}")())
    from gdelt import parallel

    frames = [parallel._mp_worker(str(path), "gkg") for path in paths]
    return len(pd.concat(frames)), version("gdelt")


WAYS: dict[str, Read] = {
    "compevo": read_by_compevo,
    "pandas": read_by_pandas,
    "gdelt": read_by_gdelt,
}


def measure(way: str, folder: Path) -> Row:
    """Read every file in this process; return what it took."""
    paths = sorted(folder.glob("*/*.zip"))
    WAYS[way](paths[:1])  # libraries are imported, and not timed

    seconds, cpu_seconds, (rows, version) = measure_seconds(lambda: WAYS[way](paths))
    return {
        "way": way,
        "version": version,
        "files": len(paths),
        "rows": rows,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def run(files: int, folder: Path | None, gdelt_python: str, out: Path) -> None:
    """Make the files, read them in each way, write the table."""
    interpreters = {"compevo": sys.executable, "pandas": sys.executable}
    if gdelt_python:
        interpreters["gdelt"] = gdelt_python

    rows = []
    with tempfile.TemporaryDirectory(prefix="gkg-", dir=folder) as made:
        paths = make_files(Path(made), files)
        members = [member for path in paths for member in zipfile.ZipFile(path).infolist()]
        shared = describe_surroundings(()) | {
            "zipped_mb": sum(path.stat().st_size for path in paths) / 1e6,
            "unpacked_mb": sum(member.file_size for member in members) / 1e6,
        }
        for way, python in interpreters.items():
            (row,) = measure_in_process(
                "benchmarks.gkg", "measure", way, made, environment={}, python=python
            )
            row |= shared
            row["mb_per_cpu_second"] = row["unpacked_mb"] / row["cpu_seconds"]
            row["rows_per_cpu_second"] = row["rows"] / row["cpu_seconds"]
            rows.append(row)

    write_rows(rows, out)


def main() -> None:
    """Run ``measure WAY FOLDER`` for one way, or ``run`` for all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("way", choices=WAYS)
    measuring.add_argument("folder", type=Path)
    every = commands.add_parser("run")
    every.add_argument("--files", type=int, default=96)
    every.add_argument("--folder", type=Path)
    every.add_argument("--gdelt-python", default="")
    every.add_argument("--out", type=Path, default=RESULTS / "gkg.csv")

    given = parser.parse_args()
    if given.command == "measure":
        print_row(measure(given.way, given.folder))
    else:
        run(given.files, given.folder, given.gdelt_python, given.out)


if __name__ == "__main__":
    main()
