"""What is known about a day, and its tables: the forecast by series, its parts, errors, methods.

What belongs here: reading the newest forecast of each data set with what has become known since;
what the terminal, the page and Dagster show of it in cells. What does not: the numbers
(``forecast.explain``, ``evaluation.issued_scores``), charts (``report.forecast_page``).

Everything comes from issued forecasts and scored rows, so it is the same for every method and every
grid. Logics and names are untrusted text, which every output of a table escapes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.steps import shift
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.issued_scores import (
    OPERATOR_SCHEMA,
    SCORED_SCHEMA,
    name_known_to,
    select_standing,
)
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.explain import (
    BAND_80,
    Band,
    DaySummary,
    Explanation,
    choose_decimals,
    describe_level,
    format_start,
    name_comparisons,
    select_band,
    summarise_day,
)
from compevo_core.forecast.issued import (
    EQUAL,
    MEMBER,
    METHOD,
    PRIOR,
    PUBLISHED,
    IssuedForecast,
    find_issued,
    is_issued,
    list_earlier,
    list_issued,
    read_chain,
    read_issued,
)
from compevo_core.report.tables import MISSING, Table, format_percent, method_name, tabulate

# Measured values (H,), NaN where unknown, by series and origin.
Truth = Mapping[tuple[str, datetime], FloatArray]


@dataclass(frozen=True, kw_only=True)
class ForecastDay:
    """The newest issued forecast of one data set and the record of the days before it."""

    issued: IssuedForecast  # the newest forecast
    # Of the day before, if one with the same cutoff was issued
    before: IssuedForecast | None = None
    truth: Truth = field(default_factory=dict)  # what was measured on both days
    # Rows of all days that are over, of forecasts with the same cutoff
    scores: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SCORED_SCHEMA))
    earlier: Sequence[IssuedForecast] = ()  # the issues that the newest one supersedes
    # Rows of ``evaluation.issued_scores``, if they were made
    by_step: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OPERATOR_SCHEMA))
    head: str = ""  # of the chain of all issued forecasts of the data set

    def list_measured(self, entity: str) -> tuple[list[datetime], FloatArray]:
        """Return starts and values of what was measured before the forecast and since.

        For the day before, values measured since then count, otherwise values known at the issue;
        NaN if nothing is known.
        """
        issued, starts = self.issued, self.issued.starts
        known = self.truth.get((entity, issued.previous_origin))
        if known is None:
            inputs = issued.series[entity]["inputs"][-len(starts) :]
            known = np.array(inputs, dtype=float)  # what is not known is None there
        before = [shift(starts[0], -back, issued.step) for back in range(known.size, 0, -1)]
        since = self.truth.get((entity, issued.origin))
        if since is None:
            return before, known
        return [*before, *starts], np.concatenate([known, since])


def read_days(
    issued: Path, windows: Path, scored: Path | None = None, names: Collection[str] | None = None
) -> list[ForecastDay]:
    """Read the newest forecast of data sets, all or ``names``, and what is known about days before.

    Each data set has its own folder among the issued forecasts and among the windows, whose truth
    is used, and a Parquet file in the folder of scores. CheckpointMismatch if a record was altered,
    DataError if one or the windows are torn.
    """
    days = []
    for root in sorted(path for path in issued.glob("*") if path.is_dir()):
        if (names is not None and root.name not in names) or not (folders := list_issued(root)):
            continue

        folder, chain = folders[-1], read_chain(root)
        newest = read_issued(folder, chain)
        older = [read_issued(issue, chain) for issue in list_earlier(folder)]
        origin, measured = newest.previous_origin, windows / root.name
        ended = WindowSet.read(measured, since=origin) if measured.exists() else ()
        truth = {(window.view.entity, window.view.origin_utc): window.y for window in ended}
        # The forecast of the day before, and scores, only with the same lead time.
        lead = newest.origin - datetime.fromisoformat(newest.facts["information_until"])
        day_before = find_issued(root, origin.astimezone(UTC), (origin - lead).astimezone(UTC))
        path = scored / f"{newest.facts['dataset']}.parquet" if scored else None
        rows = pl.DataFrame(schema=SCORED_SCHEMA)
        if path and path.exists():
            rows = pl.read_parquet(path)
        days.append(
            ForecastDay(
                issued=newest,
                before=read_issued(day_before, chain) if is_issued(day_before) else None,
                truth=truth,
                scores=rows.filter(pl.col("known_to") == name_known_to(newest.facts)),
                earlier=older,
                head=chain.head,
            )
        )
    return days


MOST_CHARTS = 12
"""Series of a data set that are charted, the first ones of the record; tables hold all."""

NAMES = {
    METHOD: "forecast",
    EQUAL: "members with equal weights",
    PRIOR: "best model without agents",
    PUBLISHED: "published forecast",
}
SHORT_NAMES = NAMES | {PUBLISHED: "published"}


def name_span(issued: IssuedForecast) -> str:
    """Return the day that is forecast, or the first and the last one."""
    if issued.is_day:
        return f"{issued.origin:%A %d %B %Y}"
    last = issued.starts[-1].astimezone(issued.zone)
    return f"{issued.origin:%d %B %Y} to {last:%d %B %Y}"


def day_table(issued: IssuedForecast) -> Table:
    """Return a row for each series: energy or mean, peak, their bands, changes, publications.

    A column exists if any series has a value for it; the note explains the columns.
    """
    days, (level, unit, _) = summarise_day(issued), describe_level(issued)
    sizes = choose_decimals([day.level for day in days])
    peaks = choose_decimals([day.peak for day in days])
    # Three digits of a series that is far smaller than the largest.
    size_of = {day.entity: max(sizes, choose_decimals([day.level]) - 1) for day in days}
    peak_of = {day.entity: max(peaks, choose_decimals([day.peak]) - 1) for day in days}
    (near, near_words), (far, far_words) = name_comparisons(issued)

    cells: dict[str, Callable[[DaySummary], str]] = {
        "series": lambda day: day.entity,
        level: lambda day: f"{day.level:.{size_of[day.entity]}f}",
        "80 % band": lambda day: format_band(day.level_band, size_of[day.entity]),
        "peak": lambda day: f"{day.peak:.{peak_of[day.entity]}f}",
        "80 % band ": lambda day: format_band(day.peak_band, peak_of[day.entity]),
        "at": lambda day: format_start(issued, day.peak_at),
        near: lambda day: _show_change(day.change_pct),
        far: lambda day: _show_change(day.week_change_pct),
        "published": lambda day: (
            "" if day.published is None else f"{day.published:.{size_of[day.entity]}f}"
        ),
        "°C": lambda day: format_band(day.temperature, 0),
    }
    shown = {name: cell for name, cell in cells.items() if any(map(cell, days))}

    meanings = [f"{level} in {unit}"]
    if "80 % band" in shown:
        meanings.append(f"80 % bands are for the {level} and for the peak")
    if near in shown:
        until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
        span = f" up to {until:%H:%M}" if until < issued.origin else ""
        steps = "the same steps of " if near == "day" else ""
        meanings.append(f"{near}: change from {steps}{near_words}{span}")
    if far in shown:
        meanings.append(f"{far}: change from {far_words}")
    return tabulate(days, shown, caption="By series", notes=["; ".join(meanings)])


def format_band(band: Band | None, decimals: int) -> str:
    """Format both ends of a band; empty without one."""
    # A hyphen before a number would be read as its sign.
    between = "-" if band is None or min(band) >= 0 else " to "
    return "" if band is None else between.join(f"{end:.{decimals}f}" for end in band)


def _show_change(percent: float | None) -> str:
    return "" if percent is None else f"{percent:+z.1f}%"


def name_members(issued: IssuedForecast) -> dict[str, str]:
    """Return the names of a forecast's members by method."""
    return {f"{MEMBER}{i}": str(name) for i, name in enumerate(issued.facts["members"])}


