"""GPT4MTS and LTP-LLM: networks that read text as well as the patches of the series.

What belongs here: these networks, their inputs, and the twin of GPT4MTS that reads no news. No
library at hand provides either; transformers provides the layers of the backbone.

GPT4MTS puts an instruction and days of news before the patches. Sources: Jia et al., "GPT4MTS:
Prompt-based Large Language Model for Multimodal Time-series Forecasting", AAAI 2024, whose code is
public, and Liu et al., "DP-GPT4MTS: Dual-Prompt Large Language Model for Textual-Numerical Time
Series Forecasting", 2025, which the paper's table cites; only its abstract and a summary were
found, no code. As published: series normalised by window, patches, embeddings of texts from a
frozen encoder made into soft tokens by attention among them and a feed-forward layer, an
instruction with statistics of the input, all before the patches in the first layers of a frozen
model, of which only the norms learn.

Differs:

- The backbone is this project's, not GPT-2, and the encoder of titles is the pool's, not BERT.
- Texts are aligned by day of the week before the view, not by step of the input: the input is one
  day, and most articles are older. Titles replace the published summaries by a stronger model.
- The instruction enters as one token, the state of the frozen layers at its end. They learn nothing
  from it, so each text is read once, not in every pass. Its statistics are lowest, highest, median
  and direction; one day has no lags to name.
- Products with frozen weights run in bfloat16.

LTP-LLM gives the patches one sentence about their pattern, decoded by a memory. Source: Xiong et
al., "Beyond Statistical Analysis: Multimodal Framework for Time Series Forecasting with LLM-Driven
Temporal Pattern", IJCAI 2025; only the abstract was found. As published: a language model writes
texts about the temporal pattern; a memory network decodes their representations into what a numeric
model can read; the numeric model forecasts.

Choices of this project: the writer is the packaged backbone, which gets facts in few words and no
values, so that many windows and all seeds share a sentence; the sentence encoder; a memory of 16
places; and the numeric model, which is GPT4TS without its language model. ``gpt4ts-no-lm`` is its
twin without sentences, and so without what they say about the calendar. No article is read.

Shapes: N windows, B windows of a batch, S days of news, E width of a text's embedding, P patches,
T tokens of an instruction, K places of the memory, Q width of a key, D width of the backbone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from compevo_core.agents.prompts import clean_text, render_task, tokenize_prompt
from compevo_core.agents.text_decoder import format_numbers
from compevo_core.data.arrays import split_evenly
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, WindowView
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.lm import backbone as backbones
from compevo_core.lm import encoder as encoders
from compevo_core.lm import model_sources
from compevo_core.lm.encoder import PACKAGED_ENCODER, Encoder
from compevo_core.lora.backbone import Backbone
from compevo_core.paper import networks
from compevo_core.paper.method_table import FitInputs
from compevo_core.runtime.files import ask_once, hash_text

# Days before a view is made, with one token each; older articles count as on the first of them.
NEWS_DAYS = 7
_FROZEN_TYPE = torch.bfloat16
_TEXTS_PER_BATCH = 64
_WIDTH = 576
_PLACES = 16
_KEY_WIDTH = 64
SENTENCE_TOKENS = 28
_PROMPTS_PER_BATCH = 32
_QUARTERS = ("first", "second", "third", "last")
_SEASONS = (
    "between December and February",
    "between March and May",
    "between June and August",
    "between September and November",
)
_LEAST_CHANGE = 0.5  # of the input's spread, between its first and last quarter
_SATURDAY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsInputs(networks.NetworkInputs):
    """Inputs of N windows with what was written before them."""

    news_NSE: Tensor  # mean embedding of each day's articles, oldest day first
    instruction_ND: Tensor  # state of the frozen layers at the end of each instruction


class GPT4MTS(networks.GPT4TS):
    """Patches behind an instruction and days of news, through the first layers of a model."""

    def __init__(
        self,
        backbone: Backbone,
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        embedding_size: int,
        reads_news: bool = True,
        layers: int = networks.LAYERS,
        matmul_dtype: torch.dtype | None = _FROZEN_TYPE,
    ) -> None:
        """Make maps around copied layers; ``embedding_size`` is the width E of embedded titles."""
        super().__init__(
            backbone.decoder, lookback, horizon, layers=layers, matmul_dtype=matmul_dtype
        )
        width = backbone.hidden_size
        # The frozen layers know no input like the state of an instruction: a map learns one.
        self.instruction = nn.Linear(width, width)
        # The twin differs only in this, so that a difference of their rows is due to the news.
        self.news = None
        if reads_news:
            self.news = nn.Linear(embedding_size, width)
            # Attention has no order: without its age, yesterday's news would read like last week's.
            self.age = nn.Parameter(torch.zeros(NEWS_DAYS, width))
            self.refinement = nn.TransformerEncoderLayer(
                width, nhead=8, dim_feedforward=width, dropout=0.1, batch_first=True
            )

    def forward(self, inputs: networks.NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        written = cast(NewsInputs, inputs)
        tokens = [self.instruction(written.instruction_ND).unsqueeze(1)]
        if self.news is not None:
            # Days of news as soft tokens that have looked at one another.
            tokens.append(self.refinement(self.news(written.news_NSE) + self.age))

        # The patches come last, so that each of them has read all that was written.
        patches_BPD = self.embed_patches(inputs.values_NL)
        states_BTD = self.transform(torch.cat([*tokens, patches_BPD], dim=1))
        forecast_BH: Tensor = self.projection(states_BTD[:, -patches_BPD.shape[1] :].flatten(1))
        return forecast_BH


class NewsReader:
    """Makes inputs of views: numbers, days of news, and instructions read by frozen layers."""

    def __init__(
        self, pool: NewsPool, backbone: Backbone, *, layers: int = networks.LAYERS
    ) -> None:
        """Copy the layers that read instructions; texts that were read once are kept."""
        self._pool = pool
        self._tokenizer = backbone.tokenizer
        self._words = backbone.model.get_input_embeddings()
        self._decoder = networks.copy_first_layers(backbone.decoder, layers, _FROZEN_TYPE).eval()
        self._states: dict[str, Tensor] = {}

    def encode(self, views: Sequence[WindowView], scaler: Scaler) -> NewsInputs:
        """Encode views; LeakageError if one names an article that was not available."""
        return NewsInputs.encode(
            views,
            scaler,
            news_NSE=torch.from_numpy(embed_days(views, self._pool)),
            instruction_ND=self._read([write_instruction(view) for view in views]),
        )

    @torch.no_grad()
    def _read(self, texts: Sequence[str]) -> Tensor:
        """Return the states at the end of texts (N, D); each text is read once."""
        # Frozen layers give a text the same state in every pass and for every seed.
        unread = [text for text in dict.fromkeys(texts) if text not in self._states]
        for start in range(0, len(unread), _TEXTS_PER_BATCH):
            batch = unread[start : start + _TEXTS_PER_BATCH]
            rows = [torch.tensor(tokenize_prompt(self._tokenizer, text)) for text in batch]
            # Padding stands behind the texts, where no earlier token looks.
            words_NTD = self._words(pad_sequence(rows, batch_first=True))
            states_NTD = self._decoder(inputs_embeds=words_NTD, use_cache=False).last_hidden_state
            ends = torch.tensor([len(row) - 1 for row in rows])
            chosen_ND = states_NTD[torch.arange(len(rows)), ends].float()
            self._states.update(zip(batch, chosen_ND, strict=True))

        return torch.stack([self._states[text] for text in texts])


def write_instruction(view: WindowView) -> str:
    """Return what is to be forecast, and what the input looks like, in words."""
    low, high, median = format_numbers([view.x.min(), view.x.max(), np.median(view.x)], view.unit)
    # The slope of all values: the last one less the first would depend on just two of them.
    rises = np.polyfit(np.arange(view.lookback), view.x, 1)[0] > 0
    return (
        f"{render_task(view)}. The last {view.lookback} values in {view.unit}: lowest {low}, "
        f"highest {high}, median {median}; they {'rise' if rises else 'fall'}."
    )


def make_gpt4mts(
    pool: NewsPool, backbone: Backbone, *, reads_news: bool = True
) -> networks.NetworkKind:
    """Return the network and its inputs for ``NetworkBaseline.fit``; ``pool`` has all articles."""
    size = pool.embeddings.shape[1]
    return networks.NetworkKind(
        make=partial(GPT4MTS, backbone, embedding_size=size, reads_news=reads_news),
        encode=NewsReader(pool, backbone).encode,
        backbone=backbone.name_or_path,
    )


def embed_days(views: Sequence[WindowView], pool: NewsPool) -> npt.NDArray[np.float32]:
    """Return the mean embedding of each day's articles (N, S, E), oldest day first; 0 without."""
    raise_if_later_news(views, pool)
    days_NSE = np.zeros((len(views), NEWS_DAYS, pool.embeddings.shape[1]), dtype=np.float32)

    for number, view in enumerate(views):
        # The mean of a day does not grow with the number of its articles.
        rows = pool.find_rows(view.candidate_ids)
        days = [
            (view.known_before - pool.get_date(name)) // timedelta(days=1)
            for name in view.candidate_ids
        ]
        ages = np.clip(np.array(days, dtype=int), 0, NEWS_DAYS - 1)
        for age in np.unique(ages):
            days_NSE[number, NEWS_DAYS - 1 - age] = pool.embeddings[rows[ages == age]].mean(axis=0)
    return days_NSE


