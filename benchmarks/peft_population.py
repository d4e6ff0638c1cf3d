"""A population the way a user of PEFT would build it: named adapters, used one after the other.

What belongs here: one ``PeftModel`` with two named adapters an agent, ``set_adapter`` in a loop,
``generate`` for every agent's candidate and group, whole prompts for every forecast. What does not:
a round (``peft_round``), timing (``cases``), and any of the engine's sharing (stacked adapters,
shared prefixes, batched decoding).

Prompts, numbers of tokens and the weights are those of the core's population.

Shapes: A agents, G samples of an agent, B windows, H horizon, R rows, P prompt tokens,
T sampled tokens, D hidden.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.utils import selective_log_softmax

from benchmarks.world import Replay, World
from compevo_core.agents.decoding import NumericHead
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.observation import Observation
from compevo_core.agents.prompts import (
    PeerReport,
    format_history,
    render_forecast_prompt,
    render_logic_prompt,
)
from compevo_core.agents.selection import FitnessSelection
from compevo_core.agents.tokens import tokenize_prompt
from compevo_core.lm.adapter_routing import FORECAST, KINDS, LOGIC
from compevo_core.lm.architectures import LORA_TARGETS
from compevo_core.lm.backbone import load_backbone

_MIN_SUFFIX_TOKENS = 16  # as agents.strategy cuts a prompt that is too long


class PeftPopulation:
    """A agents as 2 A named adapters of one PEFT model.

    Attributes:
        model: the PEFT model.
        head: the agents' forecast heads.
        selection: gates and fitness.
        fusion: soft prompts.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.config = world.config
        self.agents = self.config.population.agents
        self.backbone = load_backbone(self.config.backbone, device="cpu")

        lora = LoraConfig(
            r=self.config.population.rank,
            lora_alpha=self.config.population.alpha,
            bias="none",
            lora_dropout=self.config.population.dropout,
            target_modules=list(LORA_TARGETS),
            task_type="CAUSAL_LM",
        )
        self._names = [_name_adapter(kind, agent) for kind in KINDS for agent in range(self.agents)]
        self.model: Any = get_peft_model(self.backbone.model, lora, adapter_name=self._names[0])
        # get_peft_model makes the first adapter; each call below adds one.
        for name in self._names[1:]:
            self.model.add_adapter(name, lora)
        self.model.eval()

        # All values are copied by reset; the generator only has to be there.
        generator = torch.Generator().manual_seed(0)
        self.head = NumericHead(self.agents, self.backbone.hidden_size)
        entities = world.model.selection.entities
        self.selection = FitnessSelection(self.agents, self.config.selection, entities)
        self.fusion = StrategyFusion(self.agents, world.model.fusion.neutral_D, generator)

    @torch.no_grad()
    def reset(self) -> None:
        """Copy every learned tensor of the world's population as it is now."""
        theirs = self.world.model
        for name, layer in theirs.population.layers.items():
            module = self.model.base_model.model.get_submodule(name)
            for kind in KINDS:
                for agent in range(self.agents):
                    adapter = _name_adapter(kind, agent)
                    module.lora_A[adapter].weight.copy_(layer.lora_a[kind][agent])
                    module.lora_B[adapter].weight.copy_(layer.lora_b[kind][agent])

        self.head.load_state_dict(theirs.decoder.module.state_dict())
        self.selection.load_state_dict(theirs.selection.state_dict())
        self.fusion.load_state_dict(theirs.fusion.state_dict())

    def forecast(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> Tensor:
        """Forecast agent by agent on whole prompts, (A, B, H)."""
        values = []
        for agent, logic in enumerate(logics):
            self.use_adapter(FORECAST, agent)
            values.append(self._forecast_rows(agent, [(logic, example) for example in examples]))
        return torch.stack(values)

    def forecast_group(
        self, agent: int, logics: Sequence[str], examples: Sequence[ForecastExample]
    ) -> Tensor:
        """Forecast under each logic of one agent's group, (G, B, H), on whole prompts."""
        self.use_adapter(FORECAST, agent)
        pairs = [(logic, example) for logic in logics for example in examples]
        return self._forecast_rows(agent, pairs).reshape(len(logics), len(examples), -1)

    def generate_candidates(self, replay: Replay) -> list[list[int]]:
        """Generate one candidate an agent, by one ``generate`` each."""
        candidates = []
        for agent in range(self.agents):
            self.use_adapter(LOGIC, agent)
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
            self.use_adapter(LOGIC, agent)
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
            self.use_adapter(LOGIC, agent)
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

    def render_logic_prompt(self, agent: int, observation: Observation) -> str:
        """Return an agent's logic-update prompt."""
        peers = [
            PeerReport(peer, observation.rewards[peer], observation.logics[peer])
            for peer in observation.peers[agent]
        ]
        return render_logic_prompt(
            agent,
            observation.logics[agent],
            observation.rewards[agent],
            peers,
            tokenizer=self.backbone.tokenizer,
            paraphrased=self.config.evolution.instruction == "paraphrased",
        )

    def use_adapter(self, kind: str, agent: int) -> None:
        """Activate one adapter; PEFT freezes all others."""
        self.model.set_adapter(_name_adapter(kind, agent))

    def make_all_trainable(self) -> None:
        """Unfreeze all adapters before a backward pass.

        ``set_adapter`` froze every adapter but one, and a frozen leaf takes no gradient from a
        graph that was built before.
        """
        self.model.set_requires_grad(self._names, requires_grad=True)

    def adapter_parameters(self, kind: str) -> list[nn.Parameter]:
        """Return every trainable tensor of one kind of adapter."""
        return [
            parameter
            for name, parameter in self.model.named_parameters()
            if "lora_" in name and f".{kind}_" in name
        ]

    def _forecast_rows(self, agent: int, pairs: Sequence[tuple[str, ForecastExample]]) -> Tensor:
        """Forecast from whole prompts of (logic, example), padded to one length, (R, H)."""
        rows = [self._tokenize_forecast_prompt(logic, example) for logic, example in pairs]
        ids_RP, mask_RP = pad_left(rows, self.backbone.tokenizer.pad_token_id)
        out = self.backbone.decoder(
            input_ids=ids_RP,
            attention_mask=mask_RP,
            # Padding on the left must not shift the positions of real tokens.
            position_ids=(mask_RP.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
        )

        state_RD = self.head.norm(out.last_hidden_state[:, -1])
        correction_RH = state_RD @ self.head.weight_AHD[agent].T + self.head.bias_AH[agent]
        base = np.stack([example.base_H for _, example in pairs])
        return correction_RH + torch.tensor(base, dtype=torch.float32)

    def _tokenize_forecast_prompt(self, logic: str, example: ForecastExample) -> list[int]:
        """Tokenize as ``agents.strategy`` does, in two parts: the cut must be the same."""
        view = example.view
        retriever = self.world.news_retriever
        level = abs(self.world.scaler.mean[view.entity])
        shared_text, logic_text = render_forecast_prompt(
            view,
            format_history(view.x, level, self.config.forecast.history_points),
            logic if self.config.forecast.logic_in_prompt else None,
            retriever.format_headlines(retriever.retrieve(logic, view)),
            title_characters=self.config.news.title_characters,
            tokenizer=self.backbone.tokenizer,
        )

        prefix = tokenize_prompt(self.backbone.tokenizer, shared_text)
        suffix = self.backbone.tokenizer(logic_text, add_special_tokens=False)["input_ids"]
        allowed = self.config.backbone.context_length - len(prefix)
        return prefix + suffix[-max(allowed, _MIN_SUFFIX_TOKENS) :]

    def _tokenize_logic_prompt(self, agent: int, replay: Replay) -> list[int]:
        text = self.render_logic_prompt(agent, replay.observation)
        ids = tokenize_prompt(self.backbone.tokenizer, text)
        return ids[-self.config.backbone.context_length :]

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


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad token rows on the left to one length; return ids and mask, both (R, P)."""
    tensors = [torch.tensor(row) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_value=pad_id, padding_side="left")
    masks = [torch.ones_like(row) for row in tensors]
    return ids, pad_sequence(masks, batch_first=True, padding_side="left")


def _name_adapter(kind: str, agent: int) -> str:
    return f"{kind}_{agent:02d}"
