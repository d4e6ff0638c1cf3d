"""Everything the page of experiments shows, read from disk once, and its numbers as cells.

What belongs here: a folder of CSV files, run folders, check tables and forecast panels, as plain
objects; one row for each identity, selecting rows by scope, mean and spread over seeds; metrics and
paired tests as cells. What does not: writing any of those files (``training.run_folder``,
``evaluation``), the row's schema (``evaluation.result_rows``), wording, layout and plotting, issued
forecasts (``report.tomorrow``).
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic import TypeAdapter

from compevo_core.config.run import RunConfig
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.metrics import QUANTILE_COLUMNS
from compevo_core.evaluation.result_rows import CONFIGS_FOLDER, POOLED, RESULT_SCHEMA, read_typed
from compevo_core.evaluation.scopes import TEST_SUBSETS, ForecastPanel
from compevo_core.paper.changes import ABLATION, PREFIX, list_changes
from compevo_core.paper.declared import BUDGETS, rank_budget, read_columns, read_declared
from compevo_core.paper.run_traces import LOGIC_SCHEMA, TRACE_SCHEMA
from compevo_core.report.tables import MISSING, Row, Table
from compevo_core.report.tables import method_name as find_title
from compevo_core.runtime.files import read_json
from compevo_core.training.round_record import REWRITING_KEYS, RoundRecord
from compevo_core.training.run_folder import RunFolder

#: Two rows with equal values here are the same measurement; the later one replaces the earlier.
_WINDOWS = ("dataset", "split", "subset", "entity")
_TRAINING = ("seed", "config_hash", "data_hash", "budget")
IDENTITY = ("experiment", "method", *_WINDOWS, *_TRAINING)
_ERRORS = ("mae", "mse", "rmse", "mape_pct", "wape_pct", "mase", "parse_failure_rate")
_COSTS = (
    "seconds",
    "seconds_per_window",
    "train_seconds",
    "peak_memory_gb",
    "trainable_parameters",
)
_AVERAGED = _ERRORS + _COSTS + QUANTILE_COLUMNS
# Sealed agents of a language model whose row does not name the round that validation chose.
_LACKS_ROUND = pl.all_horizontal(
    pl.col("chosen_round").is_null(), pl.col("artifact_hash", "backbone").fill_null("").ne("")
)
PAPER_METRICS = ("mae", "mse", "rmse", "mape_pct")  # the paper's metrics

#: Scored from the population's run, with single agents: those of another run are no rivals of it.
PARTS = ("compevo-equal", "compevo-prior")
#: The prefix of the names of single agents' rows, and the suffix of recalibrated baselines.
AGENT = "compevo-agent-"
ZERO_SHOT = "zero-shot-"
RECALIBRATED = "-recalibrated"
METHOD_NAMES: Mapping[str, str] = {
    # Variants and controls, such as "Fixed logics"; some have other names.
    **{name: name.replace("-", " ").capitalize() for name in list_changes("variant", "control")},
    **read_declared("notes")["methods"],
}


def method_name(method: str) -> str:
    """Return the display name of a method, a part of a population, a variant or a control."""
    if method.startswith(AGENT):
        return f"Agent {method.removeprefix(AGENT)}"
    if method.startswith(ZERO_SHOT):
        return f"{method.removeprefix(ZERO_SHOT)}, zero-shot"
    plain = method.removesuffix(RECALIBRATED)
    name = METHOD_NAMES.get(plain) or find_title(plain)
    return name if plain == method else f"{name}, known errors added"


def format_number(value: float | int | None) -> str:
    """Format a metric with decimals that fit its size; "n/a" for a missing one."""
    if value is None or math.isnan(value):
        return MISSING
    # Counts are exact and get separators only.
    if isinstance(value, int):
        return f"{value:,}"

    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:z,.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.2e}"


def group_rows(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Return rows in groups that agree in some columns, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())


def empty_rows() -> pl.DataFrame:
    """Return a frame of result rows with no row in it."""
    return pl.DataFrame(schema=RESULT_SCHEMA)


def read_result_file(path: Path) -> pl.DataFrame:
    """Return the result rows of one CSV file, with nulls for empty texts, as ``read_typed``."""
    return read_typed(path, RESULT_SCHEMA).with_columns(pl.col(pl.String).replace("", None))


def keep_latest(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep the last written row of each identity; a row without a subset covers its split."""
    named = rows.with_columns(pl.col("subset").replace("", None).fill_null(pl.col("split")))
    # Without an order, "last" could be any row, and the tables would differ from run to run.
    return named.unique(subset=list(IDENTITY), keep="last", maintain_order=True)


