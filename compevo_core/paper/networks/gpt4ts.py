"""GPT4TS: patches of the input through the first layers of a frozen language model.

What belongs here: this network, and its twin without a language model. Source: Zhou et al., "One
Fits All: Power General Time Series Analysis by Pretrained LM", NeurIPS 2023; the twin, which asks
what the language model adds, follows Tan et al., "Are Language Models Actually Useful for Time
Series Forecasting?", NeurIPS 2024. No library at hand provides them.

Differs: the backbone is this project's, not GPT-2; it has no learned positions to train, so norms,
patch embedding and output map are what is trained.

Networks that also read text (``paper.text_networks``) put its tokens in front of the patches.

Shapes: B windows, L input steps, P patches, D width of the backbone.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.lora.backbone import frozen_linear
from compevo_core.paper.networks.layers import Network, NetworkInputs

PATCH_STEPS = 16
PATCH_STRIDE = 8
LAYERS = 6


def count_patches(lookback: int) -> int:
    """Return how many patches an input has; the last value is repeated to fill the last one."""
    return (lookback + PATCH_STRIDE - PATCH_STEPS) // PATCH_STRIDE + 1


class PatchNetwork(Network):
    """Embeds patches and maps all of them to a forecast: the twin without a language model."""

    def __init__(
        self,
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        width: int = 576,
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(PATCH_STEPS, width)
        self.projection = nn.Linear(count_patches(lookback) * width, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        states_BPD = self.transform(self.embed_patches(inputs.values_NL))
        forecast_BH: Tensor = self.projection(states_BPD.flatten(1))
        return forecast_BH

    def embed_patches(self, values_BL: Tensor) -> Tensor:
        """Return one token per patch, (B, P, D); the last value is repeated to fill the last."""
        padded_BL = functional.pad(values_BL, (0, PATCH_STRIDE), mode="replicate")
        patches_BPD: Tensor = self.embedding(padded_BL.unfold(1, PATCH_STEPS, PATCH_STRIDE))
        return patches_BPD

    def transform(self, patches_BPD: Tensor) -> Tensor:
        """Return what is read of the patches."""
        return patches_BPD


class GPT4TS(PatchNetwork):
    """The same with the first layers of a language model between the two maps."""

    def __init__(
        self,
        decoder: Any,  # noqa: ANN401 - a transformers module
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        layers: int = LAYERS,
        matmul_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(lookback, horizon, width=decoder.config.hidden_size)
        self.decoder = copy_first_layers(decoder, layers, matmul_dtype)
        for name, parameter in self.decoder.named_parameters():
            parameter.requires_grad_("norm" in name)

    def transform(self, patches_BPD: Tensor) -> Tensor:
        """Return the states of the last layer used, after the decoder's own norm."""
        states: Tensor = self.decoder(inputs_embeds=patches_BPD, use_cache=False).last_hidden_state
        return states


def copy_first_layers(
    decoder: Any,  # noqa: ANN401 - a transformers module
    layers: int,
    matmul_dtype: torch.dtype | None = None,
) -> Any:  # noqa: ANN401
    """Return a copy of a decoder's first layers and norm; products run in ``matmul_dtype``."""
    # Training changes the norms, and the model may be shared with others.
    original, decoder.layers = decoder.layers, decoder.layers[:layers]
    try:
        copied = copy.deepcopy(decoder)
    finally:
        decoder.layers = original

    # Patches take the place of embedded words.
    del copied.embed_tokens
    if matmul_dtype is not None:
        # Linear layers never learn; embeddings, norms and attention stay as they are. The copy's
        # layers keep their names, and so does what is saved of them.
        for layer in copied.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.requires_grad_(False).data = layer.weight.data.to(matmul_dtype)
                product = partial(frozen_linear, weight=layer.weight, bias=layer.bias)
                layer.forward = product  # type: ignore[method-assign] # of this one layer
    return copied
