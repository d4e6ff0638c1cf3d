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

from compevo_core.lm.backbone import load_packaged
from compevo_core.paper.agent_systems import build_model, known_architectures, load_architecture
from compevo_core.runtime.files import fill_folder_atomically


def main(
    folder: Annotated[Path, typer.Argument(help="Where to; its name is the backbone's in rows.")],
    shape: Annotated[
        str, typer.Option(help=f"One of {', '.join(known_architectures())}.")
    ] = "llama-3.1-8b",
    tokenizer: Annotated[
        str, typer.Option(help="A folder or hub id with a tokenizer; empty: the packaged one.")
    ] = "",
) -> None:
    """Save a random backbone in bfloat16, drawn on a GPU if there is one."""
    if tokenizer:
        loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    else:
        loaded = load_packaged().tokenizer
    special = {
        "bos_token_id": loaded.bos_token_id,
        "eos_token_id": loaded.eos_token_id,
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
        loaded.save_pretrained(part)

    fill_folder_atomically(folder, save)


if __name__ == "__main__":
    typer.run(main)
