"""Save a random backbone of a published shape: ``python -m benchmarks.random_backbone FOLDER``.

What belongs here: shapes, and the folder that transformers loads. What does not: measuring. Speed
and memory depend only on the shape, and weights of 8 billion parameters need not be downloaded.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "vocab_size": 128_256,
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


def build_folder(folder: Path, tokenizer: Any, settings: dict[str, Any]) -> None:  # noqa: ANN401
    """Save a random Llama of these settings with a tokenizer; drawn on a GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(
    folder: Annotated[Path, typer.Argument(help="Where to; its name is the backbone's in rows.")],
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "llama-3.1-8b",
    tokenizer: Annotated[
        str, typer.Option(help="A folder or hub id with a tokenizer.")
    ] = "HuggingFaceTB/SmolLM2-135M-Instruct",
) -> None:
    """Save a random backbone in bfloat16."""
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
    build_folder(folder, loaded, SHAPES[shape] | special)


if __name__ == "__main__":
    typer.run(main)
