"""The results in plain sentences: is CompEvo better, equal or worse than each other method.

What belongs here: finding the rivals of each configuration in a scope with their paired tests, and
wording the outcome without flattering it. What does not: metrics (``evaluation.metrics``),
significance (``evaluation.comparison``), layout (``templates/sections.html``).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compevo_core.evaluation.comparison import rank_budget
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
from compevo_core.report.tables import Row
from compevo_core.report.wording import find_side, format_with_unit, scope_name, shorten_hash

#: Relative difference of two MAE below which they count as equal: half of the last printed digit.
TIE = 0.0005
#: What CompEvo is compared with first, in this order; networks and others follow by name.
RIVALS = (
    *("compevo-equal", "compevo-prior", "prior", "persistence", "weekly"),
    *("calendar-ridge", "calendar-ridge-recalibrated", "gbm", "gbm-recalibrated"),
    *("blend", "blend-recalibrated", "published"),
    *("published-error-ridge", "published-error-gbm", "own-weather-ridge", "own-weather-gbm"),
    *("sa", "mael", "mae-gpt", "mad-rl"),
)
#: Scored from the same run as the population: another configuration's are not rivals of this one.
_PARTS = ("compevo-equal", "compevo-prior")

IMPROVES_ON_PRIOR = "CompEvo improves on its prior here."
#: A lower error alone does not say whether other days would have given it.
LOWER_THAN_PRIOR = (
    "CompEvo's error is lower than its prior's here; without a comparison by window it is unknown "
    "whether by more than chance."
)
WITHOUT_PRIOR = "Its agents start from no prior."
#: The agents correct the forecast of the prior: without an improvement they have done nothing.
NO_BETTER_THAN_PRIOR = (
    "CompEvo does not improve on its prior here: the language-model agents added no measurable "
    "value."
)
#: Where the paired test says that chance alone may have made the difference.
NOT_SIGNIFICANT = (
    "The difference to its prior is not significant here: it lies between {bounds} (95 %, "
    "blocks of days resampled)."
)
TOO_FEW_DAYS = (
    "The difference to its prior is not significant here: {n} block(s) of days are too few for a "
    "test."
)


class Rival(NamedTuple):
    """One method that CompEvo is compared with in a scope."""

    row: Row  # its errors
    mae: float  # the error of CompEvo
    test: Row | None  # comparison by window; None where there is none
    is_prior: bool  # whether it is the prior that CompEvo started from

    @property
    def difference(self) -> float:
        """Error of CompEvo relative to the rival's, minus one."""
        # A rival without any error leaves no scale: any error of ours is then 100 % worse.
        mae = self.row["mae"]
        return (self.mae - mae) / mae if mae else float(self.mae > 0)

    @property
    def is_beaten(self) -> bool:
        """Whether CompEvo's error is lower, whatever a comparison by window says."""
        return self.difference <= -TIE

    @property
    def outcome(self) -> str:
        """How CompEvo did: better, worse, unclear or equal; lower or higher where there is no test.

        A difference may be chance where its interval includes zero or the days were too few.
        """
        if abs(self.difference) < TIE:
            return "equal"
        if self.test is None:
            return "lower" if self.difference < 0 else "higher"
        # A mean over points may lie on the other side than the interval of means over windows.
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
    configuration: str  # its name where the scope has several, or else empty
    summary: str
    rivals: Sequence[Rival]

    @property
    def scope(self) -> str:
        """Name of the data set and subset, and of the configuration."""
        return f"{self.name}, {self.configuration}" if self.configuration else self.name

    def to_line(self) -> str:
        """Return the summary as one line below the table of its scope."""
        name = f"CompEvo ({self.configuration}): " if self.configuration else ""
        return f"{name}{self.summary}"


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
    records = average_over_seeds(drop_agents(rows)).drop_nulls("mae").to_dicts()
    populations = [row for row in records if row["method"] == COMPEVO]
    name = scope_name(dataset, subset, synthetic=is_synthetic(rows))

    # Several configurations are summarized each: a mean over them would describe none.
    for row in populations:
        rivals = find_rivals(inputs, row, records)
        configuration = f"configuration {shorten_hash(row['config_hash'])}"
        yield ResultSummary(
            name=name,
            configuration=configuration if len(populations) > 1 else "",
            summary=_summarize(row, rivals, prior=inputs.prior_of(row["config_hash"])),
            rivals=rivals,
        )


def find_rivals(inputs: ReportInputs, population: Row, records: Sequence[Row]) -> list[Rival]:
    """Return what one configuration of CompEvo is compared with, in the order of the list.

    ``population`` is its row and ``records`` all rows of its scope, each the mean over seeds.
    """
    # Of a method with several budgets the largest: the last that is put in stays.
    by_budget = sorted(records, key=lambda row: rank_budget(row["budget"]), reverse=True)
    rivals = {
        row["method"]: row
        for row in by_budget
        if row["method"] not in (COMPEVO, *_PARTS)
        or (row["method"] in _PARTS and row["seedless_hash"] == population["seedless_hash"])
    }
    # The run's own row of its prior says what the agents started from. Without it the prior is
    # scored under its method's name, or as "prior" where it was scored apart.
    priors = {"compevo-prior"}
    if "compevo-prior" not in rivals:
        priors = {"prior", inputs.prior_of(population["config_hash"])}

    # Paired tests name no configuration, and are of a model that was not refitted.
    plain = [row for row in records if row["method"] == COMPEVO and not row["refit"]]
    tests = {}
    if not population["refit"] and len(plain) == 1:
        scope = population["dataset"], population["subset"]
        tests = inputs.find_tests(*scope, COMPEVO, budget=population["budget"])
    # Without an interval and a number of blocks a test says nothing of the difference.
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
        error += " (one training; how trainings vary is unknown)"

    # Ties do not count as wins, and neither do errors of the population's own parts.
    others = [rival for rival in rivals if rival.row["method"] not in _PARTS]
    beaten = sum(rival.is_beaten for rival in others)
    text = f"{error}; a lower error than {beaten} of {len(others)} other methods"
    # An error alone does not say whether other days would have given the same order.
    if beaten and any(rival.test for rival in others):
        text += f"; significant for {sum(rival.outcome == 'better' for rival in others)} of them"

    # Without its configuration the prior is unknown, and nothing is claimed about it.
    priors = [rival for rival in rivals if rival.is_prior]
    if prior == "none":
        return f"{text}. {WITHOUT_PRIOR}"
    return f"{text}. {_judge_prior(priors, population['unit'])}" if priors else f"{text}."


def _judge_prior(priors: Sequence[Rival], unit: str) -> str:
    """Return what the rows, and the paired test where there is one, say about the prior."""
    if not all(rival.is_beaten for rival in priors):
        return NO_BETTER_THAN_PRIOR
    tests = [rival.test for rival in priors if rival.test]
    if len(tests) != 1:
        return LOWER_THAN_PRIOR

    (test,) = tests
    if test["interval_low"] is None:
        return TOO_FEW_DAYS.format(n=test["n_blocks"])
    if find_side(test) < 0:
        return IMPROVES_ON_PRIOR
    ends = (format_with_unit(test[f"interval_{end}"], unit) for end in ("low", "high"))
    return NOT_SIGNIFICANT.format(bounds=" and ".join(ends))
