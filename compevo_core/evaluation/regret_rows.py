"""Rows of regret: what online weights lost against the best agent and the best fixed mixture.

What belongs here: the columns, one row for each series and part of the day. What does not: the
arithmetic (``online.regret``).

Shapes: A agents, N windows, H horizon, h steps of a part of the day.
"""

from dataclasses import asdict

import numpy as np
import polars as pl

from compevo_core.config_sections import SelectionConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON
from compevo_core.evaluation.result_rows import Identity
from compevo_core.evaluation.scopes import Scope
from compevo_core.online.regret import measure_regret

REGRET_SCHEMA: dict[str, pl.DataType] = {
    "experiment": pl.String(),
    "method": pl.String(),
    "dataset": pl.String(),
    "subset": pl.String(),
    "entity": pl.String(),
    "rule": pl.String(),
    "part": pl.Int64(),  # of the day, from 0
    "parts": pl.Int64(),
    "days": pl.Int64(),
    "loss": pl.Float64(),  # this and the next three are sums over days, in ``unit``
    "best_expert": pl.Float64(),
    "best_mixture": pl.Float64(),
    "bound": pl.Float64(),  # most that the rule promises over the best mixture; null: nothing
    "unit": pl.String(),
    "seed": pl.Int64(),
    "config_hash": pl.String(),
    "artifact_hash": pl.String(),
    "commit": pl.String(),
}


def tabulate_regret(
    scope: Scope,
    values_NH: FloatArray,
    agents_ANH: FloatArray,
    selection: SelectionConfig,
    identity: Identity,
) -> pl.DataFrame:
    """Return the regret on a scope, in rows of ``REGRET_SCHEMA``.

    Args:
        scope: windows that know equally much of the day before.
        values_NH: forecasts of the population.
        agents_ANH: forecasts of its agents.
        selection: rule and parts of the day.
        identity: of the population.
    """
    truth_NH = scope.windows.truth()
    entity_N = np.array([view.entity for view in scope.windows.views()])
    steps = HORIZON // selection.parts

    rows = []
    for entity in scope.windows.entities:
        own = np.flatnonzero(entity_N == entity)
        for part in range(selection.parts):
            span = slice(part * steps, (part + 1) * steps)
            regret = measure_regret(
                selection.rule,
                agents_ANH[:, own, span].swapaxes(0, 1),
                values_NH[own, span],
                truth_NH[own, span],
            )
            rows.append(
                {
                    "experiment": identity.experiment,
                    "method": identity.method,
                    "dataset": scope.windows.dataset,
                    "subset": scope.subset,
                    "entity": entity,
                    "rule": selection.rule,
                    "part": part,
                    "parts": selection.parts,
                    **asdict(regret),
                    "unit": scope.windows[0].view.unit,
                    "seed": identity.seed,
                    "config_hash": identity.config_hash,
                    "artifact_hash": identity.artifact_hash,
                    "commit": identity.commit,
                }
            )
    return pl.DataFrame(rows, schema=REGRET_SCHEMA, orient="row")
