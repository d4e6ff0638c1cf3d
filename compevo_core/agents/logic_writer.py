"""Writing the agents' next logics: candidate, fusion, soft prompt, sampling, log-probabilities (paper 4.3).

What belongs here: everything between what an agent observes and the G logic texts it samples.
What does not: scoring them (``strategy``), the policy loss (``grpo``), the fusion's algebra (``evolution``).
Where processes share the agents, each writes for its own and tells the others their candidates' states.
Legend: A agents, G samples of an agent, T tokens, L packed length, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import stop_tokens
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.prompts import PeerReport, clean_logic, logic_prompt
from compevo_core.config import RunConfig
from compevo_core.distributed import AgentShards
from compevo_core.lm.packing import PackedPrompts, PromptGroup
from compevo_core.lm.population import LOGIC, Population


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
    ids_AGT: Tensor
    mask_AGT: Tensor
    prompts: list[list[int]]
    soft_AD: Tensor | None
    empty: int


class LogicWriter:
    """Generates logics for all of a process's agents at once."""

    def __init__(
        self, config: RunConfig, population: Population, fusion: StrategyFusion, shards: AgentShards
    ) -> None:
        self.config, self.population, self.fusion, self.shards = config, population, fusion, shards
        self._stop = stop_tokens(population.backbone.tokenizer)

    def propose(
        self, seen: Observation, previous_AD: Tensor, generators: Sequence[torch.Generator]
    ) -> Proposal:
        """Stage one to three and G samples per agent; texts are cleaned, empty ones fall back to the old logic.

        ``generators`` are one for each own agent.
        """
        prompts, own_logics = self._prompts(seen), self.shards.local(seen.logics)
        first_AT, kept_AT = (x[:, 0] for x in self._sample(prompts, None, 1, generators))
        drafts = [self._text(first_AT[i], kept_AT[i], logic) for i, logic in enumerate(own_logics)]
        candidates, empty = [text for text, _ in drafts], sum(was_empty for _, was_empty in drafts)
        candidate_AD = self.shards.all_gather(
            self.encode([self._tokens(text) for text in candidates]), "states"
        )
        soft = None
        if self.config.evolution.update == "three-stage":
            soft = self.fusion.soft_prompt(self.fusion(candidate_AD, previous_AD))
        own_soft = None if soft is None else self.shards.local(soft)
        ids_AGT, mask_AGT = self._sample(prompts, own_soft, self.config.grpo.group_size, generators)
        texts: list[list[str]] = []
        for i, fallback in enumerate(own_logics):
            group = [
                self._text(ids, mask, fallback)
                for ids, mask in zip(ids_AGT[i], mask_AGT[i], strict=True)
            ]
            texts.append([text for text, _ in group])
            empty += sum(was_empty for _, was_empty in group)
        return Proposal(candidates, candidate_AD, texts, ids_AGT, mask_AGT, prompts, soft, empty)

    def routing(self, agents: slice) -> AbstractContextManager[None]:
        """Logic adapters of some of the own agents."""
        return self.population.using(LOGIC, agents=agents)

    def logp(self, proposal: Proposal, agents: slice, soft_AD: Tensor | None) -> Tensor:
        """Log-probabilities of some agents' sampled tokens under the current policy, (A, G, T), with gradient.

        Call it inside :meth:`routing` of the same agents; ``soft_AD`` holds all own agents' soft prompts. What is
        masked is zero.
        """
        soft = None if soft_AD is None else soft_AD[agents]
        return self._score(
            proposal.prompts[agents], proposal.ids_AGT[agents], proposal.mask_AGT[agents], soft
        )

    @torch.no_grad()
    def reference_logp(self, proposal: Proposal) -> Tensor:
        """The same for all own agents under the frozen reference: no adapters, the neutral soft prompt; (A, G, T)."""
        soft = (
            None
            if proposal.soft_AD is None
            else self.fusion.neutral_D.expand(len(self.shards.local_agents), -1)
        )
        with self.population.using(None):
            return self._score(proposal.prompts, proposal.ids_AGT, proposal.mask_AGT, soft)

    def encode(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logic representation: last-layer state at the final token under the agent's logic adapter, (A, D)."""
        packed = self.population.pack([[PromptGroup(row)] for row in rows])
        with self.population.using(LOGIC):
            return self.population.leaf_states(packed)[:, 0]

    @torch.no_grad()
    def encode_texts(self, logics: Sequence[str]) -> Tensor:
        """Representations (A, D) of all agents' given logics without gradient; the start of h-bar before round 1."""
        own = self.encode([self._tokens(text) for text in self.shards.local(logics)])
        return self.shards.all_gather(own, "states")

    def _prompts(self, seen: Observation) -> list[list[int]]:
        backbone, rows = self.population.backbone, []
        for agent in self.shards.local_agents:
            logic = seen.logics[agent]
            peers = [PeerReport(p, seen.rewards[p], seen.logics[p]) for p in seen.peers[agent]]
            text = logic_prompt(
                agent,
                logic,
                seen.rewards[agent],
                peers,
                tokenizer=backbone.tokenizer,
                paraphrased=self.config.evolution.instruction == "paraphrased",
            )
            rows.append(self._tokens(text)[-self.config.backbone.context_tokens :])
        return rows

    def _tokens(self, text: str) -> list[int]:
        tokenizer = self.population.backbone.tokenizer
        ids = list(tokenizer(text, add_special_tokens=True)["input_ids"])
        return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id and len(ids) > 1 else ids

    @torch.no_grad()
    def _sample(
        self,
        prompts: Sequence[Sequence[int]],
        soft_AD: Tensor | None,
        samples: int,
        generators: Sequence[torch.Generator],
    ) -> tuple[Tensor, Tensor]:
        evolution = self.config.evolution
        packed, embeds = self._behind([PromptGroup(prompt) for prompt in prompts], soft_AD)
        with self.population.using(LOGIC):
            return self.population.sample(
                self.population.read(packed, embeds),
                samples=samples,
                tokens=evolution.logic_tokens,
                temperature=evolution.temperature,
                stop=self._stop,
                generators=generators,
            )

    def _text(self, ids: Tensor, mask: Tensor, fallback: str) -> tuple[str, bool]:
        text = self.population.backbone.tokenizer.decode(
            ids[mask.bool()].tolist(), skip_special_tokens=True
        )
        return clean_logic(text, fallback)

    def _behind(
        self, trees: Sequence[PromptGroup], soft_AD: Tensor | None
    ) -> tuple[PackedPrompts, Tensor]:
        """One tree an agent behind its soft prompt, and the embeddings of all that (A, L, D)."""
        if soft_AD is None:
            packed = self.population.pack([[tree] for tree in trees])
            return packed, self.population.embed(packed.ids_AL)
        slot = self.population.backbone.tokenizer.pad_token_id
        packed = self.population.pack(
            [[PromptGroup([slot, *tree.stem], tree.branches)] for tree in trees]
        )
        embeds_ALD = self.population.embed(packed.ids_AL)
        return packed, torch.cat([soft_AD[:, None].to(embeds_ALD.dtype), embeds_ALD[:, 1:]], 1)

    def _score(
        self,
        prompts: Sequence[Sequence[int]],
        ids_AGT: Tensor,
        mask_AGT: Tensor,
        soft_AD: Tensor | None,
    ) -> Tensor:
        sampled = [
            [ids[mask.bool()].tolist() for ids, mask in zip(*group, strict=True)]
            for group in zip(ids_AGT, mask_AGT, strict=True)
        ]
        trees = [
            PromptGroup(prompt, [ids[:-1] for ids in group])
            for prompt, group in zip(prompts, sampled, strict=True)
        ]
        packed, embeds_ALD = self._behind(trees, soft_AD)
        states_ALD = self.population.states(packed, embeds_ALD)
        before = [
            agent * packed.ids_AL.shape[1] + place
            for agent, group in enumerate(sampled)
            for leaf, ids in enumerate(group)
            for place in packed.path(agent, leaf)[-len(ids) :]
        ]
        states_ND = states_ALD.flatten(0, 1).index_select(
            0, torch.tensor(before, device=states_ALD.device)
        )
        real_AGT = mask_AGT.bool()
        found = self.population.token_logp(
            states_ND, ids_AGT[real_AGT], self.config.evolution.temperature
        )
        return torch.zeros_like(mask_AGT, dtype=found.dtype).masked_scatter(real_AGT, found)


def agent_generators(
    seed: int, agents: Sequence[int], device: torch.device
) -> list[torch.Generator]:
    """The sampling generator of each agent: its noise is its own, whoever shares its batch or its process."""
    return [
        torch.Generator(device=device).manual_seed(
            int(np.random.default_rng([seed, 1, agent]).integers(2**63))
        )
        for agent in agents
    ]
