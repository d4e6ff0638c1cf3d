"""Rivals that fine-tune a language model: News2Forecast, and the method as its public code runs it.

What belongs here: fine-tuning, logics and forecasts of each; the paper's method at the size and on
the scale of its code. What does not: training that method (``training``), what the code is and what
is chosen here (the page ``docs/explanation/paper-and-code.md``). No line of the code is here; texts
of prompts are our own.

Shapes: A or I agents, N windows, B windows of a batch, H horizon, D hidden.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents import prompts
from compevo_core.agents.decoders import FORECAST, LOGIC, ForecastExample, ForecastRequest
from compevo_core.agents.logics import SLOT_SEED_LOGICS, build_slots, clean_logic
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.text_decoder import TextDecoder
from compevo_core.baselines.base import MethodFacts, raise_if_held_out
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import WEEKDAYS
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import NO_BOUNDS, Window, WindowView, find_horizon, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.evaluation.result_rows import hash_without_seed
from compevo_core.lm import encoder as encoders
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import Encoder
from compevo_core.lm.grammar import SlotGrammar, sample_under_grammar
from compevo_core.lora import Backbone, Population, PromptGroup, SamplingSettings
from compevo_core.paper.agent_systems import fit_sealed
from compevo_core.paper.changes import CHANGES, lend_news
from compevo_core.paper.declared import read_declared
from compevo_core.paper.method_table import FitInputs
from compevo_core.paper.networks import take_step
from compevo_core.runtime.seeding import derive_seed, use_seed

log = logging.getLogger(__name__)
NEWS2FORECAST = "news2forecast"
VALIDATION_WINDOWS = 12
WORST_DAYS = 3
MISSED_ARTICLES = 2  # headlines of each of the worst days that the logic left out
SETTINGS = read_declared("settings")


class FineTuned:
    """A backbone with a fresh adapter, and the news that it reads."""

    def __init__(
        self,
        name: str,
        config: RunConfig,
        backbone: Backbone,
        retriever: NewsRetriever,
        depths: Mapping[str, int | None],
    ) -> None:
        """Put an adapter into the backbone, as deep as ``depths`` says for each kind."""
        self.name, self.config, self.retriever = name, config, retriever
        seed = derive_seed(config.run.seed, "weights")
        self._weight_generator = torch.Generator().manual_seed(seed)
        shape = config.population.model_copy(update={"agents": 1}).shape
        self.population = Population(backbone, shape, self._weight_generator, depths=depths)
        self._generator = torch.Generator(device=backbone.device).manual_seed(
            derive_seed(config.run.seed, "logics")
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights that are trained."""
        return self.population.adapter_parameters(FORECAST)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer of the weights that are trained."""
        optim = self.config.optim
        return torch.optim.AdamW(
            self.parameters, lr=optim.forecast_lr, weight_decay=optim.weight_decay
        )

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        backbone, config = self.population.backbone, self.config
        return MethodFacts(
            trainable_parameters=sum(p.numel() for p in self.parameters),
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
    headlines = "".join(f"- {prompts.clean_text(title, 120)}\n" for title in missed)
    return (
        "A forecaster reads news that a logic selects.\n"
        f"Present logic: {prompts.clean_text(tried.logic, prompts.LOGIC_CHARACTERS)}\n"
        f"Mean error on validation days: {tried.error:.4f} (lower is better).\n"
        f"Headlines that it left out on its worst days:\n{headlines or '- none' + chr(10)}"
        "Decide whether important news was missed, and refine the logic in one sentence.\n"
        "Refined logic:"
    )


class News2Forecast(FineTuned):
    """A backbone with one adapter that forecasts as text, and the ``logic`` that selects its news.

    ``tried_logics`` are all that were tried on validation, in order. Source: Wang et al., "From
    News to Forecast: Integrating Event Analysis in LLM-Based Time Series Forecasting with
    Reflection", NeurIPS 2024, with public code. LoRA is computed by ``lora.adapters`` as in PEFT;
    the template comes from the paper's appendix (``agents.prompts``).

    As published: instruction with the history, input with task, day, weather and selected news,
    output of 48 numbers; LoRA of rank 8 on all linear layers; forecasts of validation days are
    compared with the truth, missed news is listed, the selection logic is refined, and the cycle
    repeats.

    Differs:

    - The published code reads news of the forecast day and its observed weather, and validates on a
      random sample that overlaps training; here every article and value was known before the view
      was made, and validation is the later split.
    - Short answers were silently filled with their last number; here an answer that cannot be read
      is counted and scored as the train mean of its series, like other answers in text.
    - The packaged backbone replaces Llama 2 and GPT-4. It selects by similarity of embeddings to
      the logic (``agents.strategy``) and writes logics within a grammar, with the logic itself as
      the rationale of what was selected.
    - The same adapter continues to learn under each refined logic instead of a new one; the logic
      and the adapter with the least validation error are kept.
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
        reader = NewsRetriever(news, encoder, config.news.top_k, selects=config.news.selects)
        super().__init__(NEWS2FORECAST, config, backbone, reader, {FORECAST: None, LOGIC: 0})
        self.logic = SLOT_SEED_LOGICS[0]
        self.tried_logics: list[TriedLogic] = []
        self._scaler = scaler
        self._unreadable, self._answers = 0, 0
        # Tokens are sampled within the grammar: the likeliest of its few would always be the same.
        self._stop_tokens = prompts.list_stop_tokens(backbone.tokenizer)
        slots = build_slots(sorted(scaler.mean))
        self._grammar = SlotGrammar(slots, backbone.tokenizer, self._stop_tokens[:1])
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
        reflections: int = 2,
    ) -> Self:
        """Fine-tune on train windows, and refine the logic by errors on validation windows.

        ``backbone`` gets the adapter, so load one for each fit. The budget is spent in equal parts
        before each of ``reflections + 1`` validations. LeakageError if a window is held out or
        names later news; DataError if a split is empty; NonFiniteLoss if the fit diverged.
        """
        train, val, budget = inputs.train, inputs.val, inputs.budget
        news = inputs.require_news(NEWS2FORECAST)
        raise_if_held_out(train, NEWS2FORECAST)
        raise_if_held_out(val, NEWS2FORECAST)
        raise_if_later_news([*train.views(), *val.views()], news)

        fitted = cls(config, backbone, encoder, news, Scaler.fit(train))
        optimizer = fitted.make_optimizer()
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
                    batch = [next(windows) for _ in range(budget.round_windows)]
                    # One at a time: a backward pass over eight of them takes gigabytes.
                    losses = (fitted.measure_loss(window) / len(batch) for window in batch)
                    take_step(optimizer, losses, fitted.name, config.optim.max_grad_norm)

            tried = fitted.validate(judged_by)
            log.info("validation error %.4f with the logic: %s", tried.error, tried.logic)
            # A refinement that forecasts worse is dropped, with everything learnt under it.
            if best is None or tried.error < best.error:
                best, best_parameters = tried, [p.detach().clone() for p in fitted.parameters]

        if best is not None:
            fitted.logic = best.logic
        with torch.no_grad():
            for parameter, value in zip(fitted.parameters, best_parameters, strict=True):
                parameter.copy_(value)
        return fitted

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
        group = PromptGroup(prompts.tokenize_prompt(tokenizer, prompt))

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
                f"none of the {len(val)} validation windows that {self.name} judges a logic by has "
                "a value; give a validation split that has some"
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


