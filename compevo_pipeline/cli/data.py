"""Commands about data: ``init sources backfill accept rebuild backup restore``.

What belongs here: declaring a table as a data set, listing what is stored, fetching a past span,
keeping what is stored safe. What does not: reading a table (``sources.own``), counting
(``work.source_coverage``), storing (``work.ingest``, ``work.backup``).
"""

import logging
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from compevo_pipeline.cli import arguments


def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Table of values: CSV, Parquet, JSON lines or Excel; or 'sales/*.parquet', with a "
            "file for each block of series."
        ),
    ] = None,
    time: Annotated[str, typer.Option(help="Column of stamps (default: guessed).")] = "",
    period: Annotated[str, typer.Option(help="Column of the part of the day of dates.")] = "",
    value: Annotated[
        list[str] | None,
        typer.Option(help="Value column; repeat for several series, or all (default: guessed)."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the data set (default: the file name).")] = "",
    by: Annotated[
        str, typer.Option("--id", help="Column that names the series of each row; two as 'A + B'.")
    ] = "",
    unit: Annotated[str, typer.Option(help="Unit of the values, where no cell says it.")] = "",
    zone: Annotated[
        str, typer.Option(help="Clock of stamps without an offset: Europe/Paris, UTC or +01:00.")
    ] = "",
    aggregate: Annotated[
        Literal["sum", "mean", "last"] | None,
        typer.Option(help="What becomes of all rows within a step, of events for example."),
    ] = None,
    fill: Annotated[
        float | None, typer.Option(help="Value of steps without a row, such as 0 of sales.")
    ] = None,
    step: Annotated[
        str, typer.Option(help="Length of a step: 15min, 1h, 1d, 1w, 1mo (default: from the rows).")
    ] = "",
    horizon: Annotated[
        int | None,
        typer.Option(help="Steps of a forecast (default: depends on the step).", min=1, max=1000),
    ] = None,
    lookback: Annotated[
        int | None,
        typer.Option(help="Steps of history it uses (default: depends on the step).", min=4),
    ] = None,
    test: Annotated[
        float,
        typer.Option(
            help="Share of the steps, the last ones, that are kept for a test, such as 0.2; "
            "without it only later days are test.",
            min=0.0,
            max=0.5,
        ),
    ] = 0.0,
    country: Annotated[str, typer.Option(help="Country of public holidays, such as FR.")] = "",
    stamps: Annotated[
        Literal["start", "end"] | None,
        typer.Option(help="Whether a stamp starts or ends its interval; or as its column says."),
    ] = None,
    repeated_hour: Annotated[
        Literal["first", "second"] | None,
        typer.Option(help="Which hour a stamp is in that is there once where clocks go back."),
    ] = None,
    duplicates: Annotated[
        Literal["first", "last", "mean"] | None,
        typer.Option(help="What becomes of rows that share a stamp and differ."),
    ] = None,
    time_format: Annotated[
        str, typer.Option(help="strptime format of the stamps, if it is ambiguous.")
    ] = "",
    decimal: Annotated[
        Literal[".", ","] | None, typer.Option(help="Decimal mark, if it is ambiguous.")
    ] = None,
    static: Annotated[
        list[str] | None,
        typer.Option(help="Column with one number or word for each series; repeat it."),
    ] = None,
    covariates: Annotated[
        Path | None, typer.Option(help="Table of daily or finer values, such as the weather.")
    ] = None,
    ahead: Annotated[
        Path | None,
        typer.Option(help="Table of values known ahead by step, such as forecast temperature."),
    ] = None,
    news: Annotated[
        Path | None, typer.Option(help="Table of articles with published_at and title.")
    ] = None,
    gdelt: Annotated[str, typer.Option(help="Query to GDELT for news in live mode.")] = "",
    sample: Annotated[
        bool, typer.Option("--sample", help="Take the sample table that comes with the package.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the declaration.")] = False,
) -> None:
    """Write the TOML file that declares your own table as a data set.

    Prints what it found and what it guessed. The next command is `compevo fit`.
    """
    from compevo_core import SAMPLE
    from compevo_core.errors import ConfigError
    from compevo_core.runtime.files import write_text
    from compevo_pipeline.config.settings import Settings
    from compevo_pipeline.sources.feeds import read_own_file
    from compevo_pipeline.sources.own.declaration import (
        is_pattern,
        list_files,
        make_label,
        name_publisher,
    )
    from compevo_pipeline.sources.own.draft import Request, draft_declaration
    from compevo_pipeline.sources.registry import check_own_name
    from compevo_pipeline.work.deployment import utc_now

    if sample:
        # Its weather is forecast for a week.
        file, ahead, horizon = SAMPLE / "load.csv", SAMPLE / "weather.csv.gz", horizon or 7
    if file is None:
        raise ConfigError("no table: name a file, or give --sample")
    first, named = file, file.stem
    if is_pattern(str(file)):
        file = file.absolute()
        first, named = min(list_files(file), default=file), Path(str(file).partition("*")[0]).name
    dataset = name or make_label(named).replace("_", "-").replace(".", "-").lower()
    path = Settings.from_environment().datasets_folder / f"{dataset}.toml"
    check_own_name(dataset, path)
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; change it by hand, name another, or give --force")

    publisher = name_publisher(dataset)
    tables = {"values": first, "covariates": covariates, "ahead": ahead, "news": news}
    raws = {kind: read_own_file(at, publisher, utc_now) for kind, at in tables.items() if at}
    request = Request(
        name=dataset,
        file=file,
        time=time,
        period=period,
        values=tuple(value or ()),
        id=by,
        static=tuple(static or ()),
        unit=unit,
        zone=zone,
        decimal=decimal or "",
        time_format=time_format,
        stamps=stamps or "",
        repeated_hour=repeated_hour,
        duplicates=duplicates or "",
        aggregate=aggregate or "",
        fill=fill,
        step=step,
        horizon=horizon or 0,
        lookback=lookback or 0,
        test=test,
        country=country,
        covariates=covariates,
        ahead=ahead,
        news=news,
        gdelt=gdelt,
    )
    draft = draft_declaration(request, raws.pop("values"), raws)
    write_text(path, draft.text)

    for kind, line in draft.list_remarks():
        typer.echo(f"{kind + ':':8} {line}")
    typer.echo(f"\n{path}\nRead it, change what is wrong, then: compevo fit {dataset}")


LONGEST_SOURCE = 44
SHOWN_FILES = 20


def sources(
    months: Annotated[int, typer.Option(help="How many months to show.", min=1, max=120)] = 6,
    dataset: Annotated[
        str, typer.Option(help="Show names that start with this: a data set, news or a publisher.")
    ] = "",
) -> None:
    """Show stored data by month, and files that were absent or failed."""
    import polars as pl

    from compevo_core.report.tables import Table, clean_text
    from compevo_pipeline.work.source_coverage import (
        list_troubled,
        measure_coverage,
        pivot_months,
        tabulate_files,
    )

    deployment = arguments.open_deployment()
    counts = measure_coverage(deployment)
    counts = counts.filter(pl.col("source").str.starts_with(dataset))
    if not counts.height:
        typer.echo(f"nothing is stored of {dataset or 'any source'} in {deployment.data_mode} mode")
        return

    table = pivot_months(counts, months)
    rows = [list(map(str, row)) for row in table.iter_rows()]
    typer.echo(Table(header=table.columns, rows=rows).to_text(longest=LONGEST_SOURCE))

    files = tabulate_files(list_troubled(deployment))
    if files.height:
        typer.echo(f"\n{files.height} file(s) absent, short or failed, newest first:")
    for file in files.head(SHOWN_FILES).iter_rows(named=True):
        why = f": {clean_text(file['why'])}" if file["why"] else ""
        name = clean_text(file["file"])
        typer.echo(f"  {name}  {file['state']}, asked again {file['again']}{why}")


def backfill(
    dataset: Annotated[str, typer.Argument(help="Data set, or news.")],
    since: Annotated[
        datetime, typer.Option(help="First day to fetch (UTC).", formats=["%Y-%m-%d"])
    ],
    until: Annotated[
        datetime | None,
        typer.Option(help="End date, exclusive (default: now).", formats=["%Y-%m-%d"]),
    ] = None,
    feed: Annotated[
        list[str] | None, typer.Option(help="Feed to fetch (default: all with an endpoint).")
    ] = None,
) -> None:
    """Fetch the missing data of a past span, month by month.

    For live mode: it asks the publishers. After a stop or a failure, the same command continues
    where it was.
    """
    from compevo_pipeline.config.settings import has_dagster_home
    from compevo_pipeline.work.source_coverage import backfill as fetch_missing
    from compevo_pipeline.work.source_coverage import choose_feeds

    deployment = arguments.open_deployment()
    # Progress goes to standard error, a line a month.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    counts: dict[str, Counter[str]] = {}
    try:
        fetch_missing(
            deployment,
            dataset,
            choose_feeds(deployment.feeds(), dataset, feed),
            since=since.replace(tzinfo=UTC),
            until=None if until is None else until.replace(tzinfo=UTC),
            log=logging.getLogger(__name__),
            counts=counts,
        )
    finally:
        # Months before a failure are stored, too.
        arguments.show_counts(counts)
        if counts and has_dagster_home():
            from compevo_pipeline.defs.command_events import report_stored

            report_stored(deployment, dataset, counts)


def accept(dataset: Annotated[str, typer.Argument(help="Data set.")]) -> None:
    """Accept waiting changes of known values.

    The next run of the source applies them. Changes wait if a file removes or changes many known
    values. Look at them first, on the page of the data set's series in the UI. If you do nothing, a
    fetch half a day later confirms them.
    """
    from compevo_pipeline.storage.series_changes import describe_waiting

    deployment = arguments.open_deployment()
    name = deployment.registry[dataset].name
    store = deployment.series_store()
    waiting = store.read_waiting(name)
    if waiting.is_empty():
        typer.echo(f"{name} has no changes to accept")
        return

    typer.echo(describe_waiting(waiting, name))
    typer.echo(f"accepted {store.accept_waiting(name):,}: the next run of the source applies them")


def rebuild(
    dataset: Annotated[
        str, typer.Argument(help="Data set, or news (default: everything with stored raw files).")
    ] = "",
) -> None:
    """Rebuild series, news and embeddings from the stored raw files.

    For stores that are lost or damaged (delete them first). Stored rows stay, nothing is fetched,
    and the ledger is not needed.
    """
    from compevo_core.config.run import RunConfig
    from compevo_core.errors import ConfigError
    from compevo_pipeline.config.settings import has_dagster_home
    from compevo_pipeline.sources.common.base import Mode
    from compevo_pipeline.work.embedded_news import embed_nameable
    from compevo_pipeline.work.ingest import rebuild as read_again
    from compevo_pipeline.work.source_coverage import NEWS

    deployment = arguments.open_deployment()
    known = deployment.feeds()
    if deployment.data_mode is Mode.SAMPLE:
        raise ConfigError("sample data are made by their jobs: set COMPEVO_MODE to archive or live")
    if dataset and dataset not in known:
        raise ConfigError(f"no sources of {dataset!r}; known: {', '.join(known)}")

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log = logging.getLogger(__name__)
    for name in [dataset] if dataset else known:
        counts = read_again(deployment, name, log=log)
        files = sum(of_feed.get("files", 0) for of_feed in counts.values())
        typer.echo(f"{name}: {files:,} files read again")
        if files and has_dagster_home():
            from compevo_pipeline.defs.command_events import report_stored

            report_stored(deployment, name, counts)
        if name == NEWS and files:
            encoder = RunConfig.preset(deployment.preset_for()).news.encoder
            embedded = embed_nameable(deployment, encoder, log=log)
            typer.echo(f"embeddings: {embedded.newly_embedded:,} titles made again")


def backup(
    folder: Annotated[Path, typer.Argument(help="New folder for the copy, on another disk.")],
) -> None:
    """Copy COMPEVO_HOME and Dagster's storage whole, even during runs."""
    from compevo_pipeline.config.settings import Settings, locate_dagster_home
    from compevo_pipeline.work.backup import back_up, list_unfinished
    from compevo_pipeline.work.deployment import utc_now

    home = Settings.from_environment().home
    count = back_up(home, locate_dagster_home(), folder, utc_now())
    typer.echo(f"{folder}: {count:,} files; restore them with `compevo restore {folder}`")
    for part in list_unfinished(folder):
        typer.echo(f"{part} is an unfinished backup; remove it unless it is still running")


def restore(folder: Annotated[Path, typer.Argument(help="Folder of a backup.")]) -> None:
    """Check and restore a backup into empty homes.

    COMPEVO_HOME and DAGSTER_HOME name them.
    """
    from compevo_pipeline.config.settings import Settings, locate_dagster_home
    from compevo_pipeline.work.backup import restore as bring_back

    home = Settings.from_environment().home
    count = bring_back(folder, home, locate_dagster_home())
    typer.echo(f"{home}: {count:,} files restored; start Dagster, then run `compevo verify`")
