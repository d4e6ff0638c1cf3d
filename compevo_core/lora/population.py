"""All adapters on one frozen backbone, applied in one forward pass.

What belongs here: inserting and choosing adapters, states and losses of packed prompts, adapters as
PEFT folders, each of which loads with plain ``PeftModel.from_pretrained`` to the same outputs. What
does not: arithmetic (``lora.adapters``), layouts (``lora.batch``), the sampling loop.

Shapes: A adapters, R prompts of an adapter, N = A R, n samples of a prompt, M = R n, L packed
length, T tokens, C last tokens of a prompt, D hidden, V vocabulary, S soft tokens of an adapter.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from compevo_core.errors import CheckpointMismatch, ConfigError
from compevo_core.lora.adapters import AdapterRoute, AdapterRouter, LoraShape, StackedLoraLinear
from compevo_core.lora.attention import (
    AttentionBackend,
    PrefillAttention,
    PrefillCache,
    apply_softcap,
    register_attention,
)
from compevo_core.lora.backbone import (
    LORA_TARGETS,
    Backbone,
    TokenLogp,
    find_adapter_targets,
    frozen_linear,
    widen,
)
from compevo_core.lora.batch import Batch, PromptGroup, pack
from compevo_core.lora.sampling import SamplingSettings, sample_tokens

_TENSOR_FILE = "adapter_model.safetensors"  # as PEFT names it
DEFAULT = "default"
"""Kind of adapters where there is but one; PEFT's word."""


