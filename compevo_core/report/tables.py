"""A table of text cells, the columns that tables are built from, and Markdown tables.

What belongs here: cells, alignment and emphasis of a table, columns of metrics, writing Markdown.
What does not: which rows a table shows (``report.result_tables``, ``report.paper`` and the modules
of the sections), its HTML (``templates/macros.html``), its look (``templates/report.css``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from compevo_core.report.wording import format_column, format_number, format_percent

Row = Mapping[str, Any]

# The line under the header of a Markdown table says how a column is aligned.
_RULES = {"l": "---", "r": "---:"}

#: Title and number format of each metric that a row can hold.
METRIC_TITLES = {
    "mae": "MAE",
    "mse": "MSE",
    "rmse": "RMSE",
    "mape_pct": "MAPE %",
    "wape_pct": "WAPE %",
    "mase": "MASE",
    "pinball_10_50_90": "Pinball",
    "wql": "WQL",
    "width_80": "Width",
    "width_95": "Width",
}
_WITH_UNIT = frozenset({"mae", "rmse", "pinball_10_50_90", "width_80", "width_95"})


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
    best_cells: frozenset[tuple[int, int]] = frozenset()
    highlighted_rows: frozenset[int] = frozenset()
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
        names = ["text"] * (column in self.text_columns) + ["wrap"] * (column in self.wrap_columns)
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


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: title, cells from the first row to the last, and how it is set.

    Attributes:
        values: numbers behind the cells, where the lowest is set in bold; None: nothing is marked.
        ranked: texts by which numbers are alike, where the cells hold more; None: the cells.
    """

    title: str
    cells: Sequence[str]
    is_text: bool = False
    may_wrap: bool = False
    values: Sequence[float | None] | None = None
    ranked: Sequence[str] | None = None

    @classmethod
    def of_metric(cls, rows: Sequence[Row], metric: str, *, is_marked: bool = True) -> Self:
        """Return a metric of all rows in equal decimals, with the unit that they share."""
        values = [row[metric] for row in rows]
        unit = common_unit(rows) if metric in _WITH_UNIT else ""
        return cls(
            title=f"{METRIC_TITLES[metric]} {unit}".strip(),
            cells=format_column(metric, values),
            values=values if is_marked else None,
        )

    @classmethod
    def of_number(cls, rows: Sequence[Row], key: str, title: str) -> Self:
        """Return one value of all rows, each in the decimals that fit it."""
        return cls(title=title, cells=[format_number(row[key]) for row in rows])

    @classmethod
    def of_share(cls, rows: Sequence[Row], key: str, title: str) -> Self:
        """Return one share of all rows as percentages."""
        return cls(title=title, cells=[format_percent(row[key]) for row in rows])

    def find_lowest(self) -> list[int]:
        """Return the rows that print the lowest value; none where fewer than two have one."""
        values = self.values or ()
        known = [row for row, value in enumerate(values) if value is not None]
        if len(known) < 2:
            return []
        # What prints alike is marked alike: digits that nobody sees are no difference.
        texts = self.ranked or self.cells
        lowest = texts[min(known, key=lambda row: values[row] or 0.0)]
        return [row for row in known if texts[row] == lowest]


def build_table(
    columns: Sequence[Column],
    *,
    caption: str = "",
    highlighted: Iterable[int] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of some columns, all of one length."""
    return Table(
        header=[column.title for column in columns],
        rows=list(zip(*(column.cells for column in columns), strict=True)),
        caption=caption,
        text_columns=frozenset(i for i, column in enumerate(columns) if column.is_text),
        wrap_columns=frozenset(i for i, column in enumerate(columns) if column.may_wrap),
        best_cells=frozenset(
            (row, i) for i, column in enumerate(columns) for row in column.find_lowest()
        ),
        highlighted_rows=frozenset(highlighted),
        notes=notes,
    )


def tabulate(
    rows: Iterable[Any],
    cells: Mapping[str, Callable[[Any], str]],
    *,
    caption: str = "",
    text_columns: Iterable[int] = (0,),
    wrap_columns: Iterable[int] = (),
    highlighted: Iterable[int] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Return a table with one line a row; ``cells`` maps a column title to what it shows."""
    return Table(
        header=list(cells),
        rows=[[cell(row) for cell in cells.values()] for row in rows],
        caption=caption,
        text_columns=frozenset(text_columns),
        wrap_columns=frozenset(wrap_columns),
        highlighted_rows=frozenset(highlighted),
        notes=notes,
    )


def common_unit(rows: Iterable[Row]) -> str:
    """Return the unit of all rows; empty where they differ or have none."""
    units = {row["unit"] for row in rows if row["unit"]}
    return units.pop() if len(units) == 1 else ""


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
