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
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from forked_pytest import Child, Outcome, copy_tree, preload, set_environment
from mutation_list import PACKAGES, ListError, Mutation, apply, draw, list_changes, read_faults

REPO = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.02
LIMIT_SECONDS = 120.0  # of one mutation's tests; a machine under load is several times slower
FEWEST_FOR_PRELOAD = 4  # below, importing everything takes longer than it saves
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
    """Copies of the tree, one for each job, and the children that work in them."""

    def __init__(self, folder: Path, jobs: int, limit_s: float) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._children = 0
        self._sound: dict[str, bool] = {}  # whether a test passes in the unchanged tree
        self._unchanged = folder / "unchanged"
        self._copies = [folder / f"copy-{job}" for job in range(jobs)]
        for copy in (self._unchanged, *self._copies):
            copy_tree(REPO, copy)

    def run(self, mutations: Sequence[Mutation]) -> list[Result]:
        """Run the tests of every mutation, as many at a time as there are copies.

        Tests that do not end are run a second time: a child is forked from a process with threads,
        and may inherit a lock that nobody opens. A mutation without end does not end twice.
        """
        results: list[Result] = []
        waiting = list(mutations)
        ended_early: set[str] = set()
        running: dict[Path, tuple[Mutation, Child, ExitStack]] = {}

        with ExitStack() as at_exit:
            at_exit.callback(lambda: [child.stop() for _, child, _ in running.values()])
            while waiting or running:
                for copy in (copy for copy in self._copies if copy not in running):
                    if waiting:
                        mutation, applied = waiting.pop(0), ExitStack()
                        applied.enter_context(apply(mutation, copy))
                        marks = () if mutation.is_listed else ("-m", "not slow and not gpu")
                        child = self._start(copy, [*marks, *mutation.tests])
                        running[copy] = (mutation, child, applied)

                for copy, (mutation, child, applied) in list(running.items()):
                    outcome = child.poll(self._limit_s)
                    if outcome is None:
                        continue
                    applied.close()
                    del running[copy]
                    if outcome.exit_code is None and mutation.id not in ended_early:
                        ended_early.add(mutation.id)
                        waiting.append(mutation)
                        continue
                    results.append(self._judge(mutation, outcome, child.seconds))
                    _report(results[-1], outcome, f"{len(results)}/{len(mutations)}")
                time.sleep(POLL_SECONDS)
        return results

    def _judge(self, mutation: Mutation, outcome: Outcome, seconds: float) -> Result:
        status, detail = ERROR, f"pytest ended with {outcome.exit_code}"
        if outcome.exit_code is None:
            status, detail = TIMEOUT, "ended when its time was up"
        elif outcome.foreign:
            detail = f"imported {outcome.foreign[0]} from outside the copy"
        elif outcome.exit_code in (1, 2, 4):  # 4: a conftest that can't be imported
            # A test that fails anyway would "kill" everything.
            noticed = (outcome.failed or mutation.tests)[0]
            if self._passes_unchanged(noticed):
                status, detail = KILLED, noticed
            else:
                detail = f"without the mutation fails {noticed}"
        elif outcome.exit_code == 0 and outcome.n_passed:
            status, detail = SURVIVED, f"{outcome.n_passed} tests passed: {mutation.reason}"
        elif outcome.exit_code in (0, 5):
            detail = "none of its tests ran"
        return Result(mutation=mutation, status=status, detail=detail, seconds=seconds)

    def _passes_unchanged(self, test: str) -> bool:
        if test not in self._sound:
            child = self._start(self._unchanged, [test])
            while (outcome := child.poll(self._limit_s)) is None:
                time.sleep(POLL_SECONDS)
            self._sound[test] = outcome.exit_code == 0 and outcome.n_passed > 0
        return self._sound[test]

    def _start(self, copy: Path, tests: Sequence[str]) -> Child:
        self._children += 1
        folder = self._folder / f"child-{self._children}"
        folder.mkdir()
        return Child(copy, folder, tests)


def _report(result: Result, outcome: Outcome, place: str) -> None:
    say(f"[{place}] {result.status:8} {result.seconds:5.1f} s  {result.mutation.id}")
    if result.status in (ERROR, TIMEOUT):
        say("\n".join(f"    {line}" for line in outcome.output.splitlines()[-OUTPUT_LINES:]))


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
        work = Path(name)
        set_environment(REPO, work)
        if len(mutations) >= FEWEST_FOR_PRELOAD:
            preload(REPO)
        return Workplace(work, jobs, limit_s).run(mutations)


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
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Without the interpreter's farewell: libraries that were imported and never used (duckdb) fill
    # the screen with warnings about themselves, below the table.
    os._exit(code)
