"""Populations on the tiny random backbone whose adapters are all away from their start."""

import torch
from transformers import AutoModelForCausalLM, Gemma2Config

from compevo_core.agents.decoders import FORECAST, KINDS, LOGIC
from compevo_core.config.sections import BackboneConfig, PopulationConfig
from compevo_core.lm.backbone import load_backbone
from compevo_core.lora import Backbone, Population

CONFIG = PopulationConfig(agents=3, rank=4, alpha=8.0, dropout=0.0)
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "pad_token_id": 0}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def build_backbone(*, checkpointing=False, dtype="float32"):
    settings = {"gradient_checkpointing": checkpointing, "dtype": dtype}
    return load_backbone(BackboneConfig(name_or_path="tiny-random", **settings), device="cpu")


def build_random(architecture, **changes):
    """A model of two layers of another architecture, with its own attention."""
    torch.manual_seed(0)
    config = architecture(**SIZES, **changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return Backbone(model.eval().requires_grad_(False), build_backbone().tokenizer, "test", "none")


def build_gemma():
    """A model that scales its embeddings, caps its scores and looks back eight tokens."""
    return build_random(Gemma2Config, head_dim=8, sliding_window=8)


def insert_adapters(backbone, config=CONFIG, *, seed=0, local=None, forecast_layers=0):
    """Both kinds of adapters, as a run starts them."""
    depths = {FORECAST: forecast_layers or None, LOGIC: None}
    generator = torch.Generator().manual_seed(seed)
    return Population(backbone, config.shape, generator, local, depths=depths)


def build_population(config=CONFIG, *, checkpointing=False, forecast_layers=0, dtype="float32"):
    backbone = build_backbone(checkpointing=checkpointing, dtype=dtype)
    population = insert_adapters(backbone, config, seed=1, forecast_layers=forecast_layers)
    move_adapters(population)
    return population


def move_adapters(population):
    """Move all adapters away from their start: B is zero there, and no adapter changes anything."""
    generator = torch.Generator().manual_seed(2)
    for kind in KINDS:
        for parameter in population.adapter_parameters(kind):
            parameter.data.normal_(0, 0.1, generator=generator)
