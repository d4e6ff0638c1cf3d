"""``compevo lud``."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.errors import ConfigError
from compevo_pipeline.cli.arguments import RunPath

if TYPE_CHECKING:
    from compevo_core.config import RunConfig
    from compevo_core.lud.judge import Judge


def lud(
    run: RunPath,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="local, slots or endpoint (COMPEVO_JUDGE_URL); may be given again."),
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=1, help="Updates of an agent that a judge rates, evenly spaced.")
    ] = 8,
    encoder: Annotated[str, typer.Option(help="Encoder of the logics; empty: the run's own.")] = "",
    dataset: Annotated[
        str, typer.Option(help="Data set of the run: its rows also go to RESULTS/lud-DATASET.csv.")
    ] = "",
    results: Annotated[Path, typer.Option(help="Folder of result rows (CSV).")] = Path("results"),
) -> None:
    """Measure how much the logics of a run changed (Logic Update Degree).

    Writes lud.json and lud.csv into the run folder, and rows for `compevo table lud` where a data
    set is named.
    """
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.lud.measure import measure_lud
    from compevo_core.lud.rows import write_lud_rows
    from compevo_core.training.artifact import read_config

    # The backbone and the encoder of the run itself judge unless others are named.
    trained = read_config(run)
    judges = _build_judges(judge or ["local"], trained)
    summary = measure_lud(run, judges, load_encoder(encoder or trained.news.encoder), pairs=pairs)
    if dataset:
        write_lud_rows(results, summary, dataset)
    typer.echo(json.dumps(summary, indent=1))


def _build_judges(names: Sequence[str], config: "RunConfig") -> "list[Judge]":
    """Return the judges by name.

    Raises:
        ConfigError: an unknown name, one that cannot judge these logics, or an endpoint that the
            environment does not set.
    """
    from compevo_core.lud.measure import BackboneJudge
    from compevo_core.lud.slot_judge import SlotJudge
    from compevo_pipeline.judges.judges import read_endpoint_judge

    if "slots" in names and config.evolution.form != "slots":
        raise ConfigError(
            f"--judge slots reads logics with slots, and this run's are {config.evolution.form}; "
            "use local or endpoint"
        )
    build: dict[str, Callable[[], Judge]] = {
        "local": lambda: BackboneJudge(config.backbone),
        "slots": SlotJudge,
        "endpoint": read_endpoint_judge,
    }
    unknown = sorted(set(names) - set(build))
    if unknown:
        raise ConfigError(f"--judge {unknown[0]!r} is not one of {', '.join(build)}")
    return [build[name]() for name in names]
