"""Write the agents' next logics: candidate, fusion, soft prompt, samples (paper 4.3, Eq. 8).

What belongs here: the G logics that an agent samples by its own adapters, and their
log-probabilities. What does not: its prompt (``agents.observation``), HTTP and keys of an endpoint
(the pipeline), the policy loss (``agents.objective``).

Each process writes for its local agents; only the candidates' states are gathered.

Shapes: A agents (all or the local ones, see each docstring), G samples of an agent, T tokens,
L packed length, D hidden, N sampled tokens of all agents.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.agents import prompts
from compevo_core.agents.decoders import LOGIC
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.logics import SlotDraws, clean_logic
from compevo_core.agents.observation import fit_logic_prompt
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.lm.grammar import SlotGrammar, restricted_token_logp, sample_under_grammar
from compevo_core.lm.model_sources import ENDPOINT, Transport, read_content
from compevo_core.lora import Batch, Population, PromptGroup, SamplingSettings
from compevo_core.lora.attention import PrefillCache
from compevo_core.runtime.distributed import AgentShards

Generators = Sequence[torch.Generator]
"""One for each local agent, which its logics are sampled from."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One round's candidates and sampled logics, with the gradient paths that the losses need."""

    candidates: list[str]
    candidate_AD: Tensor  # representations of all agents (Eq. 8); local rows carry gradient
    group_logics: list[list[str]]  # the G sampled logics of each local agent, cleaned
    ids_AGT: Tensor
    # 1 where a token is part of a logic, the token that ends it included; 0 after the first line
    # and in an empty sample, as these tokens earned nothing
    mask_AGT: Tensor
    # Whether the policy did not write the logic: the sample contained none and was replaced by the
    # agent's present one (decision 05-logics), or it was drawn by chance. Its advantage is 0
    is_empty_AG: Tensor
    prompt_ids: list[list[int]]
    # The soft prompts of all agents; None in the ablation without fusion
    soft_prompt_AD: Tensor | None = None
    n_empty: int = 0  # drafts and samples that contained no logic and were replaced
    n_cut: int = 0  # logic-update prompts that were too long and lost news, history or peers


