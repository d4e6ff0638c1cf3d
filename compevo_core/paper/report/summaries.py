"""The results in plain sentences: is CompEvo better, equal or worse than each other method.

What belongs here: finding the rivals of each configuration in a scope with their paired tests,
wording and plotting the outcome without flattering it, and the sentence on what each section of the
page found.
What does not: metrics (``evaluation.metrics``), significance (``evaluation.comparison``), layout
(``templates/sections.html``).
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from compevo_core.evaluation.baseline_scores import RECALIBRATED_BASELINES
from compevo_core.evaluation.scopes import ForecastPanel
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.forecast.explain import choose_decimals
from compevo_core.paper.changes import ALL_TRIALS, FULL_METHOD
from compevo_core.paper.declared import rank_budget, read_declared
from compevo_core.paper.report.figures import THEME, Picture, Plot, get_figure
from compevo_core.paper.report.inputs import ReportInputs
from compevo_core.paper.report.result_tables import HIGHLIGHTED_METHOD, name_records
from compevo_core.paper.report.rows import (
    RECALIBRATED,
    average_over_seeds,
    find_side,
    format_number,
    format_with_unit,
    list_scopes,
    method_name,
    select_methods,
    select_pooled,
    select_scope,
)
from compevo_core.report.charts import GREEN, INK, MUTED, RED
from compevo_core.report.tables import Row, Table, format_percent, join_items, shorten_hash

#: Relative difference of two MAE below which they count as equal: half of the last printed digit.
TIE = 0.0005
#: Scored from the population's run: those of another configuration are no rivals of this one.
_PARTS = ("compevo-equal", "compevo-prior")
#: The first rivals of CompEvo, in this order; networks and others follow by name.
RIVALS = (
    *_PARTS,
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

OF_PRIOR: Mapping[str, str] = read_declared("notes")["prior"]
_VERDICT_COLOURS = {"better": GREEN, "worse": RED}


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
        """How CompEvo did: better, worse, unclear or equal; lower or higher if there is no test.

        A difference may be chance if its interval includes zero or there were too few days.
        """
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
        others = [rival for rival in self.rivals if rival.row["method"] not in _PARTS]
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
        if row["method"] not in (COMPEVO, *_PARTS)
        or (row["method"] in _PARTS and row["seedless_hash"] == population["seedless_hash"])
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
    others = [rival for rival in rivals if rival.row["method"] not in _PARTS]
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
    outcomes = Counter(rival.outcome for result in summaries for rival in result.rivals)
    better, worse, total = outcomes["better"], outcomes["worse"], outcomes.total()
    text = (
        f"{_tell_wins(summaries)}Of {total:,} comparisons CompEvo is better in {better:,} and "
        f"worse in {worse:,}; {total - better - worse:,} are not decided"
    )
    priors = [rival for result in summaries for rival in result.rivals if rival.is_prior]
    if not priors:
        return f"{text}."
    improved = sum(rival.outcome == "better" for rival in priors)
    return f"{text}. It improves on its own prior in {improved} of {len(priors)}."


def _tell_wins(summaries: Sequence[ResultSummary]) -> str:
    """Say where CompEvo beats the best other method, and by how much in the largest set.

    Empty if it does so nowhere.
    """
    wins = [(each.best, each.name) for each in summaries if each.best]
    wins = [(rival, name) for rival, name in wins if rival.outcome == "better"]
    if not wins:
        return ""
    best, name = max(wins, key=lambda win: int(win[0].row["n_windows"]))
    return (
        f"CompEvo is better than the best other method in {len(wins)} of {len(summaries)} sets of "
        f"windows; {name}: {best.describe()}. "
    )


def show_verdicts(summaries: Sequence[ResultSummary]) -> Picture:
    """Return the differences from each rival with their intervals, one plot per test set."""
    plots = []
    for summary in summaries:
        outcomes = Counter(rival.outcome for rival in summary.rivals)
        counts = join_items([f"{name} for {n}" for name, n in outcomes.items()])
        alt = f"Difference of CompEvo's error to each method's in percent for {summary.scope}: "
        size = (5.2, 1.0 + 0.2 * len(summary.rivals))
        if summary.rivals:
            plots.append(Plot(partial(_fill_verdicts, summary), f"{alt}{counts}.", size))
    return Picture(plots, columns=2)


def _fill_verdicts(summary: ResultSummary, axis: Axes) -> None:
    rivals = summary.rivals
    for place, rival in enumerate(rivals):
        colour = _VERDICT_COLOURS.get(rival.outcome, MUTED)
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
    with mpl.rc_context(THEME):
        title = textwrap.fill(summary.scope, 54)
        get_figure(axis).suptitle(title, x=0.01, ha="left", fontsize=10.5, weight="bold")


def describe_errors(inputs: ReportInputs, dataset: str, subset: str) -> str:
    """Say the error of CompEvo, of the best other method and of one agent in one scope.

    Empty if CompEvo has no rows there.
    """
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
    own_name, parts = method_name(HIGHLIGHTED_METHOD), set(map(method_name, _PARTS))
    own_count = sum(
        n for name, n in leaders.items() if name.startswith(own_name) and name not in parts
    )
    (most, count), *_ = leaders.most_common(1)
    text = f"CompEvo has the lowest error in {own_count} of {leaders.total()} test sets"
    return f"{text}." if own_count == count else f"{text}; most often it is {most} ({count})."


def describe_bands(rows: pl.DataFrame, scopes: Sequence[tuple[str, str]]) -> str:
    """Say what share of the truths CompEvo's 80 % band held."""
    highlighted = select_pooled(rows).filter(method=HIGHLIGHTED_METHOD)
    held = [select_scope(highlighted, *scope)["coverage_80"].mean() for scope in scopes]
    shares = sorted(share for share in held if isinstance(share, float))
    if not shares:
        return "How many values the bands of each method held."
    low, high = format_percent(shares[0]), format_percent(shares[-1])
    text = low if len(shares) == 1 else f"{low} to {high}"
    return f"CompEvo's 80 % band holds {text} of the actual values, over {len(shares)} test sets."


