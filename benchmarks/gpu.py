"""What is measured on a GPU, in one run that resumes: ``python -m benchmarks.gpu FOLDER``.

What belongs here: which cases of which backbones, the most wanted answers first. What does not:
measuring (``cases``), the table (``engine``).

FOLDER gets backbones of published shapes with random weights. A case whose row names this commit is
not measured again, so a run that was stopped resumes where it was. With ``--quick`` the cases run
on the tiny backbone, on any machine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from benchmarks import engine
from benchmarks.rows import RESULTS, describe_surroundings, read_rows
from compevo_core.lm.backbone import load_packaged
from compevo_core.paper.agent_systems import build_model, load_architecture
from compevo_core.runtime.files import fill_folder_atomically


class Step(NamedTuple):
    """One case of one backbone."""

    shape: str
    case: str
    agents: int
    preset: str = "default"


_LARGE, _SMALL = "llama-3.1-8b", "smollm2-135m"

STEPS = (
    Step(_LARGE, "token", 10, "paper"),  # how near a token is to what memory allows
    Step(_LARGE, "preset-rewriting", 10, "paper"),  # seconds of a round that writes logics
    Step(_LARGE, "round", 10),  # how much faster than PEFT
    Step(_SMALL, "token", 10),
    Step(_SMALL, "round", 10),
    Step(_SMALL, "sampling", 3),
    Step(_LARGE, "token", 3, "paper"),
    Step(_LARGE, "round", 3),
    Step(_LARGE, "backward", 3),
    Step(_SMALL, "backward", 10),
    Step(_SMALL, "inference", 10),
)


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


def list_open(steps: tuple[Step, ...], out: Path, commit: str, *, quick: bool) -> Iterator[Step]:
    """Yield the steps without a row of this commit; read again before each of them."""
    for step in steps:
        rows = read_rows(out) if out.is_file() else []
        measured = {
            (row["case"], int(row["agents"]), row["backbone"])
            for row in rows
            if row["commit"] == commit
        }
        backbone = "tiny-random" if quick else f"{step.shape}-random"
        if (step.case, step.agents, backbone) not in measured:
            yield step


def main(
    folder: Annotated[Path, typer.Argument(help="For the backbones, 17 GB.")],
    out: Annotated[Path, typer.Option(help="The table.")] = RESULTS / "gpu.csv",
    repeats: Annotated[int, typer.Option(help="Runs of each case; medians are written.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="On the tiny backbone.")] = False,
) -> None:
    """Measure what a GPU is asked for, the most wanted first."""
    commit = describe_surroundings(())["commit"]
    for step in list_open(STEPS, out, commit, quick=quick):
        choice: dict[str, Any] = {"preset": step.preset, "quick": quick}
        if not quick:
            backbone = folder / f"{step.shape}-random"
            if not backbone.exists():
                save_backbone(backbone, step.shape, load_packaged().tokenizer)
            # The encoder of the news does not matter for the engine.
            settings = {"backbone.name_or_path": str(backbone), "news.encoder": "hashing"}
            choice |= {"types": ("bfloat16",), "settings": settings}
        engine.run((step.case,), (step.agents,), repeats, out, **choice)


if __name__ == "__main__":
    typer.run(main)
