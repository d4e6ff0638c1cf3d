"""``compevo forecast``, ``compevo explain``, ``compevo verify``, ``compevo refit``: days ahead.

What belongs here: finding the record, and printing it in at most 80 columns. What does not: how a
day is forecast (``work.next_day``), the numbers (``compevo_core.forecast``). Names of series and
titles come from data: characters that a terminal would not print are replaced.
"""

import json
import logging
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from compevo_core.errors import ConfigError, DataError
from compevo_core.report.tables import clean_text
from compevo_pipeline.cli import arguments
from compevo_pipeline.sources.common.base import describe_data

if TYPE_CHECKING:
    from compevo_core.data.arrays import FloatArray
    from compevo_core.forecast.explain import Explanation
    from compevo_core.forecast.issued import IssuedForecast

    Read = Callable[[FloatArray], float]

WIDTH = 80
LONGEST_NAME = 12
LONGEST_NOTE = 1_000
NOT_A_CAUSE = (
    "The parts add up to the forecast. They do not say what caused it: an article that an agent "
    "read may have changed nothing."
)
DailyDataset = Annotated[str, typer.Argument(help="Name of a data set with daily windows.")]
Known = Literal["midnight", "issue-time"]
log = logging.getLogger(__name__)


def render_forecast(issued: "IssuedForecast", data: str) -> str:
    """Return the forecast as a table, a line for each series, below what the columns mean.

    ``data`` states what it was made of, as ``describe_data`` does.
    """
    from compevo_core.report.tomorrow import day_table

    table = day_table(issued)
    meaning = wrap(clean_text(table.notes[0], LONGEST_NOTE))
    shown = table.to_text(WIDTH, longest=LONGEST_NAME)
    return "\n".join([*describe_record(issued, data), *meaning, "", shown])


def list_news_effects(issued: "IssuedForecast", entity: str = "") -> list[str]:
    """Return a line for each article with a large effect on one series, or on any."""
    from compevo_core.forecast.explain import list_effects

    lines = []
    for effect in list_effects(issued):
        if entity in ("", effect.entity):
            start = clean_text(f"{effect.entity} {effect.amount}: '", 40)
            end = f"' ({effect.agents})"
            lines.append(start + clean_text(effect.title, WIDTH - len(start + end)) + end)
    return lines


def describe_record(issued: "IssuedForecast", data: str) -> list[str]:
    """Return what is forecast, of which data, and when it was known and issued (market's clock)."""
    from compevo_core.data.steps import is_calendar_step
    from compevo_core.forecast.explain import describe_span

    facts, zone = issued.facts, issued.zone
    form = "%B %Y" if is_calendar_step(issued.step) else "%A %d %B %Y %H:%M"
    origin = f"{issued.origin:{form}}".removesuffix(" 00:00")
    last = issued.starts[-1].astimezone(zone)
    if last.date() > issued.origin.date():
        origin += f" to {last:{form.removesuffix(' %H:%M')}}"
    until = datetime.fromisoformat(facts["information_until"]).astimezone(zone)
    made = datetime.fromisoformat(facts["issued_at"]).astimezone(zone)
    if span := describe_span(issued):
        data += f" {span}"
    return [
        f"{clean_text(facts['dataset'])}, {origin}, "
        f"{clean_text(issued.unit)}, times in {zone.tzname(None)}",
        f"known until {until:%d %b %Y %H:%M}, issued {made:%d %b %Y %H:%M}, "
        f"by {clean_text(facts['method'])}",
        data,
    ]


def refit(
    dataset: DailyDataset = "electricity-operational",
    day: Annotated[
        datetime | None,
        typer.Option(
            help="Learn all days before this one (default: the newest possible day).",
            formats=["%Y-%m-%d"],
        ),
    ] = None,
) -> None:
    """Learn all past days again after an upgrade.

    This spares the nightly runs the work. Meanwhile they use what the previous version has learnt.
    """
    from compevo_pipeline.work.next_day import renew_state

    deployment = arguments.open_deployment()
    count = renew_state(deployment, dataset, None if day is None else day.date(), log=log)
    typer.echo(f"{count} windows of {dataset} since validation are learnt with this version")


