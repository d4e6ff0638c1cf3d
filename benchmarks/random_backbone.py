"""Save a random backbone of a published shape: ``python -m benchmarks.random_backbone FOLDER``.

What belongs here: the folder that transformers loads. What does not: shapes
(``config/presets/architectures``), measuring. Speed and memory depend only on the shape, and
weights of 8 billion parameters need not be downloaded.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoTokenizer

from compevo_core.paper.agent_systems import build_model, known_architectures, load_architecture


def main(
    folder: Annotated[Path, typer.Argument(help="Where to; its name is the backbone's in rows.")],
    shape: Annotated[
        str, typer.Option(help=f"One of {', '.join(known_architectures())}.")
    ] = "llama-3.1-8b",
    tokenizer: Annotated[
        str, typer.Option(help="A folder or hub id with a tokenizer.")
    ] = "HuggingFaceTB/SmolLM2-135M-Instruct",
) -> None:
    """Save a random backbone in bfloat16, drawn on a GPU where there is one."""
    torch.set_default_dtype(torch.bfloat16)
    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    special = {
        "bos_token_id": loaded.bos_token_id,
        "eos_token_id": loaded.eos_token_id,
        # Without a row of zeros for padding, which prompts may hold as the end of a message: norms
        # of zeros have gradients that grow from layer to layer.
        "pad_token_id": None,
        "max_position_embeddings": 8_192,
    }
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = build_model(load_architecture(shape), **special)
    model.save_pretrained(folder)
    loaded.save_pretrained(folder)


if __name__ == "__main__":
    typer.run(main)