def shuffle_forever(train: WindowSet, seed: int) -> Iterator[Window]:
    """Yield train windows, pass after pass, each in another order."""
    generator = np.random.default_rng(seed)
    while True:
        # Every window comes once before any comes again.
        for place in generator.permutation(len(train)):
            yield train[int(place)]


# Similarity above which an agent reads an article; it reads the best one in any case.
THRESHOLD = 0.3
# What all agents start with: only sampling sets them apart.
FIRST_LOGIC = "Choose news about weather, the economy and events that move electricity demand."


def configure_method(name: str, inputs: FitInputs) -> RunConfig:
    """Return the settings of a rival; plain: the paper's method without its four parts.

    As written, its first updates are supervised: without it all logics would earn the same.
    """
    kind = next(kind for kind in SETTINGS if name.startswith(kind))
    settings = SETTINGS[kind] | {"run.seed": inputs.seed}
    if kind == NEWS2FORECAST:
        settings["optim.forecast_lr"] = inputs.learning_rate
    elif kind == "as-written":
        supervised = min(settings["evolution.every"], inputs.budget.rounds - 1)
        settings |= {
            "run.supervised_rounds": supervised,
            "run.rounds": inputs.budget.rounds - supervised,
            "run.batch_size": inputs.budget.round_windows,
            "run.micro_batch_size": inputs.budget.round_windows,
        }
    config = RunConfig().with_overrides(settings)
    return CHANGES["parts=none"].configure(config) if name.endswith("-plain") else config


