"""Change one line at a time, and see whether the closest tests notice.

    .venv/bin/python .ci/mutations/run.py                  # all of them
    .venv/bin/python .ci/mutations/run.py --id NAME        # one, several times for more
    .venv/bin/python .ci/mutations/run.py --room FOLDER    # those of one folder
    .venv/bin/python .ci/mutations/run.py --sample 40      # as many, another choice at each commit
    .venv/bin/python .ci/mutations/run.py --list           # say what there is, and whether it fits

The list is in the ``*.toml`` files beside this one. The changes are made in a copy of the tree.
Exits with 1 if a mutation survives that may not, and also if one no longer fits the code, runs out
of time, or has tests that fail without it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from forked_pytest import Child, Outcome, copy_tree, preload, set_environment
from mutation_list import ListError, Mutation, apply, read_mutations, sample_mutations

REPO = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.02
FEWEST_FOR_PRELOAD = 4  # below, importing everything takes longer than it saves

# Tests may be slower with a mutation than without, but not for ever.
LIMIT_SECONDS = 120.0  # of one mutation; a machine under load is several times slower
LIMIT_FACTOR = 5.0
BASELINE_LIMIT = 1800.0

KILLED, SURVIVED, ALLOWED, TIMEOUT, ERROR = "killed", "survived", "allowed", "timeout", "error"
OUTPUT_LINES = 25
BROKEN_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one mutation."""

    mutation: Mutation
    status: str
    detail: str
    seconds: float = 0.0


def say(text: str = "") -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def covers(test: str, node: str) -> bool:
    """Whether a node id belongs to a file, class, test or parametrised test of the list."""
    return node == test or node.startswith((f"{test}::", f"{test}["))


def judge(mutation: Mutation, outcome: Outcome, seconds: float) -> Result:
    """Say what the outcome of its tests means for a mutation."""
    status, detail = ERROR, ""
    if outcome.exit_code is None:
        status, detail = TIMEOUT, "ended when its time was up"
    elif outcome.foreign:
        detail = f"imported {outcome.foreign[0]} from outside the copy"
    elif outcome.exit_code in (1, 2) and outcome.failed:
        status, detail = KILLED, outcome.failed[0]
    elif outcome.exit_code == 0 and not outcome.n_passed:
        detail = "none of its tests ran"
    elif outcome.exit_code == 0:
        status, detail = SURVIVED, f"{outcome.n_passed} tests passed: {mutation.reason}"
    else:
        detail = f"pytest ended with {outcome.exit_code}"

    # An allowance that is no longer needed is a line that nobody believes.
    if mutation.survives:
        if status == SURVIVED:
            status, detail = ALLOWED, mutation.survives
        elif status == KILLED:
            status, detail = ERROR, f"may survive, but {detail} notices it: remove 'survives'"
    return Result(mutation=mutation, status=status, detail=detail, seconds=seconds)


