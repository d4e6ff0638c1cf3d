"""Numbers as tokens, and the read-out of a forecast: the head decoder's own parameters.

What belongs here: the linear maps from numbers to token embeddings and from hidden states to
scaled corrections, one set an agent. What does not: which numbers (``agents.numeric_inputs``), the
layout of the prompt (``agents.head_decoder``).

Digits cost several tokens a value and hide its size from the model; a linear patch costs one token
for four values (patches: Nie et al., PatchTST, 2023). Every map starts at the scale of the word
embeddings, so that the first layer sees nothing unusual. The read-out starts at zero: before
training the forecast is the base (decision 2).

Shapes: A agents, B windows, C context columns, P priors, S channels of the target day, H horizon,
K steps of a patch (4), T patches (12), M articles, E article embedding, R forecasts, D hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from compevo_core.data.view import HORIZON, LOOKBACK

PATCH_STEPS = 4
PATCHES = HORIZON // PATCH_STEPS
CONTEXT_TOKENS = 1
_BASE_CHANNELS = 2  # the last season and the agent's base


class NumericTokens(nn.Module):
    """One agent's maps from numbers to tokens, stacked over agents.

    Args:
        generators: one for each agent; draws its weights.
        n_context: context columns C.
        n_priors: priors P; the difference of each from the agent's base is a channel, where there
            is more than one.
        article_size: width of article embeddings; 0 where articles are read as text.
        hidden: width D of the backbone.
        scale: root mean square of the backbone's word embeddings.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        *,
        n_context: int,
        n_priors: int,
        article_size: int,
        hidden: int,
        scale: float,
    ) -> None:
        super().__init__()
        channels = _BASE_CHANNELS + (n_priors if n_priors > 1 else 0)

        def draw(*shape: int, fan_in: int) -> nn.Parameter:
            # Standardised inputs of this fan-in then give embeddings of the words' own size.
            std = scale * fan_in**-0.5
            rows = [torch.randn(shape, generator=generator) * std for generator in generators]
            return nn.Parameter(torch.stack(rows))

        self.context_ACD = draw(n_context, hidden, fan_in=n_context)
        self.context_bias_AD = draw(hidden, fan_in=1)
        self.history_AKD = draw(PATCH_STEPS, hidden, fan_in=PATCH_STEPS)
        self.history_position_ATD = draw(LOOKBACK // PATCH_STEPS, hidden, fan_in=1)
        self.target_AFD = draw(channels * PATCH_STEPS, hidden, fan_in=channels * PATCH_STEPS)
        self.target_position_ATD = draw(PATCHES, hidden, fan_in=1)

        # "No news" is a state that an agent knows, not the absence of a token.
        self.no_news_AD = draw(hidden, fan_in=1) if article_size else None
        # Article embeddings have length one, so their entries are of size E^-1/2 each.
        self.article_AED = draw(article_size, hidden, fan_in=1) if article_size else None

    def embed_context(self, context_BC: Tensor, agents: slice) -> Tensor:
        """Return the token of calendar, weather and series, (A, B, D)."""
        product_ABD = torch.einsum("bc,acd->abd", context_BC, self.context_ACD[agents])
        return product_ABD + self.context_bias_AD[agents][:, None]

    def embed_history(self, history_ABH: Tensor, agents: slice) -> Tensor:
        """Return the tokens of the input, (A, B, T, D)."""
        patches_ABTK = history_ABH.reshape(*history_ABH.shape[:2], -1, PATCH_STEPS)
        product_ABTD = torch.einsum("abtk,akd->abtd", patches_ABTK, self.history_AKD[agents])
        return product_ABTD + self.history_position_ATD[agents][:, None]

    def embed_target(self, channels_ABSH: Tensor, agents: slice) -> Tensor:
        """Return the tokens of the target day, (A, B, T, D)."""
        patches_ABSTK = channels_ABSH.reshape(*channels_ABSH.shape[:3], -1, PATCH_STEPS)
        features_ABTF = patches_ABSTK.transpose(2, 3).flatten(3)
        product_ABTD = torch.einsum("abtf,afd->abtd", features_ABTF, self.target_AFD[agents])
        return product_ABTD + self.target_position_ATD[agents][:, None]

    def embed_articles(self, articles_ME: Tensor, agents: slice) -> Tensor:
        """Return one token an article, and last the token of no news, (A, M + 1, D)."""
        assert self.article_AED is not None and self.no_news_AD is not None  # noqa: S101
        tokens_AMD = torch.einsum("me,aed->amd", articles_ME, self.article_AED[agents])
        return torch.cat([tokens_AMD, self.no_news_AD[agents][:, None]], 1)


class PatchReadout(nn.Module):
    """A linear read-out per agent, from the state at a target-day token to its own four steps.

    States of all windows share one large direction, which carries no information and would make
    the read-out a learner of a constant. Its mean and size are measured once, before training, and
    taken out.
    """

    centre_ATD: Tensor
    size_A: Tensor

    def __init__(self, agents: int, hidden: int) -> None:
        super().__init__()
        self.weight_AKD = nn.Parameter(torch.zeros(agents, PATCH_STEPS, hidden))
        self.bias_AH = nn.Parameter(torch.zeros(agents, HORIZON))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.register_buffer("centre_ATD", torch.zeros(agents, PATCHES, hidden))
        self.register_buffer("size_A", torch.ones(agents))

    @torch.no_grad()
    def centre(self, states_ARTD: Tensor) -> None:
        """Fix centre and size of the states, from some train windows before the first round."""
        normed_ARTD = self.norm(states_ARTD)
        self.centre_ATD.copy_(normed_ARTD.mean(1))
        spread_ARTD = normed_ARTD - self.centre_ATD[:, None]
        self.size_A.copy_(spread_ARTD.square().mean((1, 2, 3)).sqrt().clamp(min=1e-3))

    def forward(self, states_ARTD: Tensor, agents: slice) -> Tensor:
        """Map states (A, R, T, D) to scaled corrections (A, R, H)."""
        centred_ARTD = self.norm(states_ARTD) - self.centre_ATD[agents][:, None]
        scaled_ARTD = centred_ARTD / self.size_A[agents][:, None, None, None]
        patches_ARTK = torch.einsum("artd,akd->artk", scaled_ARTD, self.weight_AKD[agents])
        return patches_ARTK.flatten(2) + self.bias_AH[agents][:, None]
