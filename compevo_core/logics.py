"""Writing the agents' next logics: candidate, fusion, soft prompt, sampling, log-probabilities (paper 4.3).

What belongs here: everything between what an agent observes and the G logic texts it samples.
What does not: scoring them (``strategy``), the policy loss (``grpo``), the fusion's algebra (``evolution``).
Where processes share the agents, each writes for its own and tells the others their candidates' states.
Legend: A agents, G samples of an agent, T tokens, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from compevo_core.answers import stop_tokens
from compevo_core.config import RunConfig
from compevo_core.evolution import StrategyFusion
from compevo_core.exchange import Exchange
from compevo_core.grpo import token_logp
from compevo_core.population import LOGIC, Population, Prefix, pad_rows
from compevo_core.prompts import PeerReport, clean_logic, logic_prompt


@dataclasses.dataclass(frozen=True)
class Observation:
    """o_i: what every agent knows when it writes its next logic (Eq. 2)."""

    logics: list[str]
    rewards: list[float]
    peers: list[list[int]]


@dataclasses.dataclass
class Proposal:
    """One round's candidates and sampled logics, with the gradient paths the losses need.

    ``candidate_AD`` and ``soft_AD`` are of all agents, everything else of this process's own.
    """

    candidates: list[str]
    candidate_AD: Tensor
    texts: list[list[str]]
    ids_RT: Tensor
    mask_RT: Tensor
    prompt_ids: Tensor
    prompt_mask: Tensor
    soft_AD: Tensor | None
    empty: int


class LogicWriter:
    """Generates logics for all of a process's agents at once."""

    def __init__(self, config: RunConfig, population: Population, fusion: StrategyFusion, exchange: Exchange) -> None:
        self.config, self.population, self.fusion, self.exchange = config, population, fusion, exchange
        self._stop = stop_tokens(population.backbone.tokenizer)

    def propose(self, seen: Observation, previous_AD: Tensor, generators: Sequence[torch.Generator]) -> Proposal:
        """Stage one to three and G samples per agent; texts are cleaned, empty ones fall back to the old logic.

        ``generators`` are one for each own agent.
        """
        ids, mask = self._prompts(seen)
        candidates, spans, empty = self._candidates(ids, mask, seen, generators)
        candidate_AD = self.exchange.join(self.encode(spans), "states")
        soft = None
        if self.config.evolution.update == "three-stage":
            soft = self.fusion.soft_prompt(self.fusion(candidate_AD, previous_AD))
        size = self.config.grpo.group_size
        with self.population.using(LOGIC), torch.no_grad():
            own_soft = None if soft is None else self.exchange.of_own(soft)
            samples, sample_mask = self._sample(self._read(ids, mask, own_soft).repeat(size), generators)
        texts: list[list[str]] = []
        for row, fallback in enumerate(self.exchange.of_own(seen.logics)):
            group = [self._text(samples[r], sample_mask[r], fallback) for r in range(row * size, (row + 1) * size)]
            texts.append([text for text, _ in group])
            empty += sum(was_empty for _, was_empty in group)
        return Proposal(candidates, candidate_AD, texts, samples, sample_mask, ids, mask, soft, empty)

    def routing(self, agents: slice) -> AbstractContextManager[None]:
        """Logic adapters of some of the own agents."""
        return self.population.using(LOGIC, agents=agents)

    def logp(self, proposal: Proposal, agents: slice, soft_AD: Tensor | None) -> Tensor:
        """Log-probabilities of some agents' sampled tokens under the current policy, (A, G, T), with gradient.

        Call it inside :meth:`routing` of the same agents; ``soft_AD`` holds all own agents' soft prompts.
        """
        prefix = self._read(proposal.prompt_ids[agents], proposal.prompt_mask[agents],
                            None if soft_AD is None else soft_AD[agents])
        size = self.config.grpo.group_size
        rows = slice(agents.start * size, agents.stop * size)
        return self._score(prefix, proposal.ids_RT[rows], proposal.mask_RT[rows])

    @torch.no_grad()
    def reference_logp(self, proposal: Proposal) -> Tensor:
        """The same for all own agents under the frozen reference: no adapters, the neutral soft prompt; (A, G, T)."""
        soft = None if proposal.soft_AD is None else self.fusion.neutral_D.expand(len(self.exchange.own), -1)
        with self.population.using(None):
            prefix = self._read(proposal.prompt_ids, proposal.prompt_mask, soft)
            return self._score(prefix, proposal.ids_RT, proposal.mask_RT)

    def encode(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logic representation: last-layer state at the final token under the agent's logic adapter, (A, D)."""
        backbone = self.population.backbone
        ids, mask = pad_rows(rows, backbone.tokenizer.pad_token_id, left=True, device=backbone.device)
        with self.population.using(LOGIC):
            return self.population.hidden(self.population.embed(ids), mask)[0][:, -1]

    @torch.no_grad()
    def encode_texts(self, logics: Sequence[str]) -> Tensor:
        """Representations (A, D) of all agents' given logics without gradient; the start of h-bar before round 1."""
        own = self.encode([self._tokens(text) for text in self.exchange.of_own(logics)])
        return self.exchange.join(own, "states")

    def _prompts(self, seen: Observation) -> tuple[Tensor, Tensor]:
        backbone, rows = self.population.backbone, []
        for agent in self.exchange.own:
            logic = seen.logics[agent]
            peers = [PeerReport(p, seen.rewards[p], seen.logics[p]) for p in seen.peers[agent]]
            text = logic_prompt(agent, logic, seen.rewards[agent], peers, tokenizer=backbone.tokenizer,
                                paraphrased=self.config.evolution.instruction == "paraphrased")
            rows.append(self._tokens(text)[-self.config.backbone.context_tokens:])
        return pad_rows(rows, backbone.tokenizer.pad_token_id, left=True, device=backbone.device)

    def _tokens(self, text: str) -> list[int]:
        tokenizer = self.population.backbone.tokenizer
        ids = list(tokenizer(text, add_special_tokens=True)["input_ids"])
        return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id and len(ids) > 1 else ids

    @torch.no_grad()
    def _candidates(self, ids: Tensor, mask: Tensor, seen: Observation,
                    generators: Sequence[torch.Generator]) -> tuple[list[str], list[list[int]], int]:
        with self.population.using(LOGIC):
            samples, kept = self._sample(self._read(ids, mask, None), generators)
        texts = [self._text(samples[i], kept[i], old) for i, old in enumerate(self.exchange.of_own(seen.logics))]
        return [t for t, _ in texts], [self._tokens(t) for t, _ in texts], sum(e for _, e in texts)

    def _sample(self, prefix: Prefix, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
        evolution = self.config.evolution
        return self.population.sample(prefix, tokens=evolution.logic_tokens, temperature=evolution.temperature,
                                      stop=self._stop, generators=generators)

    def _text(self, ids: Tensor, mask: Tensor, fallback: str) -> tuple[str, bool]:
        text = self.population.backbone.tokenizer.decode(ids[mask.bool()].tolist(), skip_special_tokens=True)
        return clean_logic(text, fallback)

    def _read(self, ids: Tensor, mask: Tensor, soft_AD: Tensor | None) -> Prefix:
        embeds = self.population.embed(ids)
        if soft_AD is None:
            return self.population.read(embeds, mask)
        wide = torch.cat([embeds[:, :1], embeds], dim=1)
        grown = torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1)
        first = grown.argmax(dim=1) - 1  # the padding slot right before the first real token
        here = torch.nn.functional.one_hot(first, grown.shape[1])
        wide = torch.where(here[..., None].bool(), soft_AD[:, None].to(wide.dtype), wide)
        return self.population.read(wide, grown + here)

    def _score(self, prefix: Prefix, ids_RT: Tensor, mask_RT: Tensor) -> Tensor:
        size = self.config.grpo.group_size
        states = prefix.last_RD.repeat_interleave(size, 0)[:, None]
        if ids_RT.shape[1] > 1:
            later = self.population.continue_from(prefix.repeat(size), ids_RT[:, :-1], mask_RT[:, :-1])
            states = torch.cat([states, later], dim=1)
        logp = token_logp(self.population.logits(states), ids_RT, self.config.evolution.temperature)
        return logp.reshape(-1, size, ids_RT.shape[1])


def agent_generators(seed: int, agents: Sequence[int], device: torch.device) -> list[torch.Generator]:
    """The sampling generator of each agent: its noise is its own, whoever shares its batch or its process."""
    return [torch.Generator(device=device).manual_seed(int(np.random.default_rng([seed, 1, agent]).integers(2**63)))
            for agent in agents]
