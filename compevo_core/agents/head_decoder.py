"""The head decoder: numbers as soft tokens, the forecast read out at the target day's tokens.

What belongs here: the layout of the prompt, the trained maps from numbers to tokens and from hidden
states to scaled corrections. What does not: which numbers (``agents.numeric_inputs``), wording
(``agents.prompts``), packed forward passes (``lora.population``).

A prompt is, in this order (decision 01-decoder):

    task in words · context token · history tokens | logic and news · target-day tokens

The part before the bar is the same for every logic of a window and is read once. The target
day's tokens come last, so that they see the logic and the news.

A linear patch costs one token for four values or more (Nie et al., PatchTST, 2023); digits cost
several tokens per value. Maps start at the scale of the word embeddings, and the read-out at zero:
before training the forecast is the base (decision 02-priors).

Shapes: A agents, B windows, P base models, C context columns, S channels of the target day, K steps
of a patch, T patches, R forecasts, M articles, E article embedding, L packed length, H horizon,
D hidden.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.decoders import (
    AgentReadings,
    BatchForecasts,
    ForecastExample,
    RetrievedArticle,
    mix_bases,
)
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.prompts import render_logic_and_news, render_task, tokenize_prompt
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.errors import ConfigError
from compevo_core.lora import Population, PromptGroup
from compevo_core.runtime.seeding import derive_seed

_KEPT_TEXTS = 4096  # most texts whose tokens are cached

_NO_NEWS = ""  # key of the token for no news among the articles


@dataclasses.dataclass(frozen=True)
class Patches:
    """How steps are cut into patches of one length; an incomplete patch is filled with zeros."""

    steps: int
    length: int
    count: int

    @classmethod
    def cut(cls, steps: int) -> Self:
        """Return patches of four steps, or of more where there would be more than 24."""
        length = max(4, math.ceil(steps / 24))
        return cls(steps, length, math.ceil(steps / length))

    def fold(self, values: Tensor, *, before: bool) -> Tensor:
        """Return values (..., steps) as patches (..., T, K), with zeros before or after them."""
        lacking = self.count * self.length - self.steps
        padded = nn.functional.pad(values, (lacking, 0) if before else (0, lacking))
        return padded.reshape(*values.shape[:-1], self.count, self.length)


class NumericTokens(nn.Module):
    """One agent's maps from numbers to tokens, stacked over agents.

    The difference of each base model from the agent's base is a channel, where there are several.
    Without ``reads_articles`` articles are read as text; ``scale`` is the root mean square of the
    backbone's word embeddings.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        inputs: NumericInputs,
        *,
        n_priors: int,
        reads_articles: bool,
        hidden: int,
        scale: float,
    ) -> None:
        super().__init__()
        self.history = history = Patches.cut(inputs.lookback)
        self.target = target = Patches.cut(inputs.horizon)
        n_context = len(inputs.context_mean_C)
        # The last season, the agent's base, and base models.
        channels = 2 + (n_priors if n_priors > 1 else 0)

        def sample(*shape: int, fan_in: int) -> nn.Parameter:
            # With this fan-in, standardised inputs give embeddings as large as those for words.
            std = scale * fan_in**-0.5
            rows = [torch.randn(shape, generator=generator) * std for generator in generators]
            return nn.Parameter(torch.stack(rows))

        self.context_ACD = sample(n_context, hidden, fan_in=n_context)
        self.context_bias_AD = sample(hidden, fan_in=1)
        self.history_AKD = sample(history.length, hidden, fan_in=history.length)
        self.history_position_ATD = sample(history.count, hidden, fan_in=1)
        features = channels * target.length
        self.target_AFD = sample(features, hidden, fan_in=features)
        self.target_position_ATD = sample(target.count, hidden, fan_in=1)

        # Having no news is something that an agent can read, not the absence of a token.
        self.no_news_AD = sample(hidden, fan_in=1) if reads_articles else None
        # Article embeddings have length one, so their entries are of size E^-1/2 each.
        article_size = inputs.article_size
        self.article_AED = sample(article_size, hidden, fan_in=1) if reads_articles else None

    def forward(
        self, context_BC: Tensor, history_ABH: Tensor, channels_ABSH: Tensor, agents: slice
    ) -> Tensor:
        """Return the tokens of context, input and target day, one after the other, (A, B, T, D)."""
        context_ABD = torch.einsum("bc,acd->abd", context_BC, self.context_ACD[agents])
        context_ABD = context_ABD + self.context_bias_AD[agents][:, None]

        patches_ABTK = self.history.fold(history_ABH, before=True)
        history_ABTD = torch.einsum("abtk,akd->abtd", patches_ABTK, self.history_AKD[agents])
        history_ABTD = history_ABTD + self.history_position_ATD[agents][:, None]

        features_ABTF = self.target.fold(channels_ABSH, before=False).transpose(2, 3).flatten(3)
        target_ABTD = torch.einsum("abtf,afd->abtd", features_ABTF, self.target_AFD[agents])
        target_ABTD = target_ABTD + self.target_position_ATD[agents][:, None]
        return torch.cat([context_ABD[:, :, None], history_ABTD, target_ABTD], 2)

    def embed_articles(self, articles_ME: Tensor, agents: slice) -> Tensor:
        """Return one token per article, and last the token of no news, (A, M + 1, D)."""
        assert self.article_AED is not None and self.no_news_AD is not None  # noqa: S101
        tokens_AMD = torch.einsum("me,aed->amd", articles_ME, self.article_AED[agents])
        return torch.cat([tokens_AMD, self.no_news_AD[agents][:, None]], 1)


