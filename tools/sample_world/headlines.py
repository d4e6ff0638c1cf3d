"""Invented headlines for the sample mode: templates and word lists, filled by a generator.

What belongs here: filling them. What does not: the words (``headlines.toml``), GDELT's formats
(``gdelt``). No headline is written twice, so the removal of syndicated copies keeps all of them.
"""

import tomllib
from datetime import date
from pathlib import Path

import numpy as np

_DECLARED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OUTLETS, _TEMPLATES, _WORDS, _NUMBERS = (
    _DECLARED[kind] for kind in ("outlets", "templates", "words", "numbers")
)
_WARM_MONTHS = frozenset({11, 12, 1, 2, 3})


class Headlines:
    """Write headlines from a generator, never the same twice."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self._written: set[str] = set()

    def write(self, topic: str, day: date) -> str:
        """Return a new headline on ``topic`` that fits the season of ``day``."""
        templates = _TEMPLATES[topic]
        while True:
            headline = templates[self._draw(len(templates))].format_map(self._draw_words(day))
            headline = headline[0].upper() + headline[1:]
            if headline not in self._written:
                self._written.add(headline)
                return headline

    def _draw_words(self, day: date) -> dict[str, str]:
        # Every slot is drawn for every headline, so that a new template moves no other draw.
        words = {slot: choices[self._draw(len(choices))] for slot, choices in _WORDS.items()}
        for slot, (low, high) in _NUMBERS.items():
            words[slot] = str(int(self.generator.integers(low, high)))

        low_celsius = 24 if day.month in _WARM_MONTHS else 9
        words["degrees"] = str(low_celsius + self._draw(19))
        words["cents"] = f"{60 + 200 * self._draw(100) / 1000:.2f}"
        words["percent"] = f"{0.1 + self._draw(120) / 10:.1f}"
        words["weekday"] = f"{day:%A}"
        return words

    def _draw(self, count: int) -> int:
        return int(self.generator.integers(count))
