"""A table of text cells, the columns that tables are built from, and Markdown tables.

What belongs here: cells, alignment and emphasis of a table, columns of metrics, writing Markdown.
What does not: which rows a table shows (``report.result_tables``, ``report.paper`` and the modules
of the sections), its HTML (``templates/macros.html``), its look (``templates/report.css``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compevo_core.report.wording import format_column

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
    """Cells as plain text, which every renderer escapes."""

    header: Sequence[str]  # column titles
    rows: Sequence[Sequence[str]]  # one sequence of cells a row, as long as the header
    caption: str = ""
    text_columns: Collection[int] = (0,)  # aligned left; the others hold numbers, aligned right
    wrap_columns: Collection[int] = ()  # columns of numbers that may break over lines
    best_cells: Collection[tuple[int, int]] = ()  # (row, column) of the cells set in bold
    highlighted: Collection[int] = ()  # rows with a shaded background
    notes: Sequence[str] = ()  # sentences below the table

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

    def to_titled_markdown(self, *texts: str) -> str:
        """Return the caption, texts and the table as Markdown, which has no captions of its own."""
        return "\n\n".join([f"**{self.caption}**", *texts, self.to_markdown()])


class Column(NamedTuple):
    """One column of a table, from the first row to the last."""

    title: str
    cells: Sequence[str]
    values: Sequence[float | None] = ()  # numbers, where the cell of the lowest is set in bold
    ranked: Sequence[str] = ()  # texts by which numbers are alike, where the cells hold more


def build_table(columns: Sequence[Column], **layout: Any) -> Table:  # noqa: ANN401
    """Return the table of some columns, all of one length; ``layout`` is as in :class:`Table`."""
    best_cells = set()
    for place, column in enumerate(columns):
        known = [(value, row) for row, value in enumerate(column.values) if value is not None]
        if len(known) < 2:
            continue
        # What prints alike is marked alike: digits that nobody sees are not a difference.
        texts = column.ranked or column.cells
        lowest = texts[min(known)[1]]
        best_cells |= {(row, place) for _, row in known if texts[row] == lowest}
    return Table(
        header=[column.title for column in columns],
        rows=[list(row) for row in zip(*(column.cells for column in columns), strict=True)],
        best_cells=best_cells,
        **layout,
    )


def tabulate(
    rows: Iterable[Any],
    cells: Mapping[str, Callable[[Any], str]],
    **layout: Any,  # noqa: ANN401
) -> Table:
    """Return a table with one line a row; ``cells`` maps a column title to what it shows."""
    return build_table(list_columns(list(rows), cells), **layout)


def list_columns(rows: Sequence[Any], cells: Mapping[str, Callable[[Any], str]]) -> list[Column]:
    """Return the columns of rows; ``cells`` maps a title to what the column shows of a row."""
    return [Column(title, [cell(row) for row in rows]) for title, cell in cells.items()]


def metric_column(rows: Sequence[Row], metric: str, *, is_marked: bool = True) -> Column:
    """Return a metric of all rows in equal decimals, with the unit that they share."""
    values = [row[metric] for row in rows]
    title = title_metric(metric, common_unit(rows))
    return Column(title, format_column(metric, values), values if is_marked else ())


def title_metric(metric: str, unit: str) -> str:
    """Return the title of a column: the metric, and the unit where it is measured in one."""
    return f"{METRIC_TITLES[metric]} {unit if metric in _WITH_UNIT else ''}".strip()


def group_rows(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Return rows in groups that are alike in some columns, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())


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
        rows: cells of each row; what is not text is written by ``str``. Pipes are escaped and line
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
    # split() without arguments also drops line breaks and runs of spaces, which Markdown ignores.
    texts = ([" ".join(str(cell).replace("|", "\\|").split()) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in texts)
