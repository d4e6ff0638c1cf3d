"""The cases of ``benchmarks.engine`` that are measured on a GPU, the most wanted answers first.

What belongs here: which cases of which backbones, and backbones of published shapes with random
weights, which the folder gets (17 GB). What does not: measuring (``cases``).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import measure_case
from benchmarks.engine import KEY, derive_rows
from benchmarks.rows import LIBRARIES, Benchmark, Row
from benchmarks.world import Case
from compevo_core.lm.backbone import load_packaged
from compevo_core.paper.agent_systems import build_model, load_architecture
from compevo_core.runtime.files import fill_folder_atomically

LARGE, SMALL = "llama-3.1-8b", "smollm2-135m"

CASES = (
    f"{LARGE}/token/10",  # how near a token is to what memory allows
    f"{LARGE}/preset-rewriting/10",  # seconds of a round that writes logics
    f"{LARGE}/round/10",  # how much faster than PEFT
    f"{SMALL}/token/10",
    f"{SMALL}/round/10",
    f"{SMALL}/sampling/3",
    f"{LARGE}/token/3",
    f"{LARGE}/round/3",
    f"{LARGE}/backward/3",
    f"{SMALL}/backward/10",
    f"{SMALL}/inference/10",
)


def prepare_backbone(folder: Path, shape: str) -> Path:
    """Return the folder of a random backbone, which is made unless it is there."""
    path = folder / f"{shape}-random"
    if not path.exists():
        save_backbone(path, shape, load_packaged().tokenizer)
    return path


def save_backbone(folder: Path, shape: str, tokenizer: Any) -> None:  # noqa: ANN401 - any
    """Save random weights of a published shape in bfloat16, drawn on a GPU if there is one.

    Speed and memory depend only on the shape: 8 billion weights need not be downloaded.
    """
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        # Without a row of zeros for padding, which prompts may hold as the end of a message: norms
        # of zeros have gradients that grow from layer to layer.
        "pad_token_id": None,
        "max_position_embeddings": 8_192,
    }
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = build_model(load_architecture(shape), **special)
    finally:
        torch.set_default_dtype(usual)

    def save(part: Path) -> None:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)

    fill_folder_atomically(folder, save)


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the rows of a case; the large backbone has the paper's preset where nothing differs."""
    shape, name, agents = case.split("/")
    is_paper = shape == LARGE and name in ("token", "preset-rewriting")
    # The encoder of the news does not matter for the engine.
    settings = {
        "backbone.name_or_path": str(prepare_backbone(folder, shape)),
        "news.encoder": "hashing",
    }
    yield from measure_case(
        Case(
            name=name,
            agents=int(agents),
            repeats=2,
            preset="paper" if is_paper else "default",
            types=("bfloat16",),
            settings=settings,
        )
    )


BENCHMARK = Benchmark(
    name="gpu",
    cases=CASES,
    measure=measure,
    key=KEY,
    libraries=LIBRARIES,
    finish=derive_rows,
)

if __name__ == "__main__":
    BENCHMARK.main()
