"""The first half of a round: forecast the batch and add the gradient of L_pred (paper 4.1, 4.2).

What belongs here: forecasts under the played logics, with and without dropout, the loss of the
aggregate and of each agent, their backward pass. What does not: the other terms of the joint loss
(``training.update``), the logics' groups (``training.round``).

Dropout, of adapters and of news, belongs to the training pass alone. Rewards, fitness and all
comparisons come from forecasts without it (decision 9).

Where processes share the agents, the forecasts are gathered, every process computes the loss from
all of them, and its gradient reaches the local agents.

Shapes: A agents (of all processes, unless noted), B windows, H horizon.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.objective import own_error_weights, prediction_loss, require_finite
from compevo_core.agents.selection import aggregate_forecasts, forecast_error
from compevo_core.agents.strategy import (
    BatchForecasts,
    NewsByAgent,
    NotesByAgent,
    StrategyExecutor,
)
from compevo_core.training.generators import DropoutState
from compevo_core.training.model import PopulationModel
from compevo_core.training.round_state import PlayedForecasts


@dataclasses.dataclass(frozen=True)
class _MicroBatch:
    """Windows that go through the model together.

    Attributes:
        logics: of the local agents.
        examples: the windows.
        news: what the local agents read of them.
        notes: what they read of each other; None without a debate.
        share: of the round's windows.
        answer_share: of those whose truth is whole: answers as text are taught of no others.
        round_number: for messages.
    """

    logics: Sequence[str]
    examples: Sequence[ForecastExample]
    news: NewsByAgent
    notes: NotesByAgent | None
    share: float
    answer_share: float
    round_number: int

    @property
    def entities(self) -> list[str]:
        """The series of each window."""
        return [example.view.entity for example in self.examples]

    def take(self, windows: Sequence[int]) -> "_MicroBatch":
        """Return some of the windows."""
        return dataclasses.replace(
            self,
            examples=[self.examples[b] for b in windows],
            news=[[row[b] for b in windows] for row in self.news],
            notes=None if self.notes is None else [[row[b] for b in windows] for row in self.notes],
        )


@dataclasses.dataclass(frozen=True)
class _TrainedForecasts:
    """What the training pass of a micro-batch gave, without gradient.

    Attributes:
        values_ABH: forecasts of all agents, with dropout.
        losses: the micro-batch's share of L_pred, of the own errors and of the token losses.
        n_unparsed: answers of the local agents that could not be read.
        n_cut: prompts of the local agents that were too long.
    """

    values_ABH: Tensor
    losses: tuple[float, float, float]
    n_unparsed: int
    n_cut: int


class ForecastStep:
    """Forecasts a batch under the played logics, and leaves the gradient of L_pred in place."""

    def __init__(self, model: PopulationModel, executor: StrategyExecutor) -> None:
        self.model = model
        self.executor = executor
        self.config = model.config
        self.shards = model.shards

    @property
    def has_dropout(self) -> bool:
        """Whether the training pass sees other forecasts than those that are scored."""
        return self._drops_units or self.config.news.dropout > 0.0

    @property
    def _drops_units(self) -> bool:
        # Text is generated without adapter dropout in either pass, and is most of a round's time.
        return self.config.population.dropout > 0.0 and self.config.forecast.decoder == "head"

    @property
    def _keeps_undropped(self) -> bool:
        """Whether forecasts of the training pass that had their news are those to be scored."""
        # Answers as text that could not be read are counted by micro-batch, not by window.
        return not self._drops_units and self.config.forecast.decoder == "head"

    def run(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        news_rng: np.random.Generator,
        round_number: int,
        notes: NotesByAgent | None = None,
    ) -> PlayedForecasts:
        """Forecast the batch and add the gradient of L_pred (Eq. 7) and of the own errors.

        Args:
            logics: (A,) of all agents.
            examples: B windows with their truth.
            news_rng: draws which agents see no news of a window.
            round_number: for messages.
            notes: what the local agents read of each other; nothing unless given.

        Raises:
            NonFiniteLoss: a forecast or a loss is NaN or infinite; on every process.
        """
        local_logics: list[str] = self.shards.local(logics)
        news = self.executor.retrieve_news(local_logics, [example.view for example in examples])
        shown = self._drop_news(news, news_rng)

        # The activations of a micro-batch are freed before the next one; gradients add up.
        backward = (
            self._backward_by_agent
            if self.config.run.gradient == "by-agent"
            else self._backward_jointly
        )
        trained = [
            backward(part) for part in self._cut(local_logics, examples, shown, notes, round_number)
        ]
        scored = trained
        if self.has_dropout:
            clean = self._cut(local_logics, examples, news, notes, round_number)
            if self._keeps_undropped:
                shown_parts = self._cut(local_logics, examples, shown, notes, round_number)
                scored = [
                    self._forecast_dropped(*parts)
                    for parts in zip(clean, shown_parts, trained, strict=True)
                ]
            else:
                scored = [self._forecast_without_dropout(part) for part in clean]

        values_ABH = torch.cat([part.values_ABH for part in scored], 1)
        truth_BH = stack_truths(examples, values_ABH.device)
        error_AB = forecast_error(values_ABH, truth_BH, self.config.objective.metric)
        loss_pred, loss_own, loss_tokens = np.sum([part.losses for part in trained], 0).tolist()
        return PlayedForecasts(
            values_ABH=values_ABH,
            truth_BH=truth_BH,
            reward_AB=-error_AB,
            reward_A=-error_AB.mean(-1),
            loss_pred=loss_pred,
            loss_own=loss_own,
            loss_tokens=loss_tokens,
            n_unparsed=sum(part.n_unparsed for part in scored),
            n_cut=sum(part.n_cut for part in scored),
            news=news,
        )

    def _drop_news(self, news: NewsByAgent, rng: np.random.Generator) -> NewsByAgent:
        """Return the news of the training pass: none for the pairs of agent and window drawn."""
        probability = self.config.news.dropout
        if not probability:
            return news

        # Drawn for all agents on every process, so that the generator stays the same on all.
        agents = self.config.population.agents
        is_dropped_AB = rng.random((agents, len(news[0]))) < probability
        return [
            [() if is_dropped else ids for ids, is_dropped in zip(row, dropped_B, strict=True)]
            for row, dropped_B in zip(news, self.shards.local(is_dropped_AB), strict=True)
        ]

    def _cut(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        news: NewsByAgent,
        notes: NotesByAgent | None,
        round_number: int,
    ) -> Iterator[_MicroBatch]:
        size = self.config.run.micro_batch_size
        answers_B = [example.has_whole_truth for example in examples]
        for start in range(0, len(examples), size):
            part = slice(start, start + size)
            yield _MicroBatch(
                logics=logics,
                examples=examples[part],
                news=[row[part] for row in news],
                notes=None if notes is None else [row[part] for row in notes],
                share=len(examples[part]) / len(examples),
                answer_share=sum(answers_B[part]) / max(sum(answers_B), 1),
                round_number=round_number,
            )

    def _backward_jointly(self, part: _MicroBatch) -> _TrainedForecasts:
        """Read a micro-batch by all local agents at once, and go backward through all of them."""
        local = self._read(part, slice(None), train=True)
        values_ABH, token_loss_A = self._gather(part, [local])

        pred, own = self._loss(part, values_ABH)
        total = self._weigh(pred, own)
        # Each process adds the token losses of its own agents: they reach no shared parameter.
        total = total + part.answer_share * local.token_loss_A.sum()
        total.backward()  # type: ignore[no-untyped-call]
        return self._trained(part, values_ABH, (pred, own, token_loss_A), [local])

    def _backward_by_agent(self, part: _MicroBatch) -> _TrainedForecasts:
        """Read a micro-batch agent by agent, twice, with the activations of one agent at a time.

        The loss needs all forecasts, but each agent only its loss's gradient by its own forecast:
        the first reading gives the forecasts, the second goes backward (decision 41).
        """
        states: list[DropoutState] = []
        first: list[BatchForecasts] = []
        for row in range(len(part.logics)):
            states.append(DropoutState.read())
            first.append(self._read_first(part, row))

        values_ABH, token_loss_A = self._gather(part, first)

        # The gradient by the forecasts, and by the gates, which need no second reading.
        values_ABH.requires_grad_()
        pred, own = self._loss(part, values_ABH)
        total = self._weigh(pred, own)
        total.backward()  # type: ignore[no-untyped-call]

        # Text answers carry no gradient: there is nothing to read again for.
        if self.config.forecast.decoder == "head":
            gradient_ABH = self.shards.local(values_ABH.grad)
            for row, state in enumerate(states):
                # Back to where the first reading began: the same units are dropped.
                state.restore()
                self._read_again(part, row, gradient_ABH[row : row + 1])

        return self._trained(part, values_ABH, (pred, own, token_loss_A), first)

    def _read_first(self, part: _MicroBatch, row: int) -> BatchForecasts:
        """Read a micro-batch by one agent; return its forecasts without their graph."""
        reading = self._read(part, slice(row, row + 1), train=True)
        # The text decoder's token loss is the agent's own: it need not wait for the others.
        if reading.token_loss_A.requires_grad:
            (part.answer_share * reading.token_loss_A.sum()).backward()  # type: ignore[no-untyped-call]
        return dataclasses.replace(
            reading,
            values_ABH=reading.values_ABH.detach(),
            token_loss_A=reading.token_loss_A.detach(),
        )

    def _read_again(self, part: _MicroBatch, row: int, gradient_1BH: Tensor) -> None:
        """Read a micro-batch by one agent once more, and go backward with its loss's gradient."""
        # In a function of its own: its graph is gone before the next agent reads.
        values_1BH = self._read(part, slice(row, row + 1), train=True).values_ABH
        values_1BH.backward(gradient_1BH)  # type: ignore[no-untyped-call]

    def _forecast_without_dropout(self, part: _MicroBatch) -> _TrainedForecasts:
        # Agent by agent where memory is short: all of them at once would be the peak of the round.
        agents = len(part.logics)
        size = 1 if self.config.run.gradient == "by-agent" else agents
        readings = [
            self._read(part, slice(row, row + size), train=False) for row in range(0, agents, size)
        ]

        values_ABH, _ = self._gather(part, readings)
        return _TrainedForecasts(
            values_ABH,
            (0.0, 0.0, 0.0),
            sum(reading.n_unparsed for reading in readings),
            sum(reading.n_cut for reading in readings),
        )

    def _forecast_dropped(
        self, clean: _MicroBatch, shown: _MicroBatch, trained: _TrainedForecasts
    ) -> _TrainedForecasts:
        """Read again, agent by agent, the windows whose news were dropped; keep the others."""
        local_ABH = self.shards.local(trained.values_ABH).clone()
        n_cut = trained.n_cut  # a prompt without news is never cut
        for row, (news, read) in enumerate(zip(clean.news, shown.news, strict=True)):
            windows = [b for b, ids in enumerate(news) if ids != read[b]]
            if windows:
                part = clean.take(windows)
                reading = self._read(part, slice(row, row + 1), train=False)
                local_ABH[row, windows] = reading.values_ABH[0]
                n_cut += reading.n_cut

        local = BatchForecasts(local_ABH, local_ABH.new_zeros(len(local_ABH)), 0, n_cut)
        values_ABH, _ = self._gather(clean, [local])
        return _TrainedForecasts(values_ABH, (0.0, 0.0, 0.0), 0, n_cut)

    def _read(self, part: _MicroBatch, agents: slice, *, train: bool) -> BatchForecasts:
        """Forecast a micro-batch by some of the local agents."""
        return self.executor.forecast(
            part.logics[agents],
            part.examples,
            news=part.news[agents],
            notes=None if part.notes is None else part.notes[agents],
            train=train,
            agents=agents,
        )

    def _gather(
        self, part: _MicroBatch, readings: Sequence[BatchForecasts]
    ) -> tuple[Tensor, Tensor]:
        """Gather forecasts and token losses of all agents, and check them.

        Args:
            part: the micro-batch.
            readings: those of the local agents, in order; each of one agent or of more.
        """
        local_ABH = torch.cat([reading.values_ABH for reading in readings])
        values_ABH = self.shards.all_gather(local_ABH, "forecasts")
        losses_A = torch.cat([reading.token_loss_A for reading in readings])
        token_loss_A = self.shards.all_gather(losses_A, "losses")

        # Gathered values: with NaN in one agent every process stops, none waits for the others.
        require_finite("the forecast", values_ABH.sum((1, 2)), part.round_number)
        require_finite("the token loss", token_loss_A, part.round_number)
        return values_ABH, token_loss_A

    def _loss(self, part: _MicroBatch, values_ABH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the micro-batch's share of L_pred, and of the sum of the agents' own errors.

        Their gradients reach forecasts and gates.
        """
        objective = self.config.objective
        truth_BH = stack_truths(part.examples, values_ABH.device)
        weights_BA = self.model.selection.weights(part.entities)
        aggregate_BH = aggregate_forecasts(values_ABH, weights_BA)

        # Over the windows of the round, not of the micro-batch: its size decides memory alone.
        windows = len(part.examples) / part.share
        pred = prediction_loss(aggregate_BH, truth_BH, objective).sum() / windows
        own = torch.zeros_like(pred)
        if objective.lambda_own:
            own_AB = prediction_loss(values_ABH, truth_BH, objective, self._own_weights(part))
            own = own_AB.sum() / windows

        require_finite("L_pred", pred, part.round_number)
        require_finite("the own errors", own, part.round_number)
        return pred, own

    def _weigh(self, pred: Tensor, own: Tensor) -> Tensor:
        objective = self.config.objective
        return objective.lambda_pred * pred + objective.lambda_own * own

    def _own_weights(self, part: _MicroBatch) -> Tensor:
        """Return how much each window and step counts in each agent's own error, (A, B, H)."""
        views = [example.view for example in part.examples]
        weights = [
            own_error_weights(
                self.config.population.member(agent), views, seed=self.config.run.seed, agent=agent
            )
            for agent in range(self.config.population.agents)
        ]
        device = self.model.backbone.device
        return torch.tensor(np.stack(weights), dtype=torch.float32, device=device)

    @staticmethod
    def _trained(
        part: _MicroBatch,
        values_ABH: Tensor,
        losses: tuple[Tensor, Tensor, Tensor],
        local: Sequence[BatchForecasts],
    ) -> _TrainedForecasts:
        pred, own, token_loss_A = (loss.detach() for loss in losses)
        return _TrainedForecasts(
            values_ABH.detach(),
            (float(pred), float(own), part.answer_share * float(token_loss_A.sum())),
            sum(reading.n_unparsed for reading in local),
            sum(reading.n_cut for reading in local),
        )


def stack_truths(examples: Sequence[ForecastExample], device: torch.device) -> Tensor:
    """Return the scaled targets (B, H) of examples, NaN where missing."""
    truths = [example.truth_H for example in examples if example.truth_H is not None]
    return torch.tensor(np.stack(truths), dtype=torch.float32, device=device)
