"""DLinear: one linear map for the trend of the input and one for the rest.

What belongs here: this network. Source: Zeng et al., "Are Transformers Effective for Time Series
Forecasting?", AAAI 2023. A library (neuralforecast) provides it; here it shares inputs, loss and
budget with the other networks. Differs in nothing but the normalisation that all networks share.
"""

from torch import Tensor, nn

from compevo_core.data.view import HORIZON, LOOKBACK
from compevo_core.networks.inputs import NetworkInputs
from compevo_core.networks.layers import Network, SeriesDecomposition


class DLinear(Network):
    """Two linear maps of 48 to 48 steps that begin as the mean of the input."""

    def __init__(self) -> None:
        """Make the two maps."""
        super().__init__()
        self.decomposition = SeriesDecomposition()
        self.remainder = nn.Linear(LOOKBACK, HORIZON)
        self.trend = nn.Linear(LOOKBACK, HORIZON)
        for linear in (self.remainder, self.trend):
            nn.init.constant_(linear.weight, 1 / LOOKBACK)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        remainder_BL1, trend_BL1 = self.decomposition(inputs.values_NL.unsqueeze(-1))
        forecast: Tensor = self.remainder(remainder_BL1.squeeze(-1)) + self.trend(
            trend_BL1.squeeze(-1)
        )
        return forecast