def part_table(parts: Explanation, read: Callable[[FloatArray], float] = np.mean) -> Table | None:
    """Return a row for each member (weight, base model, correction, bias correction) and the sum.

    ``read`` makes one number of the values of a day, (H,): their mean unless given. A published
    forecast follows, if there is one. None for a single model, which has no parts.
    """
    if parts.is_single:
        return None
    decimals = choose_decimals([read(parts.forecast)])
    others = compare_published(parts, read)
    blanks = [""] * len(others)

    cells = {
        "": [*(part.name for part in parts.parts), "weighted sum", *others],
        "weight": [*(f"{100 * read(part.weights):.1f} %" for part in parts.parts), "", *blanks],
    }
    for title, part in parts.columns.items():
        sign = "" if part == "prior" else "+"
        values = [*(getattr(member, part) for member in parts.parts), parts.weigh(part)]
        cells[title] = [*(f"{read(value):{sign}.{decimals}f}" for value in values), *blanks]
    added = [*(part.contribution for part in parts.parts), parts.forecast]
    cells["adds"] = [*(f"{read(value):.{decimals}f}" for value in added), *others.values()]

    notes = [
        f"Corrections move the forecast by {parts.share('correction'):.2f} % of its size on "
        f"average over the day, bias corrections by {parts.share('level'):.2f} %; base models give "
        "the rest."
    ]
    return Table(
        header=list(cells),
        rows=list(zip(*cells.values(), strict=True)),
        caption=f"Parts of the mean of {parts.entity}, {parts.unit}",
        highlighted=[len(parts.parts)],
        notes=notes if parts.reads_news else [],
    )


