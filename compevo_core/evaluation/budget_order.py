"""Which of several budgets stands for a method: the largest, and never the one with less error.

What belongs here: the order of budgets by name. What does not: what each may spend
(``benchmark.budgets``).
"""

BUDGET_ORDER = ("tuned", "standard", "small", "quick")
"""Names of budgets, the largest first."""


def rank_budget(name: str | None) -> int:
    """Return the place of a budget, 0 for the largest.

    Rows without a name are of a full training, as those of ``standard`` are.
    """
    # A choice by error would be one on the test split; this one is known before any is measured.
    return BUDGET_ORDER.index(name or "standard")