def fit_method(name: str, inputs: FitInputs) -> "News2Forecast | AsPublished | AsWritten":
    """Fine-tune the packaged backbone within the budget of the inputs."""
    config, news = configure_method(name, inputs), inputs.require_news(name)
    if name.startswith("as-written"):
        return AsWritten(name, config, inputs)
    # Not the shared backbone: a fit puts its adapter into it.
    backbone = load_backbone(config.backbone)
    encoder = encoders.load_encoder(news.encoder_name)
    if name == NEWS2FORECAST:
        return News2Forecast.fit(inputs, config=config, backbone=backbone, encoder=encoder)
    return AsPublished.fit(name, inputs, config=config, backbone=backbone, encoder=encoder)


class AsWritten:
    """Agents by the paper's method, given windows in units of their own mean and deviation."""

    def __init__(self, name: str, config: RunConfig, inputs: FitInputs) -> None:
        """Train them, or resume their training; swapped: on the news of earlier train days."""
        self.name = name
        self._lenders = inputs.train if name.endswith("-swapped") else None
        train, val = (
            windows.with_windows(
                [
                    replace(window, view=view, y=_scale(window.y, window.view))
                    for window, view in zip(
                        windows, self.change_views(windows.views()), strict=True
                    )
                ]
            )
            for windows in (inputs.train, inputs.val)
        )
        self._agents = fit_sealed(config, replace(inputs, train=train, val=val))

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        return self._agents.facts

    def change_views(self, views: Sequence[WindowView]) -> list[WindowView]:
        """Return what the agents read of views: scaled values, and lent news where swapped."""
        lent = lend_news(views, self._lenders) if self._lenders else views
        return [replace(view, x=_scale(view.x, view), bounds=NO_BOUNDS) for view in lent]

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        scaled_NH = self._agents.predict(self.change_views(views))
        return stack_rows([_unscale(row, view) for row, view in zip(scaled_NH, views, strict=True)])


