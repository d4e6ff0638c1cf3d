"""Trainable parameters by part and method, from an architecture's published sizes.

What belongs here: the arithmetic of the paper's table "Multi-agent baseline configurations" (D.4),
and its check against a model built on the meta device, which downloads nothing and allocates
nothing. What does not: the sizes (``lm.architectures``), building or training a population.

The paper prints totals only. Which tensors make them up is derived here, and the report says so.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from compevo_core.errors import ConfigError
from compevo_core.lm.architectures import LORA_TARGETS, SIZES, Architecture, load_architecture

METHODS = ("sa", "mael", "mae-gpt", "mad-rl", "compevo")
PAPER_AGENTS = 10
PAPER_RANK = 16
DERIVATION = (
    "the paper prints totals; the parts are derived so that all five totals agree on Llama-3.1-8B"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of trainable tensor."""

    part: str  # its name
    tensors: str  # names and shapes of its tensors, in words
    copies: int  # how many there are
    each: int  # parameters of one copy

    @property
    def parameters(self) -> int:
        """Parameters of all copies."""
        return self.copies * self.each


def list_trainable_parts(
    architecture: Architecture, method: str, *, agents: int = PAPER_AGENTS, rank: int = PAPER_RANK
) -> list[Part]:
    """List what a method trains (paper D.4); the parts sum to the method's count.

    The single agent "sa" always has one agent, whatever ``agents``; ConfigError for an unknown
    method.
    """
    if method not in METHODS:
        raise ConfigError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if agents < 1 or rank < 1:
        raise ConfigError(f"agents = {agents} and rank = {rank} must both be at least 1")

    def adapters(role: str, copies: int = agents) -> Part:
        return Part(
            part=f"{role} adapters",
            copies=copies,
            each=architecture.adapter_parameters(rank),
            tensors=f"lora_A (r, in) and lora_B (out, r) of {', '.join(LORA_TARGETS)} in every "
            "block",
        )

    if method == "sa":
        return [adapters("forecast", copies=1)]
    # The ensemble methods train their forecast adapters and nothing else.
    if method in ("mael", "mae-gpt"):
        return [adapters("forecast")]
    if method == "mad-rl":
        roles = [adapters(role) for role in ("policy", "value", "verifier")]
        return roles + _output_heads(architecture.hidden_size, agents)

    return [
        adapters("forecast"),
        adapters("logic"),
        *_evolution_parts(architecture.hidden_size, agents),
    ]


def _output_heads(hidden: int, agents: int) -> list[Part]:
    """List the scalar heads of the debate baseline."""
    return [
        Part(part=part, tensors="weight (1, d) and bias (1)", copies=agents, each=hidden + 1)
        for part in ("value heads", "verifier heads")
    ]


def _evolution_parts(hidden: int, agents: int) -> list[Part]:
    """List what CompEvo trains beside its adapters (paper 4.2 and 4.3)."""
    linear_with_bias = hidden * hidden + hidden
    return [
        Part(
            part="fusion gates",
            tensors="W_g2, W_g3 (d, 2d), bias (d), shared",
            copies=2,
            each=linear_with_bias + hidden * hidden,
        ),
        Part(
            part="soft-prompt projection",
            tensors="weight (d, d), bias (d), shared",
            copies=1,
            each=linear_with_bias,
        ),
        Part(part="interaction scores", tensors="alpha (I, I)", copies=1, each=agents * agents),
        Part(part="selection gates", tensors="g (I)", copies=1, each=agents),
    ]


def count_on_meta(architecture: Architecture, *, rank: int = PAPER_RANK) -> dict[str, int]:
    """Count parameters of the ``backbone`` and of one PEFT ``adapter`` on the meta device."""
    # Imported here, as the arithmetic alone needs no torch.
    import torch
    from peft import LoraConfig, get_peft_model

    with torch.device("meta"):
        model = build_meta_model(architecture)
        # Counted before PEFT adds its own to the same model.
        backbone = sum(parameter.numel() for parameter in model.parameters())
        lora = LoraConfig(r=rank, target_modules=list(LORA_TARGETS), task_type="CAUSAL_LM")
        adapted = get_peft_model(model, lora)

    trainable = (parameter for parameter in adapted.parameters() if parameter.requires_grad)
    return {"backbone": backbone, "adapter": sum(parameter.numel() for parameter in trainable)}


def build_meta_model(architecture: Architecture) -> Any:  # noqa: ANN401 - a transformers model
    """Return the language model; call it within ``torch.device("meta")``, else it allocates."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {key: getattr(architecture, key) for key in (*SIZES, "head_dim", "tie_word_embeddings")}
    config = AutoConfig.for_model(architecture.model_type, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()  # else a shared vocabulary matrix would count twice
    return model


def build_parameter_report(
    backbone: str,
    *,
    methods: Sequence[str] = METHODS,
    agents: int = PAPER_AGENTS,
    rank: int = PAPER_RANK,
    verify: bool = True,
) -> dict[str, Any]:
    """Build the JSON of ``compevo params``: counts by method and part, tensors of one adapter.

    Args:
        backbone: see :func:`compevo_core.lm.architectures.load_architecture`.
        methods: the methods to count.
        agents: population of the multi-agent methods.
        rank: rank of the adapters.
        verify: count the adapter and the frozen backbone on the meta device too.

    Raises:
        ConfigError: an unknown backbone or method, or the two counts differ.
    """
    architecture = load_architecture(backbone)
    report: dict[str, Any] = {
        "backbone": architecture.name,
        "hidden_size": architecture.hidden_size,
        "rank": rank,
        "derivation": DERIVATION,
        "verified_on_meta_device": verify,
    }

    if verify:
        report["frozen_backbone_parameters"] = _verify_on_meta(architecture, rank)
    report["adapter"] = _describe_adapter(architecture, rank)
    report["methods"] = {
        method: _describe_method(architecture, method, agents, rank) for method in methods
    }
    return report


def _verify_on_meta(architecture: Architecture, rank: int) -> int:
    """Check the adapter's count against PEFT; return the parameters of the frozen backbone."""
    expected = architecture.adapter_parameters(rank)
    counted = count_on_meta(architecture, rank=rank)
    if counted["adapter"] != expected:
        raise ConfigError(
            f"{architecture.name}: {expected} adapter parameters by arithmetic, "
            f"{counted['adapter']} on the meta device; its blocks are not the seven linear layers "
            "counted here"
        )
    return counted["backbone"]


def _describe_adapter(architecture: Architecture, rank: int) -> dict[str, Any]:
    return {
        "parameters": architecture.adapter_parameters(rank),
        "blocks": architecture.num_hidden_layers,
        "tensors_of_one_block": [
            {
                "module": module,
                "lora_A": [rank, inputs],
                "lora_B": [outputs, rank],
                "parameters": rank * (inputs + outputs),
            }
            for module, (inputs, outputs) in architecture.linear_shapes().items()
        ],
    }


def _describe_method(
    architecture: Architecture, method: str, agents: int, rank: int
) -> dict[str, Any]:
    parts = list_trainable_parts(architecture, method, agents=agents, rank=rank)
    total = sum(part.parameters for part in parts)
    return {
        "agents": 1 if method == "sa" else agents,
        "trainable_parameters": total,
        "millions": round(total / 1e6, 1),
        "parts": [{**dataclasses.asdict(part), "parameters": part.parameters} for part in parts],
    }
