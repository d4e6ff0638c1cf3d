"""What a network is given of a window: 48 scaled values, and time features of 96 steps.

What belongs here: turning views into arrays. What does not: any network.

Values are in units of the entity's train deviation. Time features are those of the networks'
authors: hour of the day, day of the week, of the month and of the year, each in [-0.5, 0.5], on the
clock of the series' people. All of it is known at the origin.

Shapes: N windows, L lookback (48), H horizon (48), M time features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Self
from zoneinfo import ZoneInfo

import numpy as np
import torch
from torch import Tensor

from compevo_core.baselines.base import stack_rows
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import HORIZON, LOOKBACK, WindowView

TIME_FEATURES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInputs:
    """Inputs of N windows, float32.

    Attributes:
        values_NL: scaled inputs.
        past_NLM: time features of the input steps.
        future_NHM: time features of the target steps.
    """

    values_NL: Tensor
    past_NLM: Tensor
    future_NHM: Tensor

    @classmethod
    def encode(cls, views: Sequence[WindowView], scaler: Scaler) -> Self:
        """Encode views.

        Raises:
            DataError: an entity was not in the train split.
        """
        values_NL = stack_rows([scaler.scale(view.x, view.entity) for view in views])
        marks = [_encode_steps(view) for view in views]
        marks_NTM = np.stack(marks) if marks else np.empty((0, LOOKBACK + HORIZON, TIME_FEATURES))

        return cls(
            values_NL=torch.tensor(values_NL, dtype=torch.float32),
            past_NLM=torch.tensor(marks_NTM[:, :LOOKBACK], dtype=torch.float32),
            future_NHM=torch.tensor(marks_NTM[:, LOOKBACK:], dtype=torch.float32),
        )

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.values_NL)

    def select(self, positions: Tensor) -> Self:
        """Return the windows at some positions, with all that a subclass adds."""
        chosen = {field.name: getattr(self, field.name)[positions] for field in fields(self)}
        return replace(self, **chosen)


def _encode_steps(view: WindowView) -> FloatArray:
    """Return the time features of the steps of input and horizon, (96, M)."""
    # Local time: demand follows the clock on the wall, also through a change of it.
    zone = ZoneInfo(view.calendar.timezone)
    starts = (view.origin_utc + i * view.step for i in range(-LOOKBACK, HORIZON))
    return np.array([_encode_moment(start.astimezone(zone)) for start in starts])


def _encode_moment(moment: datetime) -> list[float]:
    return [
        # Each between -0.5 and 0.5, as the published networks' embeddings of time expect.
        (moment.hour + moment.minute / 60) / 24 - 0.5,
        moment.weekday() / 6 - 0.5,
        (moment.day - 1) / 30 - 0.5,
        (moment.timetuple().tm_yday - 1) / 365 - 0.5,
    ]
