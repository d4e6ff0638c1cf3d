"""Result rows as tables and bars: errors, quantiles, identity, checks, paired tests, windows.

What belongs here: selecting, ordering and labelling result rows, hashes and test outcomes as cells;
bars of errors, reliability, panels of forecasts. What does not: reading files
(``paper.report.rows``), building tables of columns (``report.tables``), who won
(``paper.report.summaries``), the tests themselves (``evaluation.comparison``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, timedelta, timezone
from functools import partial
from typing import Any

import polars as pl
from matplotlib.axes import Axes

from compevo_core.baselines import BASELINES
from compevo_core.data.steps import shift
from compevo_core.evaluation.metrics import BELOW_COLUMNS
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scopes import ForecastPanel
from compevo_core.paper.changes import EXPERIMENTS, FULL_METHOD, list_changes
from compevo_core.paper.declared import rank_budget
from compevo_core.paper.report.figures import (
    MARKED,
    Line,
    Picture,
    Plot,
    Style,
    method_style,
    plot_lines,
    set_clock,
)
from compevo_core.paper.report.inputs import ReportInputs
from compevo_core.paper.report.rows import (
    AGENT,
    NAIVE,
    RECALIBRATED,
    Column,
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
    list_columns,
    list_scopes,
    method_name,
    metric_column,
    select_methods,
    select_pooled,
    select_scope,
)
from compevo_core.report.charts import ACCENT, GRID, HISTORY, INK, MUTED, OTHER_BARS
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
    "Time": lambda row: describe_duration(row["seconds"], missing=MISSING),
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

_INTERVAL = (
    "The interval is by blocks of days, and shows which is better. It leaves out the variation "
    "between trainings, which one training cannot show; SD is the deviation between trainings of"
)
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
        notes=(
            "Difference: the variant's error minus the full method's, by window, each the mean "
            f"over the same seeds; below zero the variant erred less. {_INTERVAL} the full method.",
            *([f"Unknown here: {join_items(unknown)}."] if unknown else []),
        ),
    )


def paired_table(tests: Sequence[Row]) -> Table:
    """Return the paired tests as evaluation computed them."""
    return tabulate(
        tests,
        _PAIRED,
        **_LAYOUT,
        caption="Paired comparisons by window",
        notes=(
            "Difference: the first method's error minus the other's, mean over windows, in the "
            f"unit of the series; below zero the first erred less. {_INTERVAL} the first method.",
            "p: Wilcoxon's signed-rank test on means of blocks, two-sided, and the paper's "
            f"one-sided test that the first method's error is smaller. {MISSING}: too few blocks, "
            "or an unknown number, as the test was of single windows.",
        ),
    )


METRICS = ("mae", "rmse", "mape_pct", "wape_pct", "mase")
SHORT_METRICS = ("mae", "rmse", "mape_pct")
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
HIGHLIGHTED_METHOD = "compevo"
MEMBERS = "members"
"""The short table's name of the preset whose members forecast without a language model."""


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
    others = [row for row in ranked if row["method"] not in (HIGHLIGHTED_METHOD, NAIVE)]
    room = max(MOST_SHORT_ROWS - (len(ranked) - len(others)), 0)
    records = [row for row in ranked if row not in others[room:]]
    counts = list_columns(records, {"Windows": _COUNTS["Windows"], **_SEEDS})
    return _build_table(records, SHORT_METRICS, counts, notes=_describe_rows(records))


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
    return _build_table(
        records,
        METRICS,
        list_columns(records, _COUNTS),
        title=title,
        wrap_columns=[len(METRICS) + len(_COUNTS)],
        notes=[*_describe_rows(records), *_describe_rounds(records)],
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
    highlighted = {i for i, row in enumerate(records) if row["method"] == HIGHLIGHTED_METHOD}
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
        highlighted={i for i, method in enumerate(methods) if method == HIGHLIGHTED_METHOD},
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
    """Return display names, with budget and configuration if a method has several.

    A budget below the full one is also named, because other methods had the full one.
    """
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


def _describe_rounds(records: Sequence[Row]) -> list[str]:
    """Return which methods have untrained agents, and for which this is unknown."""
    notes = []
    untrained = [
        f"{method_name(row['method'])} ({row['untrained']} of {row['seeds']})"
        for row in records
        if row["untrained"]
    ]
    if untrained:
        notes.append(f"Untrained, as validation chose round 0: {join_items(untrained)}.")
    if older := _name_methods(row for row in records if row["lacks_round"]):
        notes.append(f"Older rows, which do not name the chosen round: {join_items(older)}.")
    return notes


def _name_methods(records: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(method_name(row["method"]) for row in records))


def show_methods(rows: pl.DataFrame, dataset: str, subset: str) -> Picture | None:
    """Return bars of the pooled MAE of every method in one scope; None for a single method."""
    chosen = select_methods(rows, dataset, subset)
    # A single bar compares nothing.
    if chosen.get_column("mae").drop_nulls().len() < 2:
        return None
    return _show_bars(chosen, name_records(chosen.to_dicts()), "method")


def show_ablation(rows: pl.DataFrame, dataset: str) -> Picture:
    """Return bars of the pooled MAE of each ablation variant on the first scope."""
    chosen = select_pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    _, first = list_scopes(chosen)[0]
    return _show_bars(select_scope(chosen, dataset, first), dataset.capitalize(), "variant")


def _show_bars(rows: pl.DataFrame, name: str, kind: str) -> Picture:
    alt = f"Bar chart of the pooled MAE by {kind} for {name}; the table above has the numbers."
    records = average_over_seeds(rows).drop_nulls("mae").sort("mae").to_dicts()
    plot = Plot(partial(_fill_bars, records), alt, (6.4, 0.75 + 0.28 * max(len(records), 1)))
    return Picture([plot], caption=f"{name}: pooled MAE by {kind}")


def _fill_bars(records: Sequence[Row], axis: Axes) -> None:
    """Draw the MAE of each record, best on top, with its range over seeds."""
    places = list(range(len(records)))
    errors = [row["mae"] for row in records]

    is_compevo = [row["method"] == HIGHLIGHTED_METHOD for row in records]
    axis.barh(places, errors, color=[ACCENT if is_ours else OTHER_BARS for is_ours in is_compevo])
    if any(row["seeds"] > 1 for row in records):
        below = [row["mae"] - row["mae_low"] for row in records]
        above = [row["mae_high"] - row["mae"] for row in records]
        whiskers: Style = {"fmt": "none", "ecolor": INK, "elinewidth": 1, "capsize": 3}
        axis.errorbar(errors, places, xerr=[below, above], **whiskers)
    for place, row in zip(places, records, strict=True):
        # Anchored at the end of the whisker, not the bar, so that neither hides the number.
        offset: Style = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        end = (row["mae_high"], place)
        axis.annotate(format_number(row["mae"]), end, color=INK, fontsize=9, **offset)

    axis.set_yticks(places, label_methods(records))
    axis.invert_yaxis()
    # Room for the numbers to the right of the longest bar; bars start at zero to be comparable.
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.grid(visible=False, axis="y")
    unit = common_unit(records)
    axis.set_xlabel(f"MAE, {unit}" if unit else "MAE")


def show_reliability(rows: pl.DataFrame, dataset: str, subset: str) -> Picture | None:
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
    lines = [Line([0, 1], [0, 1], {"color": MUTED, "linewidth": 1, "linestyle": ":"})]
    for row in records:
        shares = [row[name] for name in BELOW_COLUMNS.values()]
        style = method_style(row["method"]) | MARKED | {"linewidth": 1.7}
        lines.append(Line(list(BELOW_COLUMNS), shares, style))
    plot = plot_lines(
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
    return Picture([plot], caption=caption)


def show_panel(panel: ForecastPanel) -> Picture:
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
        Line(past, panel.history, {"color": HISTORY, "linewidth": 1.3, "label": "history"}),
        Line(ahead, truth, {"color": INK, "linewidth": 2.4, "label": "actual values"}),
    ]
    for method in sorted(panel.forecasts, key=lambda name: name == HIGHLIGHTED_METHOD):
        dash: Style = {} if method == HIGHLIGHTED_METHOD else {"linestyle": (0, (4, 2))}
        lines.append(Line(ahead, panel.forecasts[method], method_style(method) | dash))

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
        set_clock(axis, zone)

    look: Style = {"size": (5.2, 2.8), "y_label": panel.unit, "legend_columns": 5}
    plot = plot_lines(lines, alt, finish=mark_origin, **look)
    scope = scope_name(panel.dataset, panel.subset, synthetic=panel.synthetic)
    return Picture([plot], caption=f"{panel.entity}, from {start}. {scope}.")
