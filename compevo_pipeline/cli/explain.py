"""``compevo explain``: what an issued forecast adds up from.

What belongs here: finding the record, and its parts as text. What does not: the parts
(``compevo_core.explain``). No model is run.
"""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.errors import ConfigError, DataError
from compevo_pipeline.cli.forecast import Known

if TYPE_CHECKING:
    from compevo_core.data.arrays import FloatArray
    from compevo_core.explain import AgentPart, Explanation
    from compevo_core.issued import IssuedForecast

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
    dataset: Annotated[str, typer.Option(help="Data set.")] = "electricity-operational",
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
    from compevo_core.explain import explain as read_parts
    from compevo_pipeline.cli.forecast_table import describe_data
    from compevo_pipeline.settings import Settings

    settings = Settings.from_environment()
    found = find_record(settings.layout(settings.mode).issued(dataset), day.date(), known_to)
    if found is None:
        known = f" --known-to {known_to.value}" if known_to is not None else ""
        raise DataError(
            f"no such forecast of {dataset} for {day:%Y-%m-%d} was issued; issue it: "
            f"compevo forecast --dataset {dataset} --day {day:%Y-%m-%d}{known}"
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
    from compevo_core.issued import FACTS_FILE, read_issued

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
    from compevo_core.day_summary import choose_decimals
    from compevo_pipeline.cli.forecast_table import clean_text, describe_record

    read, what = _choose_step(issued, why, step)
    decimals = choose_decimals([read(why.forecast)])
    title = (
        f"{clean_text(why.entity, 40)}: {read(why.forecast):.{decimals}f} "
        f"{clean_text(why.unit, 20)}, {what}"
    )

    lines = [*describe_record(issued, data), "", title, "", *_list_parts(why, read, decimals), ""]
    lines += _wrap(_describe_shares(why)) + _wrap(NOT_A_CAUSE)
    for part in why.parts:
        lines += ["", *_describe_reading(issued, part)]
    return "\n".join([*lines, "", *_describe_knowledge(issued)])


def _choose_step(
    issued: "IssuedForecast", why: "Explanation", step: str | None
) -> tuple["Read", str]:
    """Return what reads a number out of 48, and what that number is."""
    from compevo_core.day_summary import format_start

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


def _describe_shares(why: "Explanation") -> str:
    return (
        f"Corrections move the forecast by {why.share('correction'):.2f} % of its size on average "
        f"over the day, levels by {why.share('level'):.2f} %; the rest is the numeric priors'."
    )


def _describe_reading(issued: "IssuedForecast", part: "AgentPart") -> list[str]:
    from compevo_pipeline.cli.forecast_table import clean_text

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
