"""Pretrained models of time series as methods of the benchmark.

What belongs here: a method for a name that asks for one. What does not: the models
(``baselines.zero_shot``). There is no fixed list: which weights are at hand is a deployment's.
"""

from compevo_core.baselines import Forecaster
from compevo_core.baselines.pretrained import short_name
from compevo_core.baselines.zero_shot import PREFIX, ZeroShot
from compevo_core.benchmark.methods import FitInputs, Method


def make_zero_shot(name: str) -> Method:
    """Return the method of a pretrained model.

    Args:
        name: ``zero-shot:`` and a folder or hub id.
    """

    def fit(inputs: FitInputs) -> Forecaster:
        return ZeroShot.fit(inputs.train, seed=inputs.seed, name=name)

    return Method(
        # Rows are read on other machines, where this one's folders mean nothing.
        name=f"zero-shot-{short_name(name.removeprefix(PREFIX))}",
        family="zero-shot",
        fit=fit,
        # Nothing is drawn, and nothing is fitted.
        seeds=1,
        has_budget=False,
    )
