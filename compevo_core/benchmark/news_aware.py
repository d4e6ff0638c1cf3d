"""News-aware methods of the benchmark.

What belongs here: these as methods, and what a budget means to them. What does not: their code
(``news_aware``).
"""

from functools import partial
from typing import TYPE_CHECKING

from compevo_core.baselines import Forecaster
from compevo_core.benchmark.methods import LANGUAGE_MODEL_SEEDS, FitInputs, Method
from compevo_core.data.news_pool import NewsPool
from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    from compevo_core.networks.forecaster import NetworkKind


def list_news_aware() -> list[Method]:
    """Return the news-aware methods, each beside its control."""
    return [
        Method(
            name=name,
            family="news-aware",
            fit=partial(_fit_gpt4mts, name, reads_news),
            seeds=LANGUAGE_MODEL_SEEDS,
            # The control reads the pool's dates alone, to be given the same inputs.
            reads_news=True,
        )
        for name, reads_news in (("gpt4mts", True), ("gpt4mts-no-news", False))
    ]


def _fit_gpt4mts(name: str, reads_news: bool, inputs: FitInputs) -> Forecaster:
    from compevo_core.config_sections import BackboneConfig
    from compevo_core.lm.backbone import PACKAGED, load_backbone
    from compevo_core.news_aware.gpt4mts import make_gpt4mts

    backbone = load_backbone(BackboneConfig(name_or_path=PACKAGED), device="cpu")
    pool = _require_news(name, inputs)
    return _fit_network(name, make_gpt4mts(pool, backbone, reads_news=reads_news), inputs)


def _fit_network(name: str, kind: "NetworkKind", inputs: FitInputs) -> Forecaster:
    from compevo_core.networks.fitting import FitBudget
    from compevo_core.networks.forecaster import NetworkBaseline

    return NetworkBaseline.fit(
        name,
        inputs.train,
        inputs.val,
        seed=inputs.seed,
        budget=FitBudget(passes=inputs.budget.passes, patience=inputs.budget.patience),
        kind=kind,
    )


def _require_news(name: str, inputs: FitInputs) -> NewsPool:
    """Return the news of a fit.

    Raises:
        ConfigError: it was given none.
    """
    if inputs.news is None:
        raise ConfigError(f"{name} reads news, and none was given: pass FitInputs.news")
    return inputs.news
