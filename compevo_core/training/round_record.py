"""What one training round measured: the line that it adds to ``rounds.jsonl``.

A round is one strategy-update cycle of all agents over one batch of windows (paper 4.1). Losses,
rewards and forecasts are in scaled units: the target minus its training mean, over its training
standard deviation. Equations are numbered as in the paper, sections with a letter are its appendix.

Shapes: A agents, G sampled logics of an agent, K fixed logics of an agent.
"""

import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

_SAMPLES = ("group_rewards", "group_logics", "candidates", "best_response_gap")
_POLICY = ("kl", "clip_fraction", "loss_pg", "loss_div", "gradient_conflict", "gradient_margin")
REWRITING_KEYS = frozenset(_SAMPLES + _POLICY)
"""Keys of rounds that rewrite logics; in other rounds they are empty or 0."""


class RoundResult(BaseModel):
    """What :meth:`~compevo_core.training.round.RoundTrainer.step` measured in one round."""

    # Field docstrings are the descriptions of the JSON schema.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    round: int
    """number of the round, from 0"""
    stage: Literal["supervised", "evolution"] = "evolution"
    """stage of the run: supervised before any logic is rewritten, then evolution (D.2)"""
    gradient: str = ""
    """how the backward pass of L_pred went where ``run.gradient = "auto"`` chose it"""
    evolved: bool = True
    """whether the agents wrote new logics; if not, what belongs to samples is empty or 0"""
    weight_entropy: float
    """entropy of ``weights`` in nats: 0 is a single agent, log A is the plain mean (Eq. 5)"""
    rewards: list[float]
    """(A,) minus the scaled error of each agent's own forecast, R_i (Eq. 3)"""
    fitness: list[float]
    """(A,) moving average of the rewards of the rounds before this one, M_i (Eq. 4)"""
    weights: list[float]
    """(A,) weight of each agent in the aggregated forecast, w_i (Eq. 5); they sum to 1"""
    gates: list[float]
    """(A,) learned gate of each agent, g_i (Eq. 5); 1 at the start"""
    error_correlation: float | None = None
    """mean correlation of the errors of two agents in this batch; 1 for agents that forecast
    alike"""
    gain_over_best: float | None = None
    """by how much the plain mean of the agents beats the best agent's error, in percent"""
    effective_agents: float | None = None
    """number of agents with unrelated errors whose mean would be as good as this population's"""
    logics: list[str]
    """(A,) text that each agent forecast with, l_i"""
    group_rewards: list[list[float]]
    """(A, G) reward of each sampled logic on the round's reward windows (4.3)"""
    interaction: list[list[float]]
    """(A, A) how much each agent (row) draws on each other one, alpha_ij (Eq. 9); rows sum to 1"""
    candidates: list[str]
    """(A,) text drafted by each agent before it saw the fused soft prompt (Eq. 8)"""
    group_logics: list[list[str]]
    """(A, G) logics sampled behind the soft prompt (Eq. 13); the best of them is played next if it
    earned more than the one that was played"""
    unique_news: list[int]
    """(A,) number of different articles that each agent read in this batch"""
    empty_logics: int
    """number of generated texts without content; the agent's old logic stood in for each"""
    unread_answers: int
    """number of text answers that could not be parsed; each was scored by the fallback"""
    cut_prompts: int = 0
    """number of prompts that were too long and lost news, history or peers"""
    gradient_conflict: float
    """cosine between the gradients of L_pred + L_pg and of the two regularisers (Eq. 23), over all
    trained parameters"""
    gradient_margin: float
    """left side of Eq. 23: positive where a small step lowers the main loss (B.2)"""
    equal_groups: int
    """number of agents whose samples earned one and the same reward: they teach nothing"""
    grad_norm: float
    """Euclidean norm of the whole gradient before clipping"""
    kl: float
    """KL divergence from the frozen reference policy, nats a token, mean over agents (D.2)"""
    clip_fraction: float
    """share of sampled tokens whose probability ratio was clipped, in the last update (D.2)"""
    regret: list[float] | None = None
    """(A,) total reward missed by not having played the best of the K fixed logics in every
    rewriting round so far (B.3); null where no fixed logic is scored"""
    fixed_rewards: list[list[float]] | None = None
    """(A, K) reward of each fixed logic on the reward windows; null where none is scored"""
    played_rewards: list[float] | None = None
    """(A,) reward of the played logic, scored together with the fixed ones; null without them"""
    group_regret: list[float] | None = None
    """(A,) total reward missed by not having played the best sampled logic of every rewriting round
    so far"""
    loss: float
    """weighted sum L of all terms (Eq. 15), with the token loss"""
    loss_pred: float
    """L_pred, scaled error of the aggregated forecast (Eq. 7), or Huber's loss of it"""
    loss_own: float = 0.0
    """sum of the agents' own errors before weighting; 0 where their weight is 0"""
    loss_tokens: float
    """cross-entropy of the target's digits for the text decoder, sum over agents; 0 for the head"""
    loss_pg: float
    """L_pg before weighting, mean over agents (Eq. 14)"""
    loss_div: float
    """L_div before weighting: sum of the cosines between all pairs of candidates (Eq. 16)"""
    loss_prune: float
    """L_prune before weighting: sum of the absolute gates (Eq. 17)"""
    best_response_gap: list[float]
    """(A,) how far the aggregate's error would fall if only this agent played its best sampled
    logic (B.1)"""
    news_gains: list[float] = []
    """(A,) by how much the news of the played logic lowered the agent's error on the windows that
    scored it; empty where no record of gains is kept"""
    fixed_unread_answers: int = 0
    """as ``unread_answers``, for the fixed logics, which are not counted there"""
    answers: int
    """number of forecasts asked for, not counting forecasts of the fixed logics"""

    def to_dict(self) -> dict[str, Any]:
        """Return the values by key, in the order of ``rounds.jsonl``."""
        return self.model_dump()


class RoundRecord(RoundResult):
    """One line of ``rounds.jsonl``: what the round measured, and the state of the run after it."""

    val_mae_scaled: float | None = None
    """scaled mean absolute error of the aggregate on validation windows; null in most rounds"""
    val_prior_mae_scaled: float | None = None
    """the same for the base model; null in most rounds"""
    exchanged_bytes: dict[str, int] = {}
    """bytes that each process received from the others in this round, by purpose"""
    epoch: int
    """number of the pass over the training windows, from 0"""
    rounds: int
    """number of rounds of the whole run"""
    seconds: float
    """time of this round, validation included, in seconds"""
    eta_seconds: float
    """time left of the whole run, calibration and second training included, in seconds; by the mean
    of each kind of work, and by how much it computes where it has not been seen yet"""
    train_seconds: float
    """time of all rounds so far, interrupted parts of the run included, in seconds"""

    @classmethod
    def from_json_line(cls, line: str | bytes) -> Self:
        """Read a line of ``rounds.jsonl``; ValueError if it is no JSON object or has other keys."""
        return cls.model_validate(json.loads(line))

    def to_json_line(self) -> str:
        """Return the record as one line of JSON, without a line break."""
        return json.dumps(self.to_dict())
