"""What readers see: names and numbers as text, and tables of such cells, also as Markdown.

What belongs here: display names of baselines and subsets, number formats, shortened hashes;
cells, alignment and emphasis of a table. What does not: columns of metrics
(``paper.report.inputs``), which rows a table shows (``report.tomorrow``, the modules of
``paper.report``), HTML (``templates/macros.html``), its look (``templates/report.css``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan
from typing import Any

from compevo_core.runtime.files import read_packaged

SUBSET_NAMES = read_packaged(__file__, "subsets")
MISSING = "n/a"


def method_name(method: str) -> str:
    """Return the title of a baseline; another name stays as it is."""
    # Imports numpy and polars, which commands that print no method never need.
    from compevo_core.baselines import PRIORS

    return str(getattr(PRIORS.get(method), "title", method))


def scope_name(dataset: str, subset: str, *, synthetic: bool = False) -> str:
    """Return the display name of a data set and one of its subsets, an empty one for the whole.

    With ``synthetic`` the name says that the data is made up.
    """
    # Only part of a subset's windows is scored in ablations and quick runs: one in five, say.
    base, is_thinned, every = subset.partition("-every-")
    name = SUBSET_NAMES.get(base, base)
    split, _, month = base.partition("-")  # as of "inference-2026-03"
    if base not in SUBSET_NAMES and split in SUBSET_NAMES:
        with suppress(ValueError):
            first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
            name = f"{SUBSET_NAMES[split]}, {first:%B %Y}"
    name += f", one window in {every}" if is_thinned else ""
    marker = " (synthetic stand-in)" if synthetic else ""
    return (f"{dataset.capitalize()}, {name}" if subset else dataset.capitalize()) + marker


def format_percent(share: float | None) -> str:
    """Format a share between 0 and 1 as a percentage."""
    return MISSING if share is None or isnan(share) else f"{100 * share:z.1f} %"


def shorten_hash(digest: str | None) -> str:
    """Return ten characters of a hash: enough to be unique among runs, and short enough."""
    return digest[:10] if digest else MISSING


def clean_text(text: str, longest: int = 200) -> str:
    """Return text that comes from data as a terminal may show it: one line, no control codes."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    words = " ".join(plain.split())
    return words if len(words) <= longest else words[: longest - 1] + "…"


def join_items(items: Sequence[str]) -> str:
    """Join items as an English list: ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as plain text, which every output escapes: terminal, Markdown, HTML and Dagster."""

    header: Sequence[str]  # column titles
    rows: Sequence[Sequence[str]]  # one sequence of cells per row, as long as the header
    caption: str = ""
    verdict: str = ""  # what its rows show, in a sentence above it
    text_columns: Collection[int] = (0,)  # aligned left; the others hold numbers, aligned right
    wrap_columns: Collection[int] = ()  # columns of numbers that may break over lines
    best_cells: Collection[tuple[int, int]] = ()  # (row, column) of the cells set in bold
    highlighted: Collection[int] = ()  # rows with a shaded background
    notes: Sequence[str] = ()  # sentences below the table

    def __post_init__(self) -> None:
        # zip and the templates would silently drop or misplace cells.
        widths = {len(row) for row in self.rows} - {len(self.header)}
        if widths:
            raise ValueError(
                f"table {self.caption!r}: a row has {widths.pop()} cells but the header has "
                f"{len(self.header)}"
            )

    def css_class(self, column: int) -> str | None:
        """Return the CSS classes of a column's cells; None if it needs none."""
        names = ["text"] * (column in self.text_columns) + ["wrap"] * (column in self.wrap_columns)
        return " ".join(names) or None

    def to_markdown(self) -> str:
        """Return a GitHub Markdown table, with the notes below it and without the caption.

        Pipes are escaped and line breaks become spaces, so no cell can break the table.
        """
        is_text = [column in self.text_columns for column in range(len(self.header))]
        lines = [self.header, ["---" if text else "---:" for text in is_text]]
        lines += [
            [
                f"**{cell}**" if (row, column) in self.best_cells else cell
                for column, cell in enumerate(cells)
            ]
            for row, cells in enumerate(self.rows)
        ]
        # split() drops line breaks and runs of spaces, which Markdown ignores.
        texts = ([" ".join(cell.replace("|", "\\|").split()) for cell in line] for line in lines)
        table = "\n".join(f"| {' | '.join(line)} |" for line in texts)
        return "\n\n".join([table, *self.notes])

    def to_text(self, width: int = 80, *, longest: int = 28) -> str:
        """Return lines for a terminal, without columns that are empty throughout.

        Two spaces are between columns, one if the table would be wider than ``width``; names in the
        first column have at most ``longest`` letters, or as many as the others leave room for.
        """
        shown = [i for i in range(len(self.header)) if any(row[i] for row in self.rows)]
        lines = [[clean_text(line[i]) for i in shown] for line in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        room = max(longest, width - sum(widths[1:]) - 2 * len(widths))
        lines = [[clean_text(line[0], room), *line[1:]] for line in lines]
        widths[0] = min(widths[0], room)
        gap = "  " if sum(widths) + 2 * len(widths) <= width else " "
        # Names on the left, numbers on the right.
        aligned = [
            [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines
        ]
        return "\n".join(gap.join(line).rstrip() for line in aligned)

    def to_titled_markdown(self, *texts: str) -> str:
        """Return caption, verdict, texts and table as Markdown, which itself has no captions."""
        above = (f"**{self.caption}**", self.verdict, *texts)
        return "\n\n".join([*filter(None, above), self.to_markdown()])


def tabulate(
    rows: Iterable[Any],
    cells: Mapping[str, Callable[[Any], str]],
    **layout: Any,  # noqa: ANN401
) -> Table:
    """Return a table with one line per row; ``cells`` maps a column title to what it shows."""
    lines = [[cell(row) for cell in cells.values()] for row in rows]
    return Table(header=list(cells), rows=lines, **layout)
