"""Result rows as tables, bars and plain sentences: is CompEvo better than the others, or worse.

What belongs here: selecting, ordering and labelling result rows, hashes and test outcomes as cells;
bars of errors, reliability, panels of forecasts; finding the rivals of each configuration in a
scope with their paired tests, wording and plotting the outcome without flattering it. What does
not: reading files (``paper.report.inputs``), metrics (``evaluation.metrics``), significance
(``evaluation.comparison``), layout (``templates/sections.html``).
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import FixedLocator, NullLocator

from compevo_core.baselines import BASELINES
from compevo_core.data.steps import shift
from compevo_core.evaluation.baseline_scores import RECALIBRATED_BASELINES
from compevo_core.evaluation.metrics import BELOW_COLUMNS
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scopes import ForecastPanel
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.forecast.explain import choose_decimals
from compevo_core.paper.changes import ALL_TRIALS, EXPERIMENTS, FULL_METHOD, list_changes
from compevo_core.paper.declared import rank_budget, read_declared
from compevo_core.paper.report import figures
from compevo_core.paper.report.inputs import (
    AGENT,
    NAIVE,
    PARTS,
    RECALIBRATED,
    Column,
    ReportInputs,
    average_over_seeds,
    build_table,
    common_unit,
    describe_duration,
    drop_agents,
    drop_parts,
    drop_short_fits,
    drop_sweeps,
    find_side,
    format_column,
    format_difference,
    format_interval,
    format_number,
    format_p,
    format_with_unit,
    list_columns,
    list_scopes,
    method_name,
    metric_column,
    select_methods,
    select_pooled,
    select_scope,
)
from compevo_core.report.charts import ACCENT, GREEN, GRID, HISTORY, INK, MUTED, OTHER_BARS, RED
from compevo_core.report.tables import (
    MISSING,
    Row,
    Table,
    format_percent,
    join_items,
    scope_name,
    shorten_hash,
    tabulate,
)

_IDENTITY: dict[str, Callable[[Row], str]] = {
    "Method": lambda row: method_name(row["method"]),
    "Experiment": lambda row: row["experiment"] or "",
    "Data": lambda row: scope_name(row["dataset"], row["subset"], synthetic=bool(row["synthetic"])),
    "Seed": lambda row: format_number(row["seed"]),
    "Config": lambda row: shorten_hash(row["config_hash"]),
    "Data hash": lambda row: shorten_hash(row["data_hash"]),
    "Artifact": lambda row: shorten_hash(row["artifact_hash"]),
    "Commit": lambda row: shorten_hash(row["commit"]),
    "Device": lambda row: row["device"] or "",
    "Time": lambda row: describe_duration(row["seconds"]),
    "Backbone": lambda row: row["backbone"] or "",
    "Knowledge until": lambda row: row["knowledge_cutoff"] or "",
    "News to choose": lambda row: format_percent(row["news_choice_share"]),
    "Trained on": lambda row: "train and validation" if row["refit"] else "train",
    "Data kind": lambda row: "synthetic" if row["synthetic"] else "real",
}
_SIDES = {-1: " (better)", 0: "", 1: " (worse)"}
_PAIRED: dict[str, Callable[[Row], str]] = {
    "Method": lambda test: method_name(test["method_a"]),
    "Against": lambda test: method_name(test["method_b"]),
    "Data": lambda test: scope_name(test["dataset"], test["subset"]),
    "Windows": lambda test: format_number(test["n"]),
    "Blocks of days": lambda test: format_number(test["n_blocks"]),
    "Mean difference": format_difference,
    # Only the interval shows which side is better.
    "95 % interval": lambda test: format_interval(test) + _SIDES[find_side(test)],
    "p, two-sided": format_p,
    "p, one-sided": lambda test: format_p(test, "p_value"),
}

_NOTES = read_declared("notes")
OF_PRIOR: Mapping[str, str] = _NOTES["prior"]
_LAYOUT: dict[str, Any] = {"text_columns": (0, 1, 2), "wrap_columns": (5, 6)}


def identity_table(rows: pl.DataFrame) -> Table:
    """Return what each pooled row was made from: hashes, commit, device, time, backbone."""
    # Rows by region, and rows of a population's parts, come from the same run as its pooled row and
    # would repeat its hashes.
    return tabulate(
        drop_parts(rows.filter(pl.col("entity") == POOLED)).to_dicts(),
        _IDENTITY,
        caption="Identity of every pooled row",
        text_columns=range(len(_IDENTITY)),
    )


def check_table(checks: Sequence[Row]) -> Table:
    """Return the leakage checks with their outcome in words; failed checks are highlighted."""
    return tabulate(
        checks,
        {
            "Check": lambda check: check["check"],
            "Outcome": lambda check: "passed" if check["passed"] else "FAILED",
            "Detail": lambda check: check["detail"] or "",
        },
        caption="Leakage checks",
        text_columns=(0, 1, 2),
        # A failed check must stand out among many lines.
        highlighted={i for i, check in enumerate(checks) if not check["passed"]},
    )


def is_of_variant(test: Row) -> bool:
    """Whether a paired test compares a change of an experiment with its reference."""
    # Elsewhere the full method is only compared with baselines.
    references = {experiment.reference for experiment in EXPERIMENTS.values()}
    return test["method_a"] not in BASELINES and test["method_b"] in references


def variant_test_table(tests: Sequence[Row], dataset: str) -> Table | None:
    """Return the paired tests of variants and controls of one data set; None if there are none."""
    scope = (FULL_METHOD, dataset)
    tests = [test for test in tests if is_of_variant(test)]
    chosen = [test for test in tests if (test["method_b"], test["dataset"]) == scope]
    if not chosen:
        return None

    # A column that older rows lack would be empty.
    cells = _PAIRED | {"Seeds": lambda test: test["seeds"] or MISSING}
    unknown = [name for name, cell in cells.items() if {cell(it) for it in chosen} == {MISSING}]
    known = {name: cell for name, cell in cells.items() if name not in unknown}

    return tabulate(
        chosen,
        known,
        **_LAYOUT,
        caption=f"{scope_name(dataset, '')}: variants and controls against the full method",
        notes=[
            _NOTES["paired"]["variants"],
            *([f"Unknown here: {join_items(unknown)}."] if unknown else []),
        ],
    )


def paired_table(tests: Sequence[Row]) -> Table:
    """Return the paired tests as evaluation computed them."""
    return tabulate(
        tests,
        _PAIRED,
        **_LAYOUT,
        caption="Paired comparisons by window",
        notes=(_NOTES["paired"]["methods"], _NOTES["paired"]["p"]),
    )


METRICS = ("mae", "rmse", "mape_pct", "wape_pct", "mase")
_SEEDS: Mapping[str, Callable[[Row], str]] = {"Seeds": lambda row: str(row["seeds"])}
# A rule of the benchmark: the errors are shown with what was masked or left out.
_COUNTS: Mapping[str, Callable[[Row], str]] = {
    "Windows": lambda row: format_number(row["n_windows"]),
    "Points": lambda row: format_number(row["n_points"]),
    "Masked": lambda row: format_number(row["n_masked"]),
    "Not in MAPE": lambda row: format_number(row["mape_skipped"]),
    "Seeds": lambda row: _describe_seeds(row),
}
MOST_SHORT_ROWS = 6
# No more columns than this can be read side by side; traffic has 862 sensors.
MOST_ENTITIES = 12
MOST_LINES = 6  # no more lines of reliability than this can be distinguished
# The market's clock has no daylight saving, and readers of demand expect its day.
NEM_TIME = timezone(timedelta(hours=10), "UTC+10")
MEMBERS = "members"  # in the short table, the preset whose members use no language model


def headline_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Return methods by metrics for one data set and subset, lowest MAE first, without agents."""
    return _method_table(select_methods(rows, dataset, subset), "pooled errors")


