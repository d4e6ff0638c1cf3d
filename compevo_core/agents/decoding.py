"""From a model's answer to 48 numbers and back: one parser, one formatter, one numeric head.

What belongs here: the text form of a forecast, its strict parser, the head that reads a hidden state.
What does not: generation (``population``) or what to do with an unparsable answer (``strategy``).
Paper: section D.3 (output template, comma-separated values); design decision 1.
Legend: A agents, R rows of an agent, D hidden, H horizon.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from compevo_core.data.window import HORIZON
from compevo_core.errors import ForecastParseError

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_SEPARATOR = re.compile(r"[\s,;]+")
_LARGEST = 1e15


def format_answer(values: Sequence[float] | npt.NDArray[np.float64], decimals: int) -> str:
    """Writes numbers as the template does: fixed decimals, separated by comma and space."""
    return ", ".join(f"{float(v):.{decimals}f}" for v in values)


def parse_answer(text: str, horizon: int = HORIZON) -> npt.NDArray[np.float64]:
    """Reads exactly ``horizon`` finite numbers; text after the last number's line is ignored.

    Raises:
        ForecastParseError: too few or too many numbers, a word between them, or a value out of range.
    """
    parts = [p for p in _SEPARATOR.split(text.strip().split("\n")[0].rstrip(". ")) if p]
    if len(parts) != horizon:
        raise ForecastParseError(
            f"the answer has {len(parts)} values, expected {horizon}: {text[:60]!r}"
        )
    out = np.empty(horizon)
    for position, part in enumerate(parts):
        if not _NUMBER.fullmatch(part):
            raise ForecastParseError(
                f"value {position + 1} of the answer is not a number: {part[:40]!r}"
            )
        value = float(part)
        if not math.isfinite(value) or abs(value) > _LARGEST:
            raise ForecastParseError(
                f"value {position + 1} of the answer is out of range: {part[:40]!r}"
            )
        out[position] = value
    return out


class NumericHead(nn.Module):
    """One linear read-out per agent, from the last hidden state to 48 scaled numbers; starts at zero."""

    def __init__(self, agents: int, hidden: int, horizon: int = HORIZON) -> None:
        super().__init__()
        self.weight_AHD = nn.Parameter(torch.zeros(agents, horizon, hidden))
        self.bias_AH = nn.Parameter(torch.zeros(agents, horizon))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)

    def forward(self, state_ARD: Tensor) -> Tensor:
        """(A, R, D) to (A, R, H)."""
        return (
            torch.einsum("ard,ahd->arh", self.norm(state_ARD), self.weight_AHD)
            + self.bias_AH[:, None]
        )