def count_best(tables: Sequence[Table]) -> str:
    """Say in how many columns CompEvo has the best cell."""
    columns = [column for table in tables for column in {place for _, place in table.best_cells}]
    best = {
        (i, column)
        for i, table in enumerate(tables)
        for row, column in table.best_cells
        if row in table.highlighted
    }
    return f"CompEvo is the best, or as good, in {len(best)} of {len(columns)} columns of regions."


def count_near(panels: Sequence[ForecastPanel]) -> str:
    """Say in how many of the shown windows CompEvo was closest."""
    nearest = 0
    for panel in panels:
        truth = np.array(panel.truth, dtype=float)
        errors = {
            name: float(np.nanmean(np.abs(np.array(values) - truth)))
            for name, values in panel.forecasts.items()
        }
        nearest += min(errors, key=lambda name: errors[name]) == HIGHLIGHTED_METHOD
    return f"CompEvo is closest to the actual values in {nearest} of {len(panels)} windows shown."


def describe_mechanism(inputs: ReportInputs) -> str:
    """Say how many agents' rewards were still rising."""
    known = inputs.logics.drop_nulls("reward_slope")
    rising = known.filter(pl.col("slope_low") > 0).height
    return (
        f"The rewards of {rising} of {known.height} agents were still rising at the end, under one "
        "budget."
    )


def count_changes(tests: Sequence[Row]) -> str:
    """Say how many changes of the method differ from the full method by more than chance."""
    sides = Counter(find_side(test) for test in tests)
    if not sides:
        return "Variants and controls under one budget; no comparison by window."
    return (
        f"Of {sides.total()} changes {sides[1]} make the forecast worse and {sides[-1]} better; of "
        f"{sides[0]} the interval includes zero."
    )


def count_tables(groups: Sequence[Mapping[str, Any]]) -> str:
    """Say how many of the paper's tables have own rows."""
    tables = [table for group in groups for table in group["tables"]]
    filled = sum(bool(table.rows) for table in tables)
    return (
        f"{filled} of {len(tables)} tables of the paper have own figures besides the printed ones."
    )


def join_verdicts(tables: Sequence[Table]) -> str:
    """Return the first sentence of each table's verdict, equal ones counted."""
    first = Counter(table.verdict.partition(". ")[0].rstrip(".") for table in tables)
    return "; ".join(f"{text} ({n})" if n > 1 else text for text, n in first.items()) + "."
