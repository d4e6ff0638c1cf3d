"""I agents on one frozen backbone: stacked LoRA adapters, applied to all agents in one forward.

What belongs here: the stacked adapters, routing of rows to agents, hidden states, shared-prefix
key/value reuse and batched sampling. What does not: prompts, losses, what the text means.
Paper: section 5.1 and D.2 (per agent one adapter for forecasting and one for logic, rank 16).

Rows are agent-major: a batch of A agents with R rows each is (A*R, T), agent 0 first.
Legend: A agents, R rows of an agent, T tokens, D hidden, V vocabulary, G samples.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from compevo_core.backbone import Backbone
from compevo_core.config import PopulationConfig

FORECAST, LOGIC = "forecast", "logic"
KINDS = (FORECAST, LOGIC)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass
class _Route:
    """Which adapters the next forward uses; shared by all layers of one population."""

    kind: str | None = None
    agents: slice = dataclasses.field(default_factory=lambda: slice(None))
    dropout: float = 0.0


class StackedLoraLinear(nn.Module):
    """A frozen linear layer plus one low-rank update per agent and kind.

    ``lora_a[kind]`` is (I, r, in), ``lora_b[kind]`` is (I, out, r); agent i's output is
    ``W x + (alpha / r) B_i A_i x``, as PEFT computes it one adapter at a time. A process that owns some of the
    agents keeps their slice of what is drawn for all.
    """

    def __init__(self, base: nn.Linear, config: PopulationConfig, own: range, route: _Route,
                 generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.route, self.scale = base, route, config.alpha / config.rank
        self.lora_a, self.lora_b = nn.ParameterDict(), nn.ParameterDict()
        for kind in KINDS:
            start = torch.empty(config.agents, config.rank, base.in_features)
            bound = base.in_features**-0.5  # PEFT's start: kaiming uniform with a = sqrt(5)
            start.uniform_(-bound, bound, generator=generator)
            self.lora_a[kind] = nn.Parameter(start[own.start:own.stop].clone())
            self.lora_b[kind] = nn.Parameter(torch.zeros(len(own), base.out_features, config.rank))

    def forward(self, x_RTD: Tensor) -> Tensor:
        """Maps (A*R, T, in) to (A*R, T, out); with no kind set it is the frozen layer alone."""
        out: Tensor = self.base(x_RTD)
        route = self.route
        if route.kind is None:
            return out
        a, b = self.lora_a[route.kind][route.agents], self.lora_b[route.kind][route.agents]
        x = x_RTD.reshape(a.shape[0], -1, x_RTD.shape[-1]).to(a.dtype)
        x = nn.functional.dropout(x, route.dropout, training=route.dropout > 0)
        update = torch.bmm(torch.bmm(x, a.transpose(1, 2)), b.transpose(1, 2))
        return out + (self.scale * update).reshape(out.shape).to(out.dtype)


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prompt already read: keys, values, mask and the state at its last token."""

    cache: DynamicCache
    mask_RT: Tensor
    last_RD: Tensor

    def repeat(self, times: int) -> "Prefix":
        """Each row ``times`` times in place of once; the prefix itself must not be used afterwards."""
        if times > 1:
            self.cache.batch_repeat_interleave(times)
        return Prefix(self.cache, self.mask_RT.repeat_interleave(times, 0), self.last_RD.repeat_interleave(times, 0))


