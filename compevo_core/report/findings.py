"""What each section of the page of experiments found, in one sentence.

What belongs here: counting outcomes in tables, rows and verdicts that a section shows. What does
not: making them (the modules of the sections), what a single comparison means
(``report.summaries``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from compevo_core.evaluation.panels import ForecastPanel
from compevo_core.report.inputs import ReportInputs, TrainingRun
from compevo_core.report.result_tables import HIGHLIGHTED_METHOD
from compevo_core.report.rows import select_pooled, select_scope
from compevo_core.report.summaries import ResultSummary
from compevo_core.report.tables import Row, Table
from compevo_core.report.wording import find_side, format_number, format_percent, method_name

OWN = method_name(HIGHLIGHTED_METHOD)


def count_verdicts(summaries: Sequence[ResultSummary]) -> str:
    """Say in how many comparisons CompEvo was better or worse, and whether than its prior."""
    if not summaries:
        return "No scored forecast of CompEvo is among the rows."
    outcomes = Counter(rival.outcome for result in summaries for rival in result.rivals)
    better, worse, total = outcomes["better"], outcomes["worse"], outcomes.total()
    text = (
        f"Of {total:,} comparisons CompEvo is better in {better:,} and worse in {worse:,}; "
        f"{total - better - worse:,} are not decided"
    )
    priors = [rival for result in summaries for rival in result.rivals if rival.is_prior]
    if not priors:
        return f"{text}."
    improved = sum(rival.outcome == "better" for rival in priors)
    return f"{text}. It improves on its own prior in {improved} of {len(priors)}."


def name_leaders(tables: Sequence[Table]) -> str:
    """Say which method has the lowest error; each table has the best one first."""
    leaders = Counter(table.rows[0][0] for table in tables if table.rows)
    if not leaders:
        return "Comparisons of methods by window."
    own_count = sum(n for name, n in leaders.items() if name.startswith(OWN))
    (most, count), *_ = leaders.most_common(1)
    text = f"CompEvo has the lowest error in {own_count} of {leaders.total()} test sets"
    return f"{text}." if own_count == count else f"{text}; most often it is {most} ({count})."


def describe_bands(rows: pl.DataFrame, scopes: Sequence[tuple[str, str]]) -> str:
    """Say what share of the truths lay in CompEvo's 80 % band."""
    highlighted = select_pooled(rows).filter(method=HIGHLIGHTED_METHOD)
    held = [select_scope(highlighted, *scope)["coverage_80"].mean() for scope in scopes]
    shares = sorted(share for share in held if isinstance(share, float))
    if not shares:
        return "What the bands of each method held."
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
    """Say in how many of the windows that are shown CompEvo came nearest."""
    nearest = 0
    for panel in panels:
        truth = np.array(panel.truth, dtype=float)
        errors = {
            name: float(np.nanmean(np.abs(np.array(values) - truth)))
            for name, values in panel.forecasts.items()
        }
        nearest += min(errors, key=lambda name: errors[name]) == HIGHLIGHTED_METHOD
    return (
        f"CompEvo is the nearest to the actual values in {nearest} of {len(panels)} windows shown."
    )


def find_of_run(part: str, run: TrainingRun, view: Mapping[str, Any]) -> str:
    """Return the sentence of one part of a training run."""
    match part:
        case "logics":
            return _describe_logics(run)
        case "training":
            return _describe_training(run)
        case "health":
            return _describe_health(view)
        case "theory":
            return _describe_theory(view)
    return _describe_shifts(run, view)


def _describe_logics(run: TrainingRun) -> str:
    """Say how many agents ended with another logic."""
    first, last = run.rounds[0].logics, run.rounds[-1].logics
    moved = sum(before != after for before, after in zip(first, last, strict=True))
    return f"{moved} of {run.agents} agents ended with another logic than they began with."


def _describe_training(run: TrainingRun) -> str:
    """Say how the validation error moved, compared with the error of the prior."""
    errors = [value for value in run.values_of("val_mae_scaled") if value is not None]
    priors = [value for value in run.values_of("val_prior_mae_scaled") if value is not None]
    if not errors:
        return f"{len(run.rounds)} rounds; no error on validation was measured."
    text = f"Over {len(run.rounds)} rounds the scaled error on validation went from "
    text += f"{format_number(errors[0])} to {format_number(errors[-1])}"
    return f"{text}, with {format_number(priors[-1])} by the prior alone." if priors else f"{text}."


def _describe_health(view: Mapping[str, Any]) -> str:
    """Say how many agents with unrelated errors the population is worth."""
    means = view["means"]
    return (
        f"The {view['agents']} agents are worth {means['effective_agents']} with unrelated errors; "
        f"their errors correlate by {means['error_correlation']}."
    )


def _describe_theory(view: Mapping[str, Any]) -> str:
    """Say how regret grew, where it was fitted."""
    growth: Table | None = view["growth"]
    if growth is None:
        return "Gaps to the best response, regret and margins of one finite run; no fit of growth."
    return f"Growth of regret, mean of agents: {growth.rows[-1][-1]}."


def _describe_shifts(run: TrainingRun, view: Mapping[str, Any]) -> str:
    """Say how far logics moved from the first to the last."""
    if view["is_stale"]:
        return "Measured for an earlier training; measure it again with: compevo lud."
    moved = [float(agent["first_to_last"]) for agent in run.lud["agents"]]
    return (
        "From the first to the last logic the embeddings moved by "
        f"{format_number(min(moved))} to {format_number(max(moved))}; 0 means no change."
    )


def describe_mechanism(inputs: ReportInputs) -> str:
    """Say how many agents' rewards were still rising."""
    known = inputs.logics.drop_nulls("reward_slope")
    rising = known.filter(pl.col("slope_low") > 0).height
    return (
        f"The rewards of {rising} of {known.height} agents were still rising at the end, under one "
        "budget."
    )


def count_changes(tests: Sequence[Row]) -> str:
    """Say how many changes of the method differ from the full one by more than chance."""
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
        f"{filled} of {len(tables)} tables of the paper have own figures beside the published ones."
    )


def join_verdicts(verdicts: Sequence[str]) -> str:
    """Return the first sentence of each verdict, equal ones counted."""
    first = Counter(verdict.partition(". ")[0].rstrip(".") for verdict in verdicts)
    return "; ".join(f"{text} ({n})" if n > 1 else text for text, n in first.items()) + "."