class PatchReadout(nn.Module):
    """A linear read-out per agent, from the state at a target-day token to its own steps.

    States of all windows share one large direction, which carries no information. Its mean and size
    are measured once, before training, and removed.
    """

    centre_ATD: Tensor
    size_A: Tensor

    def __init__(self, agents: int, hidden: int, target: Patches) -> None:
        super().__init__()
        self._horizon = target.steps
        self.weight_AKD = nn.Parameter(torch.zeros(agents, target.length, hidden))
        self.bias_AH = nn.Parameter(torch.zeros(agents, target.steps))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.register_buffer("centre_ATD", torch.zeros(agents, target.count, hidden))
        self.register_buffer("size_A", torch.ones(agents))

    @torch.no_grad()
    def centre(self, states_ARTD: Tensor) -> None:
        """Fix centre and size of the states, from some train windows before the first round."""
        normed_ARTD = self.norm(states_ARTD)
        self.centre_ATD.copy_(normed_ARTD.mean(1))
        spread_ARTD = normed_ARTD - self.centre_ATD[:, None]
        self.size_A.copy_(spread_ARTD.square().mean((1, 2, 3)).sqrt().clamp(min=1e-3))

    def forward(self, states_ARTD: Tensor, agents: slice) -> Tensor:
        """Map states (A, R, T, D) to scaled corrections (A, R, H)."""
        centred_ARTD = self.norm(states_ARTD) - self.centre_ATD[agents][:, None]
        scaled_ARTD = centred_ARTD / self.size_A[agents][:, None, None, None]
        patches_ARTK = torch.einsum("artd,akd->artk", scaled_ARTD, self.weight_AKD[agents])
        return patches_ARTK.flatten(2)[..., : self._horizon] + self.bias_AH[agents][:, None]


