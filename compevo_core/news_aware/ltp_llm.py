"""LTP-LLM: patches of the series, and sentences about its pattern decoded by a memory.

What belongs here: this network and its inputs. Source: Xiong et al., "Beyond Statistical Analysis:
Multimodal Framework for Time Series Forecasting with LLM-Driven Temporal Pattern", IJCAI 2025. No
library at hand provides it.

As published: a language model writes texts about the temporal pattern instead of forecasting
itself, with its knowledge of the background; a memory network decodes their representations into
what a numeric model can read; the numeric model forecasts.

The abstract alone was found, neither text nor code, so these are choices of this project: the
writer is the packaged backbone and not a model of hundreds of billions of weights, what it is told
(``pattern_writer``), the sentence encoder, a memory of 16 places, and the numeric model, that of
GPT4TS without its language model. ``gpt4ts-no-lm`` is therefore its twin without sentences; what
that lacks is also what the sentences are told of the calendar, so a difference between the two is
no proof of language. As in the published method no article is read.

Shapes: N windows, B windows of a batch, E width of a sentence's embedding, K places of the memory,
Q width of a key, P patches, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor, nn

from compevo_core.data.scaling import Scaler
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.lm.encoder import Encoder, Vectors
from compevo_core.networks.forecaster import NetworkKind
from compevo_core.networks.gpt4ts import PATCHES, PatchNetwork
from compevo_core.networks.inputs import NetworkInputs
from compevo_core.news_aware.pattern_writer import PatternWriter

SEEDS = 3

_WIDTH = 576
_PLACES = 16
_KEY_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternInputs(NetworkInputs):
    """Inputs of N windows with a sentence about each.

    Attributes:
        sentence_NE: its embedding, of length one.
    """

    sentence_NE: Tensor


class PatternMemory(nn.Module):
    """Decodes a sentence: a mixture of learnt values, by how well it fits their keys."""

    def __init__(self, embedding_size: int, width: int) -> None:
        """Make a memory whose values are ``width`` wide."""
        super().__init__()
        self.query = nn.Linear(embedding_size, _KEY_WIDTH)
        self.keys = nn.Parameter(torch.randn(_PLACES, _KEY_WIDTH))
        # Zero, so that a fit begins as the numeric model alone.
        self.values = nn.Parameter(torch.zeros(_PLACES, width))

    def forward(self, sentence_BE: Tensor) -> Tensor:
        """Return what the memory holds of sentences, (B, D)."""
        scores_BK = self.query(sentence_BE) @ self.keys.T / _KEY_WIDTH**0.5
        return torch.softmax(scores_BK, dim=-1) @ self.values


class LTPLLM(PatchNetwork):
    """Patches and one token of the memory, all of them mapped to a forecast."""

    def __init__(self, *, embedding_size: int, width: int = _WIDTH) -> None:
        """Make the maps.

        Args:
            embedding_size: width E of a sentence's embedding.
            width: of a patch, as in GPT4TS without its language model.
        """
        super().__init__(width=width)
        self.memory = PatternMemory(embedding_size, width)
        self.projection = nn.Linear((PATCHES + 1) * width, HORIZON)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        sentence_BD = self.memory(cast(PatternInputs, inputs).sentence_NE)
        patches_BPD = self.embed_patches(inputs.values_NL)
        tokens_BTD = torch.cat([patches_BPD, sentence_BD.unsqueeze(1)], dim=1)
        forecast_BH: Tensor = self.projection(tokens_BTD.flatten(1))
        return forecast_BH


def make_ltp_llm(writer: PatternWriter, encoder: Encoder) -> NetworkKind:
    """Return the network and its inputs, for :meth:`NetworkBaseline.fit`.

    Args:
        writer: writes a sentence about each view.
        encoder: of the sentences.
    """
    # Encoders do not tell their width; any sentence shows it.
    size = encoder.encode(["The values rise."]).shape[1]

    def encode(views: Sequence[WindowView], scaler: Scaler) -> PatternInputs:
        numbers = NetworkInputs.encode(views, scaler)
        return PatternInputs(
            **{field.name: getattr(numbers, field.name) for field in fields(numbers)},
            sentence_NE=torch.from_numpy(_embed(writer.write(views), encoder)),
        )

    return NetworkKind(
        make=lambda: LTPLLM(embedding_size=size),
        seeds=SEEDS,
        encode=encode,
        backbone=writer.backbone_name,
    )


def _embed(sentences: Sequence[str], encoder: Encoder) -> Vectors:
    """Encode sentences, each distinct one once."""
    # Days of one shape get the same sentence, word for word.
    distinct = {text: row for row, text in enumerate(dict.fromkeys(sentences))}
    vectors = encoder.encode(list(distinct))
    chosen: Vectors = vectors[[distinct[text] for text in sentences]]
    return chosen
