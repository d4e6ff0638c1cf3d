"""A finished run as rows by round: losses, rewards, news and how far logics moved (paper 5.4, 5.6).

What belongs here: the columns, and rows from the records of a run. What does not: the logics
themselves (``mechanism.logics``), files (``mechanism.files``), judges of updates (``lud``),
smoothing and drawing (``report.mechanism``).

A round has one row of the population, whose ``agent`` is empty, and one of each agent.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl

from compevo_core.lm.encoder import Encoder
from compevo_core.lud.degree import update_magnitude
from compevo_core.training.round_record import RoundRecord

RUN_SCHEMA: dict[str, pl.DataType] = {
    "dataset": pl.String(),
    "method": pl.String(),
    "budget": pl.String(),  # of the benchmark; empty for a run of its own
    "seed": pl.Int64(),
    "commit": pl.String(),
    "config_hash": pl.String(),
}
"""Columns that say of which run a row is."""

RUN = ("dataset", "method", "budget", "seed")
"""Rows that agree in these are of the same run of a method."""

TRACE_SCHEMA: dict[str, pl.DataType] = RUN_SCHEMA | {
    "round": pl.Int64(),
    "epoch": pl.Int64(),
    "agent": pl.Int64(),  # null in the row of the population
    "loss": pl.Float64(),  # L_pred of the aggregate on the round's train windows (Eq. 7)
    "val_error": pl.Float64(),  # scaled MAE of the aggregate on validation windows
    "reward": pl.Float64(),  # minus the scaled error of the agent's own forecast (Eq. 3)
    "unique_news": pl.Int64(),  # different articles that the agent read in the round
    "logic_shift": pl.Float64(),  # Delta to the logic before, in rounds after a rewriting (F.2)
}

DIGITS = 6
"""Significant digits of what is measured: more would be rounding of the machine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Which run rows are of, by the columns of ``RUN_SCHEMA``."""

    dataset: str
    method: str
    budget: str
    seed: int
    commit: str
    config_hash: str


def trace_rounds(
    records: Sequence[RoundRecord], identity: RunIdentity, encoder: Encoder
) -> pl.DataFrame:
    """Return the rows of a run, of ``TRACE_SCHEMA``."""
    shifts = _measure_shifts(records, encoder)
    rows = [
        dataclasses.asdict(identity) | row
        for record in records
        for row in _trace_round(record, shifts)
    ]
    frame = pl.DataFrame(rows, schema=TRACE_SCHEMA, orient="row")
    return frame.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))


def _trace_round(
    record: RoundRecord, shifts: dict[tuple[int, int], float]
) -> Iterator[dict[str, Any]]:
    where = {"round": record.round, "epoch": record.epoch}
    yield where | {"loss": record.loss_pred, "val_error": record.val_mae_scaled}
    for agent, (reward, unique_news) in enumerate(
        zip(record.rewards, record.unique_news, strict=True)
    ):
        yield where | {
            "agent": agent,
            "reward": reward,
            "unique_news": unique_news,
            "logic_shift": shifts.get((record.round, agent)),
        }


def _measure_shifts(
    records: Sequence[RoundRecord], encoder: Encoder
) -> dict[tuple[int, int], float]:
    """Return Delta by round and agent, where the round before wrote new logics."""
    # What a round wrote is played from the next one on.
    updates = [
        (following.round, agent, before, after)
        for record, following in itertools.pairwise(records)
        if record.evolved
        for agent, (before, after) in enumerate(zip(record.logics, following.logics, strict=True))
    ]
    # Most texts stand in many rounds.
    vector_of = _encode_distinct(
        (text for *_, before, after in updates for text in (before, after)), encoder
    )
    # Rounded, so that a logic that was kept has the distance 0.
    return {
        (number, agent): round(
            float(update_magnitude([vector_of[old]], [vector_of[new]])[0]), DIGITS
        )
        for number, agent, old, new in updates
    }


def _encode_distinct(texts: Iterable[str], encoder: Encoder) -> dict[str, Any]:
    distinct = sorted(set(texts))
    return dict(zip(distinct, encoder.encode(distinct), strict=True))