class Population(nn.Module):
    """The adapters of the agents ``own`` (all, unless processes share them) on one backbone."""

    def __init__(self, backbone: Backbone, config: PopulationConfig, generator: torch.Generator,
                 own: range | None = None) -> None:
        super().__init__()
        self.backbone, self.config, self.route = backbone, config, _Route()
        self.own = range(config.agents) if own is None else own
        self.layers: dict[str, StackedLoraLinear] = {}
        for name, module in list(backbone.model.named_modules()):
            if name.rsplit(".", 1)[-1] in TARGETS and isinstance(module, nn.Linear):
                parent = backbone.model.get_submodule(name.rsplit(".", 1)[0])
                stacked = StackedLoraLinear(module, config, self.own, self.route, generator).to(module.weight.device)
                setattr(parent, name.rsplit(".", 1)[-1], stacked)
                self.layers[name] = stacked
        self.adapters = nn.ModuleList(self.layers.values())

    def parameters_of(self, kind: str) -> list[nn.Parameter]:
        """Every trainable tensor of one kind, in layer order."""
        return [p for layer in self.layers.values() for p in (layer.lora_a[kind], layer.lora_b[kind])]

    @contextlib.contextmanager
    def using(self, kind: str | None, *, agents: slice = slice(None), dropout: float = 0.0) -> Iterator[None]:
        """Routes rows to adapters of ``kind`` within the block; ``None`` is the frozen backbone.

        With gradient checkpointing the backward pass runs layers again: keep it inside the same block.
        Dropout draws from torch's global generator, which checkpointing replays.
        """
        before = dataclasses.replace(self.route)
        self.route.kind, self.route.agents, self.route.dropout = kind, agents, dropout
        try:
            yield
        finally:
            vars(self.route).update(vars(before))

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings, ids (..., T) to (..., T, D)."""
        out: Tensor = self.backbone.model.get_input_embeddings()(ids)
        return out

    def hidden(self, embeds_RTD: Tensor, mask_RT: Tensor,
               past: Prefix | None = None) -> tuple[Tensor, DynamicCache | None]:
        """Last hidden states (A*R, T, D) and the cache, if one was passed in or is wanted."""
        # transformers recomputes layers only in train mode; these backbones have no dropout of their own
        self.backbone.decoder.train(past is None and torch.is_grad_enabled())
        full = mask_RT if past is None else torch.cat([past.mask_RT, mask_RT], dim=1)
        positions = (full.cumsum(1) - 1).clamp(min=0)[:, -mask_RT.shape[1]:]
        out = self.backbone.decoder(inputs_embeds=embeds_RTD.to(self.backbone.model.dtype), attention_mask=full,
                                    position_ids=positions, past_key_values=None if past is None else past.cache,
                                    use_cache=past is not None)
        return out.last_hidden_state.float(), out.past_key_values

    def read(self, embeds_RTD: Tensor, mask_RT: Tensor) -> Prefix:
        """Reads left-padded prompts once, so that what follows can share their keys and values."""
        empty = Prefix(DynamicCache(), mask_RT[:, :0], embeds_RTD[:, :0, :].sum(1))
        states, cache = self.hidden(embeds_RTD, mask_RT, empty)
        if cache is None:
            raise RuntimeError("the backbone returned no key/value cache; shared prefixes need one")
        return Prefix(cache, mask_RT, states[:, -1])

    def continue_from(self, prefix: Prefix, ids_RT: Tensor, mask_RT: Tensor) -> Tensor:
        """Hidden states (A*R, T, D) of right-padded continuations of a prefix; the prefix grows by them."""
        return self.hidden(self.embed(ids_RT), mask_RT, prefix)[0]

    def logits(self, states: Tensor) -> Tensor:
        """Vocabulary logits of hidden states (..., D) in float32."""
        head = self.backbone.model.get_output_embeddings()
        out: Tensor = head(states.to(head.weight.dtype)).float()
        cap = getattr(self.backbone.model.config, "final_logit_softcapping", None)
        return out if cap is None else torch.tanh(out / cap) * cap

    @torch.no_grad()
    def sample(self, prefix: Prefix, *, tokens: int, temperature: float, stop: Sequence[int],
               generators: Sequence[torch.Generator] = ()) -> tuple[Tensor, Tensor]:
        """Samples up to ``tokens`` tokens for every row at once; temperature 0 is greedy.

        Each agent's rows are drawn from its own of the ``generators``, and only while one of them goes on: what an
        agent samples does not depend on which other agents are in the batch.

        Returns:
            ids (A*R, T) and mask (A*R, T); the stop token is part of the sample, what follows is masked.
        """
        pad = self.backbone.tokenizer.pad_token_id
        stops = torch.tensor(list(stop), device=prefix.mask_RT.device)
        state, grown = prefix.last_RD, prefix
        alive = torch.ones(state.shape[0], dtype=torch.bool, device=state.device)
        ids, masks = [], []
        for _ in range(tokens):
            logits = self.logits(state)
            if temperature > 0:
                chosen = _draw(torch.softmax(logits / temperature, dim=-1), alive, pad, generators)
            else:
                chosen = logits.argmax(-1)
            chosen = torch.where(alive, chosen, pad)
            ids.append(chosen)
            masks.append(alive)
            alive = alive & ~torch.isin(chosen, stops)
            if not alive.any() or len(ids) == tokens:
                break
            step = masks[-1].long()[:, None]
            state = self.continue_from(grown, chosen[:, None], step)[:, -1]
            grown = Prefix(grown.cache, torch.cat([grown.mask_RT, step], 1), state)
        return torch.stack(ids, 1), torch.stack(masks, 1).long()


def _draw(chances_RV: Tensor, alive_R: Tensor, pad: int, generators: Sequence[torch.Generator]) -> Tensor:
    """One token a row, (A*R, V) to (A*R,); an agent whose rows have all ended draws nothing."""
    going = alive_R.reshape(len(generators), -1).any(1).tolist()
    chances_ARV = chances_RV.reshape(len(generators), -1, chances_RV.shape[-1])
    return torch.cat([
        torch.multinomial(chances, 1, generator=own).squeeze(1) if goes else chances.new_full((len(chances),), pad,
                                                                                              dtype=torch.long)
        for chances, own, goes in zip(chances_ARV, generators, going, strict=True)])


def pad_rows(rows: Sequence[Sequence[int]], pad: int, *, left: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pads token rows to one length; returns ids and mask, both (R, T)."""
    width = max((len(r) for r in rows), default=0)
    fill = [[pad] * (width - len(r)) for r in rows]
    ids = [f + list(r) if left else list(r) + f for r, f in zip(rows, fill, strict=True)]
    ones = [[0] * len(f) + [1] * len(r) if left else [1] * len(r) + [0] * len(f)
            for r, f in zip(rows, fill, strict=True)]
    return torch.tensor(ids, device=device, dtype=torch.long), torch.tensor(ones, device=device, dtype=torch.long)


def trainable_counts(module: nn.Module) -> dict[str, Any]:
    """Trainable parameter counts by top-level name."""
    counts: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            counts[name.split(".")[0]] = counts.get(name.split(".")[0], 0) + parameter.numel()
    return counts
