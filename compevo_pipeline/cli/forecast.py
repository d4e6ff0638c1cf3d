"""``compevo forecast``."""

import logging
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

log = logging.getLogger(__name__)


class Known(StrEnum):
    """Until when a forecast of a day may know."""

    MIDNIGHT = "midnight"
    ISSUE_TIME = "issue-time"


def forecast(
    day: Annotated[
        datetime | None,
        typer.Option(
            help="Day to forecast, on the market's clock; the newest one that can be forecast.",
            formats=["%Y-%m-%d"],
        ),
    ] = None,
    dataset: Annotated[str, typer.Option(help="Data set.")] = "electricity-operational",
    known_to: Annotated[
        Known | None,
        typer.Option(
            help="What the forecast may know: everything to midnight before the day, or to the "
            "time at which the publisher issues its own; the earlier one that the data set knows."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Folder of a training run; the data set's newest.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file to write all values to as well.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Parquet file to write all values to as well.")
    ] = None,
) -> None:
    """Forecast a day whose truth may still be unknown, from what the deployment has stored.

    Fetches nothing: the job `refresh` reads the sources, and `compevo backfill` a past span.

    The forecast is kept with everything that it was made of, and is never changed: asking again
    shows the same one.
    """
    from datetime import UTC

    from compevo_core.baselines.shared_fits import SharedFits
    from compevo_core.data.files import write_atomically
    from compevo_core.errors import DataError
    from compevo_pipeline.assets.definition import fits_folder
    from compevo_pipeline.cli.forecast_table import describe_data, render_forecast
    from compevo_pipeline.next_day import forecast_day
    from compevo_pipeline.next_day_inputs import KnownTo
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings, disable_progress_bars

    disable_progress_bars()
    workspace = Workspace(settings=Settings.from_environment())
    data = describe_data(workspace.data_mode, dataset)
    try:
        found = forecast_day(
            workspace,
            dataset,
            None if day is None else day.date(),
            None if known_to is None else KnownTo(known_to.value),
            clock=lambda: datetime.now(UTC),
            log=log,
            run=run,
            fit=SharedFits(fits_folder(workspace.layout)),
        )
    except DataError as error:
        # In a home where nothing is stored the first thing to check is the mode.
        home = workspace.settings.home
        raise DataError(f"{error} {data}, COMPEVO_HOME is {home}") from error

    if csv is not None:
        write_atomically(csv, found.forecast.rows.write_csv)
    if parquet is not None:
        write_atomically(parquet, found.forecast.rows.write_parquet)
    typer.echo(render_forecast(found.forecast, data))
    typer.echo("".join(f"\nNote: {note}" for note in found.notes))
    typer.echo(f"Everything it was made of: {found.folder}")
    words = f"{found.forecast.origin:%Y-%m-%d} {found.forecast.entities[0]} --dataset {dataset}"
    typer.echo(f"Why it is what it is: compevo explain {words}")
