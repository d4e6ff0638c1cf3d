"""One process of several: trains the jobs of its argument one after the other.

    python shard_worker.py '[{"out": ..., "set": {...}, "layers": 2, "stop": 0, "poison": 2}, ...]'

It needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. ``stop`` ends a training after that many
rounds, as an interruption would; ``poison`` spoils an agent; ``layers`` builds another backbone;
``shard`` splits the backbone in place of the agents, ``split_alone`` asks one process to.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from compevo_core.agents import text_decoder as answers
from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import CompEvoError
from compevo_core.lm.backbone import load_backbone
from compevo_core.runtime.distributed import process_group
from compevo_core.training.model import PopulationModel
from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny, windows
from tests.support.tiny_run import kill_after


def tiny_backbone(layers, shard=False):
    """Build the tiny backbone on the processor, as wide as ever with any number of ``layers``."""
    config = BackboneConfig(name_or_path="tiny-random")
    backbone = load_backbone(config, device="cpu", shard=shard)
    if layers is None:
        return backbone
    settings = backbone.model.config.to_dict() | {"num_hidden_layers": layers}
    torch.manual_seed(layers)
    return dataclasses.replace(
        backbone, model=LlamaForCausalLM(LlamaConfig(**settings)).eval().requires_grad_(False)
    )


class Poisoned(PopulationModel):
    """A model with NaN in the head of one agent, on the process that holds it."""

    agent = 0

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        if self.agent in self.shards.local_agents:
            row = self.shards.local_agents.index(self.agent)
            self.head_parameters()[-1].data[row] = float("nan")


def run(job):
    """Train one job; return the error as text, empty if there was none."""
    from compevo_core.training import loop

    Poisoned.agent = job.get("poison")
    loop.PopulationModel = PopulationModel if Poisoned.agent is None else Poisoned
    # A random backbone writes no numbers; it need not write many tokens either.
    tokens, answers._TOKENS_PER_NUMBER = answers._TOKENS_PER_NUMBER, 1
    try:
        train(
            tiny(**job.get("set", {})),
            windows("train", 8),
            windows("val", 3, first_day=20),
            news_pool(),
            Path(job["out"]),
            on_round=kill_after(job.get("stop", 0) - 1),
            backbone=tiny_backbone(job.get("layers"), job.get("shard", False)),
            shard_backbone=job.get("shard", False) or job.get("split_alone", False),
        )
    except CompEvoError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        # Other tests of this process train too.
        loop.PopulationModel = PopulationModel
        answers._TOKENS_PER_NUMBER = tokens
    return ""


if __name__ == "__main__":
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group(rank, processes, 0):
        for job in json.loads(sys.argv[1]):
            Path(f"{job['out']}.rank{rank}").write_text(run(job), encoding="utf-8")
