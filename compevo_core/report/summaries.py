"""The results in plain sentences: is CompEvo better, equal or worse than each other method.

What belongs here: comparing two rows of the same scope and saying the outcome without flattering
it. What does not: metrics (``evaluation.metrics``), significance (``evaluation.significance``),
layout (``templates/summary.html``).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compevo_core.report.inputs import ReportInputs
from compevo_core.report.rows import (
    average_over_seeds,
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
#: The agents correct the forecast of the prior: without an improvement they have done nothing.
NO_BETTER_THAN_PRIOR = (
    "CompEvo does not improve on its prior here: the language-model agents added no measurable "
    "value."
)

#: Where the paired test says that chance alone may have made the difference.
NOT_TOLD_FROM_PRIOR = (
    "Whether CompEvo improves on its prior cannot be told here: the difference lies between {low} "
    "and {high} (95 %, whole days drawn)."
)

#: Of a handful of pairs the resampled means are a handful, and so are the ranks of a test.
TOO_FEW_PAIRS = (
    "Whether CompEvo improves on its prior cannot be told here: {n} pairs that share no target "
    "step are too few."
)
FEWEST_PAIRS = 10

Row = Mapping[str, Any]
Outcome = Literal["better", "equal", "worse"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """CompEvo against one other method.

    Attributes:
        outcome: how CompEvo did.
        sentence: the same with both errors.
        is_prior: whether the other method is the prior that CompEvo started from.
    """

    outcome: Outcome
    sentence: str
    is_prior: bool = False


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
        row for row in average_over_seeds(rows).iter_rows(named=True) if row["mae"] is not None
    ]
    others = {row["method"]: row for row in records if row["method"] in RIVALS}
    populations = [row for row in records if row["method"] == "compevo"]
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
        comparisons = [
            _compare(row, rivals[rival], is_prior=rival in priors)
            for rival in RIVALS
            if rival in rivals
        ]
        is_only_one = len(populations) == 1
        # Paired tests name no configuration, and are of a model that was not refitted.
        is_tested = not row["refit"] and sum(not other["refit"] for other in populations) == 1
        test = _find_test(inputs.paired, dataset, subset, priors) if is_tested else None
        configuration = f", configuration {shorten_hash(row['config_hash'])}"
        yield ResultSummary(
            scope=name if is_only_one else name + configuration,
            summary=_summarize(row, comparisons, test),
            comparisons=comparisons,
        )


def _find_test(
    paired: Sequence[Row], dataset: str, subset: str, priors: Collection[str | None]
) -> Row | None:
    """Return the paired test with the prior; None where there is none, or none with an interval."""
    tests = [
        test
        for test in paired
        if (test["dataset"], test["subset"], test["method_a"]) == (dataset, subset, "compevo")
        and test["method_b"] in priors
        and test.get("interval_low") is not None
    ]
    return tests[0] if len(tests) == 1 else None


def _compare(population: Row, rival: Row, *, is_prior: bool) -> Comparison:
    difference = _relative_difference(population["mae"], rival["mae"])
    name = _name_rival(rival, is_prior=is_prior)
    errors = (
        f"MAE {format_with_unit(population['mae'], population['unit'])} against "
        f"{format_with_unit(rival['mae'], rival['unit'])}"
    )

    outcome: Outcome
    if abs(difference) < TIE:
        outcome, sentence = "equal", f"Equals {name}: {errors}."
    elif difference < 0:
        outcome, sentence = "better", f"Beats {name} by {-100 * difference:.1f} %: {errors}."
    else:
        worse = f"it is {100 * difference:.1f} % worse"
        outcome, sentence = "worse", f"Does not beat {name}; {worse}: {errors}."
    return Comparison(outcome=outcome, sentence=sentence, is_prior=is_prior)


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
    plain = names.get(rival["method"], method_name(rival["method"]).lower())
    is_named = is_prior and rival["method"] not in ("prior", "compevo-prior")
    return f"its own prior ({plain})" if is_named else plain


def _summarize(population: Row, comparisons: Sequence[Comparison], test: Row | None) -> str:
    error = (
        f"MAE {format_with_unit(population['mae'], population['unit'])} over "
        f"{population['n_windows']:,} windows"
    )
    if not comparisons:
        return f"{error}; no other method was scored here."

    # Ties do not count as wins.
    beaten = sum(comparison.outcome == "better" for comparison in comparisons)
    sentences = [f"{error}; a lower error than {beaten} of {len(comparisons)} other methods."]

    # Without its configuration the prior is unknown, and nothing is claimed about it.
    priors = [comparison for comparison in comparisons if comparison.is_prior]
    if priors:
        sentences.append(_judge_prior(population, priors, test))
    return " ".join(sentences)


def _judge_prior(population: Row, priors: Sequence[Comparison], test: Row | None) -> str:
    """Return what the rows, and the paired test where there is one, say about the prior."""
    if not all(comparison.outcome == "better" for comparison in priors):
        return NO_BETTER_THAN_PRIOR
    if test is None:
        return IMPROVES_ON_PRIOR
    if test["n"] < FEWEST_PAIRS:
        return TOO_FEW_PAIRS.format(n=test["n"])
    if test["interval_high"] < 0:
        return IMPROVES_ON_PRIOR

    ends = (test["interval_low"], test["interval_high"])
    low, high = (format_with_unit(bound, population["unit"]) for bound in ends)
    return NOT_TOLD_FROM_PRIOR.format(low=low, high=high)
