"""Competition-induced strategy evolution: opponent context, two gates, soft prompt (paper 4.3, Eq. 9 to 13).

What belongs here: the trainable fusion that turns candidate states into a soft prompt.
What does not: producing candidates and decoding text (``logics``), the policy loss (``grpo``).
Legend: A agents, D hidden.
"""

import torch
from torch import Tensor, nn

#: Size of the soft prompt's first departure from its neutral start, relative to a token embedding.
_START_SCALE = 0.1


class StrategyFusion(nn.Module):
    """Row-normalised interaction alpha, gates g2 and g3, and the projection to one soft-prompt embedding.

    Parameters: two D x 2D gates with bias, one D x D projection with bias, A x A interaction scores;
    all shared by the agents, as the paper's parameter counts imply (design decision 3).
    """

    neutral_D: Tensor

    def __init__(self, agents: int, neutral_D: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        hidden = neutral_D.numel()
        self.scores_AA = nn.Parameter(torch.zeros(agents, agents))
        self.gate2 = _seeded_linear(2 * hidden, hidden, generator)
        self.gate3 = _seeded_linear(2 * hidden, hidden, generator)
        self.projection = _seeded_linear(hidden, hidden, generator)
        with torch.no_grad():
            self.projection.bias.copy_(neutral_D)
            self.projection.weight.mul_(_START_SCALE * float(neutral_D.norm()) / hidden**0.5)
        self.register_buffer("neutral_D", neutral_D.clone())

    def interaction(self) -> Tensor:
        """Alpha (A, A): rows sum to one, the diagonal is zero; a lone agent has an all-zero row."""
        agents = self.scores_AA.shape[0]
        if agents == 1:
            return torch.zeros_like(self.scores_AA)
        own = torch.eye(agents, dtype=torch.bool, device=self.scores_AA.device)
        return torch.softmax(self.scores_AA.masked_fill(own, -torch.inf), dim=1)

    def forward(self, candidate_AD: Tensor, previous_AD: Tensor) -> Tensor:
        """Fuses this round's candidates with last round's: both (A, D) to the final state h (A, D).

        ``previous_AD`` carries no gradient (design decision 6).
        """
        previous = previous_AD.detach()
        context = self.interaction() @ previous
        gate2 = torch.sigmoid(self.gate2(torch.cat([previous, context], -1)))
        informed = (1.0 - gate2) * previous + gate2 * context
        gate3 = torch.sigmoid(self.gate3(torch.cat([informed, candidate_AD], -1)))
        return (1.0 - gate3) * informed + gate3 * candidate_AD

    def soft_prompt(self, fused_AD: Tensor) -> Tensor:
        """One embedding per agent, (A, D) to (A, D), to stand before the instruction."""
        scaled: Tensor = self.projection(torch.nn.functional.normalize(fused_AD, dim=-1))
        return scaled


def _seeded_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
        layer.bias.zero_()
    return layer
