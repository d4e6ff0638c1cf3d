"""The paper's method as its public code runs it: one adapter and one head for all agents.

What belongs here: what the code does where it differs from the paper, trained within a budget; the
paper's method at the size and on the scale of the code. What does not: training that method
(``training``), what the code is and where it says so (the page
``docs/explanation/paper-and-code.md``). No line of the code is here; texts of prompts are our own.

As in the code: agents differ only by their logic, which chooses their news and is not in the
forecast prompt. The base model writes every logic from the previous one, its reward and the best
other agent's logic; every new logic that is not degenerate is adopted. The forecast is a linear map
of the state at the last token, in units of the window's own mean and deviation; weights are the
softmax of gate times fitness. MAE is minimised. Dropout is on in forecasts too.

Chosen here, because a processor must be able to pay for it or the code leaves it open: the packaged
backbone, of which 4 of the 30 layers are used; logics are rewritten before every eighth update, all
agents at once; regions have their right names, while the code reads them from news; headlines
replace summaries; the state after the last update is kept.

Shapes: I agents, B windows, H horizon, D hidden.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.decoders import FORECAST
from compevo_core.agents.logics import clean_logic
from compevo_core.agents.prompts import (
    clean_text,
    list_stop_tokens,
    render_logic_and_news,
    render_task,
    tokenize_prompt,
)
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.baselines.base import MethodFacts, raise_if_held_out
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import NO_BOUNDS, Window, WindowView, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import NonFiniteLoss
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import Encoder, load_encoder
from compevo_core.lora import Backbone, Population, PromptGroup, SamplingSettings
from compevo_core.paper.agent_systems import fit_sealed
from compevo_core.paper.changes import CHANGES
from compevo_core.paper.declared import read_declared
from compevo_core.paper.method import FitInputs
from compevo_core.paper.news2forecast import describe_fit, shuffle_forever
from compevo_core.paper.news_changes import lend_news
from compevo_core.runtime.seeding import derive_seed, use_seed

THRESHOLD = 0.3
"""Similarity above which an agent reads an article; it reads the best one in any case."""

FIRST_LOGIC = "Choose news about weather, the economy and events that move electricity demand."
"""What all agents start with: only sampling sets them apart."""


def configure_method(name: str, inputs: FitInputs) -> RunConfig:
    """Return the code's settings, or the paper's at the code's size; plain: without the four parts.

    The first updates are a supervised stage: without it all logics would earn the same.
    """
    if name.startswith("as-published"):
        settings = read_declared("settings")["as-published"]
        return RunConfig().with_overrides({**settings, "run.seed": inputs.seed})
    settings = read_declared("settings")["as-written"]
    supervised = min(settings["evolution.every"], inputs.budget.rounds - 1)
    config = RunConfig().with_overrides(
        {
            **settings,
            "run.seed": inputs.seed,
            "run.supervised_rounds": supervised,
            "run.rounds": inputs.budget.rounds - supervised,
            "run.batch_size": inputs.budget.round_windows,
            "run.micro_batch_size": inputs.budget.round_windows,
        }
    )
    return CHANGES["parts=none"].configure(config) if name.endswith("-plain") else config


def fit_method(name: str, inputs: FitInputs) -> "AsPublished | AsWritten":
    """Train the method as the code or as the paper describes it, on the packaged backbone."""
    config, news = configure_method(name, inputs), inputs.require_news(name)
    if name.startswith("as-written"):
        return AsWritten(name, config, inputs)
    return AsPublished.fit(
        name,
        inputs,
        config=config,
        backbone=load_backbone(config.backbone),
        encoder=load_encoder(news.encoder_name),
    )


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


class AsPublished:
    """Agents that share one adapter and one head, and the ``logics`` that choose their news.

    The prompt is written as in the code; if mended, with true units, holidays and weather; if
    swapped, as in the code but with the news of a day at least 30 days earlier.
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
        self.name = name
        self.config = config
        self._train = train
        self.retriever = retriever

        agents = config.population.agents
        seed = derive_seed(config.run.seed, "weights")
        generator = torch.Generator().manual_seed(seed)
        shape = config.population.model_copy(update={"agents": 1}).shape
        self.population = Population(
            backbone, shape, generator, depths={FORECAST: config.forecast.layers or None}
        )
        self._generator = torch.Generator(device=backbone.device).manual_seed(
            derive_seed(config.run.seed, "logics")
        )
        self.head = nn.Linear(backbone.hidden_size, train[0].view.horizon)
        nn.init.xavier_uniform_(self.head.weight, gain=0.01, generator=generator)
        nn.init.zeros_(self.head.bias)
        self.head.to(backbone.device)
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

        optimizer = torch.optim.AdamW(
            fitted.parameters,
            lr=config.optim.forecast_lr,
            weight_decay=config.optim.weight_decay,
        )
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
        adapters = self.population.adapter_parameters(FORECAST)
        return [*adapters, *self.head.parameters(), self.gates]

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        return describe_fit(self.parameters, self.population.backbone, self.config)

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
                f"\n{render_logic_and_news(None, news, title_characters=limit)}\nForecast:"
                for news in read
            ]
            branches = [encode(text, add_special_tokens=False)["input_ids"] for text in texts]
            prefix = tokenize_prompt(encode, render_series(view, is_mended))
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
            PromptGroup(tokenize_prompt(tokenizer, self.render_logic_task(agent)))
            for agent in range(len(self.logics))
        ]
        stop = list_stop_tokens(tokenizer)
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
        if not torch.isfinite(loss):
            raise NonFiniteLoss(f"the loss of {self.name} is not finite; lower the learning rate")

        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch's own
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optim.max_grad_norm)
        optimizer.step()

        errors_I = [(of_agent - truth_BH)[is_known_BH].abs().mean() for of_agent in values_IBH]
        self.rewards = -torch.stack(errors_I).detach().double().cpu().numpy()
        kept = self.config.selection.ema
        self.fitness = kept * self.fitness + (1 - kept) * self.rewards


def render_series(view: WindowView, is_mended: bool) -> str:
    """Return what all agents read of a window, as the code writes it or mended.

    Mended has true units, holidays and weather.
    """
    days = view.calendar
    scaled = _scale(view.x, view)
    low, high, mean = view.x.min(), view.x.max(), view.x.mean()
    holiday, known = "not a public holiday", ""
    if is_mended:
        holiday = clean_text(days.target_holiday, 60) or holiday
        known = " ".join(f"{name} {value:.4g}." for name, value in view.covariates.items())
    else:
        # The code presents scaled values as if they were in the unit of the series.
        low, high, mean = scaled.min(), scaled.max(), scaled.mean()
    return (
        f"Values of the day before, scaled: {', '.join(f'{value:.2f}' for value in scaled)}\n"
        f"{render_task(view)}. {days.target_date.isoformat()}, {days.target_weekday_name}, "
        f"{holiday}. {known}\n"
        f"Range of the day before {low:.1f} to {high:.1f} {view.unit}, mean {mean:.1f}. "
        f"Expect {0.8 * low:.1f} to {1.2 * high:.1f} {view.unit}."
    )


def _scale(values_H: FloatArray, view: WindowView) -> FloatArray:
    scaled_H: FloatArray = (values_H - view.x.mean()) / (view.x.std() + 1e-8)
    return scaled_H


def _unscale(scaled_H: FloatArray, view: WindowView) -> FloatArray:
    values: FloatArray = scaled_H * (view.x.std() + 1e-8) + view.x.mean()
    return values
