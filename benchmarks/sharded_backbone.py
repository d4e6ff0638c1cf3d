"""Measure what splitting a backbone saves and costs: ``python -m benchmarks.sharded_backbone``.

What belongs here: one random backbone, held whole by one process and split over several on this
machine (Gloo); the memory of each and the seconds of a pass. What does not: GPUs, training runs.

Every process loads the same folder, reads the same prompts with the adapters of two agents and runs
backward. ``held_gb`` counts the frozen weights that a process holds; ``resident_gb`` is the memory
it uses after the passes, ``baseline_gb`` the same before anything was loaded. Each is the largest
value of all processes.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.distributed.tensor import DTensor

from benchmarks.random_backbone import build_folder
from benchmarks.rows import (
    RESULTS,
    Row,
    describe_surroundings,
    print_row,
    run_processes,
    write_rows,
)
from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.lora import LoraShape, PromptGroup
from compevo_core.lora.population import DEFAULT, Population
from compevo_core.runtime.distributed import process_group

PROCESSES = (1, 2, 4)
LAYERS = 20  # 1.2 GB of float32
_GB = 1e9
_PROMPT = 96  # tokens
_STATUS = Path("/proc/self/status")


def save_backbone(folder: Path, layers: int, width: int) -> None:
    """Save a random Llama of so many layers with the tiny backbone's tokenizer."""
    tiny = load_backbone(BackboneConfig(name_or_path=TINY), device="cpu")
    settings = tiny.model.config.to_dict() | {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": width // 8,
    }
    build_folder(folder, tiny.tokenizer, settings)


def measure(folder: str, *, shard: bool) -> Row:
    """Load, read and run backward; return what this process held and how long it took."""
    baseline = _resident_gigabytes()
    began = time.perf_counter()
    backbone = load_backbone(BackboneConfig(name_or_path=folder), device="cpu", shard=shard)
    loaded = time.perf_counter()

    generator = torch.Generator().manual_seed(0)
    population = Population(backbone, LoraShape(adapters=2, rank=8), generator)
    for parameter in population.adapter_parameters(DEFAULT):
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    prompt = [3 + number % 250 for number in range(_PROMPT)]
    packed = population.pack([[PromptGroup(prompt)], [PromptGroup(prompt[::-1])]])

    # Not the mean square: after the last norm it is the same for all states.
    direction = torch.randn(backbone.hidden_size, generator=generator)
    seconds = []
    for _ in range(3):
        population.zero_grad()
        started = time.perf_counter()
        with population.use_adapters():
            states = population.hidden_states(packed)
            (states * direction).sum().backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - started)

    first = population.adapter_parameters(DEFAULT)[0].grad
    assert first is not None  # noqa: S101 - backward has just run
    held = [
        each.to_local() if isinstance(each, DTensor) else each
        for each in backbone.model.parameters()
        if not each.requires_grad
    ]
    return {
        "held_gb": sum(each.numel() * each.element_size() for each in held) / _GB,
        "baseline_gb": baseline,
        "resident_gb": _resident_gigabytes(),
        "load_seconds": loaded - began,
        "pass_seconds": min(seconds),
        "state_norm": float(states.detach().norm()),
        "gradient_norm": float(first.norm()),
    }


def measure_processes(folder: str, count: int) -> Row:
    """Measure in so many processes; return the row of the one that holds most."""
    done = run_processes("benchmarks.sharded_backbone", count, "--process-of", folder)
    for process in done:
        if process.returncode:
            raise RuntimeError(f"a process ended with {process.returncode}: {process.stderr}")
    measured = [json.loads(process.stdout.splitlines()[-1]) for process in done]
    return {"processes": count} | {name: max(row[name] for row in measured) for name in measured[0]}


def compare(rows: list[Row]) -> list[Row]:
    """Add to each row what it is against one process."""
    single = rows[0]
    own_single = single["resident_gb"] - single["baseline_gb"]
    return [
        row
        | {
            "held_ratio": row["held_gb"] / single["held_gb"],
            "resident_ratio": (row["resident_gb"] - row["baseline_gb"]) / own_single,
            "state_difference": abs(row["state_norm"] / single["state_norm"] - 1),
            "gradient_difference": abs(row["gradient_norm"] / single["gradient_norm"] - 1),
        }
        for row in rows
    ]


def _resident_gigabytes() -> float:
    """Return what of this process is in memory, the weights that it maps from a file included."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / _GB


app = typer.Typer(add_completion=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="The table.")] = RESULTS / "sharded_backbone.csv",
    layers: Annotated[int, typer.Option(help="Layers of the backbone.")] = LAYERS,
    width: Annotated[int, typer.Option(help="Width of its states.")] = 1024,
    process_of: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure one, two and four processes that hold one random backbone."""
    if process_of:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        with process_group(rank, count, 0):
            print_row(measure(process_of, shard=count > 1))
        return

    with tempfile.TemporaryDirectory() as folder:
        save_backbone(Path(folder), layers, width)
        rows = compare([measure_processes(folder, count) for count in PROCESSES])
    rows = [row | {"layers": layers, "width": width} | describe_surroundings() for row in rows]
    write_rows(rows, out)


if __name__ == "__main__":
    app()