def agent_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table | None:
    """Return the errors of each agent's own forecasts; None if agents were not scored."""
    chosen = select_scope(select_pooled(rows), dataset, subset)
    chosen = chosen.filter(pl.col("method").str.starts_with(AGENT))
    if chosen.is_empty():
        return None

    records = sorted(
        average_over_seeds(chosen).to_dicts(),
        key=lambda row: (row["config_hash"] or "", int(row["method"].removeprefix(AGENT))),
    )
    seeds = list_columns(records, _SEEDS)
    return _build_table(records, METRICS, seeds, first="Agent", title="each agent by itself")


def short_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Return CompEvo, the best others and the naive forecast, with only the most common metrics.

    Members without a language model, which daily use weighs, are scored in their own experiment.
    """
    weather = EXPERIMENTS["weather"]
    members = rows.filter(
        experiment=weather.rows_name, method=weather.reference, entity=POOLED
    ).with_columns(method=pl.lit(MEMBERS))
    pooled = pl.concat([select_pooled(rows), members])
    chosen = drop_parts(select_scope(pooled, dataset, subset))
    ranked = rank_methods(chosen)

    # CompEvo is always shown, and so is the naive forecast: without it, errors a few percent apart
    # could be large or small.
    others = [row for row in ranked if row["method"] not in (COMPEVO, NAIVE)]
    room = max(MOST_SHORT_ROWS - (len(ranked) - len(others)), 0)
    records = [row for row in ranked if row not in others[room:]]
    counts = list_columns(records, {"Windows": _COUNTS["Windows"], **_SEEDS})
    return _build_table(records, ("mae", "rmse", "mape_pct"), counts, notes=_describe_rows(records))


def list_variant_tables(inputs: ReportInputs, dataset: str) -> list[Table]:
    """Return the errors of variants and of controls by scope, then their paired tests."""
    pooled = select_pooled(inputs.rows, ablation=True)
    is_full = pl.col("method") == FULL_METHOD
    is_control = pl.col("method").is_in(list_changes("control", "system"))

    tables = []
    # One scope per table: errors on different windows cannot be compared.
    for name, subset in list_scopes(pooled):
        chosen = select_scope(pooled, dataset, subset)
        for title, is_shown in (
            ("ablation under one equal budget", is_full | ~is_control),
            ("controls under the same budget", is_full | is_control),
        ):
            rows = chosen.filter(is_shown)
            # The full method by itself has nothing to be compared with.
            if name == dataset and set(rows.get_column("method")) - {FULL_METHOD}:
                tables.append(_method_table(rows, title))
    tests = variant_test_table(inputs.paired, dataset)
    return tables + ([tests] if tests else [])


def _method_table(rows: pl.DataFrame, title: str) -> Table:
    records = rank_methods(rows)
    notes = _describe_rows(records)
    untrained = [
        f"{method_name(row['method'])} ({row['untrained']} of {row['seeds']})"
        for row in records
        if row["untrained"]
    ]
    if untrained:
        notes.append(f"Untrained, as validation chose round 0: {join_items(untrained)}.")
    if older := _name_methods(row for row in records if row["lacks_round"]):
        notes.append(f"Older rows, which do not name the chosen round: {join_items(older)}.")
    return _build_table(
        records,
        METRICS,
        list_columns(records, _COUNTS),
        title=title,
        wrap_columns=[len(METRICS) + len(_COUNTS)],
        notes=notes,
    )


def _build_table(
    records: Sequence[Row],
    metrics: Sequence[str],
    others: Iterable[Column],
    *,
    first: str = "Method",
    title: str = "",
    **layout: Any,  # noqa: ANN401
) -> Table:
    """Return metrics and other columns of rows of one scope, which the caption names."""
    caption = ": ".join(filter(None, (name_records(records), title)))
    labels = Column(first, label_methods(records))
    columns = [labels, *(metric_column(records, metric) for metric in metrics), *others]
    highlighted = {i for i, row in enumerate(records) if row["method"] == COMPEVO}
    return build_table(columns, caption=caption, highlighted=highlighted, **layout)


def region_table(
    rows: pl.DataFrame, dataset: str, subset: str, metric: str, label: str
) -> Table | None:
    """Return methods by regions for one metric; None for one entity, or too many for a table."""
    by_region = drop_short_fits(drop_agents(drop_sweeps(rows))).filter(pl.col("entity") != POOLED)
    chosen = average_over_seeds(select_scope(by_region, dataset, subset))
    entities = sorted(chosen.get_column("entity").unique().to_list())
    if not 2 <= len(entities) <= MOST_ENTITIES:
        return None

    # Methods have the order of the headline table; those without a pooled row come last.
    ranked = rank_methods(select_methods(rows, dataset, subset))
    order = dict.fromkeys(row["method"] for row in ranked)
    present = set(chosen.get_column("method").to_list())
    methods = [name for name in order if name in present] + sorted(present - set(order))

    # A method that was not scored in a region leaves a gap, shown as "n/a".
    known = {(row["method"], row["entity"]): row[metric] for row in chosen.to_dicts()}
    columns = [Column("Method", [method_name(method) for method in methods])]
    for entity in entities:
        values = [known.get((method, entity)) for method in methods]
        columns.append(Column(entity, format_column(metric, values), values))
    return build_table(
        columns,
        caption=f"{name_records(chosen.to_dicts())}: {label} by region",
        highlighted={i for i, method in enumerate(methods) if method == COMPEVO},
    )


def quantile_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table | None:
    """Return scores of quantiles by method, lowest pinball loss first; None if there are none."""
    records = rank_by_pinball(rows, dataset, subset)
    if not records:
        return None
    columns = []
    for level in (80, 95):
        shares = [format_percent(row[f"coverage_{level}"]) for row in records]
        columns.append(Column(f"In {level} % band", shares))
        # A narrow band is no merit in itself, so only losses have a best.
        columns.append(metric_column(records, f"width_{level}", is_marked=False))
    return _build_table(records, ("pinball_10_50_90", "wql"), columns, title="uncertainty")


def rank_by_pinball(rows: pl.DataFrame, dataset: str, subset: str) -> Sequence[Row]:
    """Return the methods with quantiles, lowest pinball loss first."""
    chosen = average_over_seeds(select_methods(rows, dataset, subset))
    ranked = chosen.sort("pinball_10_50_90", "method")
    return ranked.drop_nulls("pinball_10_50_90").to_dicts()


def rank_methods(rows: pl.DataFrame) -> Sequence[Row]:
    """Average rows over seeds and order them by MAE; rows without MAE come last."""
    return average_over_seeds(rows).sort("mae", "method", nulls_last=True).to_dicts()


def label_methods(records: Sequence[Row]) -> list[str]:
    """Return display names, with a short budget, or the configuration if a method has several."""
    names = [
        f"{method_name(row['method'])}, refit" if row["refit"] else method_name(row["method"])
        for row in records
    ]
    labels = []
    for name, row in zip(names, records, strict=True):
        if rank_budget(row["budget"]) > rank_budget(None):
            labels.append(f"{name} ({row['budget']} budget)")
        elif names.count(name) > 1:
            labels.append(f"{name} ({row['budget'] or shorten_hash(row['config_hash'])})")
        else:
            labels.append(name)
    return labels


def name_records(records: Sequence[Row]) -> str:
    """Return the display name of the common data set and subset of all records."""
    synthetic = any(row["synthetic"] for row in records)
    return scope_name(records[0]["dataset"], records[0]["subset"], synthetic=synthetic)


def _describe_seeds(row: Row) -> str:
    # The range is shown with the mean, so that no smaller difference is taken for a result.
    if row["seeds"] == 1:
        return "1"
    low, high = format_number(row["mae_low"]), format_number(row["mae_high"])
    return f"{row['seeds']} (MAE {low} to {high})"


def _describe_rows(records: Sequence[Row]) -> list[str]:
    """Return notes on the rows: MAPE's threshold, leaks, unread answers."""
    notes = []
    thresholds = {row["mape_threshold"] for row in records if row["mape_threshold"] is not None}
    if thresholds:
        values = join_items([f"{value:g}" for value in sorted(thresholds)])
        notes.append(f"MAPE leaves out values below {values}.")

    for key, text in (
        ("leaky", "Made with a leaky prompt"),
        ("possibly_memorised", "The backbone may have memorised this period"),
    ):
        if names := _name_methods(row for row in records if row[key]):
            is_for_all = len(records) > 1 and all(row[key] for row in records)
            notes.append(f"{text}: {'all rows' if is_for_all else join_items(names)}.")

    # Only answers in text can fail to be parsed; a rate of zero is not worth a note.
    unparsed = [
        f"{method_name(row['method'])} {format_percent(row['parse_failure_rate'])}"
        for row in records
        if row["parse_failure_rate"]
    ]
    if unparsed:
        notes.append(
            f"Answers that could not be parsed (the fallback is scored): {join_items(unparsed)}."
        )

    # Methods read different numbers of articles: each has its own share.
    shares = sorted({row["news_choice_share"] for row in records} - {None})
    for share in shares if any(shares) else ():
        text = f"{format_percent(share)} of the windows leave a choice of news"
        names = _name_methods(row for row in records if row["news_choice_share"] == share)
        notes.append(f"{text}: {join_items(names)}." if len(shares) > 1 else f"{text}.")
    return notes


