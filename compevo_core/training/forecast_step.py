"""The first half of a round: forecast the batch and add the gradient of L_pred (paper 4.1, 4.2).

Only the training pass has dropout, of adapters and of news. Rewards, fitness and all comparisons
come from forecasts without it (decision 04-policy). Where processes share the agents, forecasts are
gathered, and every process computes the loss of all.

A debate trains the forecasts of each turn by their own errors, and its verifiers by the errors of
the last turn. Rounds in which another system would rewrite its logics (``evolution.every``) also
try forecasts around these, show them to the other agents, and credit each forecast with what it led
to, by PPO. The arithmetic is in ``agents.debate``.

Shapes: A agents (of all processes, unless noted), B windows, T turns, H horizon.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.checkpoint import checkpoint

from compevo_core.agents import debate
from compevo_core.agents.decoders import (
    VALUE,
    VERIFIER,
    AgentReadings,
    BatchForecasts,
    ForecastExample,
)
from compevo_core.agents.logics import list_seed_logics
from compevo_core.agents.objective import (
    draw_own_windows,
    policy_loss,
    prediction_loss,
    require_finite,
)
from compevo_core.agents.selection import aggregate_forecasts, forecast_error
from compevo_core.agents.strategy import StrategyExecutor, list_news
from compevo_core.runtime.usage import memory_bytes
from compevo_core.training.model import PopulationModel
from compevo_core.training.schedule import RunGenerators, RunSchedule


@dataclasses.dataclass(frozen=True)
class PlayedForecasts:
    """Forecasts of the batch under the logic that each agent plays, without gradient or dropout."""

    values_ABH: Tensor  # scaled, of all agents
    truth_BH: Tensor  # scaled; NaN where missing
    reward_AB: Tensor  # minus each agent's error on each window (Eq. 3)
    loss_pred: float  # what L_pred minimised, of the training pass (Eq. 7)
    loss_own: float  # sum of the agents' own errors, of the training pass; 0 at weight 0
    loss_tokens: float  # cross-entropy of the targets' digits, summed; 0 for the head
    n_unparsed: int  # answers of local agents that could not be read
    n_cut: int  # prompts of local agents that were too long
    # Ids of what each local agent retrieved, by agent and window, best match first
    news: Sequence[Sequence[tuple[str, ...]]]
    loss_pg: float = 0.0  # policy loss of a debate
    weights_A: Tensor | None = None  # mean weights, if the agents weigh each other


@dataclasses.dataclass(frozen=True)
class _MicroBatch:
    """Windows that go through the model together, and what the local agents read for them."""

    played: AgentReadings  # by the logics that they play
    trained: AgentReadings  # in the training pass: of some windows other news, or none
    windows: int  # of the whole round
    answers: int  # of the whole round: windows with a complete truth, as only they teach answers

    @property
    def examples(self) -> list[ForecastExample]:
        """The windows."""
        return [reading.example for reading in self.played[0]]

    def select(self, windows: slice) -> "_MicroBatch":
        """Return some of the windows."""
        played, trained = ([row[windows] for row in of] for of in (self.played, self.trained))
        return dataclasses.replace(self, played=played, trained=trained)


class ForecastStep:
    """Forecasts a batch under the played logics, and leaves the gradient of L_pred in place."""

    def __init__(self, model: PopulationModel, executor: StrategyExecutor) -> None:
        self.model = model
        self.executor = executor
        self.config = model.config
        self.shards = model.shards

        # Text is generated without adapter dropout in either pass, and is most of a round's time.
        has_head = self.config.forecast.decoder == "head"
        self._drops_units = has_head and self.config.population.dropout > 0.0
        self._changes_news = self.config.news.dropout > 0.0 or self.config.news.other_logics > 0.0
        self._is_by_agent = self.config.run.gradient == "by-agent"
        self.chosen_gradient = ""
        """what ``run.gradient = "auto"`` was resolved to, from the first batch on"""

    def run(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        generators: RunGenerators,
        round_number: int,
    ) -> PlayedForecasts:
        """Forecast the batch and add the gradient of L_pred (Eq. 7) and of the own errors.

        ``logics`` (A,) belong to all agents, B ``examples`` have their truth. A generator samples
        which agents see no news of a window. NonFiniteLoss, on every process, if a forecast or a
        loss is not finite.
        """
        readings = self.executor.read(self.shards.local(logics), examples)
        return self.forecast_batch(readings, generators.news_rng)

    def forecast_batch(self, readings: AgentReadings, rng: np.random.Generator) -> PlayedForecasts:
        """Do what :meth:`run` does, from the readings of the local agents."""
        examples = [reading.example for reading in readings[0]]
        size = self.config.run.micro_batch_size
        whole = _MicroBatch(
            played=readings,
            trained=self._change_news(readings, rng),
            windows=len(examples),
            answers=sum(example.has_whole_truth for example in examples),
        )

        # The activations of a micro-batch are freed before the next one; gradients add up.
        losses = np.zeros(3)
        scored = []
        for start in range(0, len(examples), size):
            batch = whole.select(slice(start, start + size))
            if self.config.run.gradient == "auto" and not self.chosen_gradient:
                self._choose_gradient(batch)
            trained, batch_losses = self._train_pass(batch)
            losses += batch_losses
            scored.append((batch, trained))
        # After all training passes, as dropout masks are drawn in the order of the passes.
        passes = [self._score_pass(batch, trained) for batch, trained in scored]

        values_ABH = torch.cat([part.values_ABH for part in passes], 1)
        truth_BH = stack_truths(examples, values_ABH.device)
        error_AB = forecast_error(values_ABH, truth_BH)
        loss_pred, loss_own, loss_tokens = losses.tolist()
        return PlayedForecasts(
            values_ABH=values_ABH,
            truth_BH=truth_BH,
            reward_AB=-error_AB,
            loss_pred=loss_pred,
            loss_own=loss_own,
            loss_tokens=loss_tokens,
            n_unparsed=sum(part.n_unparsed for part in passes),
            n_cut=sum(part.n_cut for part in passes),
            news=list_news(readings),
        )

    def _choose_gradient(self, batch: _MicroBatch) -> None:
        """Choose the backward pass of L_pred by the memory that one agent's reading keeps."""
        device = self.model.backbone.device
        # This reading must not change the generator of dropout.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            saved = count_saved_bytes(
                lambda: self._read_one(batch, slice(0, 1)), self.model.backbone.model.parameters()
            )

        # Half of it, as later prompts may be longer, and gradients and rewriting need memory too.
        room = memory_bytes(device) / 2
        chosen = "joint" if saved * len(batch.played) <= room else "by-agent"
        # Processes that split the backbone must choose alike.
        self.chosen_gradient = self.shards.broadcast(chosen)
        self._is_by_agent = self.chosen_gradient == "by-agent"

    def _train_pass(self, batch: _MicroBatch) -> tuple[BatchForecasts, list[float]]:
        """Add the gradient of a micro-batch; return its forecasts, and its share of the losses."""
        if self._is_by_agent:
            # To save memory a reading keeps no activations, and is repeated in the backward pass
            # with the same units dropped (decision 12-engine). The generator of a GPU is restored
            # only if an argument is on it.
            gates_A = self.model.selection.gates_A
            readings = [
                checkpoint(self._read_one, batch, slice(row, row + 1), gates_A, use_reentrant=False)
                for row in range(len(batch.trained))
            ]
        else:
            readings = [self.executor.forecast(batch.trained, train=True)]
        gathered = self._gather(batch, readings)

        objective = self.config.objective
        pred, own_loss = self._measure_losses(batch, gathered.values_ABH)
        # Each process adds the token losses of its own agents: they reach no shared parameter.
        tokens = torch.cat([reading.token_loss_A for reading in readings]).sum()
        answers = sum(example.has_whole_truth for example in batch.examples)
        share = answers / max(batch.answers, 1)
        total = objective.lambda_pred * pred + objective.lambda_own * own_loss + share * tokens
        total.backward()  # type: ignore[no-untyped-call]

        token_loss = share * float(gathered.token_loss_A.sum())
        losses = [float(pred.detach()), float(own_loss.detach()), token_loss]
        return dataclasses.replace(gathered, values_ABH=gathered.values_ABH.detach()), losses

    def _change_news(self, readings: AgentReadings, rng: np.random.Generator) -> AgentReadings:
        """Return what agents read in the training pass.

        Sampled pairs of agent and window have no news, or the news of a seed logic: an agent that
        has only read the news of one logic would judge others by their novelty.
        """
        if not self._changes_news:
            return readings

        # Sampled for all agents, so that the generator stays equal on all processes.
        settings = self.config.news
        seeds = list_seed_logics(self.config.evolution.form)
        draw_AB = rng.random((self.config.population.agents, len(readings[0])))
        changed = [list(row) for row in readings]
        for row, agent in enumerate(self.shards.local_agents):
            for b, draw in enumerate(draw_AB[agent]):
                reading = readings[row][b]
                if draw < settings.dropout and reading.news[0]:
                    changed[row][b] = dataclasses.replace(reading, news=[()])
                elif settings.dropout <= draw < settings.dropout + settings.other_logics:
                    # The remainder of the draw is uniform too, and picks the logic.
                    share = (draw - settings.dropout) / settings.other_logics
                    logic = seeds[int(share * len(seeds))]
                    if logic not in reading.logics:
                        own = slice(row, row + 1)
                        ((other,),) = self.executor.read([logic], [reading.example], own)
                        changed[row][b] = dataclasses.replace(other, note=reading.note)
        return changed

    def _read_one(self, batch: _MicroBatch, agent: slice, *_: Tensor) -> BatchForecasts:
        return self.executor.forecast(batch.trained[agent], train=True, agents=agent)

    def _score_pass(self, batch: _MicroBatch, trained: BatchForecasts) -> BatchForecasts:
        """Return forecasts without dropout: of the training pass, if that dropped nothing."""
        if not (self._drops_units or self._changes_news):
            return trained

        forecast, agents = self.executor.forecast, len(batch.played)
        # Not for text, whose unreadable answers are counted by micro-batch, not by window.
        if not self._drops_units and self.config.forecast.decoder == "head":
            # Agent by agent, only the windows whose news were changed.
            local_ABH = self.shards.local(trained.values_ABH).clone()
            n_cut = trained.n_cut  # a prompt without news is never cut
            for row, (played, read) in enumerate(zip(batch.played, batch.trained, strict=True)):
                windows = [b for b, reading in enumerate(played) if read[b] is not reading]
                if windows:
                    again = [[played[b] for b in windows]]
                    reading = forecast(again, agents=slice(row, row + 1))
                    local_ABH[row, windows] = reading.values_ABH[0]
                    n_cut += reading.n_cut
            local = BatchForecasts(local_ABH, local_ABH.new_zeros(agents), n_cut=n_cut)
            return self._gather(batch, [local])

        # Agent by agent if memory is short, as all at once would be the peak of the round.
        size = 1 if self._is_by_agent else agents
        chosen = [slice(row, row + size) for row in range(0, agents, size)]
        return self._gather(batch, [forecast(batch.played[some], agents=some) for some in chosen])

    def _gather(self, batch: _MicroBatch, readings: Sequence[BatchForecasts]) -> BatchForecasts:
        """Gather and check forecasts and token losses of all agents; counts stay local."""
        local_ABH = torch.cat([reading.values_ABH for reading in readings])
        values_ABH = self.shards.all_gather(local_ABH, "forecasts")
        losses_A = torch.cat([reading.token_loss_A for reading in readings])
        token_loss_A = self.shards.all_gather(losses_A, "losses").detach()

        # Gathered values, so that every process stops if one agent has NaN, and none waits.
        require_finite("the forecast", values_ABH.sum((1, 2)))
        require_finite("the token loss", token_loss_A)
        return BatchForecasts(
            values_ABH,
            token_loss_A,
            sum(reading.n_unparsed for reading in readings),
            sum(reading.n_cut for reading in readings),
        )

    def _measure_losses(self, batch: _MicroBatch, values_ABH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the micro-batch's share of L_pred, and of the sum of the agents' own errors."""
        objective = self.config.objective
        truth_BH = stack_truths(batch.examples, values_ABH.device)
        entities = [example.view.entity for example in batch.examples]
        weights_BA = self.model.selection.weights(entities)
        aggregate_BH = aggregate_forecasts(values_ABH, weights_BA)

        # Over the windows of the round, as the size of the micro-batch only decides memory.
        pred = prediction_loss(aggregate_BH, truth_BH, objective).sum() / batch.windows
        own_loss = torch.zeros_like(pred)
        if objective.lambda_own:
            members = self.config.population.list_members()
            views = [example.view for example in batch.examples]
            is_own_AB = draw_own_windows(members, views, self.config.run.seed)
            own_AB = prediction_loss(values_ABH, truth_BH, objective)
            own_AB = own_AB * torch.from_numpy(is_own_AB).to(own_AB.device)
            own_loss = own_AB.sum() / batch.windows

        require_finite("L_pred", pred)
        require_finite("the own errors", own_loss)
        return pred, own_loss


@dataclasses.dataclass(frozen=True)
class Turn:
    """What the agents said in one turn of a tried debate, without gradient."""

    readings: AgentReadings  # what each agent had read; from the second turn on also of the others
    tried_ABH: Tensor  # the forecasts that were tried
    mean_ABH: Tensor  # the forecasts that they were drawn around
    reward_AB: Tensor  # minus their errors


class DebateStep(ForecastStep):
    """Forecasts a batch in a debate; its agents keep their logics."""

    executor: debate.DebateExecutor

    def __init__(
        self, model: PopulationModel, executor: debate.DebateExecutor, schedule: RunSchedule
    ) -> None:
        super().__init__(model, executor)
        self.schedule = schedule
        self._agents = [slice(row, row + 1) for row in range(self.config.population.agents)]

    def run(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        generators: RunGenerators,
        round_number: int,
    ) -> PlayedForecasts:
        """Train all turns; return the last one's forecasts, weighed by the verifiers."""
        # Agents read the same news in all turns.
        first = self.executor.read(logics, examples)
        turns = [self.forecast_batch(first, generators.news_rng)]
        readings: AgentReadings = first
        for _ in range(self.config.debate.revisions):
            readings = self.executor.exchange(readings, turns[-1].values_ABH)
            turns.append(self.forecast_batch(readings, generators.news_rng))
        last = turns[-1]

        # Verifiers judge the last turn, which is what the population forecasts.
        is_better_AB = debate.find_better(-last.reward_AB)
        logits = []
        for agent in self._agents:
            logit_1B = self.executor.judge(
                VERIFIER, readings[agent], base_ABH=last.values_ABH[agent], agents=agent
            )
            # Agent by agent, as the activations of all may not fit in memory.
            loss = binary_cross_entropy_with_logits(logit_1B, is_better_AB[agent])
            require_finite("the verifier's loss", loss)
            (self.config.debate.verifier_weight * loss).backward()  # type: ignore[no-untyped-call]
            logits.append(logit_1B.detach())
        weights_BA = debate.weigh_by_score(torch.cat(logits))

        loss_pg = 0.0
        # A policy step takes the place of rewriting logics, within the same budget.
        if self.schedule.rewrites(round_number):
            tried = self._try(first, turns[0], generators.numpy_rng)
            loss_pg = self._train_policy(tried)

        aggregate_BH = aggregate_forecasts(last.values_ABH, weights_BA)
        # The same loss as other systems record, for curves on one axis.
        loss_B = prediction_loss(aggregate_BH, last.truth_BH, self.config.objective)
        return dataclasses.replace(
            last,
            loss_pred=float(loss_B.mean()),
            loss_own=sum(turn.loss_own for turn in turns),
            n_unparsed=sum(turn.n_unparsed for turn in turns),
            n_cut=sum(turn.n_cut for turn in turns),
            loss_pg=loss_pg,
            weights_A=weights_BA.mean(0),
        )

    @torch.no_grad()
    def _try(
        self, readings: AgentReadings, first: PlayedForecasts, rng: np.random.Generator
    ) -> list[Turn]:
        """Let the agents debate with forecasts drawn around their own."""
        settings = self.config.debate
        mean_ABH = first.values_ABH
        turns: list[Turn] = []
        for number in range(settings.revisions + 1):
            if number:
                readings = self.executor.exchange(readings, turns[-1].tried_ABH)
                mean_ABH = self.executor.forecast(readings).values_ABH

            # Drawn by numpy, so that the forecasts that are tried are the same on every device.
            draws = rng.standard_normal(mean_ABH.shape)
            noise_ABH = torch.tensor(draws, dtype=mean_ABH.dtype, device=mean_ABH.device)
            tried_ABH = mean_ABH + settings.exploration * noise_ABH
            reward_AB = -forecast_error(tried_ABH, first.truth_BH)
            turns.append(Turn(readings, tried_ABH, mean_ABH, reward_AB))
        return turns

    def _train_policy(self, turns: Sequence[Turn]) -> float:
        """Add the gradient of policy and value in all turns; return the policy's loss."""
        rewards_TAB = torch.stack([turn.reward_AB for turn in turns])
        # Rewards of all turns are needed first, as early forecasts led to the later ones.
        returns_TAB = debate.discount_rewards(rewards_TAB, self.config.debate.discount)

        lambda_pg = self.config.objective.lambda_pg
        total = 0.0
        for turn, return_AB in zip(turns, returns_TAB, strict=True):
            values = []
            for agent in self._agents:
                # The value learns from the return; the advantage uses it as it was before.
                value_1B = self.executor.judge(VALUE, turn.readings[agent], agents=agent)
                loss = (value_1B - return_AB[agent]).square().mean()
                require_finite("the value's loss", loss)
                (lambda_pg * self.config.debate.value_weight * loss).backward()
                values.append(value_1B.detach())

            advantage_AB = debate.standardise_advantages(return_AB, torch.cat(values))
            for agent in self._agents:
                # Without dropout, as the forecasts were drawn without it.
                mean_1BH = self.executor.forecast(
                    turn.readings[agent], train=True, drops_units=False, agents=agent
                ).values_ABH
                # There is one draw for each window: windows are the samples, of one "token" each.
                tried_1BH = turn.tried_ABH[agent]
                deviation = self.config.debate.exploration
                logp_1B1 = debate.log_density(tried_1BH, mean_1BH, deviation)[..., None]
                require_finite("L_pg", logp_1B1.sum())
                loss = policy_loss(
                    logp_1B1,
                    debate.log_density(tried_1BH, turn.mean_ABH[agent], deviation)[..., None],
                    logp_1B1.detach(),  # no reference: its KL is zero
                    advantage_AB[agent],
                    torch.ones_like(logp_1B1),
                    clip_range=self.config.grpo.clip_range,
                    kl_coefficient=0.0,
                ).loss
                (lambda_pg * loss).backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
        return total / (len(turns) * len(self._agents))


def count_saved_bytes(read: Callable[[], object], weights: Iterable[Tensor]) -> int:
    """Return the bytes that autograd keeps of what ``read`` computes, except ``weights``."""
    held = {weight.untyped_storage().data_ptr() for weight in weights}
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    # The graph must live until all is counted, so that no two of its tensors share an address.
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        graph = read()
    del graph
    return sum(saved.values())


def stack_truths(examples: Sequence[ForecastExample], device: torch.device) -> Tensor:
    """Return the scaled targets (B, H) of examples, NaN where missing."""
    truths = [example.truth_H for example in examples if example.truth_H is not None]
    return torch.tensor(np.stack(truths), dtype=torch.float32, device=device)
