"""Numeric methods of the benchmark: baselines and networks.

What belongs here: both as methods. What does not: their code (``baselines``, ``networks``).
"""

from functools import partial

from compevo_core.baselines import BASELINES, Forecaster, fit_baseline, is_applicable
from compevo_core.baselines.theta import Theta
from compevo_core.benchmark.methods import CHEAP_SEEDS, LANGUAGE_MODEL_SEEDS, FitInputs, Method
from compevo_core.benchmark.network_fits import fit_network, tune_network
from compevo_core.evaluation.baseline_scores import SEEDED_BASELINES

# Named here as well, since torch takes seconds to import and the command line lists methods.
NETWORK_NAMES = (
    *("dlinear", "itransformer", "film", "pyraformer", "fedformer", "gpt4ts"),
    "gpt4ts-no-lm",
)
_WITH_LANGUAGE_MODEL = ("gpt4ts",)


def list_numeric() -> list[Method]:
    """Return the numeric methods, baselines first."""
    baselines = [
        Method(
            name=name,
            family="numeric",
            fit=partial(_fit_baseline, name),
            seeds=CHEAP_SEEDS if name in SEEDED_BASELINES else 1,
            has_budget=False,
            is_applicable=partial(is_applicable, name),
        )
        for name in BASELINES
    ]
    # Not among the baselines that every evaluation fits: it takes a tenth of a second a window.
    theta = Method(name=Theta.name, family="numeric", fit=_fit_theta, seeds=1, has_budget=False)
    networks = [
        Method(
            name=name,
            family="numeric",
            fit=partial(fit_network, name, None),
            tune=partial(tune_network, name, None),
            seeds=LANGUAGE_MODEL_SEEDS if name in _WITH_LANGUAGE_MODEL else CHEAP_SEEDS,
        )
        for name in NETWORK_NAMES
    ]
    return [*baselines, theta, *networks]


def _fit_theta(inputs: FitInputs) -> Forecaster:
    return Theta.fit(inputs.train)


def _fit_baseline(name: str, inputs: FitInputs) -> Forecaster:
    return fit_baseline(name, inputs.train, seed=inputs.seed)
