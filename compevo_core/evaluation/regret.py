"""Regret of online weights: against the best agent, the best fixed mixture, and what was promised.

What belongs here: the numbers, and one row for each series and part of the day. What does not: the
rules (``agents.online_selection``), regret against fixed logics in training
(``training.diagnostics``).

Regret is the sum over days of how much larger the mixture's mean absolute error was. What a rule
promises holds for errors that are known before the next forecast; with AEMO's clock they are known
one or two days later, and more regret than promised is possible.

Shapes: A agents, D days, N windows, H horizon, h steps of a part of the day.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, split_evenly
from compevo_core.evaluation.result_rows import Identity
from compevo_core.evaluation.scopes import Scope

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What a mixture lost in D days; errors are mean absolute errors of a day, summed over days."""

    days: int  # days with a known truth
    loss: float  # of the mixture
    best_expert: float  # of the expert that was best on the whole
    best_mixture: float  # of the best fixed mixture, by linear programming
    # What the rule promises at most over the best fixed mixture, with the largest excess loss that
    # came out; None for a rule that promises nothing
    bound: float | None


def tabulate_regret(
    scope: Scope,
    values_NH: FloatArray,
    agents_ANH: FloatArray,
    config: RunConfig,
    identity: Identity,
) -> pl.DataFrame:
    """Return the regret of a population on a scope, in rows of ``REGRET_SCHEMA``.

    The windows of the scope know equally much of the day before.
    """
    selection, first_A = config.selection, config.population.first_weights
    truth_NH = scope.windows.truth()
    entity_N = np.array([view.entity for view in scope.windows.views()])
    shared = asdict(identity) | {
        "dataset": scope.windows.dataset,
        "subset": scope.subset,
        "rule": selection.rule,
        "parts": selection.parts,
        "unit": scope.windows[0].view.unit,
    }

    rows = []
    for entity in scope.windows.entities:
        rows_of = np.flatnonzero(entity_N == entity)
        for part, span in enumerate(split_evenly(scope.windows.horizon, selection.parts)):
            regret = measure_regret(
                selection.rule,
                agents_ANH[:, rows_of, span].swapaxes(0, 1),
                values_NH[rows_of, span],
                truth_NH[rows_of, span],
                first_A,
            )
            row = shared | {"entity": entity, "part": part} | asdict(regret)
            rows.append({name: row[name] for name in REGRET_SCHEMA})
    return pl.DataFrame(rows, schema=REGRET_SCHEMA, orient="row")


def measure_regret(
    rule: str,
    experts_DAh: FloatArray,
    mixture_Dh: FloatArray,
    truth_Dh: FloatArray,
    first_A: Sequence[float],
) -> Regret:
    """Return the regret of one set of weights under a rule that began with the first weights.

    An unknown truth is NaN; days without any known truth do not count.
    """
    # Imported here: it needs torch, without which the pipeline's definitions must load.
    from compevo_core.agents.online_selection import count_alike, find_excess

    known = [day for day in range(len(truth_Dh)) if np.isfinite(truth_Dh[day]).any()]
    excess = [
        find_excess(experts_DAh[d][:, steps], mixture_Dh[d][steps], truth_Dh[d][steps])
        for d in known
        for steps in [np.isfinite(truth_Dh[d])]
    ]
    excess_DA = np.array(excess).reshape(len(known), experts_DAh.shape[1])
    error_A = sum(np.nanmean(np.abs(experts_DAh[d] - truth_Dh[d]), axis=1) for d in known)

    return Regret(
        days=len(known),
        loss=float(sum(np.nanmean(np.abs(mixture_Dh[d] - truth_Dh[d])) for d in known)),
        best_expert=float(np.min(error_A)),
        best_mixture=_find_best_mixture(experts_DAh[known], truth_Dh[known]),
        bound=find_bound(rule, excess_DA, count_alike(first_A)),
    )


def find_bound(rule: str, excess_DA: FloatArray, experts: float) -> float | None:
    """Return what a rule promises at most, over the expert for which it promises least.

    Gaillard, Stoltz and van Erven (2014), "A second-order bound with excess losses", with losses
    scaled to the largest excess: for ``boa`` their bound of ML-Prod. Its proof rests on
    1 + x >= exp(x - x^2), the step that turns ML-Prod into this rule. The others promise nothing
    with these settings. ``experts`` counts one of a larger first weight as several that forecast
    alike.
    """
    days = len(excess_DA)
    largest = float(np.abs(excess_DA).max(initial=0.0))
    if rule != "boa" or largest == 0.0:
        return None

    squares = float((excess_DA**2).sum(axis=0).max()) / largest**2
    log_experts = math.log(max(2.0, experts))
    doublings = math.log(1 + experts / (2 * math.e) * (1 + math.log(1 + days)))
    price = 3 * log_experts + doublings
    return largest * (price / math.sqrt(log_experts) * math.sqrt(1 + squares) + 2 * price)


def _find_best_mixture(experts_DAh: FloatArray, truth_Dh: FloatArray) -> float:
    """Return the smallest sum over days of mean absolute errors that fixed weights could reach."""
    from scipy import sparse
    from scipy.optimize import linprog

    is_known_Dh = np.isfinite(truth_Dh)
    truth_N = truth_Dh[is_known_Dh]
    forecast_NA = experts_DAh.swapaxes(1, 2)[is_known_Dh]
    # A day's error is a mean over its known steps.
    weight_N = np.repeat(1.0 / is_known_Dh.sum(axis=1), is_known_Dh.sum(axis=1))

    # Minimise the weighted slack s with s >= |F w - y| and w on the simplex. Sparse: a slack has
    # two rows of its own.
    n, experts = forecast_NA.shape
    slack = sparse.eye_array(n)
    above = sparse.hstack([sparse.csr_array(forecast_NA), -slack])
    below = sparse.hstack([sparse.csr_array(-forecast_NA), -slack])
    solution = linprog(
        np.concatenate([np.zeros(experts), weight_N]),
        A_ub=sparse.vstack([above, below]).tocsr(),
        b_ub=np.concatenate([truth_N, -truth_N]),
        A_eq=np.concatenate([np.ones(experts), np.zeros(n)])[None],
        b_eq=[1.0],
    )
    return float(solution.fun)
