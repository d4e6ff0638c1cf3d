"""GPT4TS: patches of the input through the first layers of a frozen language model.

What belongs here: this network, and its twin without a language model. Source: Zhou et al., "One
Fits All: Power General Time Series Analysis by Pretrained LM", NeurIPS 2023; the twin, which asks
what the language model adds, follows Tan et al., "Are Language Models Actually Useful for Time
Series Forecasting?", NeurIPS 2024. No library at hand provides them.

Differs: the backbone is this project's, not GPT-2; it has no learned positions to train, so norms,
patch embedding and output map are what is trained.

Shapes: B windows, L input steps, P patches, D width of the backbone.
"""

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from compevo_core.data.view import HORIZON, LOOKBACK
from compevo_core.networks.inputs import NetworkInputs
from compevo_core.networks.layers import Network

PATCH_STEPS = 16
PATCH_STRIDE = 8
LAYERS = 6

_PATCHES = (LOOKBACK + PATCH_STRIDE - PATCH_STEPS) // PATCH_STRIDE + 1


class PatchNetwork(Network):
    """Embeds patches and maps all of them to a forecast: the twin without a language model."""

    def __init__(self, *, width: int = 576) -> None:
        """Make the maps; ``width`` is that of the packaged backbone."""
        super().__init__()
        self.embedding = nn.Linear(PATCH_STEPS, width)
        self.projection = nn.Linear(_PATCHES * width, HORIZON)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        padded_BL = functional.pad(inputs.values_NL, (0, PATCH_STRIDE), mode="replicate")
        patches_BPD = self.embedding(padded_BL.unfold(1, PATCH_STEPS, PATCH_STRIDE))
        forecast_BH: Tensor = self.projection(self.transform(patches_BPD).flatten(1))
        return forecast_BH

    def transform(self, patches_BPD: Tensor) -> Tensor:
        """Return what is read of the patches."""
        return patches_BPD


class GPT4TS(PatchNetwork):
    """The same with the first layers of a language model between the two maps."""

    def __init__(self, decoder: Any, *, layers: int = LAYERS) -> None:  # noqa: ANN401
        """Copy the first layers of a decoder.

        Args:
            decoder: the stack of layers of a transformers model; it stays as it is.
            layers: number of its layers that are used.
        """
        super().__init__(width=decoder.config.hidden_size)
        # Training changes the norms, and the model may be shared with others.
        original, decoder.layers = decoder.layers, decoder.layers[:layers]
        try:
            self.decoder = copy.deepcopy(decoder)
        finally:
            decoder.layers = original

        # Patches take the place of embedded words.
        del self.decoder.embed_tokens
        for name, parameter in self.decoder.named_parameters():
            parameter.requires_grad_("norm" in name)

    def transform(self, patches_BPD: Tensor) -> Tensor:
        """Return the states of the last layer used, after the decoder's own norm."""
        states: Tensor = self.decoder(inputs_embeds=patches_BPD, use_cache=False).last_hidden_state
        return states
