"""The two files of a data set that its runs leave their traces in.

What belongs here: their names, reading them, putting the rows of a run in the place of older ones.
What does not: the rows (``mechanism.traces``, ``mechanism.logics``).
"""

import csv
from pathlib import Path

import polars as pl

from compevo_core.data.files import write_atomically
from compevo_core.data.row_files import replace_own_rows
from compevo_core.errors import DataError
from compevo_core.lm.encoder import Encoder
from compevo_core.mechanism.logics import LOGIC_SCHEMA, list_final_logics, place_logics
from compevo_core.mechanism.traces import RUN, TRACE_SCHEMA, RunIdentity, trace_rounds
from compevo_core.training.run_folder import RunFolder

_TRACE_ORDER = ("method", "budget", "seed", "round", "agent")
_LOGIC_ORDER = ("method", "budget", "seed", "agent")

Schema = dict[str, pl.DataType]


def write_traces(
    results: Path, run: Path, identity: RunIdentity, encoder: Encoder
) -> tuple[Path, Path]:
    """Put what a run's folder says into ``traces-<dataset>.csv`` and ``logics-<dataset>.csv``.

    Rows of the same method, budget and seed are replaced; those of other runs stay, and every logic
    of the file gets its place anew.

    Args:
        results: folder of both files.
        run: folder of a run with at least one finished round.
        identity: which run it is.
        encoder: embeds the logics.

    Returns:
        Both files.

    Raises:
        DataError: there is no round, or a file holds something else.
    """
    records = RunFolder(run).read_rounds()
    traces = trace_rounds(records, identity, encoder)
    logics = list_final_logics(records, identity)

    traces_file = results / f"traces-{identity.dataset}.csv"
    logics_file = results / f"logics-{identity.dataset}.csv"
    results.mkdir(parents=True, exist_ok=True)
    replace_own_rows(
        traces_file,
        traces,
        RUN,
        read=lambda path: read_typed(path, TRACE_SCHEMA),
        write=lambda rows: write_atomically(traces_file, rows.sort(_TRACE_ORDER).write_csv),
    )
    replace_own_rows(
        logics_file,
        logics,
        RUN,
        read=lambda path: read_typed(path, LOGIC_SCHEMA),
        write=lambda rows: write_atomically(
            logics_file, place_logics(rows.sort(_LOGIC_ORDER), encoder).write_csv
        ),
    )
    return traces_file, logics_file


def read_typed(path: Path, schema: Schema) -> pl.DataFrame:
    """Return the rows of one of the two files; an empty cell of text is an empty text.

    Raises:
        DataError: the file has other columns.
    """
    # polars would take a given schema for the names of whatever columns there are.
    with path.open(encoding="utf-8", newline="") as lines:
        header = next(csv.reader(lines), [])
    if header != list(schema):
        raise DataError(
            f"{path}: has the columns {', '.join(header)} and not {', '.join(schema)}; move the "
            "file away and trace the runs again"
        )
    rows = pl.read_csv(path, schema=schema)
    return rows.with_columns(pl.col(pl.String).fill_null(""))
