"""DLinear and iTransformer, which a library (neuralforecast) provides as well.

What belongs here: the two networks; here they share inputs, loss and budget with the others.

DLinear: Zeng et al., "Are Transformers Effective for Time Series Forecasting?", AAAI 2023.
iTransformer: Liu et al., "iTransformer: Inverted Transformers Are Effective for Time Series
Forecasting", ICLR 2024. Differs: a view holds one series, so the variates are that series and the
time features of its input steps, as in the authors' code when time features are given. In both,
the normalisation is the shared one.
"""

import torch
from torch import Tensor, nn

from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.networks.layers import Network, NetworkInputs, SeriesDecomposition


class DLinear(Network):
    """Two linear maps of input to target steps that begin as the mean of the input."""

    def __init__(self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        self.decomposition = SeriesDecomposition()
        self.remainder = nn.Linear(lookback, horizon)
        self.trend = nn.Linear(lookback, horizon)
        for linear in (self.remainder, self.trend):
            nn.init.constant_(linear.weight, 1 / lookback)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        remainder_BL1, trend_BL1 = self.decomposition(inputs.values_NL.unsqueeze(-1))
        forecast: Tensor = self.remainder(remainder_BL1.squeeze(-1)) + self.trend(
            trend_BL1.squeeze(-1)
        )
        return forecast


class ITransformer(Network):
    """A transformer encoder over variates."""

    def __init__(
        self,
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        width: int = 128,
        inner: int = 256,
        heads: int = 8,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(lookback, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, inner, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.projection = nn.Linear(width, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        return self.forecast_variates(
            torch.cat([inputs.values_NL.unsqueeze(1), inputs.past_NLM.transpose(1, 2)], dim=1)
        )[:, 0]

    def forecast_variates(self, variates_BVL: Tensor) -> Tensor:
        """Return forecasts (B, V, H) of every variate."""
        forecast_BVH: Tensor = self.projection(self.encoder(self.embedding(variates_BVL)))
        return forecast_BVH
