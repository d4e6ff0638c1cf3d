"""A population the way a user of PEFT would build it: named adapters, used one after the other.

What belongs here: the agents' forecasts and logics on two PEFT models, ``set_adapter`` in a loop,
``generate`` for every agent's candidate and group. What does not: forward passes of forecasts
(``peft_forecasts``), a round (``peft_round``), timing (``cases``), and any of the engine's sharing
(stacked adapters, shared prefixes, batched decoding).

Prompts, numbers of tokens and the weights are those of the core's population.

Shapes: A agents, G samples of an agent, B windows, H horizon, P prompt tokens, T sampled tokens,
D hidden.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from trl.trainer.utils import selective_log_softmax

from benchmarks.peft_forecasts import PeftForecasts, build_peft_model, name_adapter
from benchmarks.world import Replay, World
from compevo_core.agents.decoders import ForecastExample, ForecastRequest
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.logic_writer import fit_logic_prompt
from compevo_core.agents.prompts import tokenize_prompt
from compevo_core.agents.selection import FitnessSelection
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.lm.adapters import FORECAST, LOGIC
from compevo_core.lm.backbone import load_backbone


class PeftPopulation:
    """A agents as named adapters of two PEFT models, one for forecasts and one for logics.

    Two models, as forecasts may read fewer layers than logics are written by.

    Attributes:
        forecasts: the forecast adapters.
        decoder: numbers as tokens and read-out, the core's own, with parameters of its own.
        executor: retrieves news and forecasts.
        model: the PEFT model that writes logics.
        selection: gates and fitness.
        fusion: soft prompts.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.config = world.config
        self.agents = self.config.population.agents

        theirs = world.model
        # The decoder asks for no more of a population than these forecasts have.
        self.forecasts: Any = PeftForecasts(self.config)
        self.decoder = HeadDecoder(self.forecasts, self.config, theirs.inputs, theirs.mix_AP)
        self.executor = StrategyExecutor(
            self.config, self.forecasts, self.decoder, world.news_retriever, theirs.mix_AP
        )

        self.backbone = load_backbone(self.config.backbone, device="cpu")
        self._names = [name_adapter(LOGIC, agent) for agent in range(self.agents)]
        self.model: Any = build_peft_model(
            self.backbone.model, self.config.population, self._names, task_type="CAUSAL_LM"
        )

        # All values are copied by reset; the generator only has to be there.
        generator = torch.Generator().manual_seed(0)
        entities = theirs.selection.entities
        self.selection = FitnessSelection(self.agents, self.config.selection, entities)
        self.fusion = StrategyFusion(self.agents, theirs.fusion.neutral_D, generator)

    @torch.no_grad()
    def reset(self) -> None:
        """Copy every learned tensor of the world's population as it is now."""
        theirs = self.world.model
        prefix = f"{self.backbone.model.base_model_prefix}."
        for name, layer in theirs.population.layers.items():
            self._copy_adapters(self.model.base_model.model.get_submodule(name), layer, LOGIC)
            if FORECAST in layer.lora_a:
                # Forecasts are read by the stack of layers alone, whose names begin there.
                cut = self.forecasts.model.base_model.model
                module = cut.get_submodule(name.removeprefix(prefix))
                self._copy_adapters(module, layer, FORECAST)

        self.decoder.module.load_state_dict(theirs.decoder.module.state_dict())
        self.selection.load_state_dict(theirs.selection.state_dict())
        self.fusion.load_state_dict(theirs.fusion.state_dict())

    def forecast_group(
        self, agent: int, logics: Sequence[str], examples: Sequence[ForecastExample]
    ) -> Tensor:
        """Forecast under each logic of one agent's group, (G, B, H), in one padded batch."""
        views = [example.view for example in examples]
        news = self.executor.retrieve_news(logics, views, [agent] * len(logics))
        resolve = self.world.news_retriever.resolve
        readings = [
            ForecastRequest(example, logics, [resolve(ids) for ids in by_logic])
            for example, *by_logic in zip(examples, *news, strict=True)
        ]

        chosen = slice(agent, agent + 1)
        with self.forecasts.use_adapters(FORECAST, agents=chosen):
            decoded = self.decoder.decode([readings], train=False, agents=chosen)
        return decoded.values_ABH[0].unflatten(0, (len(examples), len(logics))).transpose(0, 1)

    def generate_candidates(self, replay: Replay) -> list[list[int]]:
        """Generate one candidate an agent, by one ``generate`` each."""
        candidates = []
        for agent in range(self.agents):
            self.use_logic_adapter(agent)
            ids = torch.tensor([self._tokenize_logic_prompt(agent, replay)])
            generated = self.model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), **self._sampling_settings(1)
            )
            candidates.append(generated[0, ids.shape[1] :].tolist())
        return candidates

    def generate_groups(self, replay: Replay, soft_prompt_AD: Tensor | None) -> list[Tensor]:
        """Generate G logics an agent, by one ``generate`` with ``num_return_sequences`` each."""
        detached_AD = None if soft_prompt_AD is None else soft_prompt_AD.detach()

        groups = []
        for agent in range(self.agents):
            self.use_logic_adapter(agent)
            embeds = self._embed_logic_prompt(agent, replay, detached_AD)
            groups.append(
                self.model.generate(
                    inputs_embeds=embeds,
                    attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long),
                    **self._sampling_settings(self.config.grpo.group_size),
                )
            )
        return groups

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the representation of each agent's candidate with gradient, (A, D)."""
        states = []
        for agent, text in enumerate(texts):
            self.use_logic_adapter(agent)
            ids = torch.tensor([tokenize_prompt(self.backbone.tokenizer, text)])
            out = self.backbone.decoder(input_ids=ids, use_cache=False)
            states.append(out.last_hidden_state[0, -1])
        return torch.stack(states)

    def logp(self, agent: int, replay: Replay, soft_prompt_AD: Tensor | None) -> Tensor:
        """Return log-probabilities of one agent's sampled tokens, (1, G, T), whole sequences."""
        ids_GT = replay.ids_AGT[agent]
        size, length = ids_GT.shape

        prompt = self._embed_logic_prompt(agent, replay, soft_prompt_AD).expand(size, -1, -1)
        sequence = torch.cat([prompt, self.model.get_input_embeddings()(ids_GT)], dim=1)
        # The logits of the last prompt token score the first sampled one.
        out = self.model(inputs_embeds=sequence, use_cache=False, logits_to_keep=length + 1)
        logits = out.logits[:, :-1].float() / self.config.evolution.temperature
        return selective_log_softmax(logits, ids_GT)[None]

    def use_logic_adapter(self, agent: int) -> None:
        """Activate one logic adapter; PEFT freezes all others."""
        self.model.set_adapter(self._names[agent])

    def make_all_trainable(self) -> None:
        """Unfreeze all adapters before a backward pass, see ``PeftForecasts``."""
        self.forecasts.make_all_trainable()
        self.model.set_requires_grad(self._names, requires_grad=True)

    # The groups of the core's optimiser, by the names that ``group_parameters`` calls.

    def adapter_parameters(self) -> list[nn.Parameter]:
        """Return the forecast adapters."""
        return _list_adapters(self.forecasts.model)

    def head_parameters(self) -> list[nn.Parameter]:
        """Return numeric tokens and read-out."""
        return list(self.decoder.module.parameters())

    def gate_parameters(self) -> list[nn.Parameter]:
        """Return the gates of selection."""
        return list(self.selection.parameters())

    def policy_adapter_parameters(self) -> list[nn.Parameter]:
        """Return the logic adapters."""
        return _list_adapters(self.model)

    def fusion_parameters(self) -> list[nn.Parameter]:
        """Return interaction scores, fusion gates and soft prompt."""
        return list(self.fusion.parameters())

    def _copy_adapters(self, module: Any, layer: Any, kind: str) -> None:  # noqa: ANN401
        for agent in range(self.agents):
            adapter = name_adapter(kind, agent)
            module.lora_A[adapter].weight.copy_(layer.lora_a[kind][agent])
            module.lora_B[adapter].weight.copy_(layer.lora_b[kind][agent])

    def _tokenize_logic_prompt(self, agent: int, replay: Replay) -> list[int]:
        tokenizer = self.backbone.tokenizer
        ids, _ = fit_logic_prompt(replay.observation, agent, self.config, tokenizer)
        return ids

    def _embed_logic_prompt(
        self, agent: int, replay: Replay, soft_prompt_AD: Tensor | None
    ) -> Tensor:
        """Embed an agent's logic-update prompt behind its soft prompt, (1, P, D)."""
        ids = torch.tensor([self._tokenize_logic_prompt(agent, replay)])
        embeds = self.model.get_input_embeddings()(ids)
        if soft_prompt_AD is None:
            return embeds

        return torch.cat([soft_prompt_AD[agent][None, None], embeds], dim=1)

    def _sampling_settings(self, count: int) -> dict[str, Any]:
        tokens = self.config.evolution.max_new_tokens
        return {
            "do_sample": True,
            "temperature": self.config.evolution.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "num_return_sequences": count,
            "min_new_tokens": tokens,
            "max_new_tokens": tokens,
            "pad_token_id": self.backbone.tokenizer.pad_token_id,
        }


def _list_adapters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if "lora_" in name]
