"""The table of results: a row a fault and a work.

What belongs here: counting how trials ended, and the file. What does not: faults
(``tests.faults.campaign``).
"""

import csv
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tests.faults.children import CLEAR, DONE, End

RESULTS = Path(__file__).with_name("results.csv")


@dataclass
class Row:
    """How the trials of one fault on one work ended.

    Attributes:
        fault: what was done to it.
        work: to which work.
        trials: how often.
        disturbed: of these, how often the fault fell while it worked.
        identical: ended as the undisturbed work.
        clear_error: ended in one error of this project.
        lost: rows of the undisturbed work that were missing, over all trials.
        doubled: rows that were there more often.
        crashed: ended in a raw exception.
    """

    fault: str
    work: str
    trials: int = 0
    disturbed: int = 0
    identical: int = 0
    clear_error: int = 0
    lost: int = 0
    doubled: int = 0
    crashed: int = 0
    message: str = ""

    def count(self, end: End, expected: tuple[str, ...], *, disturbed: bool) -> None:
        """Add one trial."""
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


def read_rows(path: Path = RESULTS) -> list[dict[str, str]]:
    """Read the table of results."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_rows(path: Path, rows: list[Row]) -> None:
    """Put rows into the table of results, each in the place of an older one."""
    kept = read_rows(path) if path.exists() else []
    table = {(row["fault"], row["work"]): row for row in [*kept, *map(_as_text, rows)]}
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table[key] for key in sorted(table))


def _as_text(row: Row) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(row).items()}
