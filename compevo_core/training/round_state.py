"""What passes from round to round, and between the steps of one round.

What belongs here: values without behaviour. What does not: computing them (``training.round``), the
line that a round leaves in ``rounds.jsonl`` (``training.round_record``).

Shapes:
    A agents, G sampled logics of an agent, B windows of the batch, W of them that score logics
    (reward windows), H horizon, D hidden size.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.logic_writer import Proposal
from compevo_core.agents.strategy import NewsByAgent
from compevo_core.data.arrays import FloatArray
from compevo_core.diagnostics.regret import RegretTracker


@dataclasses.dataclass
class RoundState:
    """State carried between rounds, apart from the tensors of the model.

    It covers all agents and is equal on every process.

    Attributes:
        round: number of the next round, from 0.
        logics: (A,) text that each agent forecasts with in that round, l_i.
        rewards: (A,) rewards of the round before; zeros at the start.
        previous_AD: candidate representations of the last rewriting, from which the opponent
            context is made (Eq. 9).
        regret: running sums of rewards, over the rounds that rewrote.
    """

    round: int
    logics: list[str]
    rewards: list[float]
    previous_AD: Tensor
    regret: RegretTracker


@dataclasses.dataclass(frozen=True)
class Influence:
    """How much each agent counts in a round, settled before the round's truth is known.

    Attributes:
        weights_A: weight in the aggregate (Eq. 5), mean over series.
        fitness_A: moving average of rewards (Eq. 4), mean over series.
        gates_A: learned gates (Eq. 5).
        interaction_AA: interaction weights alpha (Eq. 9).
    """

    weights_A: Tensor
    fitness_A: Tensor
    gates_A: Tensor
    interaction_AA: Tensor


@dataclasses.dataclass(frozen=True)
class PlayedForecasts:
    """Forecasts of the batch under the logic that each agent plays, without gradient or dropout.

    Attributes:
        values_ABH: scaled forecasts of all agents.
        truth_BH: scaled targets; NaN where missing.
        reward_AB: minus each agent's error on each window (Eq. 3).
        reward_A: each agent's reward, the mean over the windows.
        loss_pred: what L_pred minimised, of the training pass (Eq. 7).
        loss_own: sum of the agents' own errors, of the training pass; 0 where its weight is 0.
        loss_tokens: cross-entropy of the targets' digits, sum over agents; 0 for the head.
        n_unparsed: answers of this process's agents that could not be read.
        n_cut: prompts of this process's agents that were too long.
        news: ids of the articles that each of this process's agents retrieved, by window.
        loss_pg: what a debate minimised of its policy; 0 without one.
        weights_A: mean weight of each agent by what the forecasts themselves say; else None.
    """

    values_ABH: Tensor
    truth_BH: Tensor
    reward_AB: Tensor
    reward_A: Tensor
    loss_pred: float
    loss_own: float
    loss_tokens: float
    n_unparsed: int
    n_cut: int
    news: NewsByAgent
    loss_pg: float = 0.0
    weights_A: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class GroupScores:
    """Forecasts and rewards of the sampled logics on the reward windows, without gradient.

    The logic that was played is scored in the same pass: it competes with its group.

    Attributes:
        examples: the W reward windows.
        values_AGWH: scaled forecasts of all agents under each sampled logic.
        played_AWH: those under the logic that was played.
        truth_WH: scaled targets; NaN where missing.
        reward_AG: minus the error of each sampled logic.
        played_reward_A: minus the error of the logic that was played.
        n_unparsed: answers of this process's agents that could not be read.
        n_cut: prompts of this process's agents that were too long.
    """

    examples: Sequence[ForecastExample]
    values_AGWH: Tensor
    played_AWH: Tensor
    truth_WH: Tensor
    reward_AG: Tensor
    played_reward_A: Tensor
    n_unparsed: int
    n_cut: int


@dataclasses.dataclass(frozen=True)
class RoundDiagnostics:
    """Instruments of appendix B for one rewriting; nothing in the training depends on them.

    Attributes:
        best_response_gap: (A,) fall of the aggregate's error had one agent alone played its best
            sample.
        group_gap_A: reward by which each agent's best sample beat the logic it played.
        reward_AK: rewards of the played logic and then of the K fixed ones; (A, 0) without any.
        n_fixed_unparsed: unreadable forecasts of the fixed logics.
    """

    best_response_gap: list[float]
    group_gap_A: FloatArray
    reward_AK: npt.NDArray[np.float32]
    n_fixed_unparsed: int


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """What a round that rewrites the logics adds to one that does not.

    Attributes:
        proposal: drafts and samples of this process's agents.
        group: their scores.
        diagnostics: instruments of appendix B.
    """

    proposal: Proposal
    group: GroupScores
    diagnostics: RoundDiagnostics


@dataclasses.dataclass(frozen=True)
class GatheredTexts:
    """Texts and counts of all agents, gathered from the processes that made them.

    Attributes:
        candidates: (A,) drafts; empty in a round without rewriting, as are the groups.
        group_logics: (A, G) sampled logics.
        unique_news: (A,) different articles that each agent read.
        n_empty: generated texts without content.
        n_unparsed: forecasts that could not be read.
        n_cut: prompts that were too long.
        n_equal_groups: agents whose samples all earned the same reward.
    """

    candidates: list[str]
    group_logics: list[list[str]]
    unique_news: list[int]
    n_empty: int
    n_unparsed: int
    n_cut: int
    n_equal_groups: int


@dataclasses.dataclass(frozen=True)
class UpdateResult:
    """What the update of a round did.

    Attributes:
        loss_pg: L_pg before weighting (Eq. 14).
        loss_div: L_div before weighting (Eq. 16).
        loss_prune: L_prune before weighting (Eq. 17).
        gradient_conflict: cosine of Eq. 23.
        gradient_margin: left side of Eq. 23.
        n_equal_groups: agents of this process whose samples all earned the same reward.
        grad_norm: norm of the gradient before clipping.
        kl: divergence from the reference policy in the last update.
        clip_fraction: share of clipped tokens in the last update.
    """

    loss_pg: float
    loss_div: float
    loss_prune: float
    gradient_conflict: float
    gradient_margin: float
    n_equal_groups: int
    grad_norm: float
    kl: float
    clip_fraction: float
