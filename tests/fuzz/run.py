"""Damaged files through every parser: each is read, or refused with an error of this project.

    python -m tests.fuzz.run --cases 100000 [PARSER ...]

Writes one row a parser to ``tests/fuzz/results.csv``. A case is made again by its parser and
number, as a crash prints them.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.rows import read_rows, write_rows
from compevo_core.errors import CompEvoError
from tests.fuzz.answers import ANSWERS, check_answers
from tests.fuzz.mutations import mutate, seed_of
from tests.fuzz.seeds import make_seeds

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS = ("parser", "cases", "read", "refused", "crashes", "slowest_s")


@dataclass
class Outcome:
    """What became of the cases of one parser."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def fuzz(name, cases):
    """Run numbered cases of a parser."""
    seed = make_seeds()[name]
    outcome = Outcome()
    for number in cases:
        damaged = replace(seed.raw, content=mutate(seed.raw.content, seed_of(name, number)))
        start = time.perf_counter()
        try:
            seed.parse(damaged)
            outcome.read += 1
        except CompEvoError as error:
            outcome.refused[type(error).__name__] += 1
            if damaged.name not in str(error):
                outcome.crashes.append(f"{name}/{number}: names no file: {error}")
        except Exception as error:  # noqa: BLE001  # every class of crash is what is looked for
            outcome.crashes.append(f"{name}/{number}: {type(error).__name__}: {error}")
        outcome.slowest_s = max(outcome.slowest_s, time.perf_counter() - start)
    return outcome


def write_row(name, cases, outcome):
    """Put a parser's row into the results, in place of an older one."""
    kept = read_rows(RESULTS) if RESULTS.exists() else []
    rows = {row["parser"]: row for row in kept}
    rows[name] = {
        "parser": name,
        "cases": str(cases),
        # What Hypothesis makes up is counted as a whole.
        "read": "" if name in ANSWERS else str(outcome.read),
        "refused": " ".join(f"{kind}:{n}" for kind, n in sorted(outcome.refused.items())),
        "crashes": str(len(outcome.crashes)),
        "slowest_s": "" if name in ANSWERS else f"{outcome.slowest_s:.2f}",
    }
    write_rows([rows[key] for key in sorted(rows)], RESULTS, COLUMNS)


def main():
    """Run the parsers that were named, or all."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("parsers", nargs="*", help="names; all unless given")
    arguments.add_argument("--cases", type=int, default=100_000)
    arguments.add_argument("--first", type=int, default=0, help="number of the first case")
    arguments.add_argument("--dry", action="store_true", help="write no results")
    chosen = arguments.parse_args()

    for name in chosen.parsers or [*make_seeds(), *ANSWERS]:
        start = time.perf_counter()
        if name in ANSWERS:
            # Hypothesis stops at the first crash, and shows the smallest answer that causes it.
            check_answers(name, chosen.cases)
            outcome = Outcome()
        else:
            outcome = fuzz(name, range(chosen.first, chosen.first + chosen.cases))
        if not chosen.dry:
            write_row(name, chosen.cases, outcome)
        seconds = time.perf_counter() - start
        sys.stdout.write(f"{name}: {outcome.read} read, {outcome.refused}, {seconds:.0f} s\n")
        sys.stdout.writelines(f"    {crash[:300]}\n" for crash in outcome.crashes[:10])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
