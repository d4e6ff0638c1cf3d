"""From a model's answer to 48 numbers and back: one parser, one formatter.

What belongs here: the text form of numbers (paper D.3, comma-separated values) and the strict
parser of a forecast. What does not: generation (``lm.population``), what happens with an answer
that cannot be parsed (``agents.text_decoder``).

Shapes: H horizon.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON
from compevo_core.errors import ForecastParseError

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_SEPARATOR = re.compile(r"[\s,;]+")
_DECIMALS = {"MW": 1, "USD": 1, "USD/AUD": 5, "fraction": 4}
_DEFAULT_DECIMALS = 4
_LARGEST = 1e15  # in the unit of the series; far above any of them, far below float32's limit


def format_numbers(values: Sequence[float] | FloatArray, unit: str) -> list[str]:
    """Write numbers with the decimals of their unit.

    Rounding stays well below the error of a naive forecast.
    """
    decimals = _DECIMALS.get(unit, _DEFAULT_DECIMALS)
    return [f"{float(value):.{decimals}f}" for value in values]


def format_answer(values: Sequence[float] | FloatArray, unit: str) -> str:
    """Write an answer as the paper's template does, separated by comma and space."""
    return ", ".join(format_numbers(values, unit))


def has_all_numbers(text: str, horizon: int = HORIZON) -> bool:
    """Whether a text that is being written holds its last number, and a separator after it.

    Before the separator the last number may go on.
    """
    parts = [part for part in _SEPARATOR.split(text) if part]
    return len(parts) >= horizon and _SEPARATOR.fullmatch(text[-1:]) is not None


def parse_answer(text: str, horizon: int = HORIZON) -> FloatArray:
    """Read exactly ``horizon`` finite numbers from the first line of an answer.

    Models like to add a remark, so later lines are ignored. Nothing else is forgiven: a padded or
    shortened forecast would score a guess of ours as the model's.

    Returns:
        (H,), in the unit of the answer.

    Raises:
        ForecastParseError: too few or too many numbers, a word between them, or a value out of
            range.
    """
    first_line = text.strip().split("\n")[0].rstrip(". ")
    parts = [part for part in _SEPARATOR.split(first_line) if part]
    if len(parts) != horizon:
        raise ForecastParseError(
            f"the answer has {len(parts)} values, expected {horizon}: {text[:60]!r}"
        )

    values = np.empty(horizon)
    for position, part in enumerate(parts):
        # float() alone would also accept "nan", "infinity" and "1_000".
        if not _NUMBER.fullmatch(part):
            raise ForecastParseError(
                f"value {position + 1} of the answer is not a number: {part[:40]!r}"
            )

        value = float(part)
        if not math.isfinite(value) or abs(value) > _LARGEST:
            raise ForecastParseError(
                f"value {position + 1} of the answer is out of range: {part[:40]!r}"
            )
        values[position] = value
    return values