def forecast(
    dataset: Annotated[
        str,
        typer.Argument(help="Name of a data set with daily windows (default: the trained one)."),
    ] = "",
    day: Annotated[
        str,
        typer.Option(
            help="Day to forecast, on the market's clock: YYYY-MM-DD, today or tomorrow, or "
            "YYYY-MM-DDTHH:MM where a forecast covers less than a day (default: the newest day "
            "that can be forecast)."
        ),
    ] = "",
    known_to: Annotated[
        Known | None,
        typer.Option(
            help="Use data up to midnight before the day, or up to the time when the publisher "
            "issues its own forecast (default: the earlier of the two that the data set has)."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of a training run (default: the newest of the data set)."),
    ] = None,
    supersede: Annotated[
        bool,
        typer.Option(
            "--supersede",
            help="Issue a new forecast of a day that has one; both are kept and scored.",
        ),
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(help="CSV file to write: one row for each series and step, in local time."),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Parquet file to write, with the same columns.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="HTML file to write: the newest forecast of this data set, in charts."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: record, notes, facts and rows.")
    ] = False,
) -> None:
    """Forecast one day from the stored data; for a family, all blocks, written as one table.

    Fetches nothing: `compevo refresh` reads the sources, `compevo backfill` fetches past days.

    The forecast is stored with everything that it was made from, and never changes: the same
    command shows it again, unless --supersede asks for a new one.
    """
    import polars as pl

    from compevo_core.forecast.issued import list_earlier, read_chain, read_issued, widen
    from compevo_core.runtime.files import write_atomically
    from compevo_pipeline.config.settings import has_dagster_home
    from compevo_pipeline.work.next_day import (
        KnownTo,
        choose_dataset,
        find_daily_spec,
        forecast_day,
    )
    from compevo_pipeline.work.results import write_forecasts

    deployment = arguments.open_deployment()
    dataset = dataset or choose_dataset(deployment)
    blocks = deployment.registry.find_blocks(dataset)
    if blocks and (page or as_json or run):
        raise ConfigError(f"{dataset} is a family: --page, --json and --run take one of its blocks")
    found = {}
    for name in blocks or [dataset]:
        spec = find_daily_spec(deployment, name)
        try:
            found[name] = forecast_day(
                deployment,
                name,
                read_day(day, spec.to_market(deployment.clock())),
                None if known_to is None else KnownTo(known_to),
                log=log,
                on_step=arguments.show_steps,
                run=run,
                supersede=supersede,
            )
        except DataError as error:
            # In a home where nothing is stored the first thing to check is the mode.
            data, home = describe_data(deployment.data_mode, name), deployment.settings.home
            raise DataError(f"{error} {data}, COMPEVO_HOME is {home}") from error
        finally:
            arguments.show_steps("")

    wide = pl.concat([widen(each.forecast) for each in found.values()], how="diagonal_relaxed")
    if csv is not None:
        write_atomically(csv, wide.write_csv)
    if parquet is not None:
        write_atomically(parquet, wide.write_parquet)
    if page is not None:
        write_forecasts(deployment, dataset=dataset, page=page)
    for name, day_forecast in found.items():
        issued, folder = day_forecast.forecast, day_forecast.folder
        if as_json:
            rows = wide.with_columns(pl.col("start_utc").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
            record = {"record": str(folder), "notes": day_forecast.notes}
            typer.echo(json.dumps({**record, "facts": issued.facts, "rows": rows.to_dicts()}))
            continue
        for note in day_forecast.notes:
            typer.echo(f"Note: {note}")
        for older in list_earlier(folder):
            typer.echo(f"Supersedes the issue of {read_issued(older).facts['issued_at']}: {older}")
        chain = read_chain(folder.parents[1])
        typer.echo(f"Record: {folder}, forecast {len(chain.lines)} of chain {chain.head[:16]}")
        typer.echo(f"Why: compevo explain {issued.origin:%Y-%m-%d} {issued.entities[0]} {name}\n")
        # All series of a family would fill pages.
        if not blocks:
            typer.echo(render_forecast(issued, describe_data(deployment.data_mode, name)))

    if has_dagster_home():
        from compevo_pipeline.defs.command_events import report_forecast

        for name, day_forecast in found.items():
            report_forecast(deployment, name, day_forecast)


def read_day(text: str, now: datetime) -> date | None:
    """Return the day that a text names, on the market's clock; None for an empty text."""
    words = {"": None, "today": now.date(), "tomorrow": now.date() + timedelta(days=1)}
    if text in words:
        return words[text]
    try:
        return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"--day {text!r} is not a day: give YYYY-MM-DD, today or tomorrow"
        ) from error


def verify(
    dataset: Annotated[
        str, typer.Argument(help="Name of a data set (default: all with issued forecasts).")
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of issued forecasts, such as a published site (default: deployment)."
        ),
    ] = None,
) -> None:
    """Check issued forecasts and times against their chain of hashes, and the stored values.

    Prints the head of each chain. Any change of a record changes it, so note it elsewhere.
    """
    from compevo_core.forecast.issued import verify_issued
    from compevo_pipeline.work.ingest import find_damaged
    from compevo_pipeline.work.next_day import list_damaged_states

    deployment = arguments.open_deployment()
    root = folder or deployment.layout.all_issued
    names = [dataset] if dataset else sorted(path.name for path in root.glob("*/"))
    for name in names:
        chain = verify_issued(root / name)
        if not chain.lines:
            shown = clean_text(name)
            raise DataError(f"no forecast of {shown} was issued in {root}: run `compevo forecast`")
        typer.echo(f"{name}: {len(chain.lines)} issued forecasts are intact, head {chain.head}")
    if not names:
        typer.echo(f"no forecast was issued in {root}")
    stored = () if folder else [dataset] if dataset else deployment.registry
    damaged = [
        str(path)
        for name in stored
        for path in (*find_damaged(deployment, name), *list_damaged_states(deployment, name))
    ]
    if damaged:
        raise DataError(
            f"not what was written: {', '.join(damaged)}; run `compevo refresh` of its data set, "
            "which sets it aside and makes it again"
        )


