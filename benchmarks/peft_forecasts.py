"""Forecasts the way a user of PEFT would read them: named adapters, whole prompts, padded batches.

What belongs here: what the core's head decoder needs of a population, done by PEFT. What does not:
the layout of prompts, numbers as tokens and the read-out, which are the core's own modules both
ways, logics (``peft_population``), timing (``cases``), and any of the engine's sharing (stacked
adapters, shared prefixes, packed rows).

An adapter is set once an agent, for all prompts of a call; or all agents' prompts go through the
model at once, each with the name of its adapter (PEFT's mixed batch).

Shapes: A agents, R prompts of an agent, P tokens of the longest prompt, L = R P, C last tokens of
a prompt, S soft tokens of an agent, D hidden.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from compevo_core.config.run import RunConfig
from compevo_core.config.sections import PopulationConfig
from compevo_core.lm.adapters import FORECAST
from compevo_core.lm.architectures import LORA_TARGETS
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.packing import PromptGroup


@dataclasses.dataclass(frozen=True)
class PaddedPrompts:
    """Whole prompts, padded on the left to one length.

    Attributes:
        ids_AL: token ids, the prompts of an agent one after the other.
        mask_ARP: 1 where a token is not padding.
    """

    ids_AL: Tensor
    mask_ARP: Tensor


class PeftForecasts:
    """The forecast adapters of all agents on a backbone of their own.

    It has the methods of the core's ``Population`` that the head decoder calls.

    Attributes:
        model: the PEFT model, cut to ``forecast.layers``.
        is_mixed: whether all agents are read in one mixed batch.
    """

    def __init__(self, config: RunConfig) -> None:
        self.backbone = load_backbone(config.backbone, device="cpu")
        self.local_agents = range(config.population.agents)
        self.is_mixed = False
        self._in_use = self.local_agents

        decoder = self.backbone.decoder
        layers = config.forecast.layers
        if 0 < layers < len(decoder.layers):
            decoder.layers = decoder.layers[:layers]
            decoder.norm = nn.Identity()

        self.names = [name_adapter(FORECAST, agent) for agent in self.local_agents]
        self.model = build_peft_model(decoder, config.population, self.names)

    @contextlib.contextmanager
    def use_adapters(
        self, kind: str, *, agents: slice = slice(None), dropout: float = 0.0
    ) -> Iterator[None]:
        """Read for the chosen agents within the ``with`` block."""
        if kind != FORECAST or dropout:
            raise ValueError(f"kind {kind!r} with dropout {dropout}: the two ways would differ")

        self._in_use = self.local_agents[agents]
        yield
        self._in_use = self.local_agents

    def pack(self, groups: Sequence[Sequence[PromptGroup]]) -> PaddedPrompts:
        """Pad the whole prompts of each agent's groups; nothing is shared."""
        rows = [
            torch.tensor([*group.prefix, *suffix])
            for agent_groups in groups
            for group in agent_groups
            for suffix in group.suffixes
        ]
        ids_NP, mask_NP = pad_left(rows, self.backbone.tokenizer.pad_token_id)
        mask_ARP = mask_NP.unflatten(0, (len(groups), -1))
        return PaddedPrompts(ids_NP.reshape(len(groups), -1), mask_ARP)

    def soft_token_id(self, row: int) -> int:
        """Return the id that stands for a row of the table of soft tokens."""
        return self._vocabulary_size + row

    def embed(self, ids: Tensor, soft_ASD: Tensor | None = None) -> Tensor:
        """Embed tokens, ids (..., T) to (..., T, D), soft ones from each agent's table."""
        embedding = self.backbone.model.get_input_embeddings()
        if soft_ASD is None:
            embeds: Tensor = embedding(ids)
            return embeds

        rows_AL = ids - self._vocabulary_size
        soft_ALD = torch.stack(
            [soft_SD[row] for soft_SD, row in zip(soft_ASD, rows_AL.clamp(min=0), strict=True)]
        )
        words_ALD = embedding(ids.clamp(max=self._vocabulary_size - 1))
        return torch.where((rows_AL >= 0)[..., None], soft_ALD, words_ALD)

    def read_out(
        self, packed: PaddedPrompts, embeds_ALD: Tensor, *, count: int = 1, layers: int = 0
    ) -> Tensor:
        """Return the states at the last tokens of every prompt, (A, R, C, D)."""
        del layers  # the model was cut when it was built
        embeds_ARPD = embeds_ALD.unflatten(1, packed.mask_ARP.shape[1:])
        if self.is_mixed:
            return self._read_mixed(packed, embeds_ARPD)[:, :, -count:]

        states = []
        for agent, embeds_RPD, mask_RP in zip(
            self._in_use, embeds_ARPD, packed.mask_ARP, strict=True
        ):
            self.model.set_adapter(self.names[agent])
            # Each agent's batch is as wide as its own longest prompt.
            first = int(mask_RP.any(0).int().argmax())
            states_RPD = self._forward(embeds_RPD[:, first:], mask_RP[:, first:])
            states.append(states_RPD[:, -count:])
        return torch.stack(states)

    def make_all_trainable(self) -> None:
        """Unfreeze all adapters before a backward pass.

        ``set_adapter`` froze every adapter but one, and a frozen leaf takes no gradient from a
        graph that was built before.
        """
        self.model.set_requires_grad(self.names, requires_grad=True)

    @property
    def _vocabulary_size(self) -> int:
        return int(self.backbone.model.get_input_embeddings().weight.shape[0])

    def _read_mixed(self, packed: PaddedPrompts, embeds_ARPD: Tensor) -> Tensor:
        """Read all agents' prompts at once, each under the adapter that is named for it."""
        agents, rows = embeds_ARPD.shape[:2]
        names = [self.names[agent] for agent in self._in_use for _ in range(rows)]
        states_NPD = self._forward(
            embeds_ARPD.flatten(0, 1), packed.mask_ARP.flatten(0, 1), adapter_names=names
        )
        return states_NPD.unflatten(0, (agents, rows))

    def _forward(self, embeds_NPD: Tensor, mask_NP: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        out = self.model(
            inputs_embeds=embeds_NPD,
            attention_mask=mask_NP,
            # Padding on the left must not shift the positions of real tokens.
            position_ids=(mask_NP.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            **options,
        )
        states_NPD: Tensor = out.last_hidden_state
        return states_NPD


def build_peft_model(
    model: Any,  # noqa: ANN401 - transformers' own module
    config: PopulationConfig,
    names: Sequence[str],
    task_type: str | None = None,
) -> Any:  # noqa: ANN401 - PEFT's wrapper depends on the task
    """Return a PEFT model with one LoRA adapter of a population's size for each name."""
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        bias="none",
        lora_dropout=config.dropout,
        target_modules=list(LORA_TARGETS),
        task_type=task_type,
    )
    # get_peft_model makes the first adapter; each call below adds one.
    peft_model = get_peft_model(model, lora, adapter_name=names[0])
    for name in names[1:]:
        peft_model.add_adapter(name, lora)
    return peft_model.eval()


def pad_left(rows: Sequence[Tensor], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad token rows on the left to one length; return ids and mask, both (N, P)."""
    ids = pad_sequence(rows, batch_first=True, padding_value=pad_id, padding_side="left")
    masks = [torch.ones_like(row) for row in rows]
    return ids, pad_sequence(masks, batch_first=True, padding_side="left")


def name_adapter(kind: str, agent: int) -> str:
    """Return the name of an agent's adapter."""
    return f"{kind}_{agent:02d}"
