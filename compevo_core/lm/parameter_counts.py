"""Trainable parameters by part and method, from an architecture's published numbers (design 4.3).

What belongs here: the arithmetic behind the paper's table "Multi-agent baseline configurations", and its check
against a model built on the meta device, which downloads nothing and allocates nothing.
What does not: building or training a population.
The paper prints totals only; which tensors make them up is our derivation, and the report says so.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self

from compevo_core.errors import ConfigError

METHODS = ("sa", "mael", "mae-gpt", "mad-rl", "compevo")
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PAPER_AGENTS = 10
PAPER_RANK = 16
DERIVATION = (
    "the paper prints totals; the parts are derived so that all five totals agree on Llama-3.1-8B"
)

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The published sizes of a decoder-only language model; names are those of its ``config.json``."""

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, name: str) -> Self:
        """Reads a preset or a model's own ``config.json``; a missing or impossible size raises ``ConfigError``."""
        filled: dict[str, Any] = {
            "num_key_value_heads": values.get("num_attention_heads"),
            **values,
        }
        bad = [key for key in _SIZES if type(filled.get(key)) is not int or filled[key] < 1]
        if bad or not isinstance(filled.get("model_type"), str):
            raise ConfigError(
                f"architecture {name}: {', '.join(bad) or 'model_type'} missing or not a positive "
                "integer; give the model's config.json as published"
            )
        head_dim = filled.get("head_dim") or filled["hidden_size"] // filled["num_attention_heads"]
        return cls(
            name=str(filled.get("name", name)),
            model_type=filled["model_type"],
            head_dim=int(head_dim),
            tie_word_embeddings=bool(filled.get("tie_word_embeddings", False)),
            **{key: filled[key] for key in _SIZES},
        )

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(in, out) of the seven linear layers of one block."""
        d, f = self.hidden_size, self.intermediate_size
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (d, q),
            "k_proj": (d, kv),
            "v_proj": (d, kv),
            "o_proj": (q, d),
            "gate_proj": (d, f),
            "up_proj": (d, f),
            "down_proj": (f, d),
        }

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of one LoRA adapter on the seven linear layers of every block."""
        return self.num_hidden_layers * rank * sum(a + b for a, b in self.linear_shapes().values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of trainable tensor: how many copies, and how many parameters each holds."""

    part: str
    tensors: str
    copies: int
    each: int

    @property
    def parameters(self) -> int:
        """Parameters of all copies."""
        return self.copies * self.each


def _preset_folder() -> Traversable:
    return resources.files("compevo_core") / "presets" / "architectures"


def known_architectures() -> list[str]:
    """Names of the architectures written down in ``presets/architectures``."""
    return sorted(
        p.name.removesuffix(".json") for p in _preset_folder().iterdir() if p.name.endswith(".json")
    )


def load_architecture(backbone: str) -> Architecture:
    """Loads a preset by name (any case), a ``.json`` file, or a model folder with a ``config.json``."""
    path = Path(backbone)
    source: Traversable = path / "config.json" if path.is_dir() else path
    if not backbone.endswith(".json") and not path.is_dir():
        source = _preset_folder() / f"{backbone.lower()}.json"
    if not source.is_file():
        raise ConfigError(
            f"no architecture {backbone!r}; known: {', '.join(known_architectures())}; "
            "or give a config.json or a model folder"
        )
    try:
        values = json.loads(source.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{source} is not JSON (line {error.lineno}): give the model's config.json"
        ) from error
    return Architecture.from_mapping(
        values, name=path.stem if path.name != "config.json" else path.parent.name
    )


def trainable_parts(
    architecture: Architecture, method: str, *, agents: int = PAPER_AGENTS, rank: int = PAPER_RANK
) -> list[Part]:
    """What a method trains (paper D.4): a list of parts whose sum is the method's count.

    ``agents`` is the population of the multi-agent methods; SA always has one.
    """
    if method not in METHODS:
        raise ConfigError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if agents < 1 or rank < 1:
        raise ConfigError(f"agents = {agents} and rank = {rank} must both be at least 1")
    d, lora = architecture.hidden_size, architecture.adapter_parameters(rank)
    square = d * d + d

    def adapters(role: str, copies: int) -> Part:
        return Part(
            part=f"{role} adapters",
            copies=copies,
            each=lora,
            tensors=f"lora_A (r, in) and lora_B (out, r) of {', '.join(TARGET_MODULES)} in every block",
        )

    if method == "sa":
        return [adapters("forecast", 1)]
    if method in ("mael", "mae-gpt"):
        return [adapters("forecast", agents)]
    if method == "mad-rl":
        head = "weight (1, d) and bias (1)"
        return [
            adapters("policy", agents),
            adapters("value", agents),
            adapters("verifier", agents),
            Part(part="value heads", tensors=head, copies=agents, each=d + 1),
            Part(part="verifier heads", tensors=head, copies=agents, each=d + 1),
        ]
    return [
        adapters("forecast", agents),
        adapters("logic", agents),
        Part(
            part="fusion gates",
            tensors="W_g2, W_g3 (d, 2d), bias (d), shared",
            copies=2,
            each=square + d * d,
        ),
        Part(
            part="soft-prompt projection",
            tensors="weight (d, d), bias (d), shared",
            copies=1,
            each=square,
        ),
        Part(part="interaction scores", tensors="alpha (I, I)", copies=1, each=agents * agents),
        Part(part="selection gates", tensors="g (I)", copies=1, each=agents),
    ]


def count_on_meta(architecture: Architecture, *, rank: int = PAPER_RANK) -> dict[str, int]:
    """Builds the model and one PEFT adapter on the meta device: ``{"backbone": ..., "adapter": ...}`` parameters."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        key: getattr(architecture, key) for key in (*_SIZES, "head_dim", "tie_word_embeddings")
    }
    config = AutoConfig.for_model(architecture.model_type, **sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        model.tie_weights()
        backbone = sum(p.numel() for p in model.parameters())
        adapted = get_peft_model(
            model, LoraConfig(r=rank, target_modules=list(TARGET_MODULES), task_type="CAUSAL_LM")
        )
    return {
        "backbone": backbone,
        "adapter": sum(p.numel() for p in adapted.parameters() if p.requires_grad),
    }


def parameter_report(
    backbone: str,
    *,
    methods: Sequence[str] = METHODS,
    agents: int = PAPER_AGENTS,
    rank: int = PAPER_RANK,
    verify: bool = True,
) -> dict[str, Any]:
    """The JSON of ``compevo params``: counts by method and part, and the tensors of one adapter.

    With ``verify`` the adapter and the frozen backbone are counted on the meta device too; a difference raises.
    """
    architecture = load_architecture(backbone)
    lora = architecture.adapter_parameters(rank)
    report: dict[str, Any] = {
        "backbone": architecture.name,
        "hidden_size": architecture.hidden_size,
        "rank": rank,
        "derivation": DERIVATION,
        "verified_on_meta_device": verify,
    }
    if verify:
        counted = count_on_meta(architecture, rank=rank)
        if counted["adapter"] != lora:
            raise ConfigError(
                f"{architecture.name}: {lora} adapter parameters by arithmetic, {counted['adapter']} on "
                "the meta device; its blocks are not the seven linear layers counted here"
            )
        report["frozen_backbone_parameters"] = counted["backbone"]
    report["adapter"] = {
        "parameters": lora,
        "blocks": architecture.num_hidden_layers,
        "tensors_of_one_block": [
            {
                "module": module,
                "lora_A": [rank, a],
                "lora_B": [b, rank],
                "parameters": rank * (a + b),
            }
            for module, (a, b) in architecture.linear_shapes().items()
        ],
    }
    report["methods"] = {}
    for method in methods:
        parts = trainable_parts(architecture, method, agents=agents, rank=rank)
        total = sum(part.parameters for part in parts)
        report["methods"][method] = {
            "agents": 1 if method == "sa" else agents,
            "trainable_parameters": total,
            "millions": round(total / 1e6, 1),
            "parts": [
                {**dataclasses.asdict(part), "parameters": part.parameters} for part in parts
            ],
        }
    return report
