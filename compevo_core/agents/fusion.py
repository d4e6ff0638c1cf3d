"""The competition-induced update of logic states: opponent context, two gates, soft prompt (4.3).

What belongs here: the trainable fusion that turns candidate states into a soft prompt (Eq. 9 to 13,
"Textual logic interface"). What does not: making candidates and decoding text
(``agents.logic_writer``), the policy loss (``agents.objective``).

Shapes: A agents, D hidden.
"""

import torch
from torch import Tensor, nn


class StrategyFusion(nn.Module):
    """Interaction weights alpha, gates g2 and g3, and the projection to one soft-prompt embedding.

    Two D x 2D gates with bias, one D x D projection with bias and A x A interaction scores, shared
    by the agents as the paper's counts imply (decision 03-rounds). ``neutral_D`` is the embedding
    that every soft prompt starts near, and the frozen reference's soft prompt (decision 04-policy).
    """

    neutral_D: Tensor

    def __init__(self, agents: int, neutral_D: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        hidden = neutral_D.numel()
        self.scores_AA = nn.Parameter(torch.zeros(agents, agents))  # equal weights to all peers
        self.gate2 = _build_linear(2 * hidden, hidden, generator)
        self.gate3 = _build_linear(2 * hidden, hidden, generator)
        self.projection = _build_linear(hidden, hidden, generator)

        # Near the neutral embedding, a tenth of its norm away, the first logics differ in bfloat16
        # and read like the backbone's own (decision 04-policy). The weights are not zero, so that
        # candidates and gates have a gradient from the first round on. Uniform entries within
        # 1 / sqrt(D) map a state of length one to a length of 1 / sqrt(3).
        with torch.no_grad():
            self.projection.bias.copy_(neutral_D)
            self.projection.weight.mul_(0.1 * float(neutral_D.norm()) * 3**0.5)

        # A buffer: the reference must stay where it was when the projection moves.
        self.register_buffer("neutral_D", neutral_D.clone())

    def interaction_weights(self) -> Tensor:
        """Return alpha (A, A) of Eq. 9: zero on the diagonal, rows sum to one (0 for one agent)."""
        agents = self.scores_AA.shape[0]
        if agents == 1:
            # A softmax over a fully masked row would be NaN.
            return torch.zeros_like(self.scores_AA)

        is_self_AA = torch.eye(agents, dtype=torch.bool, device=self.scores_AA.device)
        return torch.softmax(self.scores_AA.masked_fill(is_self_AA, -torch.inf), dim=1)

    def forward(self, candidate_AD: Tensor, previous_AD: Tensor) -> Tensor:
        """Fuse candidates with the previous round's states to the final ones (Eq. 9 to 13)."""
        # Last round's states are observations of the opponents, not something to train: their graph
        # is gone, and the adapters that made them have changed (decision 03-rounds).
        previous_AD = previous_AD.detach()
        context_AD = self.interaction_weights() @ previous_AD

        # Stage 2: how far an agent moves towards its opponents.
        gate2_AD = torch.sigmoid(self.gate2(torch.cat([previous_AD, context_AD], -1)))
        informed_AD = (1.0 - gate2_AD) * previous_AD + gate2_AD * context_AD

        # Stage 3: how much of its new candidate it adopts.
        gate3_AD = torch.sigmoid(self.gate3(torch.cat([informed_AD, candidate_AD], -1)))
        return (1.0 - gate3_AD) * informed_AD + gate3_AD * candidate_AD

    def soft_prompt(self, fused_AD: Tensor) -> Tensor:
        """Project each final state to the embedding before the instruction, (A, D) to (A, D).

        States are scaled to length one first, as their norms differ by orders of magnitude between
        backbones, and a soft prompt must stay in the range of token embeddings.
        """
        prompt_AD: Tensor = self.projection(torch.nn.functional.normalize(fused_AD, dim=-1))
        return prompt_AD


def _build_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a layer drawn from the generator; a zero bias leaves the gates half open."""
    layer = nn.Linear(inputs, outputs)
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.zero_()
    return layer
