"""Sentences about what to expect of a series, written by the backbone and kept by their prompt.

What belongs here: facts of a view in words, the prompt, greedy writing, the file of what was
written. What does not: the network that reads the sentences (``ltp_llm``).

A prompt holds facts in few words and no value, so that many windows share one: a sentence is
written once for all of them and for every seed, in single precision, greedily. A small model says
little that is new, but its sentence carries the facts in the words of its language.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from compevo_core.agents.prompts import clean_text, render_task
from compevo_core.data.files import write_json
from compevo_core.data.view import LOOKBACK, WindowView
from compevo_core.lm.backbone import Backbone

SENTENCE_TOKENS = 28
SENTENCE_CHARACTERS = 200

_PROMPTS_PER_BATCH = 32
_QUARTERS = ("first", "second", "third", "last")
_SEASONS = (
    "between December and February",
    "between March and May",
    "between June and August",
    "between September and November",
)
_LEAST_CHANGE = 0.5  # of the input's spread, between its first and last quarter
_HOLIDAY_CHARACTERS = 60
_SATURDAY = 5


class PatternWriter:
    """Writes one sentence a view; equal facts have equal sentences."""

    def __init__(self, backbone: Backbone, folder: Path | None = None) -> None:
        """Take a backbone that writes.

        Args:
            backbone: is read without adapters, in the type it was loaded in.
            folder: where sentences are kept between processes; None keeps them in memory alone.
        """
        self._backbone = backbone
        key = f"{backbone.name_or_path}, {backbone.model.dtype}, {SENTENCE_TOKENS}"
        name = f"patterns-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        self._file = None if folder is None else folder / name
        self._sentences = self._read_file()

    @property
    def backbone_name(self) -> str:
        """Name or path of the backbone that writes."""
        return self._backbone.name_or_path

    def write(self, views: Sequence[WindowView]) -> list[str]:
        """Return a sentence about each view, from what it knows alone."""
        prompts = [write_pattern_prompt(view) for view in views]
        # Sorted, so that batches and with them the padding do not depend on the order of views.
        unwritten = sorted(set(prompts) - set(self._sentences))

        for start in range(0, len(unwritten), _PROMPTS_PER_BATCH):
            batch = unwritten[start : start + _PROMPTS_PER_BATCH]
            self._sentences.update(zip(batch, self._generate(batch), strict=True))
            self._keep()
        return [self._sentences[prompt] for prompt in prompts]

    @torch.no_grad()
    def _generate(self, prompts: list[str]) -> list[str]:
        tokenizer = self._backbone.tokenizer
        # Rows end where writing begins, so shorter prompts are padded in front.
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        ids_NT = self._backbone.model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=SENTENCE_TOKENS,
            # The likeliest words: a seed of the network must not change what is said of a view.
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        written = tokenizer.batch_decode(
            ids_NT[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return [_take_first_line(text) for text in written]

    def _keep(self) -> None:
        if self._file is not None:
            # Another process may have written meanwhile; equal prompts have equal sentences.
            self._sentences = self._read_file() | self._sentences
            write_json(self._file, self._sentences)

    def _read_file(self) -> dict[str, str]:
        if self._file is None or not self._file.exists():
            return {}
        kept: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8"))
        return kept


def write_pattern_prompt(view: WindowView) -> str:
    """Return the facts of a view in words, and the beginning of the sentence to write."""
    quarters = view.x.reshape(len(_QUARTERS), -1).mean(axis=1)
    change = quarters[-1] - quarters[0]
    spread = float(view.x.std())
    direction = "rose" if change > 0 else "fell"
    if abs(change) <= _LEAST_CHANGE * spread:
        direction = "ended where they began"

    days = view.calendar
    season = _SEASONS[days.target_date.month % 12 // 3]
    return (
        f"{render_task(view)}. The last {LOOKBACK} values {direction}, were highest in their "
        f"{_QUARTERS[int(np.argmax(quarters))]} quarter and lowest in their "
        f"{_QUARTERS[int(np.argmin(quarters))]} quarter. The target day is "
        f"{_describe_day(days.target_weekday, days.target_holiday)} {season}, after "
        f"{_describe_day(days.previous_weekday, days.previous_holiday)}.\n"
        "Pattern to expect, in one sentence: The values"
    )


def _describe_day(weekday: int, holiday: str) -> str:
    if holiday:
        return f"a public holiday ({clean_text(holiday, _HOLIDAY_CHARACTERS)})"
    if weekday < _SATURDAY:
        return "a working day"
    return "a Saturday" if weekday == _SATURDAY else "a Sunday"


def _take_first_line(text: str) -> str:
    first = text.strip().split("\n")[0]
    return clean_text(f"The values {first}", SENTENCE_CHARACTERS)
