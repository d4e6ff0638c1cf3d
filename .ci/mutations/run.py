"""Make one line of the code wrong at a time, and see whether the closest tests notice.

    .venv/bin/python .ci/mutations/run.py                     # every fault of the list
    .venv/bin/python .ci/mutations/run.py --id NAME           # one fault, several times for more
    .venv/bin/python .ci/mutations/run.py --changes 40        # 40 single changes, drawn by commit
    .venv/bin/python .ci/mutations/run.py --changes 40 --since main --room FOLDER
    .venv/bin/python .ci/mutations/run.py --list              # say what there is

``faults.toml`` lists faults that no test suite may miss: each must be noticed. Changes are made by
operators on the syntax tree, anywhere or in lines changed since a commit; some are harmless, so a
share of them must be noticed, and the others are printed to be looked at. All of it happens in a
copy of the tree. Exits with 1 if too little is noticed or the list no longer fits the code.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from xml.etree import ElementTree

from mutation_list import PACKAGES, ListError, Mutation, apply, draw, list_changes, read_faults

REPO = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 180.0  # of one mutation's tests; a machine under load is several times slower
LEAST_SHARE = 0.2  # of the changes; over half are noticed, and a sample of 30 may fall far below

KILLED, SURVIVED, TIMEOUT, ERROR = "killed", "survived", "timeout", "error"
OUTPUT_LINES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one mutation."""

    mutation: Mutation
    status: str
    detail: str
    seconds: float


