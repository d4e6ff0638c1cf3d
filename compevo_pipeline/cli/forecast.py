"""``compevo forecast``."""

import logging
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compevo_core.issued import IssuedForecast

log = logging.getLogger(__name__)


class Known(StrEnum):
    """Until when a forecast of a day may know."""

    MIDNIGHT = "midnight"
    ISSUE_TIME = "issue-time"


def forecast(
    day: Annotated[
        datetime,
        typer.Option(help="Day to forecast, on the market's clock.", formats=["%Y-%m-%d"]),
    ],
    dataset: Annotated[str, typer.Option(help="Data set.")] = "electricity-operational",
    known_to: Annotated[
        Known,
        typer.Option(
            help="What the forecast may know: everything to midnight before the day, or to the "
            "time at which the publisher issues its own."
        ),
    ] = Known.ISSUE_TIME,
    run: Annotated[
        Path | None, typer.Option(help="Folder of a training run; the data set's newest.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file to write the values to as well.")
    ] = None,
) -> None:
    """Forecast a day whose truth may still be unknown, from what the deployment has stored.

    The forecast is kept with everything that it was made of, and is never changed: asking again
    shows the same one.
    """
    from datetime import UTC

    from compevo_core.data.files import write_atomically
    from compevo_pipeline.next_day import KnownTo, forecast_day
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings, disable_progress_bars

    disable_progress_bars()
    issued, folder = forecast_day(
        Workspace(settings=Settings.from_environment()),
        dataset,
        day.date(),
        KnownTo(known_to.value),
        clock=lambda: datetime.now(UTC),
        log=log,
        run=run,
    )

    if csv is not None:
        write_atomically(csv, issued.rows.write_csv)
    typer.echo(render(issued, day))
    typer.echo(f"\nEverything it was made of: {folder}")


def render(issued: "IssuedForecast", day: datetime) -> str:
    """Return the forecast as a table: a line for each series."""
    import polars as pl

    rows = issued.rows.filter(pl.col("method") == "compevo")
    published = dict(
        issued.rows.filter(pl.col("method") == "published")
        .group_by("entity")
        .agg(pl.col("value").mean())
        .iter_rows()
    )
    until = datetime.fromisoformat(str(issued.facts["information_until"]))

    lines = [
        f"{issued.facts['dataset']}, {day:%A %d %B %Y}, {rows['unit'][0]}; known until "
        f"{until:%Y-%m-%d %H:%M} UTC, issued {str(issued.facts['issued_at'])[:16]}",
        "",
        f"{'':10}{'mean':>10}{'lowest':>10}{'highest':>10}{'published':>12}",
    ]
    mean, low, high = (getattr(pl.col("value"), name)() for name in ("mean", "min", "max"))
    by_entity = rows.group_by("entity", maintain_order=True).agg(
        mean.alias("mean"), low.alias("low"), high.alias("high")
    )
    for entity, average, lowest, highest in by_entity.iter_rows():
        other = f"{published[entity]:.0f}" if entity in published else "none"
        lines.append(f"{entity:10}{average:>10.0f}{lowest:>10.0f}{highest:>10.0f}{other:>12}")
    return "\n".join(lines)
