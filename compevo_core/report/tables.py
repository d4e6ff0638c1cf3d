"""A table of text cells, and its two forms: HTML for the page, Markdown for the README.

What belongs here: cells, alignment, escaping, emphasis.
What does not: which rows go in (``result_tables``), styling (``templates/report.css``).
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_RULES = {"l": "---", "r": "---:"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as plain text; every cell is escaped when rendered.

    ``text_columns`` are left-aligned; the rest are numbers, on one line but in ``wrap_columns``. ``best`` marks cells
    (row, column), ``own`` marks rows, ``notes`` stand below.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    text_columns: frozenset[int] = frozenset({0})
    wrap_columns: frozenset[int] = frozenset()
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    own: frozenset[int] = field(default_factory=frozenset)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.rows} - {len(self.header)}
        if widths:
            raise ValueError(
                f"table {self.caption!r}: a row has {widths.pop()} cells under {len(self.header)} headings"
            )


def to_html(table: Table) -> str:
    """The table as HTML inside a scrollable region that keyboards reach."""
    head = "".join(
        f'<th scope="col"{_side(table, i)}>{html.escape(name)}</th>'
        for i, name in enumerate(table.header)
    )
    body = "".join(_html_row(table, index, row) for index, row in enumerate(table.rows))
    caption = (
        f"<caption><span>{html.escape(table.caption)}</span></caption>" if table.caption else ""
    )
    label = html.escape(table.caption or "table", quote=True)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{_html_notes(table)}"
    )


def _html_notes(table: Table) -> str:
    return "".join(f'<p class="note">{html.escape(note)}</p>' for note in table.notes)


def _html_row(table: Table, index: int, row: Sequence[str]) -> str:
    cells = []
    for column, cell in enumerate(row):
        text = html.escape(cell)
        if (index, column) in table.best:
            text = f"<strong>{text}</strong>"
        tag, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
        cells.append(f"<{tag}{scope}{_side(table, column)}>{text}</{tag}>")
    return f"<tr{' class=own' if index in table.own else ''}>{''.join(cells)}</tr>"


def _side(table: Table, column: int) -> str:
    names = [
        n
        for n, columns in (("text", table.text_columns), ("wrap", table.wrap_columns))
        if column in columns
    ]
    return f' class="{" ".join(names)}"' if names else ""


def to_markdown(table: Table) -> str:
    """The table as GitHub Markdown; pipes and line ends in cells are neutralised."""
    lines = [_markdown_row(table.header)]
    lines.append(
        _markdown_row(
            ["---" if i in table.text_columns else "---:" for i in range(len(table.header))]
        )
    )
    for index, row in enumerate(table.rows):
        lines.append(
            _markdown_row(
                [f"**{cell}**" if (index, i) in table.best else cell for i, cell in enumerate(row)]
            )
        )
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


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
    return "\n".join(_markdown_line(line) for line in lines)


def _markdown_line(cells: Sequence[object]) -> str:
    # split() without arguments also drops line breaks and runs of spaces, which Markdown ignores.
    texts = (" ".join(str(cell).replace("|", "\\|").split()) for cell in cells)
    return "| " + " | ".join(texts) + " |"