def explain(
    day: Annotated[
        datetime, typer.Argument(help="Day, on the market's clock.", formats=["%Y-%m-%d"])
    ],
    series: Annotated[str, typer.Argument(help="Series, for example a region.")],
    dataset: Annotated[
        str, typer.Argument(help="Name of a data set (default: one that forecasts the series).")
    ] = "",
    known_to: Annotated[
        Known | None,
        typer.Option(help="Which forecast of the day (default: the one that used most data)."),
    ] = None,
    step: Annotated[
        str | None, typer.Option(help="Start of one step, such as 18:30 (default: the whole day).")
    ] = None,
) -> None:
    """Show the parts of an issued forecast.

    Members, weights, corrections and news. Reads only the sealed record.
    """
    from compevo_core.forecast.explain import explain as read_parts
    from compevo_pipeline.config.settings import Settings

    settings = Settings.from_environment()
    issued_folder = settings.layout(settings.mode).all_issued
    names = [dataset] if dataset else sorted(path.name for path in issued_folder.glob("*/"))
    records = [
        record
        for name in names
        if (record := find_record(issued_folder / name, day.date(), known_to)) is not None
    ]
    fitting = [record for record in records if series in record[0].entities] or records
    if not fitting:
        known = f" --known-to {known_to}" if known_to else ""
        raise DataError(
            f"no forecast of {dataset or 'any data set'} for {day:%Y-%m-%d} was issued in "
            f"{issued_folder}; issue it: compevo forecast {dataset or 'DATASET'} "
            f"--day {day:%Y-%m-%d}{known}"
        )

    issued, folder = fitting[0]
    data = describe_data(settings.mode, issued.facts["dataset"])
    typer.echo(render_explanation(issued, read_parts(issued, series), step, data))
    typer.echo(f"\nThe record: {folder}")


