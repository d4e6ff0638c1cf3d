"""``compevo params``."""

import json
from typing import Annotated

import typer


def params(
    backbone: Annotated[str, typer.Option(help="Architecture to count for.")] = "llama-3.1-8b",
    agents: Annotated[int, typer.Option(min=1, help="Number of agents.")] = 10,
    rank: Annotated[int, typer.Option(min=1, help="Adapter rank.")] = 16,
) -> None:
    """Print trainable parameters by method and part, as JSON."""
    from compevo_core.experiments.built_parameters import report_built_parameters

    typer.echo(json.dumps(report_built_parameters(backbone, agents=agents, rank=rank), indent=1))