class AsPublished(FineTuned):
    """Agents that share one adapter and one head, and the ``logics`` that choose their news.

    The prompt is written as in the code; if mended, with true units, holidays and weather; if
    swapped, as in the code but with the news of a day at least 30 days earlier. The base model
    writes every logic from the previous one, its reward and the best other agent's logic; every new
    logic that is not degenerate is adopted. The forecast is a linear map of the state at the last
    token; weights are the softmax of gate times fitness.
    """

    def __init__(
        self,
        config: RunConfig,
        backbone: Backbone,
        retriever: NewsRetriever,
        train: WindowSet,
        name: str,
    ) -> None:
        """Put a fresh adapter into a backbone; use :meth:`fit`."""
        depths = {FORECAST: config.forecast.layers or None}
        super().__init__(name, config, backbone, retriever, depths)
        self._train = train
        self.head = nn.Linear(backbone.hidden_size, train[0].view.horizon)
        nn.init.xavier_uniform_(self.head.weight, gain=0.01, generator=self._weight_generator)
        nn.init.zeros_(self.head.bias)
        self.head.to(backbone.device)
        agents = config.population.agents
        self.gates = nn.Parameter(torch.ones(agents, device=backbone.device))

        self.logics = [FIRST_LOGIC] * agents
        self.fitness = np.zeros(agents)
        self.rewards = np.zeros(agents)

    @classmethod
    def fit(
        cls,
        name: str,
        inputs: FitInputs,
        *,
        config: RunConfig,
        backbone: Backbone,
        encoder: Encoder,
    ) -> Self:
        """Train on batches of shuffled train windows; ``backbone`` gets the adapter.

        LeakageError if a window is held out, or names later news; NonFiniteLoss if it diverges.
        """
        train, news = inputs.train, inputs.require_news(name)
        retriever = NewsRetriever(news, encoder, config.news.top_k)
        fitted = cls(config, backbone, retriever, train, name)
        raise_if_held_out(train, fitted.name)
        raise_if_later_news(train.views(), news)

        optimizer = fitted.make_optimizer()
        windows = shuffle_forever(train, derive_seed(config.run.seed, "windows"))
        with use_seed(derive_seed(config.run.seed, "dropout"), backbone.device):
            for update in range(inputs.budget.rounds):
                if update % config.evolution.every == 0:
                    fitted.logics = fitted.write_logics()
                batch = [next(windows) for _ in range(inputs.budget.round_windows)]
                fitted._update(optimizer, batch)
        return fitted

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights that are trained: adapter, head, gates."""
        return [*super().parameters, *self.head.parameters(), self.gates]

    @torch.no_grad()
    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit; LeakageError if a view names later news."""
        raise_if_later_news(views, self.retriever.pool)
        size = self.config.run.micro_batch_size
        rows: list[FloatArray] = []
        # With one seed the forecasts of the same views are always equal, dropout included.
        seed = derive_seed(self.config.run.seed, "dropout of forecasts")
        with use_seed(seed, self.population.backbone.device):
            for start in range(0, len(views), size):
                batch = views[start : start + size]
                scaled_BH = self._mix(self.forecast(batch)).double().cpu().numpy()
                rows += [
                    _unscale(row_H, view) for row_H, view in zip(scaled_BH, batch, strict=True)
                ]
        return stack_rows(rows)

    def forecast(self, views: Sequence[WindowView]) -> Tensor:
        """Return every agent's forecasts, scaled, (I, B, H)."""
        if self.name.endswith("-swapped"):
            views = lend_news(views, self._train)
        encode, is_mended = self.population.backbone.tokenizer, self.name.endswith("-mended")
        limit = self.config.news.title_characters
        groups = []
        for view in views:
            read = [self.retriever.resolve(self.choose_news(logic, view)) for logic in self.logics]
            texts = [
                f"\n{prompts.render_logic_and_news(None, news, title_characters=limit)}\nForecast:"
                for news in read
            ]
            branches = [encode(text, add_special_tokens=False)["input_ids"] for text in texts]
            prefix = prompts.tokenize_prompt(encode, render_series(view, is_mended))
            groups.append(PromptGroup(prefix, branches))

        packed = self.population.pack([groups])
        with self.population.use_adapters(FORECAST, dropout=self.config.population.dropout):
            states_1RTD = self.population.read_out(packed, layers=self.config.forecast.layers)
        values_RH: Tensor = self.head(states_1RTD[0, :, 0])
        return values_RH.reshape(len(views), len(self.logics), -1).transpose(0, 1)

    def choose_news(self, logic: str, view: WindowView) -> tuple[str, ...]:
        """Return up to top k articles more similar than the threshold, or the best one."""
        ids = self.retriever.retrieve(logic, view)
        if not ids:
            return ()
        pool, logic_E = self.retriever.pool, self.retriever.encoder.encode([logic])[0]
        above = int((pool.embeddings[pool.find_rows(ids)] @ logic_E > THRESHOLD).sum())
        return ids[: max(1, above)]

    def write_logics(self) -> list[str]:
        """Return a logic of every agent as the base model writes it; no policy is trained."""
        tokenizer = self.population.backbone.tokenizer
        groups = [
            PromptGroup(prompts.tokenize_prompt(tokenizer, self.render_logic_task(agent)))
            for agent in range(len(self.logics))
        ]
        stop = prompts.list_stop_tokens(tokenizer)
        with torch.no_grad(), self.population.use_adapters(None):
            settings = SamplingSettings(
                max_new_tokens=self.config.evolution.max_new_tokens,
                temperature=self.config.evolution.temperature,
                stop_tokens=stop,
                generators=[self._generator],
            )
            read = self.population.prefill(self.population.pack([groups]))
            ids_1IT, mask_1IT = self.population.sample(read, settings)
        sampled = zip(ids_1IT[0], mask_1IT[0], self.logics, strict=True)
        return [
            clean_logic(
                tokenizer.decode(ids_T[mask_T.bool()].tolist(), skip_special_tokens=True),
                logic,
                was_cut=int(ids_T[mask_T.bool()][-1]) not in stop,
            )[0]
            for ids_T, mask_T, logic in sampled
        ]

    def render_logic_task(self, agent: int) -> str:
        """Return the prompt that asks an agent for a logic and shows the best other agent's."""
        others = [other for other in range(len(self.logics)) if other != agent]
        best = max(others, key=lambda other: self.rewards[other])
        return (
            "An agent chooses news for a forecast of electricity demand. Improve its rule.\n"
            f"Rule: {self.logics[agent]} Reward: {self.rewards[agent]:.4f}\n"
            f"Best other rule: {self.logics[best]} Reward: {self.rewards[best]:.4f}\n"
            "Name kinds of news in one sentence.\nNew rule:"
        )

    def _mix(self, values_IBH: Tensor) -> Tensor:
        fitness_I = torch.tensor(self.fitness, dtype=torch.float32, device=values_IBH.device)
        weights_I = torch.softmax(self.gates * fitness_I / self.config.selection.temperature, 0)
        return torch.einsum("i,ibh->bh", weights_I, values_IBH)

    def _update(self, optimizer: torch.optim.Optimizer, windows: Sequence[Window]) -> None:
        views = [window.view for window in windows]
        truth_BH = torch.tensor(
            np.stack([_scale(w.y, w.view) for w in windows]),
            dtype=torch.float32,
            device=self.gates.device,
        )
        is_known_BH = truth_BH.isfinite()
        values_IBH = self.forecast(views)
        error_BH = (self._mix(values_IBH) - truth_BH)[is_known_BH].abs()
        loss = error_BH.mean() + self.config.objective.lambda_prune * self.gates.abs().mean()
        take_step(optimizer, [loss], self.name, self.config.optim.max_grad_norm)

        errors_I = [(of_agent - truth_BH)[is_known_BH].abs().mean() for of_agent in values_IBH]
        self.rewards = -torch.stack(errors_I).detach().double().cpu().numpy()
        kept = self.config.selection.ema
        self.fitness = kept * self.fitness + (1 - kept) * self.rewards


