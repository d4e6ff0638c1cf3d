"""The results in plain sentences: is CompEvo better, equal or worse than each other method.

What belongs here: comparing two rows of the same scope and saying the outcome without flattering
it. What does not: metrics (``evaluation.metrics``), significance (``evaluation.significance``),
layout (``templates/summary.html``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compevo_core.evaluation.budget_order import rank_budget
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.rows import (
    average_over_seeds,
    drop_agents,
    is_synthetic,
    list_scopes,
    select_pooled,
    select_scope,
)
from compevo_core.report.wording import (
    format_with_unit,
    method_name,
    scope_name,
    shorten_hash,
)

#: Relative difference of two MAE below which they count as equal: half of the last printed digit.
TIE = 0.0005
#: What CompEvo is compared with first, in this order; networks and others follow by name.
RIVALS = (
    *("compevo-equal", "compevo-prior", "prior", "persistence", "weekly"),
    *("calendar-ridge", "calendar-ridge-recalibrated", "gbm", "gbm-recalibrated"),
    *("blend", "blend-recalibrated", "published"),
    *("published-error-ridge", "published-error-gbm"),
    *("sa", "mael", "mae-gpt", "mad-rl"),
)
#: Scored from the same run as the population: another configuration's are no rivals of this one.
_PARTS = ("compevo-equal", "compevo-prior")
IMPROVES_ON_PRIOR = "CompEvo improves on its prior here."
#: A lower error alone does not say whether other days would have given it.
LOWER_THAN_PRIOR = (
    "CompEvo's error is lower than its prior's here; no comparison by window says whether by more "
    "than chance."
)
WITHOUT_PRIOR = "Its agents start from no prior."

#: The agents correct the forecast of the prior: without an improvement they have done nothing.
NO_BETTER_THAN_PRIOR = (
    "CompEvo does not improve on its prior here: the language-model agents added no measurable "
    "value."
)

#: Where the paired test says that chance alone may have made the difference.
NOT_TOLD_FROM_PRIOR = (
    "Whether CompEvo improves on its prior cannot be told here: the difference lies between {low} "
    "and {high} (95 %, blocks of days drawn)."
)

TOO_FEW_DAYS = (
    "Whether CompEvo improves on its prior cannot be told here: {n} block(s) of days are too few "
    "for a test."
)

Row = Mapping[str, Any]
Outcome = Literal["better", "equal", "worse", "lower", "higher", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """CompEvo against one other method.

    Attributes:
        outcome: how CompEvo did. Without a comparison by window its error is lower or higher, and
            no more is said; where there is one that cannot tell the two apart, it is unclear.
        sentence: the same with both errors.
        is_lower: whether CompEvo's error is lower, whatever a comparison by window says.
        is_tested: whether there is such a comparison.
        is_prior: whether the other method is the prior that CompEvo started from.
        is_part: whether the other one is a part of the same population, and no other method.
    """

    outcome: Outcome
    sentence: str
    is_lower: bool
    is_tested: bool = False
    is_prior: bool = False
    is_part: bool = False


@dataclass(frozen=True, kw_only=True)
class ResultSummary:
    """All comparisons of one configuration of CompEvo in one data set and subset."""

    scope: str
    summary: str
    comparisons: Sequence[Comparison]

    def to_line(self) -> str:
        """Return scope and summary as one line, for Markdown and the terminal."""
        return f"{self.scope}: {self.summary}"


def summarize_results(inputs: ReportInputs) -> list[ResultSummary]:
    """Summarize each configuration of CompEvo in each scope it was scored in."""
    return [
        summary
        for dataset, subset in list_scopes(select_pooled(inputs.rows))
        for summary in summarize_scope(inputs, dataset, subset)
    ]


def summarize_scope(inputs: ReportInputs, dataset: str, subset: str) -> Iterator[ResultSummary]:
    """Yield one summary for each configuration of CompEvo in one data set and subset."""
    rows = select_scope(select_pooled(inputs.rows), dataset, subset)
    records = [
        row
        for row in average_over_seeds(drop_agents(rows)).iter_rows(named=True)
        if row["mae"] is not None
    ]
    # Of a method with several budgets the largest: the last that is put in stays.
    by_budget = sorted(records, key=lambda row: rank_budget(row["budget"]), reverse=True)
    others = {row["method"]: row for row in by_budget if row["method"] != COMPEVO}
    populations = [row for row in records if row["method"] == COMPEVO]
    name = scope_name(dataset, subset, synthetic=is_synthetic(rows))

    # Several configurations are summarized each: a mean over them would describe none.
    for row in populations:
        own = {
            part["method"]: part
            for part in records
            if part["method"] in _PARTS and part["seedless_hash"] == row["seedless_hash"]
        }
        rivals = {name: other for name, other in others.items() if name not in _PARTS} | own
        # The run's own row of its prior says what the agents started from. Without it the prior is
        # scored under its method's name, or as "prior" where it was scored apart.
        prior_rows = {"prior", inputs.prior_of(row["config_hash"])}
        priors = {"compevo-prior"} if "compevo-prior" in own else prior_rows
        is_only_one = len(populations) == 1
        # Paired tests name no configuration, and are of a model that was not refitted.
        is_tested = not row["refit"] and sum(not other["refit"] for other in populations) == 1
        tests = _find_tests(inputs, dataset, subset, row["budget"]) if is_tested else {}
        comparisons = [
            _compare(row, rivals[rival], tests.get(rival), is_prior=rival in priors)
            for rival in sorted(rivals, key=_place)
        ]
        of_priors = [tests[prior] for prior in priors if prior in tests]
        test = of_priors[0] if len(of_priors) == 1 else None
        configuration = f", configuration {shorten_hash(row['config_hash'])}"
        yield ResultSummary(
            scope=name if is_only_one else name + configuration,
            summary=_summarize(row, comparisons, test, prior=inputs.prior_of(row["config_hash"])),
            comparisons=comparisons,
        )


def _find_tests(
    inputs: ReportInputs, dataset: str, subset: str, budget: str | None
) -> dict[str | None, Row]:
    """Return CompEvo's comparisons by window, by the other method.

    Those of earlier versions, with neither an interval nor a number of blocks, are left out.
    """
    paired = inputs.paired
    if budget:
        paired = [test for test in inputs.paired_at_budget if test["budget"] == budget]
    return {
        test["method_b"]: test
        for test in paired
        if (test["dataset"], test["subset"], test["method_a"]) == (dataset, subset, COMPEVO)
        and (test.get("interval_low") is not None or test.get("n_blocks") is not None)
    }


def _compare(population: Row, rival: Row, test: Row | None, *, is_prior: bool) -> Comparison:
    difference = _relative_difference(population["mae"], rival["mae"])
    name = _name_rival(rival, is_prior=is_prior)
    errors = (
        f"MAE {format_with_unit(population['mae'], population['unit'])} against "
        f"{format_with_unit(rival['mae'], rival['unit'])}"
    )

    outcome: Outcome
    chance = _describe_chance(test, population["unit"]) if test is not None else ""
    if abs(difference) < TIE:
        outcome, sentence = "equal", f"Equals {name}: {errors}."
    elif chance:
        outcome, sentence = "unclear", f"Cannot be told apart from {name}: {errors}; {chance}."
    elif test is None:
        outcome, side = ("lower", "below") if difference < 0 else ("higher", "above")
        sentence = f"Its error is {100 * abs(difference):.1f} % {side} that of {name}: {errors}."
    elif difference < 0:
        outcome, sentence = "better", f"Beats {name} by {-100 * difference:.1f} %: {errors}."
    else:
        worse = f"it is {100 * difference:.1f} % worse"
        outcome, sentence = "worse", f"Does not beat {name}; {worse}: {errors}."
    return Comparison(
        outcome=outcome,
        sentence=sentence,
        is_lower=difference <= -TIE,
        is_tested=test is not None,
        is_prior=is_prior,
        is_part=rival["method"] in _PARTS,
    )


def _describe_chance(test: Row, unit: str) -> str:
    """Return why a comparison by window cannot tell two methods apart; empty where it can."""
    low, high = test["interval_low"], test["interval_high"]
    if low is None:
        return "these are too few days"
    if low > 0 or high < 0:
        return ""
    bounds = f"{format_with_unit(low, unit)} and {format_with_unit(high, unit)}"
    return f"the difference lies between {bounds}"


def _place(method: str) -> tuple[int, str]:
    """Return where a method stands in the list: those without a place of their own last."""
    return (RIVALS.index(method) if method in RIVALS else len(RIVALS), method)


def _relative_difference(mae: float, rival_mae: float) -> float:
    # A rival without any error leaves no scale: any error of ours is then 100 % worse.
    return (mae - rival_mae) / rival_mae if rival_mae else float(mae > 0)


def _name_rival(rival: Row, *, is_prior: bool) -> str:
    names = {
        "prior": "its own prior",
        "compevo-prior": "its own prior",
        "compevo-equal": "the equally weighted mean of its own agents",
        "published": "AEMO's published day-ahead forecast (POE50)",
        "sa": "a single agent (SA)",
        **{system: method_name(system) for system in ("mael", "mae-gpt", "mad-rl")},
    }
    name = method_name(rival["method"])
    # Descriptions stand in a sentence; names of systems and networks keep their capitals.
    plain = names.get(rival["method"], name.lower() if rival["method"] in RIVALS else name)
    is_named = is_prior and rival["method"] not in ("prior", "compevo-prior")
    return f"its own prior ({plain})" if is_named else plain


def _summarize(
    population: Row, comparisons: Sequence[Comparison], test: Row | None, *, prior: str
) -> str:
    error = (
        f"MAE {format_with_unit(population['mae'], population['unit'])} over "
        f"{population['n_windows']:,} windows"
    )
    if not comparisons:
        return f"{error}; no other method was scored here."

    # Ties do not count as wins, and neither do errors of the population's own parts.
    others = [comparison for comparison in comparisons if not comparison.is_part]
    beaten = sum(comparison.is_lower for comparison in others)
    counted = f"{error}; a lower error than {beaten} of {len(others)} other methods"
    # An error alone does not say whether other days would have given the same order.
    if beaten and any(comparison.is_tested for comparison in others):
        confirmed = sum(comparison.outcome == "better" for comparison in others)
        counted += f"; the interval says so for {confirmed} of them"
    sentences = [f"{counted}."]

    # Without its configuration the prior is unknown, and nothing is claimed about it.
    priors = [comparison for comparison in comparisons if comparison.is_prior]
    if prior == "none":
        sentences.append(WITHOUT_PRIOR)
    elif priors:
        sentences.append(_judge_prior(population, priors, test))
    return " ".join(sentences)


def _judge_prior(population: Row, priors: Sequence[Comparison], test: Row | None) -> str:
    """Return what the rows, and the paired test where there is one, say about the prior."""
    if not all(comparison.is_lower for comparison in priors):
        return NO_BETTER_THAN_PRIOR
    if test is None:
        return LOWER_THAN_PRIOR
    if test["interval_low"] is None:
        return TOO_FEW_DAYS.format(n=test["n_blocks"])
    if test["interval_high"] < 0:
        return IMPROVES_ON_PRIOR

    ends = (test["interval_low"], test["interval_high"])
    low, high = (format_with_unit(bound, population["unit"]) for bound in ends)
    return NOT_TOLD_FROM_PRIOR.format(low=low, high=high)