class LogicWriter:
    """Write logics for all local agents at once.

    Nothing here uses dropout, which the policy ratio would mistake for a change of the policy.
    Logics with slots are sampled and scored under a grammar with the regions of ``entities``.
    ``adapters`` is the kind of adapters that writes; None is the frozen backbone.
    """

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        fusion: StrategyFusion | None,
        shards: AgentShards,
        entities: Sequence[str] = (),
        *,
        adapters: str | None = LOGIC,
    ) -> None:
        self.config = config
        self.population = population
        self.fusion = fusion
        self.shards = shards
        self._adapters = adapters

        self._tokenizer = population.backbone.tokenizer
        self._stop_ids = prompts.list_stop_tokens(self._tokenizer)
        self._grammar: SlotGrammar | None = None
        self._draws: SlotDraws | None = None
        if config.evolution.form == "slots":
            self._draws = SlotDraws(config, entities)
            # One end token: the policy would otherwise be taught a meaningless choice of two.
            self._grammar = SlotGrammar(self._draws.slots, self._tokenizer, self._stop_ids[:1])

    def propose(
        self, observed: Sequence[prompts.Observation], previous_AD: Tensor, generators: Generators
    ) -> Proposal:
        """Run the three-stage update and sample G logics for each local agent; all are observed."""
        local: list[prompts.Observation] = self.shards.local(observed)
        fitted = [fit_logic_prompt(seen, self.config, self._tokenizer) for seen in local]
        prompt_ids = [ids for ids, _ in fitted]
        fallbacks = [seen.logic for seen in local]

        # Stage 1: each agent's own idea, drawn before the others' states enter (Eq. 8).
        read = self._read_prompts(prompt_ids, None)
        draft_AGT, draft_mask_AGT = self._sample(read, 1, generators)
        drafts, is_empty_draft_AG = self._decode_groups(draft_AGT, draft_mask_AGT, fallbacks)
        candidates = [group[0] for group in drafts]
        candidate_AD = self.encode(candidates)

        # Stages 2 and 3: opponent context and gates, then one soft-prompt embedding (Eq. 9 to 13).
        soft_prompt_AD = None
        if self.fusion is not None and self.config.evolution.update == "three-stage":
            soft_prompt_AD = self.fusion.soft_prompt(self.fusion(candidate_AD, previous_AD))

        # Without a soft prompt, samples start from the same prompts as the drafts.
        if soft_prompt_AD is not None:
            del read  # two caches at once would be the peak of the round's memory
            read = self._read_prompts(prompt_ids, self.shards.local(soft_prompt_AD))
        size = self.config.grpo.group_size
        n_flat = round(self.config.evolution.flat_share * size)
        ids_AGT, mask_AGT = self._sample(read, size - n_flat, generators)
        group_logics, is_empty_AG = self._decode_groups(ids_AGT, mask_AGT, fallbacks)

        # Logics drawn by chance come last; no token of them was sampled, so none is credited.
        flat = self._draw(n_flat, local, generators)
        group_logics = [
            [*written, *drawn] for written, drawn in zip(group_logics, flat, strict=True)
        ]
        n_empty = int(is_empty_draft_AG.sum() + is_empty_AG.sum())
        no_policy_AG = torch.nn.functional.pad(is_empty_AG, (0, n_flat), value=True)
        mask_AGT = mask_AGT.masked_fill(is_empty_AG[..., None], 0)

        return Proposal(
            candidates=candidates,
            candidate_AD=candidate_AD,
            group_logics=group_logics,
            ids_AGT=torch.nn.functional.pad(ids_AGT, (0, 0, 0, n_flat)),
            mask_AGT=torch.nn.functional.pad(mask_AGT, (0, 0, 0, n_flat)),
            is_empty_AG=no_policy_AG,
            prompt_ids=prompt_ids,
            soft_prompt_AD=soft_prompt_AD,
            n_empty=n_empty,
            n_cut=sum(was_cut for _, was_cut in fitted),
        )

    def logp(self, proposal: Proposal, agents: slice, soft_prompt_AD: Tensor | None) -> Tensor:
        """Return log-probabilities (A, G, T) of sampled tokens under the current policy.

        With gradient, 0 where masked, of some of the local agents; soft prompts cover all of these.
        """
        local_soft_AD = None if soft_prompt_AD is None else soft_prompt_AD[agents]

        with self.population.use_adapters(self._adapters, rows=agents):
            return self._score(
                proposal.prompt_ids[agents],
                proposal.ids_AGT[agents],
                proposal.mask_AGT[agents],
                local_soft_AD,
            )

    @torch.no_grad()
    def reference_logp(self, proposal: Proposal) -> Tensor:
        """Return log-probabilities (A, G, T) under the reference of the KL term, zero where masked.

        It is the frozen backbone after the neutral soft prompt (decision 04-policy).
        """
        neutral_AD = None
        if self.fusion is not None and proposal.soft_prompt_AD is not None:
            neutral_AD = self.fusion.neutral_D.expand(len(self.shards.local_agents), -1)

        with self.population.use_adapters(None):
            return self._score(proposal.prompt_ids, proposal.ids_AGT, proposal.mask_AGT, neutral_AD)

    def encode(self, local_logics: Sequence[str]) -> Tensor:
        """Return logic representations of all agents (A, D), where local rows carry gradient.

        They are the last-layer states at the final token (4.3).
        """
        groups = [
            [PromptGroup(prompts.tokenize_prompt(self._tokenizer, text))] for text in local_logics
        ]
        with self.population.use_adapters(self._adapters):
            local_AD = self.population.read_out(self.population.pack(groups))[:, 0, 0]
        gathered_AD: Tensor = self.shards.all_gather(local_AD, "states")
        return gathered_AD

    @torch.no_grad()
    def encode_logics(self, logics: Sequence[str]) -> Tensor:
        """Return representations (A, D) of all agents' logics; the previous states of round 0."""
        return self.encode(self.shards.local(logics))

    def _propose_texts(self, read: Sequence[Sequence[tuple[str, bool]]]) -> Proposal:
        """Return a proposal of texts that no policy sampled, with whether each is a fallback."""
        groups, is_empty_AG = _split_groups(read, self.population.backbone.device)
        candidates = [group[0] for group in groups]
        no_tokens_AGT = torch.zeros(*is_empty_AG.shape, 0, dtype=torch.long)
        return Proposal(
            candidates=candidates,
            candidate_AD=self.encode(candidates),
            group_logics=groups,
            ids_AGT=no_tokens_AGT,
            mask_AGT=no_tokens_AGT,
            is_empty_AG=is_empty_AG,
            prompt_ids=[[] for _ in groups],
            n_empty=int(is_empty_AG.sum()),
        )

    def _draw(
        self, count: int, local: Sequence[prompts.Observation], generators: Generators
    ) -> list[list[str]]:
        """Draw sentences for each local agent by chance."""
        if self._draws is None:
            return [[] for _ in local]
        return [
            self._draws.draw(count, seen.logic, [logic for _, _, logic in seen.peers], generator)
            for seen, generator in zip(local, generators, strict=True)
        ]

    @torch.no_grad()
    def _read_prompts(
        self, prompt_ids: Sequence[Sequence[int]], soft_prompt_AD: Tensor | None
    ) -> PrefillCache:
        """Read the prompts of the local agents, after which logics are sampled."""
        packed, embeds_ALD = self._pack(prompt_ids, soft_prompt_AD)
        with self.population.use_adapters(self._adapters):
            return self.population.prefill(packed, embeds_ALD)

    @torch.no_grad()
    def _sample(
        self, read: PrefillCache, samples: int, generators: Generators
    ) -> tuple[Tensor, Tensor]:
        """Sample logics for every local agent: ids, and mask of the first lines, (A, G, T)."""
        evolution, grammar = self.config.evolution, self._grammar
        settings = SamplingSettings(
            samples=samples,
            # A sentence with slots always ends by itself.
            max_new_tokens=grammar.max_tokens if grammar else evolution.max_new_tokens,
            temperature=evolution.temperature,
            stop_tokens=self._stop_ids,
            pad_token=self.population.backbone.pad_token_id,
            generators=generators,
        )
        with self.population.use_adapters(self._adapters):
            ids_AGT, mask_AGT = (
                sample_under_grammar(self.population, read, grammar, settings)
                if grammar
                else self.population.sample(read, settings)
            )

        # Nothing after the first line becomes part of a logic.
        ended_AGT = mask_AGT.clone()
        for ids_T, mask_T in zip(ids_AGT.flatten(0, 1), ended_AGT.flatten(0, 1), strict=True):
            mask_T[prompts.count_first_line(self._tokenizer, ids_T[mask_T.bool()].tolist()) :] = 0
        return ids_AGT, ended_AGT

    def _decode_groups(
        self, ids_AGT: Tensor, mask_AGT: Tensor, fallbacks: Sequence[str]
    ) -> tuple[list[list[str]], Tensor]:
        """Return the logics of each agent's samples, and which samples are its fallback, (A, G)."""
        groups: list[list[tuple[str, bool]]] = []
        for ids_GT, mask_GT, fallback in zip(ids_AGT, mask_AGT, fallbacks, strict=True):
            groups.append([])
            for ids_T, mask_T in zip(ids_GT, mask_GT, strict=True):
                ids = ids_T[mask_T.bool()].tolist()
                text = self._tokenizer.decode(ids, skip_special_tokens=True)
                if self._grammar is not None:
                    groups[-1].append((text.strip(), False))
                    continue

                has_ended = ids[-1] == self._tokenizer.eos_token_id or "\n" in text
                groups[-1].append(clean_logic(text, fallback, was_cut=not has_ended))
        return _split_groups(groups, ids_AGT.device)

    def _pack(
        self,
        prompt_ids: Sequence[Sequence[int]],
        soft_prompt_AD: Tensor | None,
        suffixes: Sequence[Sequence[Sequence[int]]] = (),
    ) -> tuple[Batch, Tensor]:
        """Pack each agent's prompts after its soft prompt; return also the embeddings (A, L, D)."""
        soft_ids = [] if soft_prompt_AD is None else [self.population.soft_token_id(0)]
        rows = zip(prompt_ids, suffixes or [()] * len(prompt_ids), strict=True)
        packed = self.population.pack([[PromptGroup([*soft_ids, *ids], of)] for ids, of in rows])
        soft_A1D = None if soft_prompt_AD is None else soft_prompt_AD[:, None]
        return packed, self.population.embed(packed.ids_AL, soft_A1D)

    def _score(
        self,
        prompt_ids: Sequence[Sequence[int]],
        ids_AGT: Tensor,
        mask_AGT: Tensor,
        soft_prompt_AD: Tensor | None,
    ) -> Tensor:
        """Return the log-probability of every sampled token, (A, G, T), at T_gen as in sampling."""
        sampled = [
            [ids_T[mask_T.bool()].tolist() for ids_T, mask_T in zip(*group, strict=True)]
            for group in zip(ids_AGT, mask_AGT, strict=True)
        ]

        # The last token of a sample is predicted but never read.
        read = [[ids[:-1] for ids in samples] for samples in sampled]
        packed, embeds_ALD = self._pack(prompt_ids, soft_prompt_AD, read)
        states_ALD = self.population.hidden_states(packed, embeds_ALD)

        # The state at a token scores the token after it: the last len(ids) states of each prompt.
        scored: list[int] = []
        for rows, samples in zip(packed.prompts, sampled, strict=True):
            for places, ids in zip(rows, samples, strict=True):
                scored += places[len(places) - len(ids) :]
        states_ND = states_ALD.flatten(0, 1).index_select(
            0, torch.tensor(scored, dtype=torch.long, device=states_ALD.device)
        )

        is_sampled_AGT = mask_AGT.bool()
        ids_N, temperature = ids_AGT[is_sampled_AGT], self.config.evolution.temperature
        if self._grammar is None:
            logp_N = self.population.token_logp(states_ND, ids_N, temperature)
        else:
            allowed = [
                self._grammar.allowed(tuple(ids[:place]))
                for samples in sampled
                for ids in samples
                for place in range(len(ids))
            ]
            logp_N = restricted_token_logp(self.population, states_ND, ids_N, allowed, temperature)
        return torch.zeros_like(mask_AGT, dtype=logp_N.dtype).masked_scatter(is_sampled_AGT, logp_N)