def say(text: str = "") -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Workplace:
    """Copies of the tree, one for each job, and what runs pytest in them."""

    def __init__(self, folder: Path, jobs: int, limit_s: float) -> None:
        self._limit_s = limit_s
        self._environment = make_environment(folder)
        self._sound: dict[str, bool] = {}  # whether a test passes in the unchanged tree
        self._unchanged = folder / "unchanged"
        self._copies: SimpleQueue[Path] = SimpleQueue()
        copy_tree(self._unchanged)
        for copy in (folder / f"copy-{job}" for job in range(jobs)):
            copy_tree(copy)
            self._copies.put(copy)

    def run(self, mutations: Sequence[Mutation]) -> list[Result]:
        """Run the tests of every mutation, as many at a time as there are copies."""
        results: list[Result] = []
        with ThreadPoolExecutor(self._copies.qsize()) as pool:
            for result, output in pool.map(self._try, mutations):
                results.append(result)
                place = f"[{len(results)}/{len(mutations)}]"
                say(f"{place} {result.status:8} {result.seconds:5.1f} s  {result.mutation.id}")
                if result.status in (ERROR, TIMEOUT):
                    say("\n".join(f"    {line}" for line in output.splitlines()[-OUTPUT_LINES:]))
        return results

    def _try(self, mutation: Mutation) -> tuple[Result, str]:
        """Return what became of a mutation, and what pytest printed."""
        copy, started = self._copies.get(), monotonic()
        marks = () if mutation.is_listed else ("-m", "not slow and not gpu")
        try:
            with apply(mutation, copy):
                code, passed, failed, output = self._test(copy, [*marks, *mutation.tests])
        finally:  # another mutation waits for the copy, after an error as well
            self._copies.put(copy)

        status, detail = ERROR, f"pytest ended with {code}"
        if code is None:
            status, detail = TIMEOUT, "ended when its time was up"
        elif code in (1, 2, 4):  # 4: a conftest that can't be imported
            # A test that fails anyway would "kill" everything.
            noticed = failed or mutation.tests[0]
            if noticed not in self._sound:
                unchanged, ran, *_ = self._test(self._unchanged, [noticed])
                self._sound[noticed] = unchanged == 0 and ran > 0
            status = KILLED if self._sound[noticed] else ERROR
            detail = noticed if status == KILLED else f"without the mutation fails {noticed}"
        elif code == 0 and passed:
            status, detail = SURVIVED, f"{passed} tests passed: {mutation.reason}"
        elif code in (0, 5):
            detail = "none of its tests ran"
        seconds = monotonic() - started
        return Result(mutation=mutation, status=status, detail=detail, seconds=seconds), output

    def _test(self, copy: Path, tests: Sequence[str]) -> tuple[int | None, int, str, str]:
        """Return pytest's exit code (None: its time was up), tests passed, the failed one, output.

        PYTHONPATH puts the copy ahead of the installed project, in processes of the tests as well.
        """
        with tempfile.TemporaryDirectory(dir=self._environment["TMPDIR"]) as name:
            report = Path(name) / "report.xml"
            options = ["-qx", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--disable-warnings"]
            options += [f"--basetemp={name}/tests", f"--junitxml={report}"]
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=copy,
                env=self._environment | {"PYTHONPATH": str(copy)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                # A group of its own, so that what the tests start can be ended with it.
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None, 0, "", process.communicate()[0]
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
            cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314 - our own
            passed = sum(not len(case) for case in cases)
            return process.returncode, passed, failed[1] if failed else "", output


def copy_tree(target: Path) -> None:
    """Copy the files that git knows or would add, and nothing that was built."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        source = REPO / name
        if source.is_file():  # a deleted file is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def make_environment(work: Path) -> dict[str, str]:
    """Return what tests run with: no network, one thread, own folders, the tests' archive."""
    for name in ("home", "dagster", "tmp"):
        (work / name).mkdir(parents=True)
    shutil.copy2(REPO / "dagster_home" / "dagster.yaml", work / "dagster")

    # Tests look for the archive next to the checkout, and next to the copy there is none.
    archive = REPO.parent / "shared" / "data"
    known = {"COMPEVO_ARCHIVE": str(archive)} if archive.is_dir() else {}
    # Where CI is set, pytest shows differences whole: for long bytes that takes minutes.
    inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    return {
        **known,
        **inherited,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "COMPEVO_MODE": "sample",
        "COMPEVO_HOME": str(work / "home"),
        "DAGSTER_HOME": str(work / "dagster"),
        "TMPDIR": str(work / "tmp"),
    }


def choose(options: argparse.Namespace) -> list[Mutation]:
    """Return the mutations that the options name.

    Raises:
        ListError: an option names nothing, or the list does not fit the code.
    """
    seed = options.seed or _git("rev-parse", "HEAD").strip()
    faults = read_faults(options.faults, REPO)
    unknown = sorted(set(options.id) - {fault.id for fault in faults})
    if unknown:
        raise ListError(f"no fault {', '.join(unknown)}; --list names them")

    if options.changes:
        changes = [
            change
            for path, lines in _find_lines(options.since).items()
            if path.startswith(options.room)
            for change in list_changes(REPO, path, lines)
        ]
        chosen = draw(changes, options.changes, seed, REPO)
    else:
        chosen = [
            fault
            for fault in faults
            if fault.path.startswith(options.room) and (not options.id or fault.id in options.id)
        ]
        chosen = draw(chosen, options.sample or len(chosen), seed, REPO)
    if not chosen:
        raise ListError("the options leave no mutation; --list names the faults")
    return chosen


def _find_lines(since: str) -> dict[str, set[int] | None]:
    """Return the files of both packages, with the lines changed since a commit (None: all)."""
    if not since:
        tracked = _git("ls-files", "--", *PACKAGES).splitlines()
        return {path: None for path in tracked if path.endswith(".py")}

    lines: dict[str, set[int] | None] = {}
    changed: set[int] = set()
    for line in _git("diff", "-U0", "--no-color", since, "--", *PACKAGES).splitlines():
        if line.startswith("+++ b/") and line.endswith(".py"):
            changed = set()
            lines[line.removeprefix("+++ b/")] = changed
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed.update(range(first, first + count))
    return lines


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPO), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - git
    return done.stdout


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--id", action="append", default=[], help="this fault (repeatable)")
    parser.add_argument("--room", default="", help="only files below this folder")
    parser.add_argument("--sample", type=int, default=0, help="this many faults of the list")
    parser.add_argument("--changes", type=int, default=0, help="this many single changes instead")
    parser.add_argument("--since", default="", help="changes only in lines changed since a commit")
    parser.add_argument("--seed", default="", help="draw by this text; otherwise by the commit")
    parser.add_argument("--jobs", type=int, default=1, help="copies that work at a time")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds a mutation")
    parser.add_argument("--faults", type=Path, default=Path(__file__).with_name("faults.toml"))
    parser.add_argument("--list", action="store_true", help="only say what there is")
    return parser.parse_args(arguments)


def run(mutations: Sequence[Mutation], jobs: int, limit_s: float) -> list[Result]:
    """Run all mutations in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        return Workplace(Path(name), jobs, limit_s).run(mutations)


def judge(results: Sequence[Result]) -> bool:
    """Print what was missed and the counts; return whether enough was noticed."""
    say()
    for result in results:
        if result.status != KILLED:
            say(f"{result.mutation.id}: {result.status}: {result.detail}")

    # A change may make a loop endless: that is noticed, too, but proves no test.
    counts = {
        status: sum(result.status == status for result in results)
        for status in (KILLED, SURVIVED, TIMEOUT, ERROR)
    }
    say(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    if results[0].mutation.is_listed:
        return counts[KILLED] == len(results)
    return counts[KILLED] >= LEAST_SHARE * (len(results) - counts[TIMEOUT])


def main(arguments: Sequence[str]) -> int:
    """Run what the options name; return 1 if anything is not as it should be."""
    options = read_options(arguments)
    try:
        chosen = choose(options)
    except ListError as error:
        say(str(error))
        return 1

    if options.list:
        for mutation in chosen:
            say(f"{mutation.id}: {mutation.path}: {mutation.reason}")
        return 0
    return 0 if judge(run(chosen, options.jobs, options.limit)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