def _name_methods(records: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(method_name(row["method"]) for row in records))


def show_methods(rows: pl.DataFrame, dataset: str, subset: str) -> figures.Picture | None:
    """Return bars of the pooled MAE of every method in one scope; None for a single method."""
    chosen = select_methods(rows, dataset, subset)
    # A single bar compares nothing.
    if chosen.get_column("mae").drop_nulls().len() < 2:
        return None
    return _show_bars(chosen, name_records(chosen.to_dicts()), "method")


def show_ablation(rows: pl.DataFrame, dataset: str) -> figures.Picture:
    """Return bars of the pooled MAE of each ablation variant on the first scope."""
    chosen = select_pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    _, first = list_scopes(chosen)[0]
    return _show_bars(select_scope(chosen, dataset, first), dataset.capitalize(), "variant")


def _show_bars(rows: pl.DataFrame, name: str, kind: str) -> figures.Picture:
    """Return the MAE of each method, best on top, with its range over seeds."""
    alt = f"Bar chart of the pooled MAE by {kind} for {name}; the table above has the numbers."
    records = average_over_seeds(rows).drop_nulls("mae").sort("mae").to_dicts()

    def fill(axis: Axes) -> None:
        places, errors = range(len(records)), [row["mae"] for row in records]
        is_ours = [row["method"] == COMPEVO for row in records]
        axis.barh(places, errors, color=[ACCENT if ours else OTHER_BARS for ours in is_ours])
        if any(row["seeds"] > 1 for row in records):
            below = [row["mae"] - row["mae_low"] for row in records]
            above = [row["mae_high"] - row["mae"] for row in records]
            whiskers: figures.Style = {"fmt": "none", "ecolor": INK, "elinewidth": 1, "capsize": 3}
            axis.errorbar(errors, places, xerr=[below, above], **whiskers)
        # Anchored at the end of the whisker, not the bar, so that neither hides the number.
        offset: figures.Style = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        for place, row in enumerate(records):
            end = (row["mae_high"], place)
            axis.annotate(format_number(row["mae"]), end, color=INK, fontsize=9, **offset)

        axis.set_yticks(places, label_methods(records))
        axis.invert_yaxis()
        # Room for the numbers to the right of the longest bar; bars start at zero to be comparable.
        axis.margins(x=0.12)
        axis.set_xlim(left=0)
        axis.grid(visible=False, axis="y")
        axis.set_xlabel(", ".join(filter(None, ("MAE", common_unit(records)))))

    plot = figures.Plot(fill, alt, (6.4, 0.75 + 0.28 * max(len(records), 1)))
    return figures.Picture([plot], caption=f"{name}: pooled MAE by {kind}")


