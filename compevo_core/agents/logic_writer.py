"""Write the agents' next logics: candidate, fusion, soft prompt, samples (paper 4.3, Eq. 2 and 8).

What belongs here: what agents observe, the prompt that holds it, the G logic texts that an agent
samples, by its own adapters, here or at a server, or by a frozen model behind an endpoint, and
their log-probabilities. What does not: scoring them (``agents.strategy``), the policy loss
(``agents.objective``), the algebra of the fusion (``agents.fusion``), what counts as a logic
(``agents.logics``).

A prompt never exceeds ``backbone.context_length``. What does not fit is left out in this order: the
news that an agent read least, recent history, peers. The agent's own logic and reward, the
instruction and the cue always stay. Each process writes for its local agents; only the candidates'
states are gathered, which the opponent contexts need.

Shapes: A agents (all or the local ones, see each docstring), G samples of an agent, T tokens,
L packed length, D hidden, N sampled tokens of all agents.
"""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from compevo_core.agents.decoders import RetrievedArticle
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.logics import build_slots, clean_logic, cross_logics
from compevo_core.agents.prompts import (
    AgentObservation,
    Tokenizer,
    build_logic_messages,
    count_first_line,
    list_stop_tokens,
    render_logic_prompt,
    tokenize_prompt,
)
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, DataError, SourceRejected
from compevo_core.lm.adapters import LOGIC
from compevo_core.lm.attention import PrefillCache
from compevo_core.lm.chat_endpoint import ENDPOINT, SERVER, Server, Transport, read_content
from compevo_core.lm.grammar import SlotGrammar
from compevo_core.lm.packing import PackedPrompts, PromptGroup
from compevo_core.lm.peft_io import TENSOR_FILE, save_adapter
from compevo_core.lm.population import Population
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.files import hash_file, hash_text
from compevo_core.runtime.seeding import derive_seed

MOST_READ = 3  # titles that an agent sees when it rewrites its logic

_NAME_DIGITS = 12  # hex digits of a hash that set an adapter's name apart

# Named in every request, or a server takes those of the model's ``generation_config.json``.
_WHOLE_SOFTMAX = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