def find_record(
    root: Path, day: date, known_to: Known | None
) -> tuple["IssuedForecast", Path] | None:
    """Return the matching forecast of a day with the latest cutoff, and its folder, or None.

    ``day`` is on the market's clock; without ``known_to`` either kind fits.
    """
    from compevo_core.forecast.issued import FACTS_FILE, read_issued

    # A market's midnight is at most a day away from that of UTC, in which folders are named.
    nearby = [day + timedelta(days=offset) for offset in (1, 0, -1)]
    folders = [
        path.parent
        for near_day in nearby
        for path in sorted(root.glob(f"{near_day:%Y%m%d}T*/known-*/{FACTS_FILE}"), reverse=True)
    ]
    for folder in folders:
        issued = read_issued(folder)
        knows_all = issued.facts["information_until"] == issued.facts["origin_utc"]
        fits = known_to is None or knows_all == (known_to == "midnight")
        if issued.origin.date() == day and fits:
            return issued, folder
    return None


def render_explanation(
    issued: "IssuedForecast", why: "Explanation", step: str | None, data: str
) -> str:
    """Return the parts of a series' forecast as lines of at most 80 columns."""
    from compevo_core.forecast.explain import choose_decimals, format_change
    from compevo_core.report.tomorrow import compare_published, part_table

    read, what = _choose_step(issued, why, step)
    decimals = choose_decimals([read(why.forecast)])
    title = (
        f"{clean_text(why.entity, 40)}: {read(why.forecast):.{decimals}f} "
        f"{clean_text(why.unit, 20)}, {what}"
    )

    model = f"model: {issued.facts['artifact_hash'][:16]}, commit {issued.facts['commit'][:10]}"
    effects = list_news_effects(issued, why.entity)
    lines = [*describe_record(issued, data), "", title, *effects, ""]
    table = part_table(why, read)
    if table:
        lines += [*table.to_text(WIDTH).splitlines(), ""]
        lines += [line for note in table.notes for line in wrap(note)]
    else:
        # A single model with its correction, and what was published.
        level = read(why.parts[0].level)
        corrected = f", with a correction of {level:+.{decimals}f}" if level else ""
        own = f"{read(why.forecast):.{decimals}f} {clean_text(why.unit, 20)}{corrected}"
        lines.append(f"{clean_text(why.parts[0].name, 40)}: {own}")
        lines += [*(f"{k}: {v}" for k, v in compare_published(why, read).items()), ""]
    if not why.reads_news:
        return "\n".join([*lines, model])

    lines += wrap(NOT_A_CAUSE)
    for part in why.parts:
        lines += ["", *wrap(f"{part.name} reads by: {clean_text(part.logic, 400)}")]
        for article in part.articles:
            at = f"{article.available_at.astimezone(issued.zone):%d %b %H:%M}"
            start = f"  {at} {clean_text(article.domain, 24)}: "
            change = article.change
            end = "" if change is None else f" ({format_change(change, clean_text(why.unit, 20))})"
            lines.append(start + clean_text(article.title, WIDTH - len(start + end)) + end)
        if not part.articles:
            lines.append("  no article")
    newest = issued.facts["newest_candidate"]
    seen = datetime.fromisoformat(newest).astimezone(issued.zone) if newest else None
    known = "newest article that could be read: " + (f"{seen:%d %b %Y %H:%M}" if seen else "none")
    return "\n".join([*lines, "", known, model])


def _choose_step(
    issued: "IssuedForecast", why: "Explanation", step: str | None
) -> tuple["Read", str]:
    """Return a function that reduces the values of a day to one number, and its name."""
    from compevo_core.forecast.explain import format_start

    if step is None:
        is_day = len(why.starts) * issued.step == timedelta(days=1)
        span = "day" if is_day else f"{len(why.starts)} steps"
        return lambda values: float(values.mean()), f"mean of the {span}"

    clock = [format_start(issued, start) for start in why.starts]
    if step not in clock:
        raise ConfigError(f"no step starts at {step!r}; steps start at {', '.join(clock[:3])} ...")
    at = clock.index(step)
    return lambda values: float(values[at]), f"step that starts at {step}"


def wrap(text: str) -> list[str]:
    """Return a text as lines of at most 80 columns."""
    import textwrap

    return textwrap.wrap(text, WIDTH)
