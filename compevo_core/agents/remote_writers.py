"""Logics written by a model elsewhere: a server with the agents' adapters, or a chat endpoint.

What belongs here: the requests, and reading the answers. What does not: HTTP, retries and keys (the
pipeline's transports), everything that both share with local sampling (``agents.logic_writer``).

Shapes: A agents, G samples of an agent, T tokens, D hidden.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from compevo_core.agents.decoders import LOGIC
from compevo_core.agents.logic_writer import Draw, LogicWriter, Proposal
from compevo_core.agents.logics import clean_logic
from compevo_core.agents.observation import Observation
from compevo_core.agents.prompts import AgentObservation, build_logic_messages
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, DataError, SourceRejected
from compevo_core.lm.model_sources import ENDPOINT, SERVER, Server, Transport, read_content
from compevo_core.lora.population import TENSOR_FILE, Population
from compevo_core.lora.sampling import stack_rows
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.files import hash_file, hash_text
from compevo_core.runtime.seeding import derive_seed

_NAME_DIGITS = 12  # hex digits of a hash that set an adapter's name apart

# Sent with every request: otherwise a server uses the model's ``generation_config.json``.
_WHOLE_SOFTMAX = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

_Ids = list[list[int]]  # token ids of an agent's samples


class ServerWriter(LogicWriter):
    """Let a server that holds the backbone sample the logics: vLLM's protocol (decision 12-engine).

    Before each rewriting the logic adapter of every local agent is saved in ``folder``, which the
    server sees under the same path, and loaded there under a new name. Rewards, log-probabilities
    and the update stay in this process. Seeds come from run, agent and round: a run that resumes
    asks the same. ConfigError for no server, one that has another model, or processes that split
    the backbone.
    """

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        shards: AgentShards,
        server: Server | None,
        folder: Path | None,
    ) -> None:
        super().__init__(config, population, None, shards)
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

    def begin(
        self,
        prompt_ids: Sequence[Sequence[int]],
        soft_prompt_AD: Tensor | None,
        round_number: int,
        generators: Sequence[torch.Generator],
    ) -> Draw:
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
            backbone = self.population.backbone
            rows = [ids for group in groups for ids in group]
            ids_AGT, mask_AGT = stack_rows(
                rows, len(groups), backbone.pad_token_id, backbone.device
            )
            return ids_AGT, self._end_at_first_line(ids_AGT, mask_AGT)

        return draw

    def _load(self, agent: int, round_number: int) -> str:
        """Save an agent's adapter and let the server load it; return the name that it has there."""
        tag = f"-agent-{agent:02d}-round-"
        part = self._folder / f"part-{agent:02d}"
        self.population.save_adapter(agent, LOGIC, part)
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
                f"this folder, take adapters of rank {self.population.shape.rank}, and load them "
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


class EndpointWriter(LogicWriter):
    """Ask an OpenAI-compatible chat endpoint for mutated logics: MAE-GPT's selector (paper D.4).

    Source: EvoAgent (Yuan et al., 2025), which mutates and crosses over the prompts of agents and
    keeps the fittest. Here a prompt is an agent's logic, the task is worded as the full method's
    (paper G), and the fittest has the lowest error on train windows (decision 14-systems).

    Nothing here is trained. An endpoint draws with a seed of its own: a run that is repeated may
    get other logics. Those of a run that resumes are in its checkpoint. ConfigError for no
    transport.
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
        self, observation: Observation, previous_AD: Tensor, generators: Sequence[torch.Generator]
    ) -> Proposal:
        """Ask for G children of each local agent's logic, one request per child."""
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