class Population(nn.Module):
    """Adapters of one or several kinds on one backbone, whose linear layers are replaced.

    ``depths`` says for each kind how many of the first layers have it: None is all, 0 none. This
    process holds the adapters with the numbers ``local``, or all. ConfigError if the backbone has
    adapters already, would be covered in part, or has fewer layers than a depth.
    """

    def __init__(
        self,
        backbone: Backbone,
        shape: LoraShape,
        generator: torch.Generator,
        local: range | None = None,
        *,
        depths: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__()
        self.depths = dict(depths or {DEFAULT: None})
        self.kinds = tuple(kind for kind, depth in self.depths.items() if depth != 0)
        self.backbone = backbone
        self.shape = shape
        self.local = range(shape.adapters) if local is None else local

        # Of the matrix, which may have more rows than the tokenizer has tokens.
        self.vocabulary_size = len(backbone.model.get_input_embeddings().weight)
        self._logit_softcap: float | None = getattr(
            backbone.model.config, "final_logit_softcapping", None
        )
        self._route = AdapterRoute()
        self._router = AdapterRouter()
        self.layers = self._insert_adapters(generator)
        self.adapters = nn.ModuleList(self.layers.values())

        backbone.model.set_attn_implementation(register_attention())

    def adapter_parameters(self, kind: str) -> list[nn.Parameter]:
        """Return every trainable tensor of one kind of adapter, in layer order."""
        return [
            parameter
            for layer in self.layers.values()
            if kind in layer.lora_a
            for parameter in (layer.lora_a[kind], layer.lora_b[kind])
        ]

    @contextlib.contextmanager
    def use_adapters(
        self, kind: str | None = DEFAULT, *, rows: slice = slice(None), dropout: float = 0.0
    ) -> Iterator[None]:
        """Read with the adapters of one kind within the ``with`` block, or some of them, or none.

        A batch needs a row for each adapter in use, or reading it raises a ValueError. Only forward
        passes need the block. A backward pass uses the adapters of its forward pass wherever it is
        called, with gradient checkpointing too, which replays dropout's draws.
        """
        before = self._route
        self._route = AdapterRoute(kind, rows, dropout)
        try:
            yield
        finally:
            self._route = before

    def pack(self, groups: Sequence[Sequence[PromptGroup]]) -> Batch:
        """Pack the prompt groups of each adapter for this backbone."""
        return pack(groups, self.backbone.pad_token_id, self.backbone.device)

    def soft_token_id(self, row: int) -> int:
        """Return the id that stands for a row of the soft tokens given to :meth:`embed`."""
        return self.vocabulary_size + row

    def embed(self, ids: Tensor, soft_ASD: Tensor | None = None) -> Tensor:
        """Embed tokens, ids (..., T) to (..., T, D).

        Soft tokens, a table for each of the A rows, need ids (A, T), and enter the first layer as
        they are: scale them like the embeddings that this method returns. ValueError if an id names
        no row.
        """
        known = self.vocabulary_size + (0 if soft_ASD is None else soft_ASD.shape[1])
        if bool((ids >= known).any()):
            raise ValueError(
                f"token id {int(ids.max())} is not below {known}, the vocabulary and the soft "
                "tokens given; hand over the table that the soft ids were made for"
            )

        embedding = self.backbone.model.get_input_embeddings()
        if soft_ASD is None:
            embeds: Tensor = embedding(ids)
            return embeds

        is_soft_AT = ids >= self.vocabulary_size
        embeds_ATD: Tensor = embedding(ids.masked_fill(is_soft_AT, 0))
        owners_N, positions_N = is_soft_AT.nonzero(as_tuple=True)

        rows_N = ids[owners_N, positions_N] - self.vocabulary_size
        soft_ND = soft_ASD[owners_N, rows_N].to(embeds_ATD.dtype)
        return embeds_ATD.index_put((owners_N, positions_N), soft_ND)

    def hidden_states(
        self, packed: Batch, embeds_ALD: Tensor | None = None, *, layers: int = 0
    ) -> Tensor:
        """Return the final hidden states (A, L, D) in float32.

        Embeddings may be given to replace the embeddings of the packed tokens (soft prompts). Given
        fewer than all layers (0), it reads through the first ones, without the final norm.
        ConfigError if the backbone has fewer layers.
        """
        self._check_depth(layers)
        embeds_ALD = self.embed(packed.ids_AL) if embeds_ALD is None else embeds_ALD
        return self._read(embeds_ALD, packed.positions_AL, PrefillAttention(packed), layers)

    def read_out(
        self, packed: Batch, embeds_ALD: Tensor | None = None, *, count: int = 1, layers: int = 0
    ) -> Tensor:
        """Return the hidden states at the last C tokens of every prompt, (A, R, C, D) in float32.

        The rest is as in :meth:`hidden_states`. ValueError if a prompt has fewer tokens.
        """
        places_ARC = packed.last_places(count)
        states_ALD = self.hidden_states(packed, embeds_ALD, layers=layers)
        return states_ALD.flatten(0, 1)[places_ARC]

    @torch.no_grad()
    def prefill(self, packed: Batch, embeds_ALD: Tensor | None = None) -> PrefillCache:
        """Read prompts once, so that all that follows them can share their keys and values."""
        attention = PrefillAttention(packed, keeps_cache=True)
        embeds_ALD = self.embed(packed.ids_AL) if embeds_ALD is None else embeds_ALD
        states_ALD = self._read(embeds_ALD, packed.positions_AL, attention)
        return attention.build_cache(states_ALD.flatten(0, 1)[packed.last_places()[:, :, 0]])

    def read_tokens(
        self, ids_AL: Tensor, positions_AL: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Return the final hidden states (A, L, D) of tokens that follow prompts, in float32.

        Positions are counted from the beginning of the prompt.
        """
        # Not through embed(): that a token is in the vocabulary is known, and asking would wait.
        embeds_ALD = self.backbone.model.get_input_embeddings()(ids_AL)
        return self._read(embeds_ALD, positions_AL, attention)

    def logits(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return logits in float32 of all or of some tokens, states (..., D) to (..., V)."""
        head = self.backbone.model.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if tokens is not None:
            weight, bias = weight[tokens], None if bias is None else bias[tokens]
        scores = widen(frozen_linear(states, weight, bias))
        return apply_softcap(scores, self._logit_softcap)

    def answer_loss(self, packed: Batch) -> Tensor:
        """Return the mean negative log-likelihood of each adapter's answers (A,), with gradient.

        A prompt without an answer counts for nothing.
        """
        states_ALD = self.hidden_states(packed)
        states_LD = states_ALD.flatten(0, 1)
        # Zeros that have a gradient path: without any answer the caller can still go backward.
        zero_A = states_ALD.flatten(1).sum(1) * 0.0

        losses = []
        for zero, prompts, answers in zip(zero_A, packed.prompts, packed.answers, strict=True):
            terms = [zero]
            for places, answer in zip(prompts, answers, strict=True):
                if answer:
                    # The state at a token scores the token after it.
                    states_TD = states_LD[places[-len(answer) - 1 : -1]]
                    target_T = torch.tensor(answer, device=states_LD.device)
                    terms.append(-self.token_logp(states_TD, target_T).mean())
            losses.append(torch.stack(terms).sum() / max(len(terms) - 1, 1))
        return torch.stack(losses)

    def token_logp(self, states_ND: Tensor, ids_N: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-probability (N,) of each id under ``softmax(logits / temperature)``."""
        head = self.backbone.model.get_output_embeddings()
        # Not through logits(): those of all tokens at once would not fit in memory.
        out: Tensor = TokenLogp.apply(
            states_ND, ids_N, head.weight, head.bias, temperature, self._logit_softcap
        )  # type: ignore[no-untyped-call]
        return out

    def sample(self, cache: PrefillCache, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
        """Sample continuations of every prompt, all at once.

        The cache is from :meth:`prefill` under the same adapters. Returned are ids (A, M, T) and
        mask (A, M, T): a continuation includes the token that ends it, what follows is masked.
        """
        return sample_tokens(self, cache, settings)

    def save_adapter(self, number: int, kind: str, folder: str | Path) -> None:
        """Write one adapter of those that this process holds as a PEFT LoRA folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = self._build_peft_config(kind)
        # PEFT keeps a set, whose order would change the file from run to run.
        config.target_modules = sorted(LORA_TARGETS)
        config.save_pretrained(folder)

        tensors = {
            # safetensors takes contiguous tensors only.
            name: parameter.detach().cpu().contiguous()
            for name, parameter in self._named_tensors(number, kind)
        }
        save_file(tensors, folder / _TENSOR_FILE, metadata={"format": "pt"})

    @torch.no_grad()
    def load_adapter(self, number: int, kind: str, folder: Path) -> None:
        """Set one adapter of one kind from a PEFT LoRA folder.

        CheckpointMismatch if the folder's rank, scaling, layers or kind of update are not this
        population's.
        """
        ours = self._build_peft_config(kind)
        theirs = ours.from_pretrained(folder)
        names = ["r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"]
        names.append("alora_invocation_tokens")
        # Other starts than these have changed the frozen layers, too.
        if theirs.init_lora_weights not in (True, False, "gaussian", "eva", "orthogonal"):
            names.append("init_lora_weights")
        if differing := [
            f"{name} = {getattr(theirs, name)} where the population has {getattr(ours, name)}"
            for name in names
            if getattr(theirs, name) != getattr(ours, name)
        ]:
            raise CheckpointMismatch(
                f"{folder} has {', '.join(differing)}; give the population the adapter's rank and "
                "alpha, and train the adapter as one plain LoRA update, equal in every layer"
            )

        tensors = load_file(folder / _TENSOR_FILE)
        targets = dict(self._named_tensors(number, kind))
        # In either direction: a tensor too many would be ignored in silence.
        if differing := sorted(targets.keys() ^ tensors.keys()):
            raise CheckpointMismatch(
                f"{folder} and the backbone differ in {len(differing)} tensor(s), first "
                f"{differing[0]}"
            )

        for name, target in targets.items():
            target.copy_(tensors[name])

    def _build_peft_config(self, kind: str) -> Any:  # noqa: ANN401 - importing PEFT takes seconds
        from peft import LoraConfig

        return LoraConfig(
            r=self.shape.rank,
            lora_alpha=self.shape.alpha,
            bias="none",
            lora_dropout=self.shape.dropout,
            target_modules=list(LORA_TARGETS),
            task_type="CAUSAL_LM",
            base_model_name_or_path=self.backbone.name_or_path,
            inference_mode=True,
            # Only where PEFT would otherwise look for adapters that are not there.
            layers_to_transform=list(range(self.depths[kind] or 0)) or None,
        )

    def _named_tensors(self, number: int, kind: str) -> Iterator[tuple[str, Tensor]]:
        """Yield PEFT's name and the stacked tensors' row of every tensor of one adapter."""
        row = self.local.index(number)
        for name, layer in self.layers.items():
            if kind in layer.lora_a:
                yield f"base_model.model.{name}.lora_A.weight", layer.lora_a[kind][row]
                yield f"base_model.model.{name}.lora_B.weight", layer.lora_b[kind][row]

    def _check_depth(self, layers: int) -> None:
        available = len(self.backbone.decoder.layers)
        if not 0 <= layers <= available:
            raise ConfigError(
                f"{layers} layers are named, and backbone {self.backbone.name_or_path} has "
                f"{available}; name at most {available}, or 0 for all"
            )

    def _insert_adapters(self, generator: torch.Generator) -> dict[str, StackedLoraLinear]:
        """Replace every layer that gets adapters by one that has them."""
        model = self.backbone.model
        targets = find_adapter_targets(self.backbone)
        for depth in self.depths.values():
            self._check_depth(depth or 0)

        inserted: dict[str, StackedLoraLinear] = {}
        # The order of the layers is the order of the draws from the generator.
        for number, name, module in targets:
            # Converted here, so that embeddings and norms stay in the model's own type.
            weight = module.weight
            weight.data = weight.data.to(self.backbone.matmul_dtype or weight.dtype)
            kinds = {kind: depth is None or number < depth for kind, depth in self.depths.items()}
            layer = StackedLoraLinear(
                module, self.shape, self.local, self._router, generator, kinds
            ).to(weight.device)

            model.set_submodule(name, layer)
            inserted[name] = layer
        for block in self.backbone.decoder.layers:
            block.self_attn.register_forward_pre_hook(self._router.take_route, with_kwargs=True)
        return inserted

    def _read(
        self, embeds_ALD: Tensor, positions_AL: Tensor, attention: AttentionBackend, layers: int = 0
    ) -> Tensor:
        in_use = self.local[self._route.rows]
        if self._route.kind is not None and len(embeds_ALD) != len(in_use):
            raise ValueError(
                f"the batch has {len(embeds_ALD)} rows for {len(in_use)} adapters in use; give "
                "each of them a row, or name others in use_adapters(rows=...)"
            )

        decoder = self.backbone.decoder
        # transformers recomputes layers in train mode only. Nothing else follows from the mode:
        # these backbones have no dropout of their own.
        if decoder.training != torch.is_grad_enabled():
            decoder.train(torch.is_grad_enabled())

        if 0 < layers < len(decoder.layers):
            # A shell of the first layers, which shares all but the dictionary of its modules.
            shell = copy.copy(decoder)
            first = {"layers": decoder.layers[:layers], "norm": nn.Identity()}
            shell._modules = decoder._modules | first
            decoder = shell

        out = decoder(
            inputs_embeds=embeds_ALD.to(self.backbone.model.dtype),
            # With four dimensions transformers builds no mask: our attention applies its own.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=embeds_ALD.device),
            position_ids=positions_AL,
            use_cache=False,
            adapter_route=self._route,
            attention_backend=attention,
        )
        # All that follows works in float32 at least.
        return widen(out.last_hidden_state)
