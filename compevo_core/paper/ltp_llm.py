"""LTP-LLM: patches of the series, and sentences about its pattern decoded by a memory.

Source: Xiong et al., "Beyond Statistical Analysis: Multimodal Framework for Time Series Forecasting
with LLM-Driven Temporal Pattern", IJCAI 2025, of which the abstract alone was found. As published:
a language model writes texts about the temporal pattern; a memory network decodes their
representations into what a numeric model can read; the numeric model forecasts.

Choices of this project: the writer is the packaged backbone, told facts in few words and no value,
so that many windows and every seed share a sentence; the sentence encoder; a memory of 16 places;
and the numeric model, which is GPT4TS without its language model. ``gpt4ts-no-lm`` is its twin
without sentences; it also lacks what they are told of the calendar. No article is read.

Shapes: N windows, B windows of a batch, E width of a sentence's embedding, K places of the memory,
Q width of a key, P patches, D width.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.prompts import clean_text, render_task
from compevo_core.data.arrays import split_evenly
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, WindowView
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.encoder import Encoder, Vectors
from compevo_core.networks.forecaster import NetworkKind
from compevo_core.networks.gpt4ts import PatchNetwork, count_patches
from compevo_core.networks.layers import NetworkInputs
from compevo_core.runtime.files import write_json

SEEDS = 3

_WIDTH = 576
_PLACES = 16
_KEY_WIDTH = 64

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
        """Store sentences in a folder, where other processes find them; None: in memory alone."""
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
            if self._file is not None:
                # Another process may have written meanwhile; equal prompts have equal sentences.
                self._sentences = self._read_file() | self._sentences
                write_json(self._file, self._sentences)
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
        lines = [text.strip().split("\n")[0] for text in written]
        return [clean_text(f"The values {line}", SENTENCE_CHARACTERS) for line in lines]

    def _read_file(self) -> dict[str, str]:
        if self._file is None or not self._file.exists():
            return {}
        return dict(json.loads(self._file.read_text(encoding="utf-8")))


def write_pattern_prompt(view: WindowView) -> str:
    """Return the facts of a view in words, and the beginning of the sentence to write."""
    quarters = [float(view.x[span].mean()) for span in split_evenly(view.lookback, len(_QUARTERS))]
    change = quarters[-1] - quarters[0]
    spread = float(view.x.std())
    direction = "rose" if change > 0 else "fell"
    if abs(change) <= _LEAST_CHANGE * spread:
        direction = "ended where they began"

    days = view.calendar
    season = _SEASONS[days.target_date.month % 12 // 3]
    return (
        f"{render_task(view)}. The last {view.lookback} values {direction}, were highest in their "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternInputs(NetworkInputs):
    """Inputs of N windows with a sentence about each."""

    sentence_NE: Tensor  # its embedding, of length one


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

    def __init__(
        self,
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        embedding_size: int,
        width: int = _WIDTH,
    ) -> None:
        """Make the maps for sentences of width E; patches are as wide as in ``gpt4ts-no-lm``."""
        super().__init__(lookback, horizon, width=width)
        self.memory = PatternMemory(embedding_size, width)
        self.projection = nn.Linear((count_patches(lookback) + 1) * width, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        sentence_BD = self.memory(cast(PatternInputs, inputs).sentence_NE)
        patches_BPD = self.embed_patches(inputs.values_NL)
        tokens_BTD = torch.cat([patches_BPD, sentence_BD.unsqueeze(1)], dim=1)
        forecast_BH: Tensor = self.projection(tokens_BTD.flatten(1))
        return forecast_BH


def make_ltp_llm(writer: PatternWriter, encoder: Encoder) -> NetworkKind:
    """Return the network and its inputs, for :meth:`NetworkBaseline.fit`."""
    # Encoders do not tell their width; any sentence shows it.
    size = encoder.encode(["The values rise."]).shape[1]

    def encode(views: Sequence[WindowView], scaler: Scaler) -> PatternInputs:
        numbers = NetworkInputs.encode(views, scaler)
        return PatternInputs(
            **{field.name: getattr(numbers, field.name) for field in fields(numbers)},
            sentence_NE=torch.from_numpy(_embed(writer.write(views), encoder)),
        )

    return NetworkKind(
        make=partial(LTPLLM, embedding_size=size),
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
