"""Pyraformer: attention along a pyramid of scales, each step tied to few others.

What belongs here: this network. Source: Liu et al., "Pyraformer: Low-Complexity Pyramidal Attention
for Long-Range Time Series Modeling and Forecasting", ICLR 2022. No library at hand provides its
forecaster.

Differs: attention is dense with a mask, which gives the values of the authors' sparse kernel; at 63
nodes it costs less.

Shapes: B windows, L input steps, P nodes of the pyramid, M time features, D width.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import floordiv

import torch
from torch import Tensor, nn

from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.paper.networks.layers import (
    HEADS,
    INNER,
    WIDTH,
    Network,
    NetworkInputs,
    StepEmbedding,
    encode_positions,
)

CHILDREN = (4, 4)  # nodes of a scale that share a node of the next one
NEIGHBOURS = 2  # on either side, on the same scale, that a node attends to


class Pyraformer(Network):
    """An encoder over steps, 4-step and 16-step nodes; its last step forecasts."""

    def __init__(self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        # Nodes of every scale, finest first.
        self._sizes = list(accumulate(CHILDREN, floordiv, initial=lookback))
        self.embedding = StepEmbedding(WIDTH)
        self.register_buffer("positions_LD", encode_positions(lookback, WIDTH))
        self.pyramid = PyramidBuilder(WIDTH)
        self.register_buffer("is_hidden_PP", ~find_neighbours(self._sizes), persistent=False)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.projection = nn.Linear(len(self._sizes) * WIDTH, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        steps_BLD = self.embedding(inputs.values_NL, inputs.past_NLM) + self.positions_LD
        nodes_BPD = self.encoder(self.pyramid(steps_BLD), mask=self.is_hidden_PP)

        # The newest node of every scale is an ancestor of the last step.
        newest = torch.tensor(self._sizes).cumsum(0) - 1
        forecast_BH: Tensor = self.projection(nodes_BPD[:, newest].flatten(1))
        return forecast_BH


class PyramidBuilder(nn.Module):
    """Summarises steps into coarser nodes by strided convolutions of a narrow copy."""

    def __init__(self, width: int) -> None:
        super().__init__()
        narrow = width // 4
        self.down = nn.Linear(width, narrow)
        self.convolutions = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(narrow, narrow, children, stride=children),
                nn.BatchNorm1d(narrow),
                nn.ELU(),
            )
            for children in CHILDREN
        )
        self.up = nn.Linear(narrow, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return the nodes of all scales, finest first, (B, P, D)."""
        scale = self.down(steps_BLD).transpose(1, 2)
        coarser = []
        for convolution in self.convolutions:
            scale = convolution(scale)
            coarser.append(scale)

        added_BPD = self.up(torch.cat(coarser, dim=2).transpose(1, 2))
        normed: Tensor = self.norm(torch.cat([steps_BLD, added_BPD], dim=1))
        return normed


def find_neighbours(sizes: Sequence[int]) -> Tensor:
    """Return which node attends to which, (P, P): near ones of its scale, parent and children."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    attends = torch.zeros(sum(sizes), sum(sizes), dtype=torch.bool)

    for start, size in zip(starts, sizes, strict=True):
        places = torch.arange(size)
        near = (places[:, None] - places[None, :]).abs() <= NEIGHBOURS
        attends[start : start + size, start : start + size] = near

    for scale, children in enumerate(CHILDREN):
        for place in range(sizes[scale]):
            # The last parent takes the children that are left over.
            parent = min(place // children, sizes[scale + 1] - 1)
            child_node, parent_node = starts[scale] + place, starts[scale + 1] + parent
            attends[child_node, parent_node] = attends[parent_node, child_node] = True
    return attends