def render_series(view: WindowView, is_mended: bool) -> str:
    """Return what agents read of a window: as the code writes it, or mended with true values."""
    days, scaled = view.calendar, _scale(view.x, view)
    low, high, mean = view.x.min(), view.x.max(), view.x.mean()
    holiday, known = "not a public holiday", ""
    if is_mended:
        holiday = prompts.clean_text(days.target_holiday, 60) or holiday
        known = " ".join(f"{name} {value:.4g}." for name, value in view.covariates.items())
    else:
        # The code presents scaled values as if they were in the unit of the series.
        low, high, mean = scaled.min(), scaled.max(), scaled.mean()
    return (
        f"Values of the day before, scaled: {', '.join(f'{value:.2f}' for value in scaled)}\n"
        f"{prompts.render_task(view)}. {days.target_date.isoformat()}, "
        f"{WEEKDAYS[days.target_weekday]}, {holiday}. {known}\n"
        f"Range of the day before {low:.1f} to {high:.1f} {view.unit}, mean {mean:.1f}. "
        f"Expect {0.8 * low:.1f} to {1.2 * high:.1f} {view.unit}."
    )


def _scale(values_H: FloatArray, view: WindowView) -> FloatArray:
    scaled_H: FloatArray = (values_H - view.x.mean()) / (view.x.std() + 1e-8)
    return scaled_H


def _unscale(scaled_H: FloatArray, view: WindowView) -> FloatArray:
    values: FloatArray = scaled_H * (view.x.std() + 1e-8) + view.x.mean()
    return values
