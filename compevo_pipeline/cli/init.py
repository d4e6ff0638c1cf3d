"""``compevo init``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Stamps(StrEnum):
    """Which end of its interval a stamp is."""

    START = "start"
    END = "end"


class Decimal(StrEnum):
    """Decimal mark."""

    POINT = "."
    COMMA = ","


def init(
    file: Annotated[Path, typer.Argument(help="Table of values: CSV or Parquet.")],
    time: Annotated[str, typer.Option(help="Column of stamps.")],
    value: Annotated[list[str], typer.Option(help="Column of values; several give a series each.")],
    name: Annotated[str, typer.Option(help="Name of the data set; the file's.")] = "",
    by: Annotated[str, typer.Option("--id", help="Column that names the series of each row.")] = "",
    unit: Annotated[str, typer.Option(help="Unit of the values, where no cell says it.")] = "",
    zone: Annotated[
        str, typer.Option(help="Clock of stamps without an offset: Europe/Paris, UTC or +01:00.")
    ] = "",
    country: Annotated[str, typer.Option(help="Country of public holidays: FR.")] = "",
    stamps: Annotated[
        Stamps, typer.Option(help="Whether a stamp is the start or the end of its interval.")
    ] = Stamps.START,
    time_format: Annotated[
        str, typer.Option(help="strptime format of the stamps, where it cannot be told.")
    ] = "",
    decimal: Annotated[
        Decimal | None, typer.Option(help="Decimal mark, where it cannot be told.")
    ] = None,
    covariates: Annotated[
        Path | None, typer.Option(help="Table of daily values or finer ones: the weather.")
    ] = None,
    news: Annotated[
        Path | None, typer.Option(help="Table of articles with published_at and title.")
    ] = None,
    gdelt: Annotated[str, typer.Option(help="Query that live mode asks GDELT for news.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a declaration.")] = False,
) -> None:
    """Look at your own table, and write the TOML file that declares it as a data set.

    Says what it found and what it guessed. `compevo fit` is next.
    """
    from datetime import UTC, datetime

    from compevo_core.data.files import write_text
    from compevo_core.errors import ConfigError
    from compevo_pipeline.own_feeds import read_file
    from compevo_pipeline.settings import Settings
    from compevo_pipeline.sources.own.draft import Request, draft_declaration
    from compevo_pipeline.sources.own.spec import make_label, name_publisher

    dataset = name or make_label(file.stem).replace("_", "-").replace(".", "-").lower()
    path = Settings.from_environment().datasets_folder / f"{dataset}.toml"
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; change it by hand, name another, or give --force")

    tables = {"covariates": covariates, "news": news}
    publisher = name_publisher(dataset)
    raws = {
        key: read_file(one, publisher, lambda: datetime.now(UTC))
        for key, one in {"values": file, **tables}.items()
        if one is not None
    }
    request = Request(
        name=dataset,
        file=file,
        time=time,
        values=tuple(value),
        id=by,
        unit=unit,
        zone=zone,
        decimal=decimal or "",
        time_format=time_format,
        stamps=stamps,
        country=country,
        covariates=covariates,
        news=news,
        gdelt=gdelt,
    )
    draft = draft_declaration(request, raws.pop("values"), raws)
    write_text(path, draft.text)

    for line in filter(None, draft.found):
        typer.echo(f"found:   {line}")
    for line in draft.guessed:
        typer.echo(f"guessed: {line}")
    typer.echo(f"\n{path}\nRead it, change what is wrong, then: compevo fit {dataset}")