def show_reliability(rows: pl.DataFrame, dataset: str, subset: str) -> figures.Picture | None:
    """Return the share of actual values below each quantile, by level; None without quantiles."""
    # A baseline and its recalibrated twin are nearly the same line.
    is_twin = pl.col("method").str.ends_with(RECALIBRATED)
    records = rank_by_pinball(rows.filter(~is_twin), dataset, subset)[:MOST_LINES]
    if not records:
        return None

    name = name_records(records)
    alt = (
        f"Share of actual values below each quantile against its level for {name}; a line on the "
        "diagonal is calibrated, a flatter one has too narrow bands."
    )
    lines = [figures.Line([0, 1], [0, 1], {"color": MUTED, "linewidth": 1, "linestyle": ":"})]
    for row in records:
        shares = [row[name] for name in BELOW_COLUMNS.values()]
        style = figures.method_style(row["method"]) | figures.MARKED | {"linewidth": 1.7}
        lines.append(figures.Line(list(BELOW_COLUMNS), shares, style))
    plot = figures.plot_lines(
        lines,
        alt,
        size=(4.6, 4.4),
        x_label="level of the quantile",
        y_label="share of actual values below it",
        is_counted=False,
        legend_columns=1,
        finish=lambda axis: axis.set(xlim=(0, 1), ylim=(0, 1)),
    )
    caption = f"{name}: reliability of the quantiles; on the dotted line they are calibrated."
    return figures.Picture([plot], caption=caption)