_Draw = Callable[[int], tuple[Tensor, Tensor]]
"""Samples so many logics of every local agent: ids and mask, (A, G, T)."""
_Ids = list[list[int]]  # token ids of an agent's samples


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the agents know when they write their next logics, o_i of Eq. 2."""

    logics: list[str]  # the logic each of A agents used in this round
    rewards: list[float]  # the reward of each agent in this round (Eq. 3)
    # For each agent, the agents whose logic and reward it sees (decision 03-rounds)
    peers: list[list[int]]
    # For each agent, the titles that it read most in the round, see :func:`list_most_read`; empty
    # if it must not see them. A process needs only the titles of its local agents
    headlines: Sequence[Sequence[str]] = ()
    recent: str = ""  # the history of the round's windows in words, see ``prompts.describe_recent``
    # For each agent, titles that it did not read and what they would have changed, see
    # ``unread_news``; empty if it shall not see them. Of the local agents alone
    unread: Sequence[Sequence[tuple[str, float]]] = ()
    round: int = 0  # its number, from 0; no agent sees it

    def of(self, agent: int) -> AgentObservation:
        """Return what one agent knows."""
        return AgentObservation(
            agent,
            self.logics[agent],
            self.rewards[agent],
            [(peer, self.rewards[peer], self.logics[peer]) for peer in self.peers[agent]],
            recent=self.recent,
            headlines=self.headlines[agent] if self.headlines else (),
            unread=self.unread[agent] if self.unread else (),
        )


def fit_logic_prompt(
    observation: Observation, agent: int, config: RunConfig, tokenizer: Tokenizer
) -> tuple[list[int], bool]:
    """Return the tokens of an agent's prompt, and whether news, history or peers were left out.

    ConfigError if own logic, own reward and instruction alone are too long.
    """
    # The soft prompt is read before the instruction.
    has_soft_prompt = config.evolution.update == "three-stage"
    limit = config.backbone.context_length - has_soft_prompt
    is_paraphrased = config.evolution.instruction == "paraphrased"

    for number, seen in enumerate(_drop_evidence(observation.of(agent))):
        text = render_logic_prompt(seen, paraphrased=is_paraphrased, tokenizer=tokenizer)
        ids = tokenize_prompt(tokenizer, text)
        if len(ids) <= limit:
            return ids, number > 0

    raise ConfigError(
        f"backbone.context_length = {config.backbone.context_length} is too short: the "
        f"logic-update prompt of agent {agent} needs {len(ids) + has_soft_prompt} tokens without "
        "news, history and peers; raise it"
    )


def list_most_read(news: Sequence[Sequence[RetrievedArticle]], count: int = MOST_READ) -> list[str]:
    """Return the titles that an agent read in most windows; of two, the better match first."""
    windows = Counter(article.title for articles in news for article in articles)
    best_rank: dict[str, int] = {}
    for articles in news:
        for rank, article in enumerate(articles):
            best_rank[article.title] = min(best_rank.get(article.title, rank), rank)

    return sorted(windows, key=lambda title: (-windows[title], best_rank[title]))[:count]


def _drop_evidence(seen: AgentObservation) -> Iterator[AgentObservation]:
    """Yield all that an agent knows, and then ever less of titles, history and peers."""
    for count in range(len(seen.headlines), 0, -1):
        yield dataclasses.replace(seen, headlines=seen.headlines[:count])
    for count in range(len(seen.unread), 0, -1):
        yield dataclasses.replace(seen, headlines=(), unread=seen.unread[:count])
    bare = dataclasses.replace(seen, headlines=(), unread=())
    if seen.recent:
        yield bare
    for count in range(len(seen.peers), -1, -1):
        yield dataclasses.replace(bare, recent="", peers=seen.peers[:count])


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One round's candidates and sampled logics, with the gradient paths that the losses need."""

    candidates: list[str]
    candidate_AD: Tensor  # representations of all agents (Eq. 8); local rows carry gradient
    group_logics: list[list[str]]  # the G sampled logics of each local agent, cleaned
    ids_AGT: Tensor
    # 1 where a token is part of a logic, the token that ends it included; 0 after the first line
    # and in an empty sample: no text was made of these, so no reward is theirs
    mask_AGT: Tensor
    # Whether the policy wrote no logic there: the sample held none and was replaced by the agent's
    # present one (decision 05-logics), or chance drew it. Its advantage is 0
    is_empty_AG: Tensor
    prompt_ids: list[list[int]]
    # The soft prompts of all agents; None in the ablation without fusion
    soft_prompt_AD: Tensor | None
    n_empty: int  # drafts and samples that held no logic and were replaced
    n_cut: int  # logic-update prompts that were too long and lost news, history or peers


