"""``compevo predict``."""

from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import (
    NewsFolder,
    RunPath,
    Split,
    Subset,
    WindowsFolder,
    read_windows,
)


def predict(
    run: RunPath,
    windows: WindowsFolder,
    news: NewsFolder,
    out: Annotated[Path, typer.Option(help="Parquet file to write: one row a window and step.")],
    split: Split = "inference",
    subset: Subset = "",
    shard_backbone: Annotated[
        bool,
        typer.Option(
            "--shard-backbone",
            help="Under torchrun, split the layers of the backbone over the processes: for a "
            "backbone that one device cannot hold.",
        ),
    ] = False,
) -> None:
    """Forecast the chosen windows with a trained population; nothing is updated.

    Under torchrun every process reads the same windows; the first one alone writes and prints.
    """
    import polars as pl

    from compevo_core.data.files import write_atomically
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.distributed import process_group
    from compevo_core.forecaster import CompEvoForecaster
    from compevo_core.lm.backbone import load_backbone
    from compevo_core.training.artifact import read_config
    from compevo_pipeline.settings import process_rank

    # Views, not windows: a forecaster is never handed the truth.
    views = read_windows(windows, split, subset).views()
    rank, processes, local_rank = process_rank()

    with process_group(rank, processes, local_rank):
        backbone = load_backbone(read_config(run).backbone, shard=True) if shard_backbone else None
        forecaster = CompEvoForecaster.load(run, NewsPool.read(news), backbone=backbone)
        forecast_NH = forecaster.predict(views)
    if rank != 0:
        return

    rows = [
        {
            "window_id": view.window_id,
            "entity": view.entity,
            "start_utc": view.origin_utc + step * view.step,
            "step": step,
            "value": float(value),
            "unit": view.unit,
        }
        for view, values in zip(views, forecast_NH, strict=True)
        for step, value in enumerate(values)
    ]
    write_atomically(out, pl.DataFrame(rows).write_parquet)
    typer.echo(f"{len(views)} windows, {len(rows)} values: {out}")