def select_pooled(rows: pl.DataFrame, *, ablation: bool = False) -> pl.DataFrame:
    """Select rows over all entities: the ablation's, or all but those, sweeps and short fits."""
    pooled = rows.filter(pl.col("entity") == POOLED)
    if ablation:
        return pooled.filter(pl.col("experiment") == ABLATION)
    return drop_short_fits(drop_sweeps(pooled))


def drop_sweeps(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out rows of the ablation and of sweeps: trained under a smaller budget, or changed."""
    experiment = pl.col("experiment")
    return rows.filter((experiment != ABLATION) & ~experiment.str.starts_with(PREFIX))


def drop_short_fits(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out a method's rows with less than a full budget if it has rows with a full one."""
    # Agents at an equal budget have their own table (``paper.report``).
    is_full = rank_budgets() <= rank_budget(None)
    has_full = is_full.any().over("method", "dataset", "subset")
    return rows.filter(is_full | ~has_full)


def rank_budgets() -> pl.Expr:
    """Return the place of each row's budget, 0 for the largest."""
    return pl.col("budget").map_elements(rank_budget, pl.Int64, skip_nulls=False)


def select_scope(rows: pl.DataFrame, dataset: str, subset: str) -> pl.DataFrame:
    """Select the rows of one data set and subset."""
    return rows.filter((pl.col("dataset") == dataset) & (pl.col("subset") == subset))


def select_methods(rows: pl.DataFrame, dataset: str, subset: str) -> pl.DataFrame:
    """Select the pooled rows of one data set and subset, without single agents."""
    return drop_agents(select_scope(select_pooled(rows), dataset, subset))


def drop_agents(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out the rows of single agents: a dozen of them would bury the methods."""
    return rows.filter(~pl.col("method").str.starts_with(AGENT))


def drop_parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out the rows of all parts of a population: agents, their plain mean, the best prior."""
    return drop_agents(rows).filter(~pl.col("method").is_in(PARTS))


def list_scopes(rows: pl.DataFrame) -> list[tuple[str, str]]:
    """List each (dataset, subset) with rows, in the order of first appearance."""
    scopes = rows.select("dataset", "subset").unique(maintain_order=True)
    return [(str(dataset), str(subset)) for dataset, subset in scopes.iter_rows()]


def list_test_scopes(rows: pl.DataFrame, dataset: str, *, is_thinned: bool = False) -> list[str]:
    """Return the subsets of a data set's test windows with rows, the paper's own subset first.

    Windows after training and thinned sets are left out; the latter stay if there is no other. With
    ``is_thinned`` the subsets with only some of the origins are returned.
    """
    scopes = list_scopes(select_pooled(rows).filter(pl.col("split") == "test"))
    subsets = sorted(subset for name, subset in scopes if name == dataset)
    thinned = [subset for subset in subsets if re.search(r"-every-\d+$", subset)]
    if is_thinned:
        return thinned
    order = TEST_SUBSETS.get(dataset, ())
    whole = [subset for subset in subsets if subset not in thinned] or subsets
    return sorted(whole, key=lambda name: order.index(name) if name in order else len(order))


def select_settings(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each method's rows of one configuration: not refitted, with most seeds."""
    # A choice by error would be a choice on the test split.
    is_plain = ~pl.col("refit").fill_null(value=False)
    rows = rows.filter(is_plain | ~is_plain.any().over("method"))
    # Rows of a smaller budget are used only if there are no others.
    rows = rows.filter(rank_budgets() == rank_budgets().min().over("method"))

    settings = pl.coalesce("seedless_hash", "config_hash", pl.lit(""))
    seeds = pl.col("seed").n_unique().over("method", settings)
    counted = rows.with_columns(_settings=settings, _seeds=seeds)
    # Of several with most seeds the first.
    most = pl.col("_settings").get(pl.col("_seeds").arg_max()).over("method")
    return counted.filter(pl.col("_settings") == most).drop("_settings", "_seeds")


def describe_seeds(score: Row) -> str:
    """Return how many seeds a score has, and what is known about the chosen rounds."""
    untrained = f", {score['untrained']} untrained" if score["untrained"] else ""
    return f"{score['seeds']}{untrained}{', round unknown' if score['lacks_round'] else ''}"


def share_budget(
    rows: pl.DataFrame, dataset: str, subset: str, methods: Sequence[str]
) -> tuple[pl.DataFrame, str]:
    """Return rows in which methods have one budget, and its name.

    It is the largest budget for which all of them (if they have budgets) have rows; if there is
    none, the rows are unchanged and the name is empty. Rows of other methods stay.
    """
    is_shared = pl.col("method").is_in(list(methods))
    has_budget = pl.col("budget").fill_null("") != ""
    sharing = select_scope(rows, dataset, subset).filter(is_shared & has_budget)
    needed = sharing["method"].n_unique()
    for budget in BUDGETS:
        # A single method shares its budget with no other.
        if needed > 1 and sharing.filter(pl.col("budget") == budget)["method"].n_unique() == needed:
            return rows.filter(~is_shared | (pl.col("budget") == budget)), budget
    return rows, ""


def collect_scores(rows: pl.DataFrame, dataset: str, subset: str) -> dict[str, Row]:
    """Return the averaged row, with MAE ``by_entity``, of methods but agents, least MAE first."""
    chosen = select_settings(drop_agents(select_scope(rows, dataset, subset)))
    by_method: dict[str, dict[str, Row]] = {}
    for row in average_rows(chosen, ["method", "entity"]).to_dicts():
        by_method.setdefault(row["method"], {})[row["entity"]] = row
    scores = {}
    for method, by_entity in by_method.items():
        pooled = by_entity.pop(POOLED, None)
        # Without a row over all series there is nothing to compare with the paper.
        if pooled is not None and method != "compevo-prior":
            texts: Row = {name: pooled[name] or "" for name in ("unit", "budget")}
            errors = {entity: row["mae"] for entity, row in by_entity.items()}
            scores[method] = {**pooled, **texts, "by_entity": errors}
    return dict(sorted(scores.items(), key=lambda item: item[1]["mae"]))


def average_over_seeds(rows: pl.DataFrame) -> pl.DataFrame:
    """Average each metric over the seeds of one method and configuration.

    In place of ``seed``, rows have ``seeds`` (how many), how many of them are ``untrained``,
    whether one ``lacks_round``, the range of the MAE over them (``mae_low``, ``mae_high``) and the
    ``config_hash`` of the first.
    """
    # A configuration holds its seed, so that two seeds of one method have two hashes. Methods
    # without a configuration are grouped by their own hash.
    settings = pl.coalesce(pl.col("seedless_hash").replace("", None), "config_hash")
    rows = rows.with_columns(seedless_hash=settings)
    keys = [name for name in IDENTITY if name not in ("seed", "config_hash")] + ["seedless_hash"]

    return average_rows(rows, keys)


def average_rows(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Average rows that agree in some columns; the paper's metrics also get ``<metric>_sd``."""
    # Some rows have only the seconds of all windows.
    share = pl.coalesce("seconds_per_window", pl.col("seconds") / pl.col("n_windows"))
    # The mean of one seed is its value, bit for bit, so single runs need no other path.
    return (
        rows.with_columns(seconds_per_window=share)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col(_AVERAGED).mean(),
            pl.col(PAPER_METRICS).std().name.suffix("_sd"),
            # Equal in all seeds of one method and configuration, or just an example.
            pl.all().exclude(*_AVERAGED, "seed").first(),
            pl.col("mae").min().alias("mae_low"),
            pl.col("mae").max().alias("mae_high"),
            pl.col("seed").n_unique().alias("seeds"),
            pl.col("seed").filter(chosen_round=0).n_unique().alias("untrained"),
            _LACKS_ROUND.any().alias("lacks_round"),
        )
    )


def is_synthetic(rows: pl.DataFrame) -> bool:
    """Whether any of the rows was scored on made-up data."""
    return bool(rows.get_column("synthetic").any())


#: The seasonal naive: the same step of the last season, which on daily grids is a random walk.
NAIVE = "persistence"

#: Title and number format of each metric that a row can hold.
METRIC_TITLES = {
    "mae": "MAE",
    "mse": "MSE",
    "rmse": "RMSE",
    "mape_pct": "MAPE %",
    "wape_pct": "WAPE %",
    "mase": "MASE",
    "pinball_10_50_90": "Pinball",
    "wql": "WQL",
    "width_80": "Width",
    "width_95": "Width",
}

_WITH_UNIT = frozenset({"mae", "rmse", "pinball_10_50_90", "width_80", "width_95"})


def format_interval(test: Mapping[str, Any]) -> str:
    """Format the ends of a comparison's interval; "n/a" if it has none."""
    low, high = test["interval_low"], test["interval_high"]
    return MISSING if low is None else f"{format_number(low)} to {format_number(high)}"


def find_side(test: Mapping[str, Any]) -> int:
    """Return -1 if the interval of a comparison is below zero, 1 if above, 0 if it holds zero."""
    low, high = test["interval_low"], test["interval_high"]
    if low is None or low <= 0 <= high:
        return 0
    return -1 if high < 0 else 1


def format_difference(test: Mapping[str, Any]) -> str:
    """Format a comparison's mean difference, and the deviation between trainings if known."""
    difference, spread = test["mean_difference"], test["sd_between_seeds"]
    return format_number(difference) + (f" (SD {format_number(spread)})" if spread else "")


def format_p(test: Mapping[str, Any], name: str = "p_two_sided") -> str:
    """Format a p value; "n/a" without a number of blocks, since it then counted single windows."""
    return MISSING if test["n_blocks"] is None else format_number(test[name])


def format_column(metric: str, values: Sequence[float | None]) -> list[str]:
    """Format the values of one metric with equal decimals, so that a column can be compared.

    Percentages get two decimals, MASE three, errors enough to give the largest about four digits.
    """
    # Decimals are chosen once for the column, by its largest value.
    sizes = [abs(value) for value in values if value is not None and isfinite(value)]
    largest = max(sizes, default=0.0)

    if metric.endswith("_pct"):
        decimals = 2
    elif metric == "mase":
        decimals = 3
    else:
        decimals = 1 if largest >= 100 or largest == 0 else max(2, 3 - floor(log10(largest)))

    return [
        MISSING if value is None or not isfinite(value) else f"{value:z,.{decimals}f}"
        for value in values
    ]


def format_with_unit(value: float | None, unit: str) -> str:
    """Format a number and its unit."""
    return f"{format_number(value)} {unit}".strip()


class Column(NamedTuple):
    """One column of a table, from the first row to the last."""

    title: str
    cells: Sequence[str]
    values: Sequence[float | None] = ()  # numbers, if the cell with the lowest is set in bold
    ranked: Sequence[str] = ()  # texts by which numbers are compared, if the cells hold more


def metric_column(rows: Sequence[Row], metric: str, *, is_marked: bool = True) -> Column:
    """Return a metric of all rows in equal decimals, with the unit that they share."""
    values = [row[metric] for row in rows]
    title = title_metric(metric, common_unit(rows))
    return Column(title, format_column(metric, values), values if is_marked else ())


def title_metric(metric: str, unit: str) -> str:
    """Return the title of a column: the metric and, if it has one, its unit."""
    return f"{METRIC_TITLES[metric]} {unit if metric in _WITH_UNIT else ''}".strip()


def common_unit(rows: Iterable[Row]) -> str:
    """Return the unit of all rows; empty if they differ or have none."""
    units = {row["unit"] for row in rows if row["unit"]}
    return units.pop() if len(units) == 1 else ""


def build_table(columns: Sequence[Column], **layout: Any) -> Table:  # noqa: ANN401
    """Return a table of columns of equal length; ``layout`` is as in :class:`Table`."""
    best_cells = set()
    for place, column in enumerate(columns):
        known = [(value, row) for row, value in enumerate(column.values) if value is not None]
        if len(known) < 2:
            continue
        # Values that print the same are marked the same.
        texts = column.ranked or column.cells
        lowest = texts[min(known)[1]]
        best_cells |= {(row, place) for _, row in known if texts[row] == lowest}
    return Table(
        header=[column.title for column in columns],
        rows=[list(row) for row in zip(*(column.cells for column in columns), strict=True)],
        best_cells=best_cells,
        **layout,
    )


def list_columns(rows: Sequence[Any], cells: Mapping[str, Callable[[Any], str]]) -> list[Column]:
    """Return the columns of rows; ``cells`` maps a title to the function of a row's cell."""
    return [Column(title, [cell(row) for row in rows]) for title, cell in cells.items()]


def describe_duration(seconds: float | None) -> str:
    """Format seconds as ``0.4 s``, ``12 s``, ``5 min`` or ``2.1 h``; "n/a" if unknown."""
    if seconds is None or math.isnan(seconds):
        return MISSING
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


CHECK_COLUMNS = ("check", "passed", "detail")
# The columns that identify each kind of file, a field of ``ReportInputs``; it may have more.
KINDS = {
    "checks": CHECK_COLUMNS,
    "paired": tuple(PAIRED_TEST_SCHEMA),
    "lud": ("table", "subject", "judge", "kappa", "windows"),
    "audit": ("source", "news", "group_kind", "group"),
    "specialists": ("agents", *read_columns("control")),
    **{
        kind: tuple(read_columns(kind)) for kind in ("control", "control_rounds", "text", "context")
    },
    "paper_sets": ("set", "published_test", "targets_in_train_inputs"),
}
# A detail or a single seed may look like a number, so the types of these are not inferred.
_TYPES = {"passed": pl.Boolean(), **dict.fromkeys(("check", "detail", "seeds"), pl.String())}
TRAIN_AGAIN = "restore the file or train again"
Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training run."""

    name: str  # name of its folder
    config: Settings  # its settings, by section
    summary: Mapping[str, Any]  # summary of the finished run; empty while it trains
    rounds: Sequence[RoundRecord]  # record of every finished round
    panels: Sequence[ForecastPanel] = ()  # forecast windows to draw; empty before evaluation
    # Contents of ``lud.json`` and ``lud.csv``; empty where LUD was not measured
    lud: Mapping[str, Any] = field(default_factory=dict)
    lud_rows: Sequence[Mapping[str, Any]] = ()

    @property
    def agents(self) -> int:
        """Number of agents, from the first round."""
        return len(self.rounds[0].rewards) if self.rounds else 0

    @property
    def first_evolving_round(self) -> int | None:
        """Number of the first round after a supervised stage; None if there was none."""
        if not self.rounds or self.rounds[0].stage == "evolution":
            return None
        return next((record.round for record in self.rounds if record.stage == "evolution"), None)

    @property
    def rewriting_rounds(self) -> list[RoundRecord]:
        """Records of the rounds that rewrote the logics."""
        return [record for record in self.rounds if record.evolved]

    def values_of(self, key: str) -> list[Any]:
        """Return the values of one key of the rounds; None for a round without a value."""
        # The zero of a round that sampled nothing is not a measurement.
        return [
            None if (key in REWRITING_KEYS and not record.evolved) or value == [] else value
            for record in self.rounds
            for value in [getattr(record, key)]
        ]

    def has_values(self, key: str) -> bool:
        """Whether any round has a value of the key."""
        return any(value is not None for value in self.values_of(key))

    def setting(self, section: str, name: str) -> str:
        """Return one setting as text; empty where the configuration has none."""
        return str(self.config.get(section, {}).get(name, ""))


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """What the page of experiments shows; all but rows, mode and moment may be empty."""

    mode: str  # kind of data: sample, archive or live
    generated_at: datetime  # moment that the page shows as its own, with zone
    rows: pl.DataFrame  # result rows, one for each identity
    runs: Sequence[TrainingRun] = ()  # training runs to show
    checks: Sequence[Mapping[str, Any]] = ()  # leakage checks, with the columns ``CHECK_COLUMNS``
    # Paired tests, and tests of two methods with the same budget, by the budget's name
    paired: Sequence[Mapping[str, Any]] = ()
    paired_at_budget: Sequence[Mapping[str, Any]] = ()
    unread: Sequence[str] = ()  # CSV files of no known kind in the results folder
    # Settings that rows were made with, by the rows' ``config_hash``
    configs: Mapping[str, Settings] = field(default_factory=dict)
    lud: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.lud.LUD_RESULT_SCHEMA``
    audit: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.news_audit.AUDIT_SCHEMA``
    control: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.control.CONTROL_SCHEMA``
    control_rounds: Sequence[Mapping[str, Any]] = ()  # rows of its ``ROUNDS_SCHEMA``
    specialists: Sequence[Mapping[str, Any]] = ()  # rows of its ``SPECIALISTS_SCHEMA``
    text: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.planted_news.TEXT_SCHEMA``
    context: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.context_is_key.CONTEXT_SCHEMA``
    paper_sets: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.paper_windows.describe_set``
    traces: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TRACE_SCHEMA))
    logics: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LOGIC_SCHEMA))

    # Scores computed so far, by scope: most are shown in several tables
    _scores: dict[tuple[object, ...], tuple[dict[str, Row], str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find_scores(
        self, dataset: str, subset: str, *, experiment: str = "", sharing: Sequence[str] = ()
    ) -> tuple[Mapping[str, Row], str]:
        """Return the scores of one scope, computed once, and the name of the shared budget.

        Rows come from an experiment, or from everything except sweeps. Methods in ``sharing`` share
        the largest budget that all of them had; its name is empty if there was none.
        """
        key = (dataset, subset, experiment, *sharing)
        if key not in self._scores:
            rows = self.rows.filter(experiment=experiment) if experiment else drop_sweeps(self.rows)
            rows, budget = share_budget(rows, dataset, subset, sharing)
            self._scores[key] = collect_scores(rows, dataset, subset), budget
        return self._scores[key]

    @property
    def panels(self) -> list[ForecastPanel]:
        """Forecast windows of all runs."""
        return [panel for run in self.runs for panel in run.panels]

    @property
    def is_synthetic(self) -> bool:
        """Whether any row or panel comes from made-up data."""
        return any(panel.synthetic for panel in self.panels) or is_synthetic(self.rows)

    def find_tests(
        self,
        dataset: str,
        subset: str,
        reference: str,
        *,
        side: str = "a",
        budget: str | None = None,
    ) -> dict[str, Mapping[str, Any]]:
        """Return the paired tests of one scope with a reference, by the other method.

        The reference is on ``side`` a or b of a test. Both sides had the ``budget``; without it the
        full trainings are compared.
        """
        paired = [test for test in self.paired_at_budget if test["budget"] == budget]
        scope, other = (dataset, subset, reference), {"a": "method_b", "b": "method_a"}[side]
        return {
            test[other]: test
            for test in (paired if budget else self.paired)
            if (test["dataset"], test["subset"], test[f"method_{side}"]) == scope
        }

    def prior_of(self, config_hash: str | None) -> str:
        """Return the prior of a configuration; empty if the configuration is not known."""
        config = self.configs.get(config_hash or "", {})
        return str(config.get("forecast", {}).get("prior", ""))


def read_inputs(
    results: Path, run_folders: Sequence[Path], *, mode: str, generated_at: datetime
) -> ReportInputs:
    """Read a folder of CSV files, and run folders; DataError if a file is torn or outdated."""
    tables: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    rows = [empty_rows()]
    traces = [pl.DataFrame(schema=TRACE_SCHEMA)]
    logics = [pl.DataFrame(schema=LOGIC_SCHEMA)]
    unread = []
    for path in sorted(results.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as handle:
            header = next(csv.reader(handle), [])
        kind = next((kind for kind, known in KINDS.items() if set(known) <= set(header)), None)
        if header[:2] == list(RESULT_SCHEMA)[:2]:
            rows.append(read_result_file(path))
        elif kind:
            tables[kind] += _read_table(path)
        elif list(TRACE_SCHEMA) == header:
            traces.append(read_typed(path, TRACE_SCHEMA))
        elif list(LOGIC_SCHEMA) == header:
            logics.append(read_typed(path, LOGIC_SCHEMA))
        else:
            unread.append(path.name)
    paired = tables.pop("paired")

    # Runs are shown in the order in which they were named.
    runs = [read_run(folder) for folder in run_folders]
    # A run that was not evaluated yet has its configuration only in its own folder.
    configs = read_configs(results)
    configs |= {str(run.summary["config_hash"]): run.config for run in runs if run.summary}
    return ReportInputs(
        mode=mode,
        generated_at=generated_at,
        rows=keep_latest(pl.concat(rows)),
        runs=runs,
        paired=[test for test in paired if not test["budget"]],
        paired_at_budget=[test for test in paired if test["budget"]],
        unread=unread,
        configs=configs,
        traces=pl.concat(traces),
        logics=pl.concat(logics),
        **tables,
    )


def read_run(path: Path) -> TrainingRun:
    """Read a run folder; DataError if it lacks rounds or a configuration, or a file is torn."""
    folder = RunFolder(path)
    rounds = folder.read_rounds()
    # The summary is written after the rows: if it exists, so do they.
    has_lud = folder.lud_summary_file.exists()

    return TrainingRun(
        name=folder.name,
        config=read_json(folder.model_config_file, TRAIN_AGAIN),
        summary=read_json(folder.metrics_file, TRAIN_AGAIN) if folder.metrics_file.exists() else {},
        rounds=rounds,
        panels=read_panels(folder.panels_file) if folder.panels_file.exists() else (),
        lud=read_json(folder.lud_summary_file, TRAIN_AGAIN) if has_lud else {},
        lud_rows=_read_table(folder.lud_rows_file) if has_lud else (),
    )


def _read_table(path: Path) -> list[dict[str, Any]]:
    # A column may begin with many empty cells, so types are inferred from all rows.
    rows = pl.read_csv(path, schema_overrides=_TYPES, infer_schema_length=None)
    return rows.to_dicts()


def read_configs(results: Path) -> dict[str, Mapping[str, Any]]:
    """Return configurations by the hash in rows; DataError or ConfigError for a wrong file."""
    return {
        path.stem: RunConfig.from_mapping(
            read_json(path, "restore the file or evaluate the run again")
        ).to_dict()
        for path in sorted((results / CONFIGS_FOLDER).glob("*.json"))
    }


def read_panels(path: Path) -> tuple[ForecastPanel, ...]:
    """Return the panels of a file; DataError names a line that is not a panel."""
    panels = []
    # Not splitlines(): a headline may hold a Unicode line separator, which is not an end of a line.
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                panels.append(TypeAdapter(ForecastPanel).validate_json(line))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number}: not a forecast panel ({error}); evaluate the run again"
                ) from error
    return tuple(panels)