class Workplace:
    """Copies of the tree, one for each job, and the children that work in them."""

    def __init__(self, folder: Path, jobs: int, limit_s: float) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._copies = [folder / f"copy-{job}" for job in range(jobs)]
        self._children = 0
        for copy in self._copies:
            copy_tree(REPO, copy)

    def find_misfits(self, mutations: Sequence[Mutation]) -> dict[str, str]:
        """Return what is wrong with the mutations that do not fit the code, by id."""
        return {m.id: problem for m in mutations if (problem := m.check(self._copies[0]))}

    def run_unchanged(self, tests: Sequence[str]) -> dict[str, Outcome]:
        """Run every test once without a mutation; return the outcome of each test of the list."""
        # Files stay together: their fixtures are built once.
        files = sorted({test.partition("::")[0] for test in tests})
        shares = [files[job :: len(self._copies)] for job in range(len(self._copies))]
        running = []
        for copy, share in zip(self._copies, shares, strict=True):
            chosen = [test for test in tests if test.partition("::")[0] in share]
            if chosen:
                running.append((chosen, self._start(copy, chosen, stop_at_first=False)))

        outcomes: dict[str, Outcome] = {}
        for chosen, child in running:
            outcome = _wait(child)
            outcomes |= {test: _outcome_of(test, outcome) for test in chosen}
        return outcomes

    def run_mutations(
        self, mutations: Sequence[Mutation], unchanged: dict[str, Outcome]
    ) -> list[Result]:
        """Run the tests of every mutation, as many at a time as there are copies.

        Tests that do not end are run a second time: a child is forked from a process with threads,
        and may inherit a lock that nobody opens. A mutation without end does not end twice.
        """
        results: list[Result] = []
        waiting = list(mutations)
        ended_early: set[str] = set()
        running: dict[Path, tuple[Mutation, Child, float, ExitStack]] = {}
        started = time.monotonic()

        with ExitStack() as at_exit:
            at_exit.callback(_stop_all, running)
            while waiting or running:
                for copy in (copy for copy in self._copies if copy not in running):
                    if waiting:
                        mutation = waiting.pop(0)
                        applied = ExitStack()
                        applied.enter_context(apply(mutation, copy))
                        child = self._start(copy, mutation.tests, stop_at_first=True)
                        running[copy] = (mutation, child, self._limit(mutation, unchanged), applied)

                for copy, (mutation, child, limit, applied) in list(running.items()):
                    outcome = child.poll(limit)
                    if outcome is not None:
                        applied.close()
                        del running[copy]
                        if outcome.exit_code is None and mutation.id not in ended_early:
                            ended_early.add(mutation.id)
                            waiting.append(mutation)
                            continue
                        results.append(judge(mutation, outcome, child.seconds))
                        _report(results[-1], outcome, len(results), len(mutations), started)
                time.sleep(POLL_SECONDS)

        order = {mutation.id: number for number, mutation in enumerate(mutations)}
        return sorted(results, key=lambda result: order[result.mutation.id])

    def _limit(self, mutation: Mutation, unchanged: dict[str, Outcome]) -> float:
        usual = sum(sum(unchanged[test].seconds.values()) for test in mutation.tests)
        return max(self._limit_s, LIMIT_FACTOR * usual)

    def _start(self, copy: Path, tests: Sequence[str], *, stop_at_first: bool) -> Child:
        self._children += 1
        folder = self._folder / f"child-{self._children}"
        folder.mkdir()
        return Child(copy, folder, tests, stop_at_first=stop_at_first)


def _stop_all(running: Mapping[Path, tuple[Mutation, Child, float, ExitStack]]) -> None:
    for _, child, _, _ in running.values():
        child.stop()


def _wait(child: Child) -> Outcome:
    while (outcome := child.poll(BASELINE_LIMIT)) is None:
        time.sleep(POLL_SECONDS)
    return outcome


def _outcome_of(test: str, whole: Outcome) -> Outcome:
    """Return the part of an outcome that belongs to one test of the list."""
    seconds = {node: value for node, value in whole.seconds.items() if covers(test, node)}
    failed = [node for node in whole.failed if covers(test, node) or covers(node, test)]

    if not seconds and not failed:
        failed = [f"{test} (pytest ended with {whole.exit_code} and did not run it)"]
    return Outcome(exit_code=whole.exit_code, failed=failed, seconds=seconds, output=whole.output)


def _report(result: Result, outcome: Outcome, done: int, total: int, started: float) -> None:
    left = (time.monotonic() - started) / done * (total - done)
    say(
        f"[{done}/{total}, {left / 60:.1f} min left] {result.status:8} {result.seconds:5.1f} s  "
        f"{result.mutation.id}"
    )
    if result.status in (ERROR, TIMEOUT):
        say("\n".join(f"    {line}" for line in outcome.output.splitlines()[-OUTPUT_LINES:]))


def _report_broken(unchanged: dict[str, Outcome]) -> None:
    outputs = {outcome.output: outcome for outcome in unchanged.values() if outcome.failed}
    for output in outputs:
        say("\n".join(f"    {line}" for line in output.splitlines()[-BROKEN_LINES:]))


def _print_table(results: Sequence[Result], seconds: float) -> None:
    width = max(len(result.mutation.id) for result in results)
    say()
    for result in results:
        say(
            f"{result.mutation.id:{width}}  {result.status:8}  {result.seconds:5.1f} s  "
            f"{result.detail}"
        )

    counts = Counter(result.status for result in results)
    say()
    say(
        f"{len(results)} mutations in {seconds:.0f} s: "
        + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    )

    # What is to be mended stands last as well: it may be one line of hundreds.
    for result in results:
        if result.status not in (KILLED, ALLOWED):
            say(f"not in order: {result.mutation.id}: {result.status}: {result.detail}")


