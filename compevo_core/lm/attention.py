"""The attention function that transformers calls in every layer of a population's backbone.

What belongs here: the interface of an attention backend, its registration with transformers, and
what backends share. What does not: attention over packed prompts (``lm.prefill``) and of new tokens
over a cache (``lm.decode``), layouts (``lm.packing``), adapters, sampling.

Without a backend the function is transformers' own, so that the model can still be called as usual.

Shapes: A agents, L packed length, K key/value heads, g query heads of each, d width of a head.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from compevo_core.errors import ConfigError

ATTENTION_NAME = "compevo"  # under which transformers finds the function


class AttentionBackend(Protocol):
    """What computes attention in a layer of a population."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Compute the attention of one layer.

        Args:
            layer: number of the layer.
            query: (A, K g, L, d).
            key: (A, K, L, d).
            value: (A, K, L, d).
            scale: factor of the scores.
            softcap: bound of the scores, see :func:`apply_softcap`.

        Returns:
            (A, L, K g, d).
        """
        ...

    @property
    def max_distance(self) -> int:
        """Longest distance that a token looks back, in tokens."""
        ...


def apply_softcap(scores: Tensor, cap: float | None) -> Tensor:
    """Bound scores smoothly, ``cap tanh(s / cap)``, as Gemma 2 does; return them without a cap."""
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    attention_backend: AttentionBackend | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **others: Any,  # noqa: ANN401 - whatever else transformers passes on
) -> tuple[Tensor, None]:
    """Call the backend that the forward pass was given; the arguments are those of transformers."""
    # Callers that know nothing of populations (generate, PEFT) pass no backend.
    if attention_backend is None:
        plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
        out: tuple[Tensor, None] = plain(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            softcap=softcap,
            sliding_window=sliding_window,
            **others,
        )
        return out

    # Backends attend to the whole prompt. Where a layer would not, results would differ silently.
    distance = attention_backend.max_distance
    if sliding_window is not None and distance > sliding_window:
        raise ConfigError(
            f"a prompt and its answer are {distance} tokens long, and this backbone looks back "
            f"{sliding_window} tokens; lower backbone.context_length"
        )

    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return attention_backend.attend(layer, query, key, value, scale, softcap), None


# transformers looks up both under one name; the mask is that of its own attention, which plain
# calls use.
AttentionInterface.register(ATTENTION_NAME, _attention_forward)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
