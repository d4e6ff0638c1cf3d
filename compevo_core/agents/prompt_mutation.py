"""Logics mutated by a frozen language model behind an endpoint: MAE-GPT's selector (paper D.4).

Source: EvoAgent (Yuan et al., 2025), which mutates and crosses over the prompts of agents with a
language model and keeps the fittest; the paper adapts it with GPT-4o. What differs here: a prompt
is an agent's logic; the task is worded as the full method's (paper G), which shows an agent's logic
and reward and those of a few others, so that a child may be a mutation or a cross; the fittest of
parent and children is chosen by the error of its forecasts on train windows, never by the model.
EvoAgent lets the model itself judge children, and joins their answers one after the other; here
forecasts are averaged, as in the ensemble without evolution.

What belongs here: asking the endpoint for children. What does not: HTTP (a transport is passed in),
scoring and choosing (``training.round``), the backbone itself as the model, which is
``agents.logic_writer`` without adapters.

Shapes: A agents (of this process), G children of an agent, D hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.agents.logic_writer import LogicWriter, Observation, Proposal
from compevo_core.agents.logics import clean_logic
from compevo_core.agents.prompts import PeerReport, build_logic_messages
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.lm.chat_endpoint import ENDPOINT, Transport, read_content
from compevo_core.lm.population import Population
from compevo_core.runtime.distributed import AgentShards


class EndpointWriter(LogicWriter):
    """Ask an OpenAI-compatible chat endpoint for the next logics; nothing here is trained.

    An endpoint draws with a seed of its own: a run that is repeated may get other logics. Those of
    a run that resumes are in its checkpoint.
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

    def propose(
        self,
        observation: Observation,
        previous_AD: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Proposal:
        """Ask for G children of each local agent's logic, one request a child."""
        del previous_AD, generators  # no state is fused, and the endpoint draws

        read = [
            [self._mutate(observation, agent) for _ in range(self.config.grpo.group_size)]
            for agent in self.shards.local_agents
        ]
        is_empty_AG = torch.tensor([[is_empty for _, is_empty in group] for group in read])
        groups = [[logic for logic, _ in group] for group in read]
        candidates = [group[0] for group in groups]
        with torch.no_grad():
            states_AD = self.encode([self._tokenize(text) for text in candidates])

        no_tokens_AGT = torch.zeros(*is_empty_AG.shape, 0, dtype=torch.long)
        return Proposal(
            candidates=candidates,
            candidate_AD=self.shards.all_gather(states_AD, "states"),
            group_logics=groups,
            ids_AGT=no_tokens_AGT,
            mask_AGT=no_tokens_AGT,
            is_empty_AG=is_empty_AG.to(states_AD.device),
            prompt_ids=[[] for _ in groups],
            soft_prompt_AD=None,
            n_empty=int(is_empty_AG.sum()),
            n_cut=0,
        )

    def _mutate(self, observation: Observation, agent: int) -> tuple[str, bool]:
        """Return a child of an agent's logic, and whether the answer held none."""
        logics, rewards = observation.logics, observation.rewards
        messages = build_logic_messages(
            agent,
            logics[agent],
            rewards[agent],
            [PeerReport(i, rewards[i], logics[i]) for i in observation.peers[agent]],
            recent=observation.recent,
            headlines=observation.headlines[agent] if observation.headlines else (),
            paraphrased=self.config.evolution.instruction == "paraphrased",
        )
        answer = self._transport(
            {
                "model": self._model,
                "temperature": self.config.evolution.temperature,
                "max_tokens": self.config.evolution.max_new_tokens,
                "messages": messages,
            }
        )
        text = read_content(answer, self._model, DataError)
        # A refusal comes as null: it holds no logic, and the parent stands in for it.
        return clean_logic(text if isinstance(text, str) else "", logics[agent])


def build_mutation_writer(
    config: RunConfig,
    population: Population,
    shards: AgentShards,
    entities: Sequence[str],
    transport: Transport | None,
) -> LogicWriter:
    """Return what mutates logics: an endpoint, or the backbone without adapters.

    Raises:
        ConfigError: an endpoint is named, and no transport is given.
    """
    if not config.evolution.selector.startswith(ENDPOINT):
        return LogicWriter(config, population, None, shards, entities, adapters=None)
    if transport is None:
        raise ConfigError(
            f"evolution.selector = {config.evolution.selector!r} needs an endpoint: pass "
            "selector=..., or on the command line set COMPEVO_JUDGE_URL"
        )
    return EndpointWriter(config, population, shards, transport)