def choose(mutations: Sequence[Mutation], options: argparse.Namespace) -> list[Mutation]:
    """Return the mutations that the options name.

    Raises:
        ListError: an option names nothing.
    """
    chosen = list(mutations)
    if options.id:
        unknown = sorted(set(options.id) - {mutation.id for mutation in mutations})
        if unknown:
            raise ListError(f"no mutation {', '.join(unknown)}; --list names them")
        chosen = [mutation for mutation in chosen if mutation.id in options.id]
    if options.room:
        chosen = [mutation for mutation in chosen if mutation.room.startswith(options.room)]
    if options.sample:
        chosen = sample_mutations(chosen, options.sample, options.seed or _find_commit())
    if not chosen:
        raise ListError("the options leave no mutation; --list names them")
    return chosen


def _find_commit() -> str:
    command = ["git", "-C", str(REPO), "rev-parse", "HEAD"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - fixed
    return done.stdout.strip()


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--id", action="append", default=[], help="this mutation (repeatable)")
    parser.add_argument("--room", default="", help="mutations of this folder")
    parser.add_argument("--sample", type=int, default=0, help="this many, chosen by the commit")
    parser.add_argument("--seed", default="", help="choose the sample by this text instead")
    parser.add_argument("--jobs", type=int, default=1, help="copies that work at a time")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, help="seconds for one mutation's tests"
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="of the list")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    return parser.parse_args(arguments)


def run(mutations: Sequence[Mutation], jobs: int, limit_s: float) -> list[Result]:
    """Run all mutations in a temporary folder."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        work = Path(name)
        set_environment(REPO, work)
        workplace = Workplace(work, jobs, limit_s)
        unsound = workplace.find_misfits(mutations)

        fitting = [mutation for mutation in mutations if mutation.id not in unsound]
        if len(fitting) >= FEWEST_FOR_PRELOAD:
            preload(REPO)
            say(f"third-party modules imported after {time.monotonic() - started:.0f} s")

        # Names become node ids once, so that outcomes can be looked up by them.
        fitting = [replace(mutation, tests=mutation.find_tests(REPO)) for mutation in fitting]
        tests = sorted({test for mutation in fitting for test in mutation.tests})
        unchanged = workplace.run_unchanged(tests)
        _report_broken(unchanged)
        say(f"{len(tests)} tests run without mutation after {time.monotonic() - started:.0f} s")

        # Tests that fail anyway would "kill" everything.
        unsound |= {
            mutation.id: f"without the mutation fails {outcome.failed[0]}"
            for mutation in fitting
            for test in mutation.tests
            if (outcome := unchanged[test]).failed
        }
        sound = [mutation for mutation in fitting if mutation.id not in unsound]
        results = workplace.run_mutations(sound, unchanged)

    by_id = {result.mutation.id: result for result in results}
    return [
        by_id.get(mutation.id)
        or Result(mutation=mutation, status=ERROR, detail=unsound[mutation.id])
        for mutation in mutations
    ]


def main(arguments: Sequence[str]) -> int:
    """Run what the options name; return 1 if anything is not as it should be."""
    options = read_options(arguments)
    started = time.monotonic()
    try:
        chosen = choose(read_mutations(options.folder), options)
    except ListError as error:
        say(str(error))
        return 1

    if options.list:
        problems = [problem for mutation in chosen if (problem := mutation.check(REPO))]
        for mutation in chosen:
            say(f"{mutation.id}: {mutation.room}: {mutation.reason}")
        say("\n".join([f"{len(chosen)} mutations, {len(problems)} do not fit", *problems]))
        return 1 if problems else 0

    results = run(chosen, options.jobs, options.limit)
    _print_table(results, time.monotonic() - started)
    # Out of time is not an answer: the machine may have been slow, or a test waits for ever.
    return 0 if all(result.status in (KILLED, ALLOWED) for result in results) else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Without the interpreter's farewell: libraries that were imported and never used (duckdb) fill
    # the screen with warnings about themselves, below the table.
    os._exit(code)
