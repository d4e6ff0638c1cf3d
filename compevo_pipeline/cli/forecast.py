"""``compevo forecast``, ``compevo explain`` and ``compevo predict``: days and windows ahead.

What belongs here: finding the record, and printing it in at most 80 columns. What does not: how a
day is forecast (``work.next_day``), the numbers (``compevo_core.forecast``). Names of series and
titles come from data: what a terminal would not print is replaced.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.errors import ConfigError, DataError
from compevo_pipeline.cli import arguments
from compevo_pipeline.sources.common.base import MODE_MEANINGS, Mode

if TYPE_CHECKING:
    from compevo_core.data.arrays import FloatArray
    from compevo_core.forecast.explain import AgentPart, DaySummary, Explanation
    from compevo_core.forecast.issued import IssuedForecast

LONGEST_NAME = 16
COLUMNS = (
    ("mean", 9),
    ("80 % band", 17),
    ("peak", 9),
    ("at", 7),
    ("change", 9),
    ("published", 11),
)
"""Title and least width of each column but the first, which names the series."""


def render_forecast(issued: "IssuedForecast", data: str) -> str:
    """Return the forecast as a table, a line for each series.

    Args:
        issued: the record.
        data: what it was made of, as ``describe_data`` says it.
    """
    from compevo_core.forecast.explain import choose_decimals, summarise_day

    days = summarise_day(issued)
    decimals = choose_decimals([day.peak for day in days])
    # The time says when within a day; where steps are days, the date does.
    stamp = "%H:%M" if issued.starts[1] - issued.starts[0] < timedelta(days=1) else "%d %b"
    cells = [_render_cells(day, decimals, stamp) for day in days]
    names = [clean_text(day.entity, LONGEST_NAME) for day in days]
    width = max(len(name) for name in names)

    # A column is there only where any series has such a thing.
    shown = [i for i in range(len(COLUMNS)) if any(row[i] for row in cells)]
    # Two spaces between columns, also where small values need many decimals.
    widths = {i: max(COLUMNS[i][1], *(len(row[i]) + 2 for row in cells)) for i in shown}
    header = " " * width + "".join(f"{COLUMNS[i][0]:>{widths[i]}}" for i in shown)
    lines = [
        f"{name:{width}}" + "".join(f"{row[i]:>{widths[i]}}" for i in shown)
        for name, row in zip(names, cells, strict=True)
    ]
    return "\n".join(
        [*describe_record(issued, data), "", header, *lines, "", *_list_notes(issued, days)]
    )


def describe_record(issued: "IssuedForecast", data: str) -> list[str]:
    """Return what is forecast, of which data, and when it was known and issued (market's clock)."""
    facts, zone = issued.facts, issued.zone
    until = datetime.fromisoformat(facts["information_until"]).astimezone(zone)
    made = datetime.fromisoformat(facts["issued_at"]).astimezone(zone)
    return [
        f"{clean_text(facts['dataset'])}, {issued.origin:%A %d %B %Y}, "
        f"{clean_text(issued.unit)}, times in {zone.tzname(None)}",
        f"known until {until:%d %b %Y %H:%M}, issued {made:%d %b %Y %H:%M}",
        data,
    ]


def describe_data(mode: Mode, dataset: str) -> str:
    """Return the mode and what it says of a data set: ``[sample: synthetic data]``."""
    from compevo_core.data.datasets import DATASETS

    if dataset not in DATASETS:
        meaning = "your own files"  # the same in every mode
    elif mode is Mode.SAMPLE and dataset == "exchange":
        meaning = "published rates, synthetic news"
    else:
        meaning = MODE_MEANINGS[mode]
    return f"[{mode}: {meaning}]"


def clean_text(text: str, longest: int = 200) -> str:
    """Return text that comes from data as a terminal may show it: one line, no control codes."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    words = " ".join(plain.split())
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _render_cells(day: "DaySummary", decimals: int, stamp: str) -> tuple[str, ...]:
    """Return the cells of ``COLUMNS``; empty where there is nothing to show."""
    has_band = day.low is not None and day.high is not None
    return (
        f"{day.mean:.{decimals}f}",
        f"{day.low:.{decimals}f} to {day.high:.{decimals}f}" if has_band else "",
        f"{day.peak:.{decimals}f}",
        f"{day.peak_at:{stamp}}",
        "" if day.change_pct is None else f"{day.change_pct:+.1f} %",
        "" if day.published is None else f"{day.published:.{decimals}f}",
    )


def _list_notes(issued: "IssuedForecast", days: Sequence["DaySummary"]) -> list[str]:
    """Return what the columns mean, for those that are shown."""
    starts = issued.starts
    is_day = len(starts) * (starts[1] - starts[0]) == timedelta(days=1)
    span, before = ("the day", "yesterday") if is_day else (f"the {len(starts)} steps", "")
    notes = [f"mean: over {span}; peak: the highest step and its start"]
    if any(day.low is not None for day in days):
        notes.append(f"80 % band: means over {span} of its lower and upper bound")
    if any(day.change_pct is not None for day in days):
        until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
        part = f", over its steps up to {until:%H:%M}" if until < issued.origin else ""
        notes.append(f"change: against {before or f'{span} before'}{part}")
    return notes


log = logging.getLogger(__name__)


DailyDataset = Annotated[
    str, typer.Argument(help="Name of a data set whose windows start with a day.")
]


class Known(StrEnum):
    """Until when a forecast of a day may know."""

    MIDNIGHT = "midnight"
    ISSUE_TIME = "issue-time"


def refit(
    dataset: DailyDataset = "electricity-operational",
    day: Annotated[
        datetime | None,
        typer.Option(
            help="First day that is not learnt from (default: the newest possible day).",
            formats=["%Y-%m-%d"],
        ),
    ] = None,
) -> None:
    """Learn all past days again after an upgrade, so that no night has to.

    The nights go on meanwhile from what the version before has learnt.
    """
    from compevo_pipeline.config.settings import disable_progress_bars
    from compevo_pipeline.work.next_day import renew_state

    disable_progress_bars()
    deployment = arguments.open_deployment()
    count = renew_state(deployment, dataset, None if day is None else day.date(), log=log)
    typer.echo(f"{count} windows of {dataset} since validation are learnt with this version")


def forecast(
    dataset: DailyDataset = "electricity-operational",
    day: Annotated[
        datetime | None,
        typer.Option(
            help="Day to forecast, in the market's time zone (default: the newest possible day).",
            formats=["%Y-%m-%d"],
        ),
    ] = None,
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
    supersede: Annotated[
        bool,
        typer.Option(
            "--supersede",
            help="Issue a day again that was issued before; both forecasts are kept and scored.",
        ),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file to write all values to as well.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Parquet file to write all values to as well.")
    ] = None,
) -> None:
    """Forecast one day from the stored data.

    Fetches nothing: the job `refresh` reads the sources, and `compevo backfill` a past span.

    The forecast is kept with everything that it was made of, and is never changed: asking again
    shows the same one, unless a new one is to supersede it.
    """
    from compevo_core.forecast.issued import list_earlier, read_chain, read_issued
    from compevo_core.runtime.files import write_atomically
    from compevo_pipeline.config.settings import disable_progress_bars
    from compevo_pipeline.work.deployment import utc_now
    from compevo_pipeline.work.next_day import KnownTo, forecast_day

    disable_progress_bars()
    deployment = arguments.open_deployment()
    data = describe_data(deployment.data_mode, dataset)
    try:
        found = forecast_day(
            deployment,
            dataset,
            None if day is None else day.date(),
            None if known_to is None else KnownTo(known_to.value),
            clock=utc_now,
            log=log,
            run=run,
            supersede=supersede,
        )
    except DataError as error:
        # In a home where nothing is stored the first thing to check is the mode.
        home = deployment.settings.home
        raise DataError(f"{error} {data}, COMPEVO_HOME is {home}") from error

    if csv is not None:
        write_atomically(csv, found.forecast.rows.write_csv)
    if parquet is not None:
        write_atomically(parquet, found.forecast.rows.write_parquet)
    typer.echo(render_forecast(found.forecast, data))
    typer.echo("".join(f"\nNote: {note}" for note in found.notes))
    for older in list_earlier(found.folder):
        typer.echo(f"Supersedes the issue of {read_issued(older).facts['issued_at']}: {older}")
    typer.echo(f"Everything it was made of: {found.folder}")
    chain = read_chain(found.folder.parents[1])
    typer.echo(
        f"Forecasts issued so far: {len(chain.lines)}, head of their chain {chain.head[:16]}"
    )
    words = f"{found.forecast.origin:%Y-%m-%d} {found.forecast.entities[0]} {dataset}"
    typer.echo(f"Explain this forecast: compevo explain {words}")


def verify(
    dataset: Annotated[
        str, typer.Argument(help="Name of a data set; all that were forecast unless given.")
    ] = "",
) -> None:
    """Check issued forecasts and their times against the chain of hashes beside them.

    Prints the head of each chain, which every change of a record changes: note it elsewhere.
    """
    from compevo_core.forecast.issued import verify_issued
    from compevo_pipeline.config.settings import Settings

    settings = Settings.from_environment()
    root = settings.layout(settings.mode).forecasts / "issued"
    names = [dataset] if dataset else sorted(path.name for path in root.glob("*/"))
    for name in names:
        chain = verify_issued(root / name)
        if not chain.lines:
            raise DataError(f"no forecast of {clean_text(name)} was issued in {root}; issue one")
        typer.echo(f"{name}: {len(chain.lines)} issued forecasts are whole, head {chain.head}")
    if not names:
        typer.echo(f"no forecast was issued in {root}")


if TYPE_CHECKING:
    Read = Callable[[FloatArray], float]

WIDTH = 80
NOT_A_CAUSE = (
    "The parts add up to the forecast. They do not say what caused it: an article that was read "
    "need not have changed anything."
)


def explain(
    day: Annotated[
        datetime, typer.Argument(help="Day, on the market's clock.", formats=["%Y-%m-%d"])
    ],
    series: Annotated[str, typer.Argument(help="Series, for example a region.")],
    dataset: DailyDataset = "electricity-operational",
    known_to: Annotated[
        Known | None, typer.Option(help="Which forecast of the day; the newest unless given.")
    ] = None,
    step: Annotated[
        str | None, typer.Option(help="Start of one step, as 18:30; the whole day unless given.")
    ] = None,
) -> None:
    """Say what an issued forecast adds up from: priors, corrections, levels, weights, news.

    Reads the sealed record alone.
    """
    from compevo_core.forecast.explain import explain as read_parts
    from compevo_pipeline.config.settings import Settings

    settings = Settings.from_environment()
    found = find_record(settings.layout(settings.mode).issued(dataset), day.date(), known_to)
    if found is None:
        known = f" --known-to {known_to.value}" if known_to is not None else ""
        raise DataError(
            f"no such forecast of {dataset} for {day:%Y-%m-%d} was issued; issue it: "
            f"compevo forecast {dataset} --day {day:%Y-%m-%d}{known}"
        )

    issued, folder = found
    data = describe_data(settings.mode, dataset)
    typer.echo(render_explanation(issued, read_parts(issued, series), step, data))
    typer.echo(f"\nThe record: {folder}")


def find_record(
    root: Path, day: date, known_to: Known | None
) -> tuple["IssuedForecast", Path] | None:
    """Return the forecast of a day that fits and knew most, and its folder; None without any.

    Args:
        root: the data set's folder of issued forecasts.
        day: on the market's clock, which the record names.
        known_to: midnight, or an instant before it; either unless given.
    """
    from compevo_core.forecast.issued import FACTS_FILE, read_issued

    # A market's midnight is at most a day away from that of UTC, in which folders are named.
    nearby = [day + timedelta(days=offset) for offset in (1, 0, -1)]
    folders = [
        path.parent
        for one in nearby
        for path in sorted(root.glob(f"{one:%Y%m%d}T*/known-*/{FACTS_FILE}"), reverse=True)
    ]
    for folder in folders:
        issued = read_issued(folder)
        knows_all = issued.facts["information_until"] == issued.facts["origin_utc"]
        fits = known_to is None or knows_all == (known_to is Known.MIDNIGHT)
        if issued.origin.date() == day and fits:
            return issued, folder
    return None


def render_explanation(
    issued: "IssuedForecast", why: "Explanation", step: str | None, data: str
) -> str:
    """Return the parts of a series' forecast as lines of at most 80 columns."""
    from compevo_core.forecast.explain import choose_decimals

    read, what = _choose_step(issued, why, step)
    decimals = choose_decimals([read(why.forecast)])
    title = (
        f"{clean_text(why.entity, 40)}: {read(why.forecast):.{decimals}f} "
        f"{clean_text(why.unit, 20)}, {what}"
    )

    lines = [*describe_record(issued, data), "", title, "", *_list_parts(why, read, decimals), ""]
    lines += _wrap(
        f"Corrections move the forecast by {why.share('correction'):.2f} % of its size on average "
        f"over the day, levels by {why.share('level'):.2f} %; the rest is the numeric priors'."
    )
    lines += _wrap(NOT_A_CAUSE)
    for part in why.parts:
        lines += ["", *_describe_reading(issued, part)]
    return "\n".join([*lines, "", *_describe_knowledge(issued)])


def _choose_step(
    issued: "IssuedForecast", why: "Explanation", step: str | None
) -> tuple["Read", str]:
    """Return what reads a number out of 48, and what that number is."""
    from compevo_core.forecast.explain import format_start

    if step is None:
        return lambda values: float(values.mean()), "mean of the day"

    clock = [format_start(issued, start) for start in why.starts]
    if step not in clock:
        raise ConfigError(f"no step starts at {step!r}; steps start at {', '.join(clock[:3])} ...")
    at = clock.index(step)
    return lambda values: float(values[at]), f"step that starts at {step}"


def _list_parts(why: "Explanation", read: "Read", decimals: int) -> list[str]:
    """Return a line for each agent, their sum, and what was published."""
    lines = [f"{'':10}{'weight':>9}{'prior':>11}{'correction':>13}{'level':>11}{'adds':>13}"]
    for part in why.parts:
        lines.append(
            f"{f'agent {part.agent}':10}{100 * read(part.weights):>7.1f} %"
            f"{read(part.prior):>11.{decimals}f}{read(part.correction):>+13.{decimals}f}"
            f"{read(part.level):>+11.{decimals}f}{read(part.contribution):>13.{decimals}f}"
        )

    prior, correction, level = (read(why.weigh(name)) for name in ("prior", "correction", "level"))
    total = read(why.forecast)
    lines.append(
        f"{'weighted':19}{prior:>11.{decimals}f}{correction:>+13.{decimals}f}"
        f"{level:>+11.{decimals}f}{total:>13.{decimals}f}"
    )
    if why.published is not None:
        published = read(why.published)
        lines.append(f"{'published':54}{published:>13.{decimals}f}")
        lines.append(f"{'forecast minus published':54}{total - published:>+13.{decimals}f}")
    return lines


def _describe_reading(issued: "IssuedForecast", part: "AgentPart") -> list[str]:
    lines = _wrap(f"agent {part.agent} reads by: {clean_text(part.logic, 400)}")
    for one in part.articles:
        seen = one.available_at.astimezone(issued.zone)
        source = clean_text(one.domain, 24)
        title = clean_text(one.title, WIDTH - 17 - len(source))
        lines.append(f"  {seen:%d %b %H:%M} {source}: {title}")
    return lines if part.articles else [*lines, "  no article"]


def _describe_knowledge(issued: "IssuedForecast") -> list[str]:
    newest = issued.facts["newest_candidate"]
    seen = datetime.fromisoformat(newest).astimezone(issued.zone) if newest else None
    return [
        "newest article that could be read: " + (f"{seen:%d %b %Y %H:%M}" if seen else "none"),
        f"model: {issued.facts['artifact_hash'][:16]}, commit {issued.facts['commit'][:10]}",
    ]


def _wrap(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH)


def predict(
    run: arguments.RunPath,
    windows: arguments.WindowsFolder,
    news: arguments.NewsFolder,
    out: Annotated[Path, typer.Option(help="Parquet file to write: one row a window and step.")],
    split: arguments.Split = "inference",
    subset: arguments.Subset = "",
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

    from compevo_core.data.news_pool import NewsPool
    from compevo_core.forecast.forecaster import CompEvoForecaster
    from compevo_core.lm.backbone import load_backbone
    from compevo_core.runtime.distributed import process_group
    from compevo_core.runtime.files import write_atomically
    from compevo_core.training.artifact import read_config
    from compevo_pipeline.config.settings import process_rank

    # Views, not windows: a forecaster is never handed the truth.
    views = arguments.read_windows(windows, split, subset).views()
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