def show_panel(panel: ForecastPanel) -> figures.Picture:
    """Return a forecast window on its clock: history, actual values and each method's forecast."""
    zone = NEM_TIME if panel.dataset == "electricity" else UTC
    step = timedelta(minutes=panel.step_minutes)
    origin = panel.origin_utc.astimezone(zone)
    # The history ends one step before the origin, which is the start of the first forecast step.
    past = [shift(origin, -k, step) for k in range(len(panel.history), 0, -1)]
    ahead: list[Any] = [shift(origin, k, step) for k in range(len(panel.truth))]

    # A missing value breaks the line.
    truth = [float("nan") if value is None else value for value in panel.truth]
    lines = [
        figures.Line(past, panel.history, {"color": HISTORY, "linewidth": 1.3, "label": "history"}),
        figures.Line(ahead, truth, {"color": INK, "linewidth": 2.4, "label": "actual values"}),
    ]
    for method in sorted(panel.forecasts, key=lambda name: name == COMPEVO):
        dash: figures.Style = {} if method == COMPEVO else {"linestyle": (0, (4, 2))}
        lines.append(
            figures.Line(ahead, panel.forecasts[method], figures.method_style(method) | dash)
        )

    start = f"{origin:%d %b %Y, %H:%M} {zone.tzname(None)}"
    methods = join_items([method_name(name) for name in panel.forecasts])
    alt = (
        f"Line plot of {panel.entity} in {panel.unit}: {len(panel.history)} values before {start}, "
        f"then the actual values and the forecasts by {methods}."
    )

    def mark_origin(axis: Axes) -> None:
        # The models knew nothing to the right of the line.
        axis.axvline(ahead[0], color=HISTORY, linewidth=1.0)
        axis.axvspan(ahead[0], ahead[-1], color=GRID, alpha=0.25, linewidth=0)
        # The time of day; the caption names the year. matplotlib.dates is not annotated.
        locator = AutoDateLocator(tz=zone, minticks=4, maxticks=7)  # type: ignore[no-untyped-call]
        axis.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, tz=zone, show_offset=False)  # type: ignore[no-untyped-call]
        axis.xaxis.set_major_formatter(formatter)

    look: figures.Style = {"size": (5.2, 2.8), "y_label": panel.unit, "legend_columns": 5}
    plot = figures.plot_lines(lines, alt, finish=mark_origin, **look)
    scope = scope_name(panel.dataset, panel.subset, synthetic=panel.synthetic)
    return figures.Picture([plot], caption=f"{panel.entity}, from {start}. {scope}.")


