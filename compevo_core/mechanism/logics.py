"""What the agents of a run ended as: last logic, its topics, its place among all, its reward.

What belongs here: the columns, rows from the records of a run, principal components of the logics
of all runs together (paper, appendix on strategy diversity). What does not: values by round
(``mechanism.traces``), files (``mechanism.files``), drawing (``report.mechanism``).

Shapes: N logics, D width of an embedding, C = 3 components.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from compevo_core.agents.logic_grammar import find_topics
from compevo_core.data.arrays import FloatArray
from compevo_core.diagnostics.plateau import measure_plateau
from compevo_core.lm.encoder import Encoder
from compevo_core.lud.degree import update_magnitude
from compevo_core.mechanism.traces import DIGITS, RUN, RUN_SCHEMA, RunIdentity
from compevo_core.training.round_record import RoundRecord

TOPIC_SEPARATOR = "; "

PLACE_SCHEMA: dict[str, pl.DataType] = {
    "encoder": pl.String(),
    "x": pl.Float64(),  # principal components of the embeddings of all logics in the file
    "y": pl.Float64(),
    "z": pl.Float64(),
    "shown_variance": pl.Float64(),  # share of the embeddings' variance that x, y and z hold
    "distance_to_others": pl.Float64(),  # mean Delta to the logics of the same run's other agents
}
"""Columns that depend on the other rows of the file, or on the encoder."""

LOGIC_SCHEMA: dict[str, pl.DataType] = (
    RUN_SCHEMA
    | {
        "agent": pl.Int64(),
        "logic": pl.String(),  # played in the last round
        "topics": pl.String(),  # named by the logic, as its grammar tells; empty: none
        "reward_change": pl.Float64(),  # last quarter of the rounds minus the first
        "reward_slope": pl.Float64(),  # of the last half, a round
        "slope_low": pl.Float64(),
        "slope_high": pl.Float64(),
    }
    | PLACE_SCHEMA
)

_COMPONENTS = ("x", "y", "z")
_PLACE_DECIMALS = 4  # machines agree on these


def list_final_logics(records: Sequence[RoundRecord], identity: RunIdentity) -> pl.DataFrame:
    """Return one row an agent, of ``LOGIC_SCHEMA``, whose place is not known yet."""
    rows: list[dict[str, Any]] = []
    for agent, logic in enumerate(records[-1].logics):
        row = dataclasses.asdict(identity) | {
            "agent": agent,
            "logic": logic,
            "topics": TOPIC_SEPARATOR.join(find_topics(logic)),
        }
        plateau = measure_plateau([record.rewards[agent] for record in records], identity.seed)
        if plateau is not None:
            row |= {
                "reward_change": plateau.change,
                "reward_slope": plateau.slope,
                "slope_low": plateau.low,
                "slope_high": plateau.high,
            }
        rows.append(row)

    frame = pl.DataFrame(rows, schema=LOGIC_SCHEMA, orient="row")
    return frame.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))


def place_logics(logics: pl.DataFrame, encoder: Encoder) -> pl.DataFrame:
    """Return the rows with their places, computed anew from all of them together."""
    vectors_ND = np.asarray(encoder.encode(logics["logic"].to_list()), dtype=np.float64)
    place_NC, shown = find_components(vectors_ND)
    distances = _measure_distances(logics, vectors_ND)

    columns = [
        pl.Series(name, place_NC[:, number].round(_PLACE_DECIMALS) + 0.0)
        for number, name in enumerate(_COMPONENTS)
    ]
    return logics.with_columns(
        *columns,
        pl.lit(encoder.name).alias("encoder"),
        pl.lit(round(shown, _PLACE_DECIMALS)).alias("shown_variance"),
        pl.Series("distance_to_others", distances, dtype=pl.Float64()).round(_PLACE_DECIMALS),
    ).select(list(LOGIC_SCHEMA))


def find_components(vectors_ND: FloatArray) -> tuple[FloatArray, float]:
    """Return the first three principal components (N, C) and the share of variance they hold.

    Components that do not exist are zero. The sign of each is fixed: its largest loading is
    positive.
    """
    centred_ND = vectors_ND - vectors_ND.mean(axis=0)
    left_NR, size_R, right_RD = np.linalg.svd(centred_ND, full_matrices=False)

    largest_R = np.abs(right_RD).argmax(axis=1)
    sign_R = np.where(right_RD[np.arange(len(right_RD)), largest_R] < 0, -1.0, 1.0)
    scores_NR = left_NR * size_R * sign_R

    place_NC = np.zeros((len(vectors_ND), len(_COMPONENTS)))
    kept = min(len(_COMPONENTS), scores_NR.shape[1])
    place_NC[:, :kept] = scores_NR[:, :kept]

    # Logics that are all alike vary in nothing, and nothing is left out.
    total = float((size_R**2).sum())
    return place_NC, float((size_R[:kept] ** 2).sum()) / total if total > 0 else 1.0


def _measure_distances(logics: pl.DataFrame, vectors_ND: FloatArray) -> list[float | None]:
    """Return each logic's mean Delta to the other agents' of its run; None for a single agent."""
    runs = logics.select(RUN).rows()
    members: dict[tuple[Any, ...], list[int]] = {}
    for number, run in enumerate(runs):
        members.setdefault(run, []).append(number)

    distances: list[float | None] = []
    for number, run in enumerate(runs):
        others = [other for other in members[run] if other != number]
        if not others:
            distances.append(None)
            continue
        own = np.repeat(vectors_ND[number : number + 1], len(others), axis=0)
        distances.append(float(update_magnitude(own, vectors_ND[others]).mean()))
    return distances
