"""What logic updates gained: LUD next to the fall of the forecast error (paper F.4).

What belongs here: the gain of every update, its mean by LUD regime, its correlation with LUD. What
does not: LUD itself (``lud.degree``), files (``lud.measure``), drawing (``report``).

The paper correlates the LUD of an update with the error that it saves. Here both logics of an
update are scored on the same reward windows of the same round: the old one as the played logic, the
new one as a sample of its group. Rounds on different windows would compare days, not logics.
The new logic is the best of its group on these windows, so gains are biased upwards. A logic that
no sample of its group beat is played on: an update that changed and saved nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.errors import DataError
from compevo_core.lud.agreement import pearson
from compevo_core.training.round_record import RoundRecord

REGIMES = ("low", "medium", "high")
# The paper prints regime averages 0.09, 0.44 and 0.76 but no edges; these are the midpoints.
REGIME_EDGES = (0.265, 0.60)
REGIME_SCHEMA = {
    "regime": pl.String,
    "low_edge": pl.Float64,
    "high_edge": pl.Float64,
    "n": pl.Int64,
    "mean_lud": pl.Float64,
    "mean_gain": pl.Float64,
}
GAIN_SCHEMA = {"round": pl.Int64, "agent": pl.Int64, "gain": pl.Float64}


def measure_gains(rounds: Sequence[RoundRecord]) -> pl.DataFrame:
    """Return the scaled error that each update saved, as rows of ``GAIN_SCHEMA``.

    The row of a round is about the update from the round before to it, as in ``lud.csv``. A round
    that rewrote nothing has no update. A run that scores no fixed logics does not score the played
    one on the reward windows either; its updates have no row.
    """
    rows = []
    for number in range(1, len(rounds)):
        # The round before scored the new logic, as a sample, and the old one, which it played.
        before = rounds[number - 1]
        if not before.evolved or not before.played_rewards:
            continue

        for agent, logic in enumerate(rounds[number].logics):
            # Equal texts of a group earned the same.
            if logic in before.group_logics[agent]:
                sample = before.group_logics[agent].index(logic)
                gain = before.group_rewards[agent][sample] - before.played_rewards[agent]
                rows.append((number, agent, gain))
            elif logic == before.logics[agent]:
                # The played logic was better than all of its group and stays.
                rows.append((number, agent, 0.0))
    return pl.DataFrame(rows, schema=GAIN_SCHEMA, orient="row")


def build_regime_table(
    lud: npt.ArrayLike, gain: npt.ArrayLike, *, edges: tuple[float, float] = REGIME_EDGES
) -> pl.DataFrame:
    """Return mean LUD and mean gain by LUD regime, in the columns of ``REGIME_SCHEMA``.

    Args:
        lud: LUD (N,) of the updates.
        gain: error (N,) that each of them saved.
        edges: where the medium and the high regime start. A regime is [low_edge, high_edge).

    An empty regime has n = 0 and null means.

    Raises:
        DataError: the lists differ in length, or the edges do not rise.
    """
    lud_N = np.asarray(lud, dtype=np.float64)
    gain_N = np.asarray(gain, dtype=np.float64)
    if lud_N.ndim != 1 or lud_N.shape != gain_N.shape or not edges[0] < edges[1]:
        raise DataError(
            f"{lud_N.size} LUD and {gain_N.size} gains with edges {edges}: "
            "lengths must agree, edges rise"
        )

    rows = []
    bounds = (0.0, *edges, math.inf)
    for name, low, high in zip(REGIMES, bounds[:-1], bounds[1:], strict=True):
        # Half open, so that every update falls into exactly one regime.
        is_inside = (lud_N >= low) & (lud_N < high)
        n = int(is_inside.sum())
        rows.append(
            {
                "regime": name,
                "low_edge": low,
                "high_edge": high,
                "n": n,
                "mean_lud": float(lud_N[is_inside].mean()) if n else None,
                "mean_gain": float(gain_N[is_inside].mean()) if n else None,
            }
        )
    return pl.DataFrame(rows, schema=REGIME_SCHEMA)


def summarize_gains(table: pl.DataFrame, gains: pl.DataFrame) -> Mapping[str, Any]:
    """Return how the LUD of one judge goes with gains, as plain values for ``lud.json``.

    Args:
        table: rows of ``LUD_SCHEMA``; those without a LUD are left out.
        gains: rows of ``GAIN_SCHEMA``.
    """
    # By round and agent, not by position: a judge has not scored every update.
    both = table.drop_nulls("lud").join(gains, on=["round", "agent"], maintain_order="left")
    correlation = pearson(both["lud"], both["gain"])
    by_regime = build_regime_table(both["lud"], both["gain"])

    return {
        "n": both.height,
        # JSON has no NaN: null says that a correlation is undefined, as elsewhere in the file.
        "pearson_r": None if math.isnan(correlation.r) else correlation.r,
        "pearson_p": None if math.isnan(correlation.p) else correlation.p,
        "regimes": by_regime["regime"].to_list(),
        "regime_edges": list(REGIME_EDGES),
        "n_by_regime": by_regime["n"].to_list(),
        "mean_lud_by_regime": by_regime["mean_lud"].to_list(),
        "mean_gain_by_regime": by_regime["mean_gain"].to_list(),
    }
