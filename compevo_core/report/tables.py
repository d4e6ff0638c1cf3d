"""A table of text cells, and Markdown tables.

What belongs here: cells, alignment and emphasis of a table, writing it as Markdown. What does not:
which rows a table shows (``report.result_tables`` and the modules of the sections), its HTML
(``templates/macros.html``), its look (``templates/report.css``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# The line under the header of a Markdown table says how a column is aligned.
_RULES = {"l": "---", "r": "---:"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as plain text, which every renderer escapes.

    Attributes:
        header: column titles.
        rows: one sequence of cells a row, as long as ``header``.
        caption: title of the table.
        text_columns: columns aligned left; the others hold numbers and are aligned right.
        wrap_columns: columns of numbers that may break over lines.
        best_cells: (row, column) of the cells set in bold.
        highlighted_rows: rows with a shaded background.
        notes: sentences below the table.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    text_columns: frozenset[int] = frozenset({0})
    wrap_columns: frozenset[int] = frozenset()
    best_cells: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    highlighted_rows: frozenset[int] = field(default_factory=frozenset)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        # zip and the templates would drop or misplace cells without a word.
        widths = {len(row) for row in self.rows} - {len(self.header)}
        if widths:
            raise ValueError(
                f"table {self.caption!r}: a row has {widths.pop()} cells but the header has "
                f"{len(self.header)}"
            )

    def css_class(self, column: int) -> str | None:
        """Return the CSS classes of a column's cells; None where it needs none."""
        names = [
            name
            for name, columns in (("text", self.text_columns), ("wrap", self.wrap_columns))
            if column in columns
        ]
        return " ".join(names) or None

    def to_markdown(self) -> str:
        """Return the table as Markdown, with the notes below it and without the caption."""
        rows = [
            [
                f"**{cell}**" if (row, column) in self.best_cells else cell
                for column, cell in enumerate(cells)
            ]
            for row, cells in enumerate(self.rows)
        ]
        align = "".join("l" if i in self.text_columns else "r" for i in range(len(self.header)))
        return "\n\n".join([markdown_table(self.header, rows, align=align), *self.notes])


def markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, align: str = ""
) -> str:
    """Return rows as a GitHub Markdown table.

    Args:
        columns: column titles.
        rows: cells of each row; what is no text is written by ``str``. Pipes are escaped and line
            breaks become spaces, so no cell can break the table.
        align: one letter a column, ``l`` for left and ``r`` for right; empty aligns all left.

    Returns:
        The lines of the table, without a line break at the end.

    Raises:
        ValueError: a row or ``align`` does not have one entry a column.
    """
    align = align or "l" * len(columns)
    lines = [columns, [_RULES[letter] for letter in align], *rows]

    for line in lines:
        if len(line) != len(columns):
            raise ValueError(
                f"Markdown table: {len(line)} cells ({line!r}) for {len(columns)} columns"
            )
    return "\n".join(_markdown_row(line) for line in lines)


def _markdown_row(cells: Sequence[object]) -> str:
    # split() without arguments also drops line breaks and runs of spaces, which Markdown ignores.
    texts = (" ".join(str(cell).replace("|", "\\|").split()) for cell in cells)
    return "| " + " | ".join(texts) + " |"
