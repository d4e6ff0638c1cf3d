"""``compevo params``."""

import json
from typing import Annotated

import typer


def params(
    backbone: Annotated[str, typer.Option(help="Architecture to count for.")] = "llama-3.1-8b",
    agents: Annotated[int, typer.Option(help="Number of agents.")] = 10,
    rank: Annotated[int, typer.Option(help="Adapter rank.")] = 16,
) -> None:
    """Print trainable parameters by method and part, as JSON."""
    from compevo_core.lm.parameter_counts import build_parameter_report

    typer.echo(json.dumps(build_parameter_report(backbone, agents=agents, rank=rank), indent=1))
