"""GPT4MTS with two prompts: an instruction and days of news in front of the patches of the series.

What belongs here: this network, its inputs, and its twin without news. Sources: Jia et al.,
"GPT4MTS: Prompt-based Large Language Model for Multimodal Time-series Forecasting", AAAI 2024,
whose code is public, and Liu et al., "DP-GPT4MTS: Dual-Prompt Large Language Model for
Textual-Numerical Time Series Forecasting", 2025, which the paper's table cites and of which the
abstract and a summary were found, no code. No library at hand provides either; transformers
provides the layers of the backbone.

As published: series normalised by window, patches, embeddings of texts from a frozen encoder made
into soft tokens by attention among them and a feed-forward layer, an instruction with statistics of
the input, all before the patches in the first layers of a frozen model whose norms alone learn.

Differs:

- The backbone is this project's, not GPT-2, and the encoder of titles is the pool's, not BERT.
- Texts are aligned by day of the week before the view, not by step of the input: the input is one
  day, and most articles are older. Titles stand for the published summaries of a stronger model.
- The instruction enters as one token, the state of the frozen layers at its end. They learn nothing
  in reading it, so each text is read once, not in every pass. Its statistics are lowest, highest,
  median and direction; there are no lags to name in one day.
- Products with frozen weights run in bfloat16.

Shapes: N windows, B windows of a batch, S days of news, E width of a title's embedding, P patches,
T tokens of an instruction, D width of the backbone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from compevo_core.agents.prompts import render_task, tokenize_prompt
from compevo_core.agents.text_decoder import format_numbers
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, WindowView
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.lm.backbone import Backbone
from compevo_core.networks.forecaster import NetworkKind
from compevo_core.networks.gpt4ts import GPT4TS, LAYERS, copy_first_layers
from compevo_core.networks.layers import NetworkInputs

SEEDS = 3
NEWS_DAYS = 7
"""Days before a view is made that have a token each; older articles count as the first of them."""

_ATTENTION_HEADS = 8
_DROPOUT = 0.1
_FROZEN_TYPE = torch.bfloat16
_TEXTS_PER_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsInputs(NetworkInputs):
    """Inputs of N windows with what was written before them."""

    news_NSE: Tensor  # mean embedding of each day's articles, oldest day first
    instruction_ND: Tensor  # state of the frozen layers at the end of each instruction


class GPT4MTS(GPT4TS):
    """Patches behind an instruction and days of news, through the first layers of a model."""

    def __init__(
        self,
        backbone: Backbone,
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        embedding_size: int,
        reads_news: bool = True,
        layers: int = LAYERS,
        matmul_dtype: torch.dtype | None = _FROZEN_TYPE,
    ) -> None:
        """Copy the first layers of a backbone, and make the maps around them.

        ``embedding_size`` is the width E of a title's embedding; the twin that does not read news
        has no tokens of it.
        """
        super().__init__(
            backbone.decoder, lookback, horizon, layers=layers, matmul_dtype=matmul_dtype
        )
        width = backbone.hidden_size
        # The frozen layers know no input like the state of an instruction: a map learns one.
        self.instruction = nn.Linear(width, width)
        # The twin differs in this alone, so that a difference of their rows is due to the news.
        self.news = _NewsPrompt(embedding_size, width) if reads_news else None

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        written = cast(NewsInputs, inputs)
        tokens = [self.instruction(written.instruction_ND).unsqueeze(1)]
        if self.news is not None:
            tokens.append(self.news(written.news_NSE))

        # The patches come last, so that each of them has read all that was written.
        patches_BPD = self.embed_patches(inputs.values_NL)
        states_BTD = self.transform(torch.cat([*tokens, patches_BPD], dim=1))
        forecast_BH: Tensor = self.projection(states_BTD[:, -patches_BPD.shape[1] :].flatten(1))
        return forecast_BH


class _NewsPrompt(nn.Module):
    """Days of news as soft tokens that have looked at one another."""

    def __init__(self, embedding_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(embedding_size, width)
        # Attention knows no order: without its age, yesterday's news would read like last week's.
        self.age = nn.Parameter(torch.zeros(NEWS_DAYS, width))
        self.refinement = nn.TransformerEncoderLayer(
            width, _ATTENTION_HEADS, dim_feedforward=width, dropout=_DROPOUT, batch_first=True
        )

    def forward(self, news_BSE: Tensor) -> Tensor:
        tokens_BSD: Tensor = self.refinement(self.embedding(news_BSE) + self.age)
        return tokens_BSD


class NewsReader:
    """Makes inputs of views: numbers, days of news, and instructions read by frozen layers."""

    def __init__(self, pool: NewsPool, backbone: Backbone, *, layers: int = LAYERS) -> None:
        """Copy the layers that read instructions; texts that were read once are kept."""
        self._pool = pool
        self._tokenizer = backbone.tokenizer
        self._words = backbone.model.get_input_embeddings()
        self._decoder = copy_first_layers(backbone.decoder, layers, _FROZEN_TYPE).eval()
        self._states: dict[str, Tensor] = {}

    def encode(self, views: Sequence[WindowView], scaler: Scaler) -> NewsInputs:
        """Encode views; LeakageError if one names an article that was not available."""
        numbers = NetworkInputs.encode(views, scaler)
        return NewsInputs(
            **{field.name: getattr(numbers, field.name) for field in fields(numbers)},
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
            self._states.update(zip(batch, self._read_batch(batch), strict=True))

        if not texts:
            return torch.empty(0, self._words.weight.shape[1])
        return torch.stack([self._states[text] for text in texts])

    def _read_batch(self, texts: Sequence[str]) -> Tensor:
        rows = [torch.tensor(tokenize_prompt(self._tokenizer, text)) for text in texts]
        # Padding stands behind the texts, where no earlier token looks.
        padded_NT = pad_sequence(rows, batch_first=True)
        states_NTD = self._decoder(
            inputs_embeds=self._words(padded_NT), use_cache=False
        ).last_hidden_state

        ends = torch.tensor([len(row) - 1 for row in rows])
        chosen: Tensor = states_NTD[torch.arange(len(rows)), ends].float()
        return chosen


def write_instruction(view: WindowView) -> str:
    """Return what is to be forecast, and what the input looks like, in words."""
    low, high, median = format_numbers([view.x.min(), view.x.max(), np.median(view.x)], view.unit)
    # The slope of all values: the last one less the first would hang on two of them.
    rises = np.polyfit(np.arange(view.lookback), view.x, 1)[0] > 0
    return (
        f"{render_task(view)}. The last {view.lookback} values in {view.unit}: lowest {low}, "
        f"highest {high}, median {median}; they {'rise' if rises else 'fall'}."
    )


def make_gpt4mts(pool: NewsPool, backbone: Backbone, *, reads_news: bool = True) -> NetworkKind:
    """Return the network and its inputs, for :meth:`NetworkBaseline.fit`.

    ``pool`` holds the articles of all views that will be fitted on or forecast.
    """
    size = pool.embeddings.shape[1]
    return NetworkKind(
        make=partial(GPT4MTS, backbone, embedding_size=size, reads_news=reads_news),
        seeds=SEEDS,
        encode=NewsReader(pool, backbone).encode,
        backbone=backbone.name_or_path,
    )


def embed_days(views: Sequence[WindowView], pool: NewsPool) -> npt.NDArray[np.float32]:
    """Return the mean embedding of each day's articles (N, S, E), oldest day first; 0 without."""
    raise_if_later_news(views, pool)
    days_NSE = np.zeros((len(views), NEWS_DAYS, pool.embeddings.shape[1]), dtype=np.float32)

    for number, view in enumerate(views):
        # The mean of a day does not grow with how much was written on it.
        rows = pool.find_rows(view.candidate_ids)
        days = [
            (view.known_before - pool.get_date(name)) // timedelta(days=1)
            for name in view.candidate_ids
        ]
        ages = np.clip(np.array(days, dtype=int), 0, NEWS_DAYS - 1)
        for age in np.unique(ages):
            days_NSE[number, NEWS_DAYS - 1 - age] = pool.embeddings[rows[ages == age]].mean(axis=0)
    return days_NSE
