"""I agents on one frozen backbone: stacked LoRA adapters, applied to all agents in one forward.

What belongs here: putting the adapters into the backbone, routing rows to agents, hidden states of packed prompts,
prompts read once, and batched sampling from them. What does not: prompts, losses, what the text means, the adapters'
arithmetic (``stacked``), layouts (``packing``) and attention over them (``attention``).
Legend: A agents, R leaves of an agent, N = A R, n samples of a leaf, M = R n, L packed length, P longest path,
T tokens, D hidden, V vocabulary.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from compevo_core.config import PopulationConfig
from compevo_core.lm.attention import (
    NAME,
    AttentionBackend,
    DecodeAttention,
    PrefillAttention,
    capped,
)
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.frozen_linear import frozen_linear, token_logp
from compevo_core.lm.packing import PackedPrompts, PromptGroup, pack
from compevo_core.lm.stacked_lora import FORECAST, KINDS, LOGIC, Route, StackedLoraLinear

__all__ = ["FORECAST", "KINDS", "LOGIC", "TARGETS", "Population", "PrefillCache", "StackedLoraLinear"]

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class PrefillCache:
    """Prompts already read: keys and values of every layer (N, K, P, d), which are real, and the last states."""

    keys: list[Tensor]
    values: list[Tensor]
    mask_NP: Tensor
    last_ARD: Tensor


class Population(nn.Module):
    """The adapters of the agents ``own`` (all, unless processes share them) on one backbone."""

    def __init__(
        self,
        backbone: Backbone,
        config: PopulationConfig,
        generator: torch.Generator,
        own: range | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.config, self.route = backbone, config, Route()
        self.own = range(config.agents) if own is None else own
        self.layers: dict[str, StackedLoraLinear] = {}
        for name, module in list(backbone.model.named_modules()):
            if name.rsplit(".", 1)[-1] in TARGETS and isinstance(module, nn.Linear):
                parent = backbone.model.get_submodule(name.rsplit(".", 1)[0])
                module.weight.data = module.weight.data.to(backbone.products or module.weight.dtype)
                stacked = StackedLoraLinear(module, config, self.own, self.route, generator).to(
                    module.weight.device
                )
                setattr(parent, name.rsplit(".", 1)[-1], stacked)
                self.layers[name] = stacked
        self.adapters = nn.ModuleList(self.layers.values())
        with (
            warnings.catch_warnings()
        ):  # the call reads a property that transformers itself deprecates
            warnings.simplefilter("ignore", FutureWarning)
            backbone.model.set_attn_implementation(NAME)

    def parameters_of(self, kind: str) -> list[nn.Parameter]:
        """Every trainable tensor of one kind, in layer order."""
        return [
            p for layer in self.layers.values() for p in (layer.lora_a[kind], layer.lora_b[kind])
        ]

    @contextlib.contextmanager
    def using(
        self, kind: str | None, *, agents: slice = slice(None), dropout: float = 0.0
    ) -> Iterator[None]:
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

    def pack(self, trees: Sequence[Sequence[PromptGroup]]) -> PackedPrompts:
        """Packs each agent's trees for this backbone."""
        return pack(trees, self.backbone.tokenizer.pad_token_id, self.backbone.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings, ids (..., T) to (..., T, D)."""
        out: Tensor = self.backbone.model.get_input_embeddings()(ids)
        return out

    def states(self, packed: PackedPrompts, embeds_ALD: Tensor | None = None) -> Tensor:
        """Last hidden states (A, L, D) in float32, of the packed tokens or of given embeddings in their place."""
        return self._forward(packed, embeds_ALD, PrefillAttention(packed))

    def leaf_states(self, packed: PackedPrompts) -> Tensor:
        """State at the last token of every leaf, (A, R, D)."""
        return _take(self.states(packed), packed.last())

    @torch.no_grad()
    def read(self, packed: PackedPrompts, embeds_ALD: Tensor | None = None) -> PrefillCache:
        """Reads prompts once, so that all that follows a leaf can share its keys and values."""
        reader = PrefillAttention(packed, keep=True)
        states = self._forward(packed, embeds_ALD, reader)
        paths = [
            [packed.path(a, r) for r in range(len(row))] for a, row in enumerate(packed.leaves)
        ]
        width = max(len(path) for own in paths for path in own)
        device = states.device
        index = torch.tensor(
            [[[*path, *[0] * (width - len(path))] for path in own] for own in paths], device=device
        )
        real = torch.tensor(
            [[True] * len(path) + [False] * (width - len(path)) for own in paths for path in own],
            device=device,
        )
        keys, values = (
            [_gather(kept[i], index) for i in range(len(kept))]
            for kept in (reader.keys, reader.values)
        )
        return PrefillCache(keys, values, real, _take(states, packed.last()))

    def logits(self, states: Tensor) -> Tensor:
        """Vocabulary logits of hidden states (..., D) in float32."""
        head = self.backbone.model.get_output_embeddings()
        return capped(frozen_linear(states, head.weight, head.bias).float(), self._cap)

    def token_logp(self, states_ND: Tensor, ids_N: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probability (N,) of each id after its hidden state, under ``softmax(logits / temperature)``."""
        head = self.backbone.model.get_output_embeddings()
        return token_logp(
            states_ND, ids_N, head.weight, head.bias, temperature=temperature, cap=self._cap
        )

    @property
    def _cap(self) -> float | None:
        cap: float | None = getattr(self.backbone.model.config, "final_logit_softcapping", None)
        return cap

    @torch.no_grad()
    def sample(
        self,
        prefix: PrefillCache,
        *,
        samples: int = 1,
        tokens: int,
        temperature: float,
        stop: Sequence[int],
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[Tensor, Tensor]:
        """Samples up to ``tokens`` tokens ``samples`` times after every leaf, all at once; temperature 0 is greedy.

        Each agent draws from its own of the ``generators``, and only while one of its rows goes on: what it samples
        does not depend on which other agents are in the batch.

        Returns:
            ids (A, M, T) and mask (A, M, T); the stop token is part of the sample, what follows is masked.
        """
        pad, device = self.backbone.tokenizer.pad_token_id, prefix.last_ARD.device
        stops = torch.tensor(list(stop), device=device)
        state_AMD = prefix.last_ARD.repeat_interleave(samples, 1)
        agents = state_AMD.shape[0]
        start_AM = prefix.mask_NP.sum(1).reshape(agents, -1).repeat_interleave(samples, 1)
        decoder = DecodeAttention(prefix.keys, prefix.values, prefix.mask_NP, samples, tokens)
        alive_AM = torch.ones(state_AMD.shape[:2], dtype=torch.bool, device=device)
        ids, masks = [], []
        for step in range(tokens):
            logits_AMV = self.logits(state_AMD)
            chosen = (
                _draw(torch.softmax(logits_AMV / temperature, dim=-1), alive_AM, generators)
                if temperature > 0
                else logits_AMV.argmax(-1)
            )
            chosen = torch.where(alive_AM, chosen, pad)
            ids.append(chosen)
            masks.append(alive_AM)
            alive_AM = alive_AM & ~torch.isin(chosen, stops)
            if not alive_AM.any() or step == tokens - 1:
                break
            decoder.step = step
            state_AMD = self._decode(self.embed(chosen), start_AM + step, decoder)
        return torch.stack(ids, -1), torch.stack(masks, -1).long()

    def _forward(
        self, packed: PackedPrompts, embeds_ALD: Tensor | None, reader: PrefillAttention
    ) -> Tensor:
        # transformers recomputes layers only in train mode; these backbones have no dropout of their own
        self.backbone.decoder.train(torch.is_grad_enabled() and not reader.keep)
        embeds = self.embed(packed.ids_AL) if embeds_ALD is None else embeds_ALD
        return self._decode(embeds, packed.positions_AL, reader)

    def _decode(
        self, embeds_ALD: Tensor, positions_AL: Tensor, attender: AttentionBackend
    ) -> Tensor:
        # transformers makes masks of its own unless it is given one of four dimensions; the attender knows better
        ready = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=embeds_ALD.device)
        out = self.backbone.decoder(
            inputs_embeds=embeds_ALD.to(self.backbone.model.dtype),
            attention_mask=ready,
            position_ids=positions_AL,
            use_cache=False,
            attender=attender,
        )
        states: Tensor = out.last_hidden_state.float()
        return states


def _draw(chances_AMV: Tensor, alive_AM: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One token a row, (A, M, V) to (A, M): where the chances, added up, pass a uniform number.

    An agent whose rows have all ended draws nothing.
    """
    drawn_AM = torch.stack(
        [
            torch.rand(alive.shape, dtype=torch.float64, device=alive.device, generator=own)
            if going
            else torch.zeros(alive.shape, dtype=torch.float64, device=alive.device)
            for alive, own, going in zip(alive_AM, generators, alive_AM.any(1), strict=True)
        ]
    )
    reached_AMV = chances_AMV.cumsum(-1, dtype=torch.float64)
    found_AM = torch.searchsorted(
        reached_AMV, (drawn_AM * reached_AMV[..., -1])[..., None], right=True
    ).squeeze(-1)
    return found_AM.clamp(max=chances_AMV.shape[-1] - 1)


def _take(states_ALD: Tensor, index_AR: Tensor) -> Tensor:
    return torch.stack(
        [states.index_select(0, index) for states, index in zip(states_ALD, index_AR, strict=True)]
    )


def _gather(stored: Tensor, index_ARP: Tensor) -> Tensor:
    """Keys or values (A, K, L, d) along each leaf's path, (N, K, P, d)."""
    agents = torch.arange(stored.shape[0], device=stored.device)[:, None, None]
    return stored.transpose(1, 2)[agents, index_ARP].flatten(0, 1).transpose(1, 2).contiguous()