def compare_published(parts: Explanation, read: Callable[[FloatArray], float]) -> dict[str, str]:
    """Return what was published and how the forecast differs, by name; empty without any."""
    if parts.published is None:
        return {}
    ours, theirs = read(parts.forecast), read(parts.published)
    decimals = choose_decimals([ours])
    return {
        "published": f"{theirs:.{decimals}f}",
        "forecast minus published": f"{ours - theirs:+.{decimals}f}",
    }


def before_table(day: ForecastDay) -> Table | None:
    """Return how the forecast of the day before did by series; None if nothing is known."""
    before = day.before
    if before is None:
        return None
    truths = {entity: day.truth.get((entity, before.origin)) for entity in before.entities}
    rows = [_score(before, entity, y) for entity, y in truths.items() if y is not None]
    if not rows:
        return None

    return Table(
        header=(
            "series",
            f"mean error, {before.unit}",
            f"MAE, {before.unit}",
            f"MAE of the published, {before.unit}",
            "measured inside the 80 % band",
        ),
        rows=rows,
        caption=f"{before.origin:%A %d %B %Y}: the forecast against what was measured",
    )


def _score(issued: IssuedForecast, entity: str, truth: FloatArray) -> list[str]:
    points, band = issued.select_points(entity), select_band(issued, entity, BAND_80)
    errors = {name: points[name] - truth for name in (METHOD, PUBLISHED) if name in points}
    maes = {name: float(np.nanmean(np.abs(error))) for name, error in errors.items()}
    decimals = choose_decimals([maes[METHOD]])
    inside = MISSING
    if band is not None:
        is_inside = ((band[0] <= truth) & (truth <= band[1]))[np.isfinite(truth)]
        inside = f"{100 * float(is_inside.mean()):.0f} %"
    return [
        entity,
        _show(float(np.nanmean(errors[METHOD])), decimals, "+"),
        *(_show(maes.get(name), decimals) for name in (METHOD, PUBLISHED)),
        inside,
    ]


