"""iTransformer: attention between variates, each variate one token.

What belongs here: this network. Source: Liu et al., "iTransformer: Inverted Transformers Are
Effective for Time Series Forecasting", ICLR 2024. A library (neuralforecast) provides it for panels
whose series share every stamp.

Differs: a view holds one series, so the variates are that series and the time features of its input
steps, as in the authors' code when time features are given; normalisation is the shared one.
"""

import torch
from torch import Tensor, nn

from compevo_core.data.view import HORIZON, LOOKBACK
from compevo_core.networks.inputs import NetworkInputs
from compevo_core.networks.layers import Network


class ITransformer(Network):
    """A transformer encoder over variates."""

    def __init__(
        self, *, width: int = 128, inner: int = 256, heads: int = 8, layers: int = 2
    ) -> None:
        """Make an encoder of ``layers`` layers.

        Args:
            width: features of a token.
            inner: features inside a layer's two linear maps.
            heads: heads of attention.
            layers: encoder layers.
        """
        super().__init__()
        self.embedding = nn.Linear(LOOKBACK, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, inner, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.projection = nn.Linear(width, HORIZON)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        return self.forecast_variates(
            torch.cat([inputs.values_NL.unsqueeze(1), inputs.past_NLM.transpose(1, 2)], dim=1)
        )[:, 0]

    def forecast_variates(self, variates_BVL: Tensor) -> Tensor:
        """Return forecasts (B, V, H) of every variate."""
        forecast_BVH: Tensor = self.projection(self.encoder(self.embedding(variates_BVL)))
        return forecast_BVH