#: Relative difference of two MAE below which they count as equal: half of the last printed digit.
TIE = 0.0005
#: The first rivals of CompEvo, in this order; networks and others follow by name.
RIVALS = (
    *PARTS,
    "prior",
    "persistence",
    "weekly",
    *(name + end for name in RECALIBRATED_BASELINES for end in ("", RECALIBRATED)),
    "published",
    "published-error-ridge",
    "published-error-gbm",
    "own-weather-ridge",
    "own-weather-gbm",
    "sa",
    "mael",
    "mae-gpt",
    "mad-rl",
)


class Rival(NamedTuple):
    """One method that CompEvo is compared with in a scope."""

    row: Row  # its errors
    mae: float  # the error of CompEvo
    test: Row | None  # comparison by window; None if there is none
    is_prior: bool  # whether it is the prior that CompEvo started from

    @property
    def difference(self) -> float:
        """Error of CompEvo relative to the rival's, minus one."""
        # A rival without any error gives no scale: every error of ours is then 100 % worse.
        mae = self.row["mae"]
        return (self.mae - mae) / mae if mae else float(self.mae > 0)

    @property
    def is_beaten(self) -> bool:
        """Whether CompEvo's error is lower, regardless of any comparison by window."""
        return self.difference <= -TIE

    def describe(self) -> str:
        """Return both errors in words, and the difference with its interval if there is one."""
        mae = format_with_unit(self.mae, self.row["unit"])
        other = f"{method_name(self.row['method'])} {format_number(self.row['mae'])}"
        windows = f"{self.row['n_windows']:,} windows"
        difference = _tell_difference(self.test, 1) if self.test else ""
        return f"MAE {mae} over {windows}, {other}{difference}"

    @property
    def outcome(self) -> str:
        """How CompEvo did: better, worse, equal or unclear; lower or higher if there is no test."""
        if abs(self.difference) < TIE:
            return "equal"
        if self.test is None:
            return "lower" if self.difference < 0 else "higher"
        # The mean over points may have another sign than the interval of means over windows.
        if find_side(self.test) * self.difference <= 0:
            return "unclear"
        return "better" if self.difference < 0 else "worse"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds of the difference, relative to the rival's error; None without an interval."""
        if self.test is None or self.test["interval_low"] is None or not self.row["mae"]:
            return None
        low, high = (self.test[f"interval_{end}"] / self.row["mae"] for end in ("low", "high"))
        return low, high


class ResultSummary(NamedTuple):
    """All comparisons of one configuration of CompEvo in one data set and subset."""

    name: str
    configuration: str  # its name if the scope has several, otherwise empty
    summary: str
    rivals: Sequence[Rival]

    @property
    def best(self) -> Rival | None:
        """The method of least error that is no part of CompEvo; None if there is none."""
        others = [rival for rival in self.rivals if rival.row["method"] not in PARTS]
        return min(others, key=lambda rival: float(rival.row["mae"]), default=None)

    @property
    def scope(self) -> str:
        """Name of the data set and subset, and of the configuration."""
        return f"{self.name}, {self.configuration}" if self.configuration else self.name


def summarize_results(inputs: ReportInputs) -> list[ResultSummary]:
    """Summarize each configuration of CompEvo in each scope in which it was scored."""
    return [
        summary
        for dataset, subset in list_scopes(select_pooled(inputs.rows))
        for summary in summarize_scope(inputs, dataset, subset)
    ]


def summarize_scope(inputs: ReportInputs, dataset: str, subset: str) -> Iterator[ResultSummary]:
    """Yield one summary for each configuration of CompEvo in one data set and subset."""
    rows = select_methods(inputs.rows, dataset, subset)
    records = average_over_seeds(rows).drop_nulls("mae").to_dicts()
    populations = [row for row in records if row["method"] == COMPEVO]

    # Each configuration has its own summary: a mean over them would describe none.
    for row in populations:
        rivals = find_rivals(inputs, row, records)
        configuration = f"configuration {shorten_hash(row['config_hash'])}"
        yield ResultSummary(
            name=name_records(records),
            configuration=configuration if len(populations) > 1 else "",
            summary=_summarize(row, rivals, prior=inputs.prior_of(row["config_hash"])),
            rivals=rivals,
        )