def select_recent(scores: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the 28 days to the last one on which issued forecasts were scored."""
    last = scores.filter(method=METHOD)["day"].max()
    if not isinstance(last, date):
        return scores.clear()
    return select_standing(scores).filter(pl.col("day") > last - timedelta(days=28))


def _weigh(name: str, weight: str = "n_points") -> pl.Expr:
    """Return the mean of a column by points: a day with half of its values counts half."""
    value, points = pl.col(name), pl.col(weight)
    known = points.filter(value.is_not_null())
    return ((value * points).sum() / known.sum()).fill_nan(None).alias(name)


def method_table(day: ForecastDay) -> Table | None:
    """Return the errors of every method over the last days; None if none was scored.

    Each row is over the days and series that both the method and the issued forecast have.
    """
    recent = select_recent(day.scores)
    if recent.is_empty():
        return None
    keys = ["is_on_time", "day", "entity"]
    ours = recent.filter(method=METHOD).select(*keys, own_mae="mae")

    measures = ("mae", "own_mae", "pinball_10_50_90", "coverage_80")
    means = (
        recent.join(ours, on=keys)
        .group_by("is_on_time", "method")
        .agg(*map(_weigh, measures), pl.col("day").n_unique())
        .sort("is_on_time", "mae", "method", descending=[True, False, False])
    )
    decimals, unit = choose_decimals(means["mae"].to_list()), day.issued.unit
    members = name_members(day.issued)
    names = {**members, **NAMES}
    rows = means.to_dicts()

    return tabulate(
        rows,
        {
            "method": lambda row: names.get(row["method"], method_name(row["method"])),
            f"MAE, {unit}": lambda row: _show(row["mae"], decimals),
            f"MAE of the forecast, {unit}": lambda row: _show(row["own_mae"], decimals),
            "gain of the forecast": lambda row: (
                MISSING
                if row["method"] == METHOD or not row["mae"]
                else f"{100 * (1 - row['own_mae'] / row['mae']):+z.1f} %"
            ),
            f"pinball, {unit}": lambda row: _show(row["pinball_10_50_90"], decimals + 1),
            "in the 80 % band": lambda row: (
                MISSING if row["coverage_80"] is None else f"{100 * row['coverage_80']:,.0f} %"
            ),
            "days": lambda row: str(row["day"]),
            "issued": lambda row: "on time" if row["is_on_time"] else "later",
        },
        caption="Every method on the same days",
        highlighted={i for i, row in enumerate(rows) if row["method"] == METHOD},
        notes=["Which member is the best one is known only afterwards."]
        if len(members) > 1
        else [],
    )


def weight_table(day: ForecastDay) -> Table | None:
    """Return each member's weight in each series, its recent error, and an agent's logic.

    None for a single model.
    """
    facts, recent = day.issued.facts, select_recent(day.scores)
    members, logics = facts["members"], facts["logics"]
    if len(members) == 1 and not logics:
        return None
    by_series = {entity: entry["weights"] for entity, entry in day.issued.series.items()}
    errors = dict(recent.group_by("method").agg(pl.col("mae").mean()).iter_rows())
    decimals = choose_decimals(list(errors.values()))
    shown = day.issued.entities[:MOST_CHARTS]
    cells: dict[str, Callable[[int], str]] = {
        "member": lambda i: str(members[i]),
        "weight": lambda i: f"{100 * np.mean([w[i] for w in by_series.values()]):.0f} %",
    }

    if errors and not day.issued.is_joint:
        title = f"its MAE of late, {day.issued.unit}"
        cells[title] = lambda i: _show(errors.get(f"{MEMBER}{i}"), decimals)

    if len(shown) > 1:
        cells |= {
            name: partial(lambda name, i: f"{100 * by_series[name][i]:.0f} %", name)
            for name in shown
        }

    if logics:
        cells["goes by"] = lambda i: logics[i] or "an empty logic"
    return tabulate(
        range(len(members)),
        cells,
        caption="Weights of the members, mean over steps",
        text_columns=(0, len(cells) - 1) if logics else (0,),
    )


def _show(value: float | None, decimals: int, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign},.{decimals}f}"


def pool(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return means over points of rows that agree in some columns and the method."""
    return (
        rows.group_by(*by, "method")
        .agg(
            *(_weigh(name) for name in ("mae", "bias")),
            *(_weigh(name, "n_banded") for name in ("coverage_80", "width_80")),
            pl.col("n_points").sum(),
            pl.col("unit").first(),
        )
        .sort(*by, "mae", "method")
    )


def month_table(rows: pl.DataFrame) -> Table:
    """Return the published and the issued forecast, by month and series."""
    each = pool(rows, "month", "entity")
    together = pool(rows, "month").with_columns(entity=pl.lit(POOLED)).select(each.columns)
    keys = ["month", "entity"]
    sides = pl.concat([each, together])

    pairs = (
        sides.filter(method=PUBLISHED)
        .join(sides.filter(method=METHOD), on=keys, suffix="_own")
        .sort("month", pl.col("entity") == POOLED, "entity")
        .to_dicts()
    )
    decimals = choose_decimals([row["mae"] for row in pairs])
    unit = pairs[0]["unit"] if pairs else ""

    return tabulate(
        pairs,
        {
            "month": lambda row: row["month"],
            "series": lambda row: row["entity"],
            f"published: MAE, {unit}": lambda row: _show(row["mae"], decimals),
            "bias": lambda row: _show(row["bias"], decimals, "+"),
            "in its 80 % band": lambda row: format_percent(row["coverage_80"]),
            f"forecast: MAE, {unit}": lambda row: _show(row["mae_own"], decimals),
            "its bias": lambda row: _show(row["bias_own"], decimals, "+"),
            "in the forecast's band": lambda row: format_percent(row["coverage_80_own"]),
            "points": lambda row: f"{row['n_points']:,}",
        },
        caption="By month and series",
        text_columns=(0, 1),
        highlighted={i for i, row in enumerate(pairs) if row["entity"] == POOLED},
    )


def score_table(rows: pl.DataFrame, members: Mapping[str, str]) -> Table:
    """Return every method over all months and series."""
    names = {**members, **SHORT_NAMES}
    records = pool(rows).to_dicts()
    decimals = choose_decimals([row["mae"] for row in records])
    unit = records[0]["unit"]

    return tabulate(
        records,
        {
            "method": lambda row: names.get(row["method"], method_name(row["method"])),
            f"MAE, {unit}": lambda row: _show(row["mae"], decimals),
            f"bias, {unit}": lambda row: _show(row["bias"], decimals, "+"),
            "in its 80 % band": lambda row: format_percent(row["coverage_80"]),
            f"width of the band, {unit}": lambda row: _show(row["width_80"], decimals),
            "points": lambda row: f"{row['n_points']:,}",
        },
        caption="All methods",
        highlighted={i for i, row in enumerate(records) if row["method"] == METHOD},
    )
