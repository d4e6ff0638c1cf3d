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

import typer

from benchmarks import engine, random_backbone
from benchmarks.rows import RESULTS, describe_surroundings, read_rows


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
                random_backbone.main(backbone, step.shape)
            # The encoder of the news does not matter for the engine.
            settings = {"backbone.name_or_path": str(backbone), "news.encoder": "hashing"}
            choice |= {"types": ("bfloat16",), "settings": settings}
        engine.run((step.case,), (step.agents,), repeats, out, **choice)


if __name__ == "__main__":
    typer.run(main)
