"""What came out, better or worse, in one sentence for each comparison.

What belongs here: comparing two rows of the same scope, and saying it without dressing it up.
What does not: metrics, significance tests (evaluation computes both), layout.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compevo_core.report.inputs import ReportInputs
from compevo_core.report.rows import in_scope, is_synthetic, over_seeds, pooled, scopes
from compevo_core.report.wording import method_name, scope_name, short, with_unit

TIE = 0.0005
RIVALS = ("prior", "persistence", "weekly", "calendar-ridge", "gbm", "published")
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One rival beaten, tied or not; ``outcome`` is "better", "equal" or "worse"."""

    outcome: str
    sentence: str
    own_prior: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All comparisons of one data set and subset."""

    scope: str
    summary: str
    comparisons: Sequence[Comparison]


def verdicts(inputs: ReportInputs) -> list[Verdict]:
    """One verdict for each configuration of CompEvo in each scope it was scored in."""
    return [
        one
        for dataset, subset in scopes(pooled(inputs.rows))
        for one in _in_scope(inputs, dataset, subset)
    ]


def _in_scope(inputs: ReportInputs, dataset: str, subset: str) -> Iterator[Verdict]:
    rows = in_scope(pooled(inputs.rows), dataset, subset)
    records = [row for row in over_seeds(rows).iter_rows(named=True) if row["mae"] is not None]
    rivals = {row["method"]: row for row in records if row["method"] in RIVALS}
    own = [row for row in records if row["method"] == "compevo"]
    name = scope_name(dataset, subset, synthetic=is_synthetic(rows))
    for row in own:
        priors = {"prior", inputs.prior_of(row["config_hash"])}
        found = [
            _compare(row, rivals[rival], own_prior=rival in priors)
            for rival in RIVALS
            if rival in rivals
        ]
        scope = name if len(own) == 1 else f"{name}, configuration {short(row['config_hash'])}"
        yield Verdict(scope=scope, summary=_summary(row, found), comparisons=found)


def _compare(own: Row, rival: Row, *, own_prior: bool) -> Comparison:
    gap = (own["mae"] - rival["mae"]) / rival["mae"] if rival["mae"] else float(own["mae"] > 0)
    name = (
        f"its own prior ({method_name(rival['method']).lower()})"
        if own_prior and rival["method"] != "prior"
        else _plain_name(rival)
    )
    against = (
        f"{with_unit(own['mae'], own['unit'])} against {with_unit(rival['mae'], rival['unit'])}"
    )
    if abs(gap) < TIE:
        return Comparison(
            outcome="equal", own_prior=own_prior, sentence=f"Equals {name}: MAE {against}."
        )
    if gap < 0:
        return Comparison(
            outcome="better",
            own_prior=own_prior,
            sentence=f"Beats {name} by {-100 * gap:.1f} %: MAE {against}.",
        )
    return Comparison(
        outcome="worse",
        own_prior=own_prior,
        sentence=f"Does not beat {name}; it is {100 * gap:.1f} % worse: MAE {against}.",
    )


def _plain_name(row: Row) -> str:
    names = {"prior": "its own prior", "published": "AEMO's published day-ahead forecast (POE50)"}
    return names.get(row["method"], method_name(row["method"]).lower())


def _summary(own: Row, found: Sequence[Comparison]) -> str:
    error = f"MAE {with_unit(own['mae'], own['unit'])} over {own['n_windows']:,} windows"
    if not found:
        return f"{error}; nothing to compare with was scored."
    beaten = sum(one.outcome == "better" for one in found)
    prior = [one for one in found if one.own_prior]
    tail = ""
    if prior and all(one.outcome == "better" for one in prior):
        tail = " The population improves on its own prior."
    elif prior:
        tail = " The population does not improve on its own prior, so it has shown nothing here."
    return f"{error}; a lower error than {beaten} of {len(found)} others.{tail}"


def one_line(verdict: Verdict) -> str:
    """A verdict as one plain line, for the README and the terminal."""
    return f"{verdict.scope}: {verdict.summary}"