class HeadDecoder:
    """Read numbers as soft tokens and forecast the correction to each agent's base."""

    def __init__(
        self, population: Population, config: RunConfig, inputs: NumericInputs, mix_AP: FloatArray
    ) -> None:
        self.population = population
        self.config = config
        self.inputs = inputs
        self._reads_tokens = config.news.form == "token"

        device = population.backbone.device
        local_agents = population.local
        self.mix_AP = mix_AP
        members = config.population.list_members()

        # The root mean square of the word embeddings, as the first layer gets them.
        vocabulary = population.backbone.model.get_input_embeddings().num_embeddings
        embeds = population.embed(torch.arange(min(vocabulary, 4096)).to(device)).detach().float()

        hidden = population.backbone.hidden_size
        # An agent's numeric tokens are its own, whoever holds it.
        seeds = [members[a].seed for a in local_agents]
        generators = [
            torch.Generator().manual_seed(derive_seed(config.run.seed, "numeric inputs", *of_agent))
            for of_agent in zip(seeds, local_agents, strict=True)
        ]
        self._tokens = NumericTokens(
            generators,
            inputs,
            n_priors=mix_AP.shape[1],
            reads_articles=self._reads_tokens,
            hidden=hidden,
            scale=float(embeds.square().mean().sqrt()),
        )
        # Soft tokens of a window that are read, the first of them the context's, and those from
        # which its forecast is read out.
        self.read_tokens = 1 + self._tokens.history.count
        self.target_tokens = self._tokens.target.count
        self.readout = PatchReadout(len(local_agents), hidden, self._tokens.target)
        trained = {"tokens": self._tokens, "readout": self.readout}
        self.module = nn.ModuleDict(trained).to(device)

        # Every batch has the same few texts.
        tokenizer = population.backbone.tokenizer
        self.encode_task = lru_cache(_KEPT_TEXTS)(partial(tokenize_prompt, tokenizer))
        encode = partial(tokenizer.encode, add_special_tokens=False)
        self.encode: Callable[[str], list[int]] = lru_cache(_KEPT_TEXTS)(encode)

    def decode(
        self, readings: AgentReadings, *, train: bool, agents: slice = slice(None)
    ) -> BatchForecasts:
        """Forecast every reading of some local agents under each of its logics, in their order."""
        del train  # there is a gradient path whenever torch records one

        # Every logic of a window corrects the same base.
        examples = [reading.example for reading in readings[0] for _ in reading.logics]
        values_ABH = self._to_tensor(mix_bases(self.mix_AP[agents], examples))
        readout = self.readout
        is_started = readout.weight_AKD[agents].any() or readout.bias_AH[agents].any()
        if torch.is_grad_enabled() or is_started:
            states_ARTD, n_cut = self.read_states(readings, agents)
            values_ABH = values_ABH + readout(states_ARTD, agents)
        else:
            # A read-out of zeros corrects nothing.
            _, n_cut = self._lay_out(readings, list(_list_articles(readings)))
        return BatchForecasts(values_ABH, values_ABH.new_zeros(len(readings)), n_cut=n_cut)

    def read_states(
        self, readings: AgentReadings, agents: slice, base_ABH: FloatArray | None = None
    ) -> tuple[Tensor, int]:
        """Return the states at the target day's tokens (A, R, T, D), and how many prompts were cut.

        Forecasts in ``base_ABH``, if given, are read in place of each agent's base.
        """
        examples = [reading.example for reading in readings[0]]
        soft_ASD = self._embed_numbers(examples, agents, base_ABH)
        articles = _list_articles(readings)
        if self._reads_tokens:
            embeddings = np.array([article.embedding for article in articles.values()])
            # reshape() gives a batch without any article its two dimensions.
            shape = (len(articles), self.inputs.article_size)
            articles_ME = self._to_tensor(embeddings.reshape(shape))
            articles_AMD = self._tokens.embed_articles(articles_ME, agents)
            soft_ASD = torch.cat([soft_ASD, articles_AMD], 1)

        groups, n_cut = self._lay_out(readings, list(articles))
        packed = self.population.pack(groups)
        embeds_ALD = self.population.embed(packed.ids_AL, soft_ASD)
        states_ARTD = self.population.read_out(
            packed, embeds_ALD, count=self.target_tokens, layers=self.config.forecast.layers
        )
        return states_ARTD, n_cut

    def _lay_out(
        self, readings: AgentReadings, articles: Sequence[str]
    ) -> tuple[list[list[PromptGroup]], int]:
        """Return the prompts by agent, then by window, and how many were cut.

        Soft tokens are numbered window by window, then come the articles, then the token for no
        news.
        """
        window_tokens = self.read_tokens + self.target_tokens
        first_article = len(readings[0]) * window_tokens
        rows = {article: row for row, article in enumerate([*articles, _NO_NEWS], first_article)}
        groups: list[list[PromptGroup]] = [[] for _ in readings]
        n_cut = 0
        for of_agent, agent_readings in zip(groups, readings, strict=True):
            for window, reading in enumerate(agent_readings):
                first = window * window_tokens
                first_target = first + self.read_tokens
                # Models treat their first token in a special way: it must be a word.
                task = self.encode_task(render_task(reading.example.view))
                prefix = [*task, *self._soft_ids(range(first, first_target))]
                target = self._soft_ids(range(first_target, first + window_tokens))

                room = self.config.backbone.context_length - len(prefix) - len(target)
                suffixes = []
                for logic, news in zip(reading.logics, reading.news, strict=True):
                    evidence, n_left_out = self._fit_evidence(logic, news, reading.note, room, rows)
                    n_cut += n_left_out > 0
                    suffixes.append([*evidence, *target])
                of_agent.append(PromptGroup(prefix, suffixes))
        return groups, n_cut

    def _fit_evidence(
        self,
        logic: str,
        news: Sequence[RetrievedArticle],
        note: str,
        room: int,
        rows: Mapping[str, int],
    ) -> tuple[list[int], int]:
        """Return logic, news and note in at most ``room`` tokens, and how many articles were cut.

        The worst matches are cut first; ``rows`` are the numbers of articles among the soft tokens.
        """
        limit = self.config.news.title_characters
        shown = logic if self.config.forecast.logic_in_prompt else None
        note_ids = self.encode(f"\n{note}\n") if note else []
        for n_left_out in range(len(news) + 1):
            read = news[: len(news) - n_left_out]
            titles = None if self._reads_tokens else read
            evidence = self.encode(render_logic_and_news(shown, titles, title_characters=limit))
            if self._reads_tokens:
                names = [article.article_id for article in read] or [_NO_NEWS]
                evidence = [*evidence, *self._soft_ids([rows[name] for name in names])]
            if len(evidence) + len(note_ids) <= room:
                return [*evidence, *note_ids], n_left_out

        raise ConfigError(
            "a forecast prompt needs more than backbone.context_length = "
            f"{self.config.backbone.context_length} tokens without any news; raise it"
        )

    def _soft_ids(self, rows: Sequence[int]) -> list[int]:
        return [self.population.soft_token_id(row) for row in rows]

    def _embed_numbers(
        self, examples: Sequence[ForecastExample], agents: slice, base_ABH: FloatArray | None
    ) -> Tensor:
        """Return the soft tokens of the windows, one window after the other, (A, B S, D)."""
        base_ABH = mix_bases(self.mix_AP[agents], examples) if base_ABH is None else base_ABH
        context_BC, history_BH, season_BH, priors_BPH, read_ABH = map(
            self._to_tensor, [*self.inputs.extract(examples), base_ABH]
        )
        season_ABH = season_BH.expand_as(read_ABH)

        channels = [season_ABH, read_ABH]
        if priors_BPH.shape[1] > 1:
            # Where base models disagree, at least one of them is wrong.
            difference_ABPH = priors_BPH - read_ABH[:, :, None]
            channels += (difference_ABPH / self.inputs.spread_of_priors).unbind(2)
        history_ABH = history_BH.expand(len(read_ABH), -1, -1)
        soft_ABTD: Tensor = self._tokens(context_BC, history_ABH, torch.stack(channels, 2), agents)
        return soft_ABTD.flatten(1, 2)

    def _to_tensor(self, array: FloatArray) -> Tensor:
        return torch.tensor(array, dtype=torch.float32, device=self.population.backbone.device)


def _list_articles(readings: AgentReadings) -> dict[str, RetrievedArticle]:
    """Return the articles of a batch by id, in the order in which they are first read."""
    return {
        article.article_id: article
        for agent_readings in readings
        for reading in agent_readings
        for retrieved in reading.news
        for article in retrieved
    }
