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
) -> None:
    """Forecast the chosen windows with a trained population; nothing is updated."""
    import polars as pl

    from compevo_core.data.files import write_atomically
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.forecaster import CompEvoForecaster

    # Views, not windows: a forecaster is never handed the truth.
    views = read_windows(windows, split, subset).views()
    forecast_NH = CompEvoForecaster.load(run, NewsPool.read(news)).predict(views)

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