def find_rivals(inputs: ReportInputs, population: Row, records: Sequence[Row]) -> list[Rival]:
    """Return the rivals of one configuration of CompEvo, in the order of the list.

    ``population`` is its row and ``records`` all rows of its scope, each the mean over seeds.
    """
    # For a method with several budgets the largest: later entries replace earlier ones.
    by_budget = sorted(records, key=lambda row: rank_budget(row["budget"]), reverse=True)
    rivals = {
        row["method"]: row
        for row in by_budget
        if row["method"] not in (COMPEVO, *PARTS)
        or (row["method"] in PARTS and row["seedless_hash"] == population["seedless_hash"])
    }
    # The run's own row of its prior shows where the agents started. Without it, the prior is scored
    # under its method's name, or as "prior" if it was scored separately.
    priors = {"compevo-prior"}
    if "compevo-prior" not in rivals:
        priors = {"prior", inputs.prior_of(population["config_hash"])}

    # Paired tests name no configuration, and used a model that was not refitted.
    plain = [row for row in records if row["method"] == COMPEVO and not row["refit"]]
    tests = {}
    if not population["refit"] and len(plain) == 1:
        scope = population["dataset"], population["subset"]
        tests = inputs.find_tests(*scope, COMPEVO, budget=population["budget"])
    # Without an interval and a number of blocks a test shows nothing about the difference.
    known = {
        method: test
        for method, test in tests.items()
        if test["interval_low"] is not None or test["n_blocks"] is not None
    }
    order = {method: place for place, method in enumerate(RIVALS)}
    return [
        Rival(rivals[method], population["mae"], known.get(method), method in priors)
        for method in sorted(rivals, key=lambda name: (order.get(name, len(order)), name))
    ]


def _summarize(population: Row, rivals: Sequence[Rival], *, prior: str) -> str:
    error = (
        f"MAE {format_with_unit(population['mae'], population['unit'])} over "
        f"{population['n_windows']:,} windows"
    )
    if not rivals:
        return f"{error}; no other method was scored here."

    if population["seeds"] == 1:
        error += " (one training; the variation between trainings is unknown)"

    # Neither ties nor errors of the population's own parts count as wins.
    others = [rival for rival in rivals if rival.row["method"] not in PARTS]
    beaten = sum(rival.is_beaten for rival in others)
    text = f"{error}; a lower error than {beaten} of {len(others)} other methods"
    # An error by itself does not show whether other days would have given the same order.
    if beaten and any(rival.test for rival in others):
        text += f"; significant for {sum(rival.outcome == 'better' for rival in others)} of them"

    # Without its configuration the prior is unknown, and nothing is claimed about it.
    priors = [rival for rival in rivals if rival.is_prior]
    if prior == "none":
        return f"{text}. {OF_PRIOR['without']}"
    return f"{text}. {_judge_prior(priors, population['unit'])}" if priors else f"{text}."


def _judge_prior(priors: Sequence[Rival], unit: str) -> str:
    """Return what the rows, and the paired test if there is one, show about the prior."""
    if not all(rival.is_beaten for rival in priors):
        return OF_PRIOR["no_better"]
    tests = [rival.test for rival in priors if rival.test]
    if len(tests) != 1:
        return OF_PRIOR["lower"]

    (test,) = tests
    if test["interval_low"] is None:
        return OF_PRIOR["too_few_days"].format(n=test["n_blocks"])
    if find_side(test) < 0:
        return OF_PRIOR["improves"]
    ends = (format_with_unit(test[f"interval_{end}"], unit) for end in ("low", "high"))
    return OF_PRIOR["not_significant"].format(bounds=" and ".join(ends))


def count_verdicts(summaries: Sequence[ResultSummary]) -> str:
    """Say in how many comparisons CompEvo was better or worse, also than its prior."""
    if not summaries:
        return "No scored forecast of CompEvo is among the rows."
    text = ""
    best = [(each.best, each.name) for each in summaries if each.best]
    if wins := [(rival, name) for rival, name in best if rival.outcome == "better"]:
        largest, name = max(wins, key=lambda win: int(win[0].row["n_windows"]))
        text = (
            f"CompEvo is better than the best other method in {len(wins)} of {len(summaries)} sets "
            f"of windows; {name}: {largest.describe()}. "
        )
    # Methods that forecast the same, as a blend and its only member, count once.
    compared = {
        (result.scope, rival.test["mean_difference"]): rival.outcome
        for result in summaries
        for rival in result.rivals
        if rival.test
    }
    outcomes = Counter(compared.values())
    better, worse, total = outcomes["better"], outcomes["worse"], outcomes.total()
    text += (
        f"Of {total:,} different comparisons by window CompEvo is better in {better:,} and worse "
        f"in {worse:,}; {total - better - worse:,} are not decided"
    )
    if without := sum(rival.test is None for each in summaries for rival in each.rivals):
        text += f", and {without:,} methods were not compared by window"
    priors = [rival for result in summaries for rival in result.rivals if rival.is_prior]
    if not priors:
        return f"{text}."
    improved = sum(rival.outcome == "better" for rival in priors)
    return f"{text}. It improves on its own prior in {improved} of {len(priors)}."


def show_verdicts(summaries: Sequence[ResultSummary]) -> figures.Picture:
    """Return the differences from each rival with their intervals, one plot per test set."""
    plots = []
    for summary in summaries:
        outcomes = Counter(rival.outcome for rival in summary.rivals)
        counts = join_items([f"{name} for {n}" for name, n in outcomes.items()])
        alt = f"Difference of CompEvo's error to each method's in percent for {summary.scope}: "
        size = (5.2, 1.0 + 0.2 * len(summary.rivals))
        if summary.rivals:
            plots.append(figures.Plot(partial(_fill_verdicts, summary), f"{alt}{counts}.", size))
    return figures.Picture(plots, columns=2)


