"""News2Forecast: a fine-tuned language model that forecasts as text from news that a logic selects.

What belongs here: fine-tuning, validation, reflection on missed news and refinement, forecasts.
Source: Wang et al., "From News to Forecast: Integrating Event Analysis in LLM-Based Time Series
Forecasting with Reflection", NeurIPS 2024, with public code. LoRA is computed by ``lora.adapters``
as in PEFT; the template comes from the paper's appendix (``agents.prompts``).

As published: instruction with the history, input with task, day, weather and selected news, output
of 48 numbers; LoRA of rank 8 on all linear layers; forecasts of validation days are compared with
the truth, missed news is listed, the selection logic is refined, and the cycle repeats.

Differs:

- The published code reads news of the forecast day and its observed weather, and validates on a
  random sample that overlaps training; here every article and value was known before the view was
  made, and validation is the later split.
- Short answers were silently filled with their last number; here an answer that cannot be read is
  counted and scored as the train mean of its series, like other answers in text.
- The packaged backbone replaces Llama 2 and GPT-4. It selects by similarity of embeddings to the
  logic (``agents.strategy``) and writes logics within a grammar, with the logic itself as the
  rationale of what was selected.
- The same adapter continues to learn under each refined logic instead of a new one; the logic and
  the adapter with the least validation error are kept.

Shapes: A agents (1), N windows, H horizon.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import FORECAST, LOGIC, ForecastExample, ForecastRequest
from compevo_core.agents.logics import SLOT_SEED_LOGICS, build_slots
from compevo_core.agents.prompts import (
    LOGIC_CHARACTERS,
    clean_text,
    list_stop_tokens,
    tokenize_prompt,
)
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.text_decoder import TextDecoder
from compevo_core.baselines.base import MethodFacts, raise_if_held_out
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import Window, WindowView, find_horizon, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, NonFiniteLoss
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.evaluation.result_rows import hash_without_seed
from compevo_core.lm import encoder as encoders
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import Encoder
from compevo_core.lm.grammar import SlotGrammar, sample_under_grammar
from compevo_core.lora import Backbone, Population, PromptGroup, SamplingSettings
from compevo_core.paper.declared import read_declared
from compevo_core.paper.method import FitInputs
from compevo_core.runtime.seeding import derive_seed, use_seed

log = logging.getLogger(__name__)

NAME = "news2forecast"
REFLECTIONS = 2
VALIDATION_WINDOWS = 12

WORST_DAYS = 3
MISSED_ARTICLES = 2  # headlines of each of the worst days that the logic left out

_TITLE_CHARACTERS = 120

SETTINGS = read_declared("settings")[NAME]


def configure_method(_: str, inputs: FitInputs) -> RunConfig:
    """Return the settings of a fit on the packaged backbone."""
    return RunConfig().with_overrides(
        {**SETTINGS, "run.seed": inputs.seed, "optim.forecast_lr": inputs.learning_rate}
    )


def fit_method(name: str, inputs: FitInputs) -> "News2Forecast":
    """Fine-tune the packaged backbone within the budget of the inputs."""
    config, news = configure_method(name, inputs), inputs.require_news(name)
    return News2Forecast.fit(
        inputs,
        config=config,
        # Not the shared backbone: a fit puts its adapter into it.
        backbone=load_backbone(config.backbone),
        encoder=encoders.load_encoder(news.encoder_name),
    )


def describe_fit(
    parameters: Sequence[torch.nn.Parameter], backbone: Backbone, config: RunConfig
) -> MethodFacts:
    """Return what rows say about a backbone that was fine-tuned."""
    return MethodFacts(
        trainable_parameters=sum(p.numel() for p in parameters),
        learning_rate=config.optim.forecast_lr,
        backbone=backbone.name_or_path,
        knowledge_cutoff=backbone.knowledge_cutoff,
        device=str(backbone.device),
        config_hash=config.hash,
        seedless_hash=hash_without_seed(config),
        news_top_k=config.news.top_k,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLogic:
    """What a logic led to on validation days."""

    logic: str  # how news were selected
    views: Sequence[WindowView]  # the days
    errors: FloatArray  # mean absolute error of each, scaled

    @property
    def error(self) -> float:
        """Mean over the days."""
        return float(self.errors.mean())


def write_reflection_prompt(tried: TriedLogic, missed: Sequence[str]) -> str:
    """Return the prompt: task, present logic, its error and the headlines that it missed."""
    # Headlines are data: cleaned, cut and listed, they cannot end the prompt or begin another.
    headlines = "".join(f"- {clean_text(title, _TITLE_CHARACTERS)}\n" for title in missed)
    return (
        "A forecaster reads news that a logic selects.\n"
        f"Present logic: {clean_text(tried.logic, LOGIC_CHARACTERS)}\n"
        f"Mean error on validation days: {tried.error:.4f} (lower is better).\n"
        f"Headlines that it left out on its worst days:\n{headlines or '- none' + chr(10)}"
        "Decide whether important news was missed, and refine the logic in one sentence.\n"
        "Refined logic:"
    )


class News2Forecast:
    """A backbone with one adapter, and the ``logic`` that selects its news.

    ``tried_logics`` are all that were tried on validation, in order.
    """

    def __init__(
        self,
        config: RunConfig,
        backbone: Backbone,
        encoder: Encoder,
        news: NewsPool,
        scaler: Scaler,
    ) -> None:
        """Put a fresh adapter into a backbone; use :meth:`fit`."""
        self.name = NAME
        self.logic = SLOT_SEED_LOGICS[0]
        self.tried_logics: list[TriedLogic] = []
        self.config = config
        self._scaler = scaler
        self._unreadable, self._answers = 0, 0

        generator = torch.Generator().manual_seed(derive_seed(config.run.seed, "weights"))
        self.population = Population(
            backbone, config.population.shape, generator, depths={FORECAST: None, LOGIC: 0}
        )
        self.retriever = NewsRetriever(
            news, encoder, config.news.top_k, selects=config.news.selects
        )
        # Tokens are sampled within the grammar: the likeliest of its few would always be the same.
        self._stop_tokens = list_stop_tokens(backbone.tokenizer)
        slots = build_slots(sorted(scaler.mean))
        self._grammar = SlotGrammar(slots, backbone.tokenizer, self._stop_tokens[:1])
        self._generator = torch.Generator(device=backbone.device).manual_seed(
            derive_seed(config.run.seed, "logics")
        )
        # No prior: the answer is the values themselves.
        self.decoder = TextDecoder(self.population, config, scaler, np.zeros((1, 0)))

    @classmethod
    def fit(
        cls,
        inputs: FitInputs,
        *,
        config: RunConfig,
        backbone: Backbone,
        encoder: Encoder,
        reflections: int = REFLECTIONS,
    ) -> Self:
        """Fine-tune on train windows, and refine the logic by errors on validation windows.

        ``backbone`` gets the adapter, so load one for each fit. The updates of the budget are made
        in equal parts before each of the ``reflections + 1`` validations. LeakageError if a window
        belongs to the test or inference split, or names later news; DataError if one of the splits
        has no window; NonFiniteLoss if the fit diverged.
        """
        train, val, budget = inputs.train, inputs.val, inputs.budget
        news = inputs.require_news(NAME)
        raise_if_held_out(train, NAME)
        raise_if_held_out(val, NAME)
        raise_if_later_news([*train.views(), *val.views()], news)

        fitted = cls(config, backbone, encoder, news, Scaler.fit(train))
        optimizer = torch.optim.AdamW(
            fitted.parameters,
            lr=config.optim.forecast_lr,
            weight_decay=config.optim.weight_decay,
        )
        windows = shuffle_forever(train, derive_seed(config.run.seed, "windows"))
        # The first days of a split belong to one season, and all days take minutes as text. A
        # forecast costs as much as a window of an update: judging spends the budget, too.
        count = min(VALIDATION_WINDOWS, budget.rounds, len(val))
        places = np.linspace(0, len(val) - 1, count).astype(int)
        judged_by = [val[int(place)] for place in places]

        best_parameters: list[Tensor] = []
        best: TriedLogic | None = None
        for part in np.array_split(np.arange(budget.rounds), reflections + 1):
            # After the first part only: before it there is no error to reflect on.
            if best is not None:
                fitted.logic = fitted.refine(best)
            # Dropout draws from torch's own generator, on the device that the backbone is on.
            with use_seed(derive_seed(config.run.seed, "dropout"), backbone.device):
                for _ in part:
                    fitted._update(optimizer, [next(windows) for _ in range(budget.round_windows)])

            tried = fitted.validate(judged_by)
            log.info("validation error %.4f with the logic: %s", tried.error, tried.logic)
            # A refinement that forecasts worse is dropped, with everything learnt under it.
            if best is None or tried.error < best.error:
                best, best_parameters = tried, [p.detach().clone() for p in fitted.parameters]

        fitted._restore(best, best_parameters)
        return fitted

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights that are fine-tuned."""
        return self.population.adapter_parameters(FORECAST)

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        return describe_fit(self.parameters, self.population.backbone, self.config)

    def count_answers(self) -> tuple[int, int]:
        """Return how many answers of :meth:`predict` could not be read, and how many there were."""
        return self._unreadable, self._answers

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit; LeakageError if a view names later news."""
        raise_if_later_news(views, self.retriever.pool)
        scaled_NH, unreadable = self._answer(views)
        self._unreadable += unreadable
        self._answers += len(views)
        return stack_rows(
            [
                self._scaler.unscale(row_H, view.entity)
                for row_H, view in zip(scaled_NH, views, strict=True)
            ]
        )

    def refine(self, tried: TriedLogic) -> str:
        """Return a new logic, written from what the present one led to."""
        # The backbone writes without its adapter, which has learnt to answer with numbers.
        tokenizer = self.population.backbone.tokenizer
        prompt = write_reflection_prompt(tried, self.list_missed(tried))
        group = PromptGroup(tokenize_prompt(tokenizer, prompt))

        with self.population.use_adapters(None):
            ids_AMT, mask_AMT = sample_under_grammar(
                self.population,
                self.population.prefill(self.population.pack([[group]])),
                self._grammar,
                SamplingSettings(
                    max_new_tokens=self._grammar.max_tokens,
                    temperature=self.config.evolution.temperature,
                    stop_tokens=self._stop_tokens,
                    generators=[self._generator],
                ),
            )
        ids = ids_AMT[0, 0][mask_AMT[0, 0].bool()].tolist()
        return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()

    def list_missed(self, tried: TriedLogic) -> list[str]:
        """Return headlines of the worst days that the logic did not select, closest first."""
        # The largest errors first; errors are scaled, so that no large series fills the list.
        pool, worst = self.retriever.pool, np.argsort(-tried.errors)[:WORST_DAYS]
        titles: list[str] = []
        for number in worst:
            view = tried.views[int(number)]
            # Candidates were known before the view was made, so that no later news is reflected on.
            left_out = self.retriever.rank(tried.logic, view)[self.retriever.top_k :]
            titles += [pool.get_title(name) for name in left_out[:MISSED_ARTICLES]]
        return titles

    def validate(self, val: Sequence[Window]) -> TriedLogic:
        """Forecast validation windows under the present logic; DataError if none has a truth."""
        windows = [window for window in val if np.isfinite(window.y).any()]
        if not windows:
            raise DataError(
                f"none of the {len(val)} validation windows that {NAME} judges a logic by has a "
                "value; give a validation split that has some"
            )
        forecast_NH, _ = self._answer([window.view for window in windows])

        truth_NH = np.stack([self._scaler.scale(w.y, w.view.entity) for w in windows])
        tried = TriedLogic(
            logic=self.logic,
            views=[window.view for window in windows],
            errors=np.nanmean(np.abs(forecast_NH - truth_NH), axis=1),
        )
        self.tried_logics.append(tried)
        return tried

    def _update(self, optimizer: torch.optim.Optimizer, windows: Sequence[Window]) -> None:
        optimizer.zero_grad()
        # One at a time: a backward pass over eight of them takes gigabytes.
        for window in windows:
            loss = self.measure_loss(window) / len(windows)
            if not torch.isfinite(loss):
                raise NonFiniteLoss(f"the loss of {NAME} is not finite; give a lower learning rate")
            loss.backward()  # type: ignore[no-untyped-call] # torch's own

        if largest := self.config.optim.max_grad_norm:  # 0 is no clipping
            torch.nn.utils.clip_grad_norm_(self.parameters, largest)
        optimizer.step()

    def measure_loss(self, window: Window) -> Tensor:
        """Return the loss of a window's true answer, with gradient."""
        readings = [[self._read(window.view, window)]]
        with self.population.use_adapters(FORECAST, dropout=self.config.population.dropout):
            loss_A = self.decoder.measure_loss(readings)
        return loss_A.sum()

    def _answer(self, views: Sequence[WindowView]) -> tuple[FloatArray, int]:
        """Return scaled forecasts (N, H), and how many answers could not be read."""
        rows, unreadable = [np.empty((0, find_horizon(views)))], 0
        size = self.config.run.micro_batch_size
        for start in range(0, len(views), size):
            readings = [[self._read(view) for view in views[start : start + size]]]
            decoded = self.decoder.decode(readings, train=False)
            rows.append(decoded.values_ABH[0].double().cpu().numpy())
            unreadable += decoded.n_unparsed
        return np.concatenate(rows), unreadable

    def _read(self, view: WindowView, window: Window | None = None) -> ForecastRequest:
        """Return a window with the news that the logic selects, and its truth for training."""
        truth_H = None if window is None else self._scaler.scale(window.y, view.entity)
        # Retrieved each time, since the logic changes during a fit.
        chosen = self.retriever.retrieve(self.logic, view)
        return ForecastRequest(
            ForecastExample(view, np.empty((0, view.horizon)), truth_H),
            [self.logic],
            [self.retriever.resolve(chosen)],
        )

    @torch.no_grad()
    def _restore(self, best: TriedLogic | None, kept: Sequence[Tensor]) -> None:
        if best is not None:
            self.logic = best.logic
        for parameter, value in zip(self.parameters, kept, strict=True):
            parameter.copy_(value)


def shuffle_forever(train: WindowSet, seed: int) -> Iterator[Window]:
    """Yield train windows, pass after pass, each in another order."""
    generator = np.random.default_rng(seed)
    while True:
        # Every window comes once before any comes again.
        for place in generator.permutation(len(train)):
            yield train[int(place)]
