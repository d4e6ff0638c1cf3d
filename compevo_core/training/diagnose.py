"""The instruments of one round (paper appendix B): measured in training, used nowhere in it.

What belongs here: which forecasts each instrument needs. What does not: its mathematics
(``diagnostics.theory``, ``diagnostics.regret``), the gradients' conflict (``training.gradients``).

Shapes:
    A agents, G sampled logics of an agent, K fixed logics of an agent, W reward windows, H horizon.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from compevo_core.agents.selection import forecast_error
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.diagnostics.regret import assign_fixed_logics
from compevo_core.diagnostics.theory import aggregate_best_response_gap, best_response_gap
from compevo_core.training.model import PopulationModel
from compevo_core.training.round_state import GroupScores, RoundDiagnostics

_Float32Array = npt.NDArray[np.float32]


def diagnose_round(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    group: GroupScores,
) -> RoundDiagnostics:
    """Measure a round that rewrites the logics.

    Call it before the update: the fixed logics must be forecast by the adapters that forecast the
    played ones, and the weights must be those of the round.

    Args:
        model: the population.
        executor: forecasts with it.
        logics: the logics that were played.
        group: forecasts and rewards of the sampled logics, and of the played ones.
    """
    # How much each agent could have gained alone: in the aggregate's error, and in its own reward.
    weights_WA = model.selection.weights([example.view.entity for example in group.examples])
    aggregate_gap_A = aggregate_best_response_gap(
        _to_numpy(group.values_AGWH),
        _to_numpy(group.played_AWH),
        _to_numpy(weights_WA),
        _to_numpy(group.truth_WH),
        metric=model.config.objective.metric,
    )
    own_gap_A = best_response_gap(_to_numpy(group.reward_AG), _to_numpy(group.played_reward_A))

    reward_AK, n_unparsed = _score_fixed_logics(model, executor, logics, group)

    return RoundDiagnostics(
        best_response_gap=aggregate_gap_A.tolist(),
        group_gap_A=own_gap_A,
        reward_AK=reward_AK,
        n_fixed_unparsed=n_unparsed,
    )


def _score_fixed_logics(
    model: PopulationModel, executor: StrategyExecutor, logics: Sequence[str], group: GroupScores
) -> tuple[_Float32Array, int]:
    """Return rewards (A, 1 + K) of the played logics and of their fixed comparators.

    All are forecast together, apart from the sampled group: the comparison is of like with like,
    and measuring it changes no number of the training.

    Returns:
        the rewards, (A, 0) where ``run.fixed_logics`` is 0; the number of unreadable answers.
    """
    count = model.config.run.fixed_logics
    if not count:
        return np.zeros((len(logics), 0), dtype=np.float32), 0

    # The played logic is scored again, although it was scored with its group: another batch can
    # move the last bit, and equal logics shall have equal rewards.
    form = model.config.evolution.form
    comparators = assign_fixed_logics(len(logics), count, form)
    candidates = [[logic, *fixed] for logic, fixed in zip(logics, comparators, strict=True)]
    local = executor.forecast_groups(model.shards.local(candidates), group.examples)
    values_AKWH = model.shards.all_gather(local.values_AGBH, "forecasts")

    error_AKW = forecast_error(values_AKWH, group.truth_WH, model.config.objective.metric)
    n_unparsed = int(model.shards.all_reduce_sum([local.n_unparsed])[0])
    return _to_numpy(-error_AKW.mean(-1)), n_unparsed


def _to_numpy(values: Tensor) -> _Float32Array:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float32)