class PatternWriter:
    """Writes one sentence per view; equal facts have equal sentences."""

    def __init__(self, backbone: Backbone, folder: Path) -> None:
        """Store sentences in a folder, where other processes find them."""
        self.backbone = backbone
        key = f"{backbone.name_or_path}, {backbone.model.dtype}, {SENTENCE_TOKENS}"
        self._file = folder / f"patterns-{hash_text(key)[:16]}.json"

    def write(self, views: Sequence[WindowView]) -> list[str]:
        """Return a sentence about each view, only from what the view knows."""
        prompts = [write_pattern_prompt(view) for view in views]
        # Sorted, so that batches and with them the padding do not depend on the order of views.
        distinct = sorted(set(prompts))
        sentences = ask_once(self._file, distinct, self._generate, _PROMPTS_PER_BATCH)
        return [sentences[prompt] for prompt in prompts]

    @torch.no_grad()
    def _generate(self, prompts: list[str]) -> list[str]:
        tokenizer = self.backbone.tokenizer
        # Rows end where writing begins, so shorter prompts are padded in front.
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")

        ids_NT = self.backbone.model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=SENTENCE_TOKENS,
            # The likeliest words: a seed of the network must not change what is said about a view.
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )

        written = tokenizer.batch_decode(
            ids_NT[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True
        )
        lines = [text.strip().split("\n")[0] for text in written]
        return [clean_text(f"The values {line}", 200) for line in lines]


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
        return f"a public holiday ({clean_text(holiday, 60)})"
    if weekday < _SATURDAY:
        return "a working day"
    return "a Saturday" if weekday == _SATURDAY else "a Sunday"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternInputs(networks.NetworkInputs):
    """Inputs of N windows with a sentence about each."""

    sentence_NE: Tensor  # its embedding, of length one


class PatternMemory(nn.Module):
    """Decodes a sentence into a mixture of learnt values, by how well it fits their keys."""

    def __init__(self, embedding_size: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(embedding_size, _KEY_WIDTH)
        self.keys = nn.Parameter(torch.randn(_PLACES, _KEY_WIDTH))
        # Zero, so that a fit begins as just the numeric model.
        self.values = nn.Parameter(torch.zeros(_PLACES, width))

    def forward(self, sentence_BE: Tensor) -> Tensor:
        """Return what the memory decodes from sentences, (B, D)."""
        scores_BK = self.query(sentence_BE) @ self.keys.T / _KEY_WIDTH**0.5
        return torch.softmax(scores_BK, dim=-1) @ self.values


class LTPLLM(networks.PatchNetwork):
    """Patches and one token of the memory, all of them mapped to a forecast."""

    def __init__(
        self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS, *, embedding_size: int
    ) -> None:
        """Make the maps for sentences of width E; patches are as wide as in ``gpt4ts-no-lm``."""
        super().__init__(lookback, horizon, width=_WIDTH)
        self.memory = PatternMemory(embedding_size, _WIDTH)
        self.projection = nn.Linear((networks.count_patches(lookback) + 1) * _WIDTH, horizon)

    def forward(self, inputs: networks.NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        sentence_BD = self.memory(cast(PatternInputs, inputs).sentence_NE)
        patches_BPD = self.embed_patches(inputs.values_NL)
        tokens_BTD = torch.cat([patches_BPD, sentence_BD.unsqueeze(1)], dim=1)
        forecast_BH: Tensor = self.projection(tokens_BTD.flatten(1))
        return forecast_BH


def make_ltp_llm(writer: PatternWriter, encoder: Encoder) -> networks.NetworkKind:
    """Return the network and its inputs, for :meth:`NetworkBaseline.fit`."""
    # Encoders do not state their width; the vector of any sentence has it.
    size = encoder.encode(["The values rise."]).shape[1]

    def encode(views: Sequence[WindowView], scaler: Scaler) -> PatternInputs:
        sentences = writer.write(views)
        # Days of one shape get the same sentence, word for word: each is encoded once.
        rows = {text: row for row, text in enumerate(dict.fromkeys(sentences))}
        vectors = encoder.encode(list(rows))
        sentence_NE = torch.from_numpy(vectors[[rows[text] for text in sentences]])
        return PatternInputs.encode(views, scaler, sentence_NE=sentence_NE)

    return networks.NetworkKind(
        make=partial(LTPLLM, embedding_size=size),
        encode=encode,
        backbone=writer.backbone.name_or_path,
    )


def fit_method(name: str, inputs: FitInputs) -> networks.NetworkBaseline:
    """Fit one of these networks on the packaged backbone, or one of the table of networks."""
    kind = None
    if name == "ltp-llm":
        # Seeds run in processes of their own, and share what one of them wrote.
        writer = PatternWriter(backbones.load_packaged(), model_sources.DEFAULT_CACHE)
        kind = make_ltp_llm(writer, encoders.load_encoder(PACKAGED_ENCODER))
    elif name not in networks.NETWORKS:
        news, reads_news = inputs.require_news(name), not name.endswith("-no-news")
        kind = make_gpt4mts(news, backbones.load_packaged(), reads_news=reads_news)
    return networks.NetworkBaseline.fit(
        name,
        inputs.train,
        inputs.val,
        seed=inputs.seed,
        learning_rate=inputs.learning_rate,
        budget=inputs.budget,
        kind=kind,
    )