class FlatWriter(LogicWriter):
    """Fill the slots of a sentence by chance: the plain search that a policy must beat."""

    @torch.no_grad()
    def propose(
        self, observed: Sequence[prompts.Observation], previous_AD: Tensor, generators: Generators
    ) -> Proposal:
        """Draw G sentences for each local agent."""
        del previous_AD

        local = self.shards.local(observed)
        groups = self._draw(self.config.grpo.group_size, local, generators)
        return self._propose_texts([[(logic, False) for logic in group] for group in groups])


class EndpointWriter(LogicWriter):
    """Ask an OpenAI-compatible chat endpoint for mutated logics: MAE-GPT's selector (paper D.4).

    Source: EvoAgent (Yuan et al., 2025), which mutates and crosses over the prompts of agents and
    keeps the fittest. Here a prompt is an agent's logic, the task is worded as the full method's
    (paper G), and the fittest has the lowest error on train windows (decision 14-systems).

    An endpoint has its own seed, so a repeated run may get other logics; a resumed run has them in
    its checkpoint. ConfigError without a transport.
    """

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        shards: AgentShards,
        transport: Transport | None,
    ) -> None:
        super().__init__(config, population, None, shards, adapters=None)
        if transport is None:
            raise ConfigError(
                f"evolution.selector = {config.evolution.selector!r} needs an endpoint: pass "
                "selector=..., or on the command line set COMPEVO_JUDGE_URL"
            )
        self._model = config.evolution.selector.removeprefix(ENDPOINT)
        self._transport = transport

    @torch.no_grad()
    def propose(
        self, observed: Sequence[prompts.Observation], previous_AD: Tensor, generators: Generators
    ) -> Proposal:
        """Ask for G children of each local agent's logic, one request per child."""
        del previous_AD, generators

        evolution = self.config.evolution
        is_paraphrased = evolution.instruction == "paraphrased"
        read = []
        for seen in self.shards.local(observed):
            body = {
                "model": self._model,
                "temperature": evolution.temperature,
                "max_tokens": evolution.max_new_tokens,
                "messages": prompts.build_logic_messages(seen, paraphrased=is_paraphrased),
            }
            children = []
            for _ in range(self.config.grpo.group_size):
                text = read_content(self._transport(body), self._model, DataError)
                # A refusal comes as null; the parent replaces it.
                children.append(clean_logic(text if isinstance(text, str) else "", seen.logic))
            read.append(children)
        return self._propose_texts(read)


def _split_groups(
    read: Sequence[Sequence[tuple[str, bool]]], device: torch.device
) -> tuple[list[list[str]], Tensor]:
    """Return the logics of each agent's samples, and which samples contained none, (A, G)."""
    is_empty_AG = torch.tensor([[is_empty for _, is_empty in group] for group in read])
    return [[logic for logic, _ in group] for group in read], is_empty_AG.to(device)