class LogicWriter:
    """Write logics for all local agents at once.

    No method uses dropout: the policy ratio compares log-probabilities of one text under two
    policies, and dropout would add noise to it that no policy made.

    Args:
        config: the run's settings. Where ``evolution.form`` is "slots", a grammar restricts what is
            sampled, and log-probabilities are computed under it.
        entities: entities of the data set, for the regions of logics with slots.
        adapters: kind of the adapters that write; None is the frozen backbone.
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

        tokenizer = population.backbone.tokenizer
        self._stop_ids = list_stop_tokens(tokenizer)
        self._max_new_tokens = config.evolution.max_new_tokens
        self._grammar: SlotGrammar | None = None
        self._slots: list[list[str]] = []
        if config.evolution.form == "slots":
            self._slots = build_slots(
                entities,
                config.evolution.topics,
                selects=config.news.selects,
                top_k=config.news.top_k,
            )
            # One end: between two, a coin that means nothing would be taught with the logic.
            self._grammar = SlotGrammar(self._slots, tokenizer, self._stop_ids[:1])
            # A sentence with slots always ends by itself.
            self._max_new_tokens = self._grammar.max_tokens

    def propose(
        self,
        observation: Observation,
        previous_AD: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Proposal:
        """Run the three-stage update and sample G logics an agent."""
        prompts = [
            fit_logic_prompt(observation, agent, self.config, self.population.backbone.tokenizer)
            for agent in self.shards.local_agents
        ]
        prompt_ids = [ids for ids, _ in prompts]
        fallbacks: list[str] = self.shards.local(observation.logics)

        # Stage 1: each agent's own idea, drawn before the others' states enter (Eq. 8).
        draw = self._begin(prompt_ids, None, observation.round, generators)
        draft_AGT, draft_mask_AGT = draw(1)
        drafts, is_empty_draft_AG = self._decode_groups(draft_AGT, draft_mask_AGT, fallbacks)
        candidates = [group[0] for group in drafts]
        candidate_AD = self.shards.all_gather(
            self.encode([self._tokenize(text) for text in candidates]), "states"
        )

        # Stages 2 and 3: opponent context and gates, then one soft-prompt embedding (Eq. 9 to 13).
        soft_prompt_AD = None
        if self.fusion is not None and self.config.evolution.update == "three-stage":
            soft_prompt_AD = self.fusion.soft_prompt(self.fusion(candidate_AD, previous_AD))

        # Without a soft prompt, samples go on from what the drafts went on from.
        if soft_prompt_AD is not None:
            del draw  # what two of them have read would be the peak of the round
            soft_AD = self.shards.local(soft_prompt_AD)
            draw = self._begin(prompt_ids, soft_AD, observation.round, generators)
        size = self.config.grpo.group_size
        n_flat = round(self.config.evolution.flat_share * size)
        ids_AGT, mask_AGT = draw(size - n_flat)
        group_logics, is_empty_AG = self._decode_groups(ids_AGT, mask_AGT, fallbacks)

        # What chance drew stands last; no token of it was sampled, so none is credited.
        flat = self._draw(n_flat, observation, generators)
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
            n_cut=sum(was_cut for _, was_cut in prompts),
        )

    def logp(self, proposal: Proposal, agents: slice, soft_prompt_AD: Tensor | None) -> Tensor:
        """Return log-probabilities (A, G, T) of sampled tokens under the current policy.

        With gradient, and zero where masked. Some of the local agents at a time, because the
        activations of all groups might not fit in memory; the soft prompts cover all local agents.
        """
        local_soft_AD = None if soft_prompt_AD is None else soft_prompt_AD[agents]

        with self.population.use_adapters(self._adapters, agents=agents):
            return self._score(
                proposal.prompt_ids[agents],
                proposal.ids_AGT[agents],
                proposal.mask_AGT[agents],
                local_soft_AD,
            )

    @torch.no_grad()
    def reference_logp(self, proposal: Proposal) -> Tensor:
        """Return log-probabilities (A, G, T) under the reference of the KL term, zero where masked.

        It is the frozen backbone after the neutral soft prompt (decision 04-policy): the point that
        every agent's policy starts near.
        """
        neutral_AD = None
        if self.fusion is not None and proposal.soft_prompt_AD is not None:
            neutral_AD = self.fusion.neutral_D.expand(len(self.shards.local_agents), -1)

        with self.population.use_adapters(None):
            return self._score(proposal.prompt_ids, proposal.ids_AGT, proposal.mask_AGT, neutral_AD)

    def encode(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return logic representations: the last-layer state at the final token, (A, D).

        Each local agent reads its row under its own logic adapter (paper 4.3, "Textual logic
        interface").
        """
        packed = self.population.pack([[PromptGroup(row)] for row in rows])
        with self.population.use_adapters(self._adapters):
            return self.population.last_token_states(packed)[:, 0]

    @torch.no_grad()
    def encode_logics(self, logics: Sequence[str]) -> Tensor:
        """Return representations (A, D) of all agents' logics; the previous states of round 0."""
        local_AD = self.encode([self._tokenize(text) for text in self.shards.local(logics)])
        gathered_AD: Tensor = self.shards.all_gather(local_AD, "states")
        return gathered_AD

    def _propose_texts(self, read: Sequence[Sequence[tuple[str, bool]]]) -> Proposal:
        """Return a proposal of texts that no policy sampled, each with whether it held no logic."""
        groups, is_empty_AG = _split_groups(read, self.population.backbone.device)
        candidates = [group[0] for group in groups]
        candidate_AD = self.encode([self._tokenize(text) for text in candidates])

        no_tokens_AGT = torch.zeros(*is_empty_AG.shape, 0, dtype=torch.long)
        return Proposal(
            candidates=candidates,
            candidate_AD=self.shards.all_gather(candidate_AD, "states"),
            group_logics=groups,
            ids_AGT=no_tokens_AGT,
            mask_AGT=no_tokens_AGT,
            is_empty_AG=is_empty_AG,
            prompt_ids=[[] for _ in groups],
            soft_prompt_AD=None,
            n_empty=int(is_empty_AG.sum()),
            n_cut=0,
        )

    def _draw(
        self, count: int, observation: Observation, generators: Sequence[torch.Generator]
    ) -> list[list[str]]:
        """Draw sentences for each local agent, every text of a slot as likely as any other.

        The first of them are crossed with the agent's own logic and a peer's.
        """
        n_crossed = round(self.config.evolution.cross_share * count)
        groups = []
        for agent, generator in zip(self.shards.local_agents, generators, strict=True):
            choose = _chooser(generator)
            logic, peers = observation.logics[agent], observation.peers[agent]
            group = [self._fill_slots(generator) for _ in range(count)]
            for number in range(n_crossed):
                peer = [observation.logics[peers[choose(len(peers))]]] if peers else []
                group[number] = cross_logics([logic, *peer, group[number]], choose)
            groups.append(group)
        return groups

    def _fill_slots(self, generator: torch.Generator) -> str:
        sizes = torch.tensor([len(slot) for slot in self._slots], device=generator.device)
        share_S = torch.rand(len(sizes), generator=generator, device=generator.device)
        texts = zip(self._slots, (share_S * sizes).long().tolist(), strict=True)
        return "".join(slot[i] for slot, i in texts).strip()

    def _tokenize(self, text: str) -> list[int]:
        return tokenize_prompt(self.population.backbone.tokenizer, text)

    def _begin(
        self,
        prompt_ids: Sequence[Sequence[int]],
        soft_prompt_AD: Tensor | None,
        round_number: int,
        generators: Sequence[torch.Generator],
    ) -> _Draw:
        """Read the prompts of the local agents; return what samples after them."""
        del round_number  # the generators go on from round to round
        read = self._read_prompts(prompt_ids, soft_prompt_AD)
        return partial(self._sample, read, generators=generators)

    @torch.no_grad()
    def _read_prompts(
        self, prompt_ids: Sequence[Sequence[int]], soft_prompt_AD: Tensor | None
    ) -> PrefillCache:
        """Read the prompt of every local agent once, for all that is sampled after it."""
        packed, embeds_ALD = self._prepend_soft_prompt(
            [PromptGroup(row) for row in prompt_ids], soft_prompt_AD
        )
        with self.population.use_adapters(self._adapters):
            return self.population.prefill(packed, embeds_ALD)

    @torch.no_grad()
    def _sample(
        self, read: PrefillCache, samples: int, generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Sample logics of every local agent: ids, and mask of the first lines, (A, G, T)."""
        with self.population.use_adapters(self._adapters):
            ids_AGT, mask_AGT = self.population.sample(
                read,
                samples=samples,
                max_new_tokens=self._max_new_tokens,
                temperature=self.config.evolution.temperature,
                stop_tokens=self._stop_ids,
                generators=generators,
                grammar=self._grammar,
            )
        return ids_AGT, self._end_at_first_line(ids_AGT, mask_AGT)

    def _end_at_first_line(self, ids_AGT: Tensor, mask_AGT: Tensor) -> Tensor:
        """Mask what was sampled after the first line, which no logic is made of."""
        tokenizer = self.population.backbone.tokenizer
        ended_AGT = mask_AGT.clone()

        for ids_T, mask_T in zip(ids_AGT.flatten(0, 1), ended_AGT.flatten(0, 1), strict=True):
            mask_T[count_first_line(tokenizer, ids_T[mask_T.bool()].tolist()) :] = 0
        return ended_AGT

    def _decode_groups(
        self, ids_AGT: Tensor, mask_AGT: Tensor, fallbacks: Sequence[str]
    ) -> tuple[list[list[str]], Tensor]:
        """Return the logics of each agent's samples, and which samples held none, (A, G).

        An agent's fallback, its present logic, stands in for a sample without one.
        """
        return _split_groups(
            [
                [
                    self._read_logic(ids_T[mask_T.bool()].tolist(), fallback)
                    for ids_T, mask_T in zip(ids_GT, mask_GT, strict=True)
                ]
                for ids_GT, mask_GT, fallback in zip(ids_AGT, mask_AGT, fallbacks, strict=True)
            ],
            ids_AGT.device,
        )

    def _read_logic(self, ids: list[int], fallback: str) -> tuple[str, bool]:
        """Return the logic of one sample, and whether it is the fallback."""
        tokenizer = self.population.backbone.tokenizer
        text = tokenizer.decode(ids, skip_special_tokens=True)

        if self._grammar is not None:
            return text.strip(), False

        has_ended = ids[-1] == tokenizer.eos_token_id or "\n" in text
        return clean_logic(text, fallback, was_cut=not has_ended)

    def _prepend_soft_prompt(
        self, groups: Sequence[PromptGroup], soft_prompt_AD: Tensor | None
    ) -> tuple[PackedPrompts, Tensor]:
        """Pack one prompt group an agent after its soft prompt; return its embeddings (A, L, D)."""
        if soft_prompt_AD is None:
            packed = self.population.pack([[group] for group in groups])
            return packed, self.population.embed(packed.ids_AL)

        # A soft prompt has no token id: a placeholder holds its position, so that the packing, the
        # positions and the attention count it, and its embedding is put in the place afterwards.
        placeholder = self.population.backbone.tokenizer.pad_token_id
        packed = self.population.pack(
            [[PromptGroup([placeholder, *group.prefix], group.suffixes)] for group in groups]
        )
        embeds_ALD = self.population.embed(packed.ids_AL)
        soft_A1D = soft_prompt_AD[:, None].to(embeds_ALD.dtype)
        return packed, torch.cat([soft_A1D, embeds_ALD[:, 1:]], 1)

    def _score(
        self,
        prompt_ids: Sequence[Sequence[int]],
        ids_AGT: Tensor,
        mask_AGT: Tensor,
        soft_prompt_AD: Tensor | None,
    ) -> Tensor:
        """Return the log-probability of every sampled token, (A, G, T).

        The temperature is the one used in sampling: the ratio compares the policies that wrote.
        """
        sampled = [
            [ids_T[mask_T.bool()].tolist() for ids_T, mask_T in zip(*group, strict=True)]
            for group in zip(ids_AGT, mask_AGT, strict=True)
        ]

        # The last token of a sample is predicted but never read. An empty sample has no tokens.
        groups = [
            PromptGroup(prompt, [ids[:-1] for ids in samples])
            for prompt, samples in zip(prompt_ids, sampled, strict=True)
        ]
        packed, embeds_ALD = self._prepend_soft_prompt(groups, soft_prompt_AD)
        states_ALD = self.population.hidden_states(packed, embeds_ALD)

        # The state at a token scores the token after it: the last len(ids) states of each prompt.
        length = packed.ids_AL.shape[1]
        positions: list[int] = []
        for agent, samples in enumerate(sampled):
            for number, ids in enumerate(samples):
                indices = packed.token_indices(agent, number)
                positions += [agent * length + i for i in indices[len(indices) - len(ids) :]]
        states_ND = states_ALD.flatten(0, 1).index_select(
            0, torch.tensor(positions, dtype=torch.long, device=states_ALD.device)
        )

        is_sampled_AGT = mask_AGT.bool()
        logp_N = self.population.token_logp(
            states_ND,
            ids_AGT[is_sampled_AGT],
            self.config.evolution.temperature,
            self._list_allowed(sampled),
        )
        return torch.zeros_like(mask_AGT, dtype=logp_N.dtype).masked_scatter(is_sampled_AGT, logp_N)

    def _list_allowed(self, sampled: Sequence[Sequence[list[int]]]) -> list[Sequence[int]] | None:
        """Return what the grammar allowed in the place of each token; None without a grammar."""
        if self._grammar is None:
            return None
        return [
            self._grammar.allowed(tuple(ids[:place]))
            for samples in sampled
            for ids in samples
            for place in range(len(ids))
        ]


class ServerWriter(LogicWriter):
    """Let a server that holds the backbone sample the logics: vLLM's protocol (decision 12-engine).

    Before each rewriting the logic adapter of every local agent is saved in ``folder``, which the
    server sees under the same path, and loaded there under a new name. Rewards, log-probabilities
    and the update stay in this process. Seeds come from run, agent and round: a run that resumes
    asks the same.

    Raises:
        ConfigError: no server, one that has another model, or processes that split the backbone.
    """

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        fusion: StrategyFusion | None,
        shards: AgentShards,
        server: Server | None,
        folder: Path | None,
    ) -> None:
        super().__init__(config, population, fusion, shards)
        writer = config.evolution.writer
        if server is None or folder is None:
            raise ConfigError(
                f"evolution.writer = {writer!r} needs a server: pass server=..., or on the command "
                "line set COMPEVO_WRITER_URL"
            )
        if not shards.splits_agents:
            raise ConfigError(
                f"evolution.writer = {writer!r} would be asked by every process that splits the "
                "backbone, for all agents: leave --shard-backbone or the writer out"
            )
        self._server = server
        self._folder = folder.resolve()

        # Now, and not after the hours of a supervised stage.
        answer = server("models", None)
        try:
            names = [card["id"] for card in answer["data"]]
        except (KeyError, TypeError):
            names = []
        if writer.removeprefix(SERVER) not in names:
            raise ConfigError(
                f"evolution.writer = {writer!r}, and its server has the models {names}: serve the "
                "run's own backbone, and name it in the setting"
            )

    def _begin(
        self,
        prompt_ids: Sequence[Sequence[int]],
        soft_prompt_AD: Tensor | None,
        round_number: int,
        generators: Sequence[torch.Generator],
    ) -> _Draw:
        """Load the local agents' adapters; return what asks the server for samples."""
        del soft_prompt_AD, generators  # the settings allow none, and the server draws
        agents = self.shards.local_agents
        names = [self._load(agent, round_number) for agent in agents]

        def draw(samples: int) -> tuple[Tensor, Tensor]:
            seeds = [
                derive_seed(self.config.run.seed, "server", agent, round_number, samples)
                for agent in agents
            ]
            # At the same time: the server decodes the agents' samples in one batch.
            with ThreadPoolExecutor(len(names)) as pool:
                ask = partial(self._ask, samples)
                groups = list(pool.map(ask, names, prompt_ids, seeds))
            return self._stack(groups)

        return draw

    def _load(self, agent: int, round_number: int) -> str:
        """Save an agent's adapter and let the server load it; return the name that it has there."""
        tag = f"-agent-{agent:02d}-round-"
        part = self._folder / f"part-{agent:02d}"
        save_adapter(self.population, agent, LOGIC, part)
        # By content too: what a server has read of a prompt, it keeps by the adapter's name.
        content = hash_text(f"{part} {hash_file(part / TENSOR_FILE)}")[:_NAME_DIGITS]
        name = f"{self._folder.parent.name}{tag}{round_number:04d}-{content}"

        # The folders tell what was loaded before, by a process that was killed as well.
        for old in {*self._folder.glob(f"*{tag}*"), self._folder / name}:
            with suppress(SourceRejected):  # it has been restarted, or never got that far
                self._server("unload_lora_adapter", {"lora_name": old.name})
            shutil.rmtree(old, ignore_errors=True)

        folder = part.rename(self._folder / name)
        try:
            self._server("load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except SourceRejected as error:
            raise ConfigError(
                f"the server of evolution.writer does not load {folder} ({error}): it must see "
                f"this folder, take adapters of rank {self.population.config.rank}, and load them "
                "while it runs (VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora)"
            ) from error
        return name

    def _ask(self, samples: int, name: str, prompt_ids: Sequence[int], seed: int) -> _Ids:
        """Return the token ids of one agent's samples; DataError if the answer has none."""
        body = {
            "model": name,
            "prompt": list(prompt_ids),
            "n": samples,
            "max_tokens": self._max_new_tokens,
            "temperature": self.config.evolution.temperature,
            **_WHOLE_SOFTMAX,
            "seed": seed,
            "stop_token_ids": self._stop_ids,
            "return_token_ids": True,
        }
        answer = self._server("completions", body)

        size = self.population.vocabulary_size
        try:
            rows: _Ids = [choice["token_ids"] for choice in answer["choices"]]
            # To Python ``True`` is a number, and an id from ``size`` on would be a soft token.
            is_read = len(rows) == samples and all(
                0 < len(ids) <= self._max_new_tokens
                and all(type(i) is int and 0 <= i < size for i in ids)
                for ids in rows
            )
        except (KeyError, TypeError):
            is_read = False
        if not is_read:
            raise DataError(
                f"the server of evolution.writer answered {str(answer)[:200]} and not {samples} "
                f"choices with 1 to {self._max_new_tokens} token_ids below {size}: it must know "
                "return_token_ids, as vLLM does, and serve the run's own backbone"
            )
        return rows

    def _stack(self, groups: Sequence[_Ids]) -> tuple[Tensor, Tensor]:
        """Return ids and mask (A, G, T) of all samples, without what follows the first lines."""
        backbone = self.population.backbone
        pad = backbone.tokenizer.pad_token_id
        lengths_AG = torch.tensor([[len(ids) for ids in group] for group in groups])
        longest = int(lengths_AG.max())

        ids_AGT = torch.tensor(
            [[[*ids, *[pad] * (longest - len(ids))] for ids in group] for group in groups]
        ).to(backbone.device)
        mask_AGT = (torch.arange(longest) < lengths_AG[..., None]).long().to(backbone.device)
        return ids_AGT, self._end_at_first_line(ids_AGT, mask_AGT)


class EndpointWriter(LogicWriter):
    """Ask an OpenAI-compatible chat endpoint for mutated logics: MAE-GPT's selector (paper D.4).

    Source: EvoAgent (Yuan et al., 2025), which mutates and crosses over the prompts of agents with
    a language model and keeps the fittest; the paper adapts it with GPT-4o. What differs here: a
    prompt is an agent's logic; the task is worded as the full method's (paper G), with a few other
    agents' logics and rewards, so that a child may be a mutation or a cross; the fittest of parent
    and children is chosen by its error on train windows (``training.round``), where EvoAgent's
    model judges its own children; forecasts are averaged, where EvoAgent joins answers.

    Nothing here is trained. An endpoint draws with a seed of its own: a run that is repeated may
    get other logics. Those of a run that resumes are in its checkpoint.
    """

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        shards: AgentShards,
        transport: Transport,
    ) -> None:
        super().__init__(config, population, None, shards, adapters=None)
        self._model = config.evolution.selector.removeprefix(ENDPOINT)
        self._transport = transport

    @torch.no_grad()
    def propose(
        self,
        observation: Observation,
        previous_AD: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Proposal:
        """Ask for G children of each local agent's logic, one request a child."""
        del previous_AD, generators  # no state is fused, and the endpoint draws

        read = [
            [self._mutate(observation.of(agent)) for _ in range(self.config.grpo.group_size)]
            for agent in self.shards.local_agents
        ]
        return self._propose_texts(read)

    def _mutate(self, seen: AgentObservation) -> tuple[str, bool]:
        """Return a child of an agent's logic, and whether the answer held none."""
        evolution = self.config.evolution
        is_paraphrased = evolution.instruction == "paraphrased"
        answer = self._transport(
            {
                "model": self._model,
                "temperature": evolution.temperature,
                "max_tokens": evolution.max_new_tokens,
                "messages": build_logic_messages(seen, paraphrased=is_paraphrased),
            }
        )
        text = read_content(answer, self._model, DataError)
        # A refusal comes as null: it holds no logic, and the parent stands in for it.
        return clean_logic(text if isinstance(text, str) else "", seen.logic)


class FlatWriter(LogicWriter):
    """Fill the slots of a sentence by chance: plain search, which a policy must beat.

    Nothing here is trained.
    """

    @torch.no_grad()
    def propose(
        self,
        observation: Observation,
        previous_AD: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Proposal:
        """Draw G sentences for each local agent."""
        del previous_AD  # chance looks at no state

        groups = self._draw(self.config.grpo.group_size, observation, generators)
        return self._propose_texts([[(logic, False) for logic in group] for group in groups])


def build_mutation_writer(
    config: RunConfig,
    population: Population,
    shards: AgentShards,
    entities: Sequence[str],
    transport: Transport | None,
) -> LogicWriter:
    """Return what mutates logics: an endpoint, or the backbone without adapters.

    ConfigError if an endpoint is named, and no transport is given.
    """
    if not config.evolution.selector.startswith(ENDPOINT):
        return LogicWriter(config, population, None, shards, entities, adapters=None)
    if transport is None:
        raise ConfigError(
            f"evolution.selector = {config.evolution.selector!r} needs an endpoint: pass "
            "selector=..., or on the command line set COMPEVO_JUDGE_URL"
        )
    return EndpointWriter(config, population, shards, transport)


def _chooser(generator: torch.Generator) -> Callable[[int], int]:
    """Return what draws a number below the one that it is given."""

    def choose(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator, device=generator.device))

    return choose


def _split_groups(
    read: Sequence[Sequence[tuple[str, bool]]], device: torch.device
) -> tuple[list[list[str]], Tensor]:
    """Return the logics of each agent's samples, and which of the samples held none, (A, G)."""
    is_empty_AG = torch.tensor([[is_empty for _, is_empty in group] for group in read])
    return [[logic for logic, _ in group] for group in read], is_empty_AG.to(device)
