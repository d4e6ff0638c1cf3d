"""Numbers of a window as tokens, and the read-out of a forecast.

What belongs here: the linear maps from numbers to token embeddings and from hidden states to scaled
corrections. What does not: which numbers (``agents.numeric_inputs``), the layout of the prompt
(``agents.head_decoder``).

A linear patch costs one token for four values or more, where digits cost several tokens a value
(patches: Nie et al., PatchTST, 2023). Maps start at the scale of the word embeddings, and the
read-out at zero: before training the forecast is the base (decision 02-priors).

Shapes: A agents, B windows, C context columns, S channels of the target day, H horizon, K steps of
a patch, T patches, M articles, E article embedding, R forecasts, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

CONTEXT_TOKENS = 1
_PATCH_STEPS = 4  # of a short grid
_MOST_PATCHES = 24  # of a long one, whose patches are longer
_BASE_CHANNELS = 2  # the last season and the agent's base


@dataclasses.dataclass(frozen=True)
class Patches:
    """How some steps are cut into patches of one length; what is missing of a whole one is zero."""

    steps: int
    length: int
    count: int

    @classmethod
    def cut(cls, steps: int) -> Self:
        """Choose the length: four steps, or more where there would be too many patches."""
        length = max(_PATCH_STEPS, -(-steps // _MOST_PATCHES))
        return cls(steps, length, -(-steps // length))

    def fold(self, values: Tensor, *, before: bool) -> Tensor:
        """Return values (..., steps) as patches (..., T, K), with zeros before or behind them."""
        lacking = self.count * self.length - self.steps
        padded = nn.functional.pad(values, (lacking, 0) if before else (0, lacking))
        return padded.reshape(*values.shape[:-1], self.count, self.length)


class NumericTokens(nn.Module):
    """One agent's maps from numbers to tokens, stacked over agents.

    The difference of each prior from the agent's base is a channel, where there are several. An
    article size of 0 says that articles are read as text; ``scale`` is the root mean square of the
    backbone's word embeddings.
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
        history: Patches,
        target: Patches,
    ) -> None:
        super().__init__()
        self.history, self.target = history, target
        channels = _BASE_CHANNELS + (n_priors if n_priors > 1 else 0)

        def sample(*shape: int, fan_in: int) -> nn.Parameter:
            # Standardised inputs of this fan-in then give embeddings of the words' own size.
            std = scale * fan_in**-0.5
            rows = [torch.randn(shape, generator=generator) * std for generator in generators]
            return nn.Parameter(torch.stack(rows))

        self.context_ACD = sample(n_context, hidden, fan_in=n_context)
        self.context_bias_AD = sample(hidden, fan_in=1)
        self.history_AKD = sample(history.length, hidden, fan_in=history.length)
        self.history_position_ATD = sample(history.count, hidden, fan_in=1)
        features = channels * target.length
        self.target_AFD = sample(features, hidden, fan_in=features)
        self.target_position_ATD = sample(target.count, hidden, fan_in=1)

        # "No news" is a state that an agent knows, not the absence of a token.
        self.no_news_AD = sample(hidden, fan_in=1) if article_size else None
        # Article embeddings have length one, so their entries are of size E^-1/2 each.
        self.article_AED = sample(article_size, hidden, fan_in=1) if article_size else None

    def embed_context(self, context_BC: Tensor, agents: slice) -> Tensor:
        """Return the token of calendar, weather and series, (A, B, D)."""
        product_ABD = torch.einsum("bc,acd->abd", context_BC, self.context_ACD[agents])
        return product_ABD + self.context_bias_AD[agents][:, None]

    def embed_history(self, history_ABH: Tensor, agents: slice) -> Tensor:
        """Return the tokens of the input, (A, B, T, D)."""
        patches_ABTK = self.history.fold(history_ABH, before=True)
        product_ABTD = torch.einsum("abtk,akd->abtd", patches_ABTK, self.history_AKD[agents])
        return product_ABTD + self.history_position_ATD[agents][:, None]

    def embed_target(self, channels_ABSH: Tensor, agents: slice) -> Tensor:
        """Return the tokens of the target day, (A, B, T, D)."""
        patches_ABSTK = self.target.fold(channels_ABSH, before=False)
        features_ABTF = patches_ABSTK.transpose(2, 3).flatten(3)
        product_ABTD = torch.einsum("abtf,afd->abtd", features_ABTF, self.target_AFD[agents])
        return product_ABTD + self.target_position_ATD[agents][:, None]

    def embed_articles(self, articles_ME: Tensor, agents: slice) -> Tensor:
        """Return one token an article, and last the token of no news, (A, M + 1, D)."""
        assert self.article_AED is not None and self.no_news_AD is not None  # noqa: S101
        tokens_AMD = torch.einsum("me,aed->amd", articles_ME, self.article_AED[agents])
        return torch.cat([tokens_AMD, self.no_news_AD[agents][:, None]], 1)


class PatchReadout(nn.Module):
    """A linear read-out per agent, from the state at a target-day token to its own steps.

    States of all windows share one large direction, which carries no information and would make
    the read-out a learner of a constant. Its mean and size are measured once, before training, and
    taken out.
    """

    centre_ATD: Tensor
    size_A: Tensor

    def __init__(self, agents: int, hidden: int, target: Patches) -> None:
        super().__init__()
        self._horizon = target.steps
        self.weight_AKD = nn.Parameter(torch.zeros(agents, target.length, hidden))
        self.bias_AH = nn.Parameter(torch.zeros(agents, target.steps))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.register_buffer("centre_ATD", torch.zeros(agents, target.count, hidden))
        self.register_buffer("size_A", torch.ones(agents))

    @torch.no_grad()
    def centre(self, states_ARTD: Tensor) -> None:
        """Fix centre and size of the states, from some train windows before the first round."""
        normed_ARTD = self.norm(states_ARTD)
        self.centre_ATD.copy_(normed_ARTD.mean(1))
        spread_ARTD = normed_ARTD - self.centre_ATD[:, None]
        self.size_A.copy_(spread_ARTD.square().mean((1, 2, 3)).sqrt().clamp(min=1e-3))

    def is_started(self, agents: slice) -> bool:
        """Return whether the read-out of any agent has left its start, all zeros."""
        return bool(self.weight_AKD[agents].any() or self.bias_AH[agents].any())

    def forward(self, states_ARTD: Tensor, agents: slice) -> Tensor:
        """Map states (A, R, T, D) to scaled corrections (A, R, H)."""
        centred_ARTD = self.norm(states_ARTD) - self.centre_ATD[agents][:, None]
        scaled_ARTD = centred_ARTD / self.size_A[agents][:, None, None, None]
        patches_ARTK = torch.einsum("artd,akd->artk", scaled_ARTD, self.weight_AKD[agents])
        return patches_ARTK.flatten(2)[..., : self._horizon] + self.bias_AH[agents][:, None]