def _fill_verdicts(summary: ResultSummary, axis: Axes) -> None:
    rivals = summary.rivals
    for place, rival in enumerate(rivals):
        colour = {"better": GREEN, "worse": RED}.get(rival.outcome, MUTED)
        # Without a comparison by window the mark is hollow: a mean shows nothing about chance.
        fill = "white" if rival.test is None else colour
        axis.plot(100 * rival.difference, place, "o", color=colour, markerfacecolor=fill, zorder=3)
        if rival.bounds is not None:
            axis.plot([100 * end for end in rival.bounds], [place, place], color=colour)

    axis.axvline(0.0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(rivals)), [method_name(rival.row["method"]) for rival in rivals])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")

    # Small and large differences on one axis: linear up to 5 %, then logarithmic.
    axis.set_xscale("symlog", linthresh=5)
    axis.margins(x=0.08)
    axis.xaxis.set_major_locator(FixedLocator([-50, -10, 0, 10, 50]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    axis.set_xlabel("error of CompEvo against it, %")
    with mpl.rc_context(figures.THEME):
        title = textwrap.fill(summary.scope, 54)
        figures.get_figure(axis).suptitle(title, x=0.01, ha="left", fontsize=10.5, weight="bold")


def describe_errors(inputs: ReportInputs, dataset: str, subset: str) -> str:
    """Say the error of CompEvo, of the best other method and of one agent; empty without rows."""
    result = next(summarize_scope(inputs, dataset, subset), None)
    if result is None or result.best is None:
        return ""
    parts = [result.best.describe()]
    ablation = select_scope(select_pooled(inputs.rows, ablation=True), dataset, subset)
    errors = ablation.filter(method=ALL_TRIALS)["mae"].to_list()
    test = inputs.find_tests(dataset, subset, FULL_METHOD, side="b").get(ALL_TRIALS)
    if errors:
        # Tests of changes compare the change minus the full method.
        parts.append(
            f"one agent with as many trials {format_number(errors[0])}"
            + (_tell_difference(test, -1) if test else "")
        )
    return "; ".join(parts)


def _tell_difference(test: Row, sign: int) -> str:
    """Return what a paired test shows about CompEvo minus the other method."""
    if test["interval_low"] is None:
        return ""
    low, high = sorted(sign * test[f"interval_{end}"] for end in ("low", "high"))
    values = [sign * test["mean_difference"], low, high]
    # As many decimals as the largest needs for three digits.
    decimals = max(0, choose_decimals(values) - 1)
    difference, low, high = (f"{value:z,.{decimals}f}" for value in values)
    return f" (difference {difference}, 95 % {low} to {high})"


def name_leaders(tables: Sequence[Table]) -> str:
    """Say which method has the lowest error; each table has the best method first."""
    leaders = Counter(table.rows[0][0] for table in tables if table.rows)
    if not leaders:
        return "Comparisons of methods by window."
    own_name, parts = method_name(COMPEVO), set(map(method_name, PARTS))
    own_count = sum(
        n for name, n in leaders.items() if name.startswith(own_name) and name not in parts
    )
    (most, count), *_ = leaders.most_common(1)
    text = f"CompEvo has the lowest error in {own_count} of {leaders.total()} test sets"
    return f"{text}." if own_count == count else f"{text}; most often it is {most} ({count})."


def describe_bands(rows: pl.DataFrame, scopes: Sequence[tuple[str, str]]) -> str:
    """Say what share of the truths CompEvo's 80 % band held."""
    highlighted = select_pooled(rows).filter(method=COMPEVO)
    held = [select_scope(highlighted, *scope)["coverage_80"].mean() for scope in scopes]
    shares = sorted(share for share in held if isinstance(share, float))
    if not shares:
        return "How many values the bands of each method held."
    low, high = format_percent(shares[0]), format_percent(shares[-1])
    text = low if len(shares) == 1 else f"{low} to {high}"
    return f"CompEvo's 80 % band holds {text} of the actual values, over {len(shares)} test sets."


def count_near(panels: Sequence[ForecastPanel]) -> str:
    """Say in how many of the shown windows CompEvo was closest."""
    nearest = 0
    for panel in panels:
        truth = np.array(panel.truth, dtype=float)
        errors = {
            name: float(np.nanmean(np.abs(np.array(values) - truth)))
            for name, values in panel.forecasts.items()
        }
        nearest += min(errors, key=lambda name: errors[name]) == COMPEVO
    return f"CompEvo is closest to the actual values in {nearest} of {len(panels)} windows shown."
