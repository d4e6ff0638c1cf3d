"""News-aware methods of the benchmark.

What belongs here: these as methods, and what a budget means to them. What does not: their code
(``news_aware``).
"""

from functools import partial
from typing import TYPE_CHECKING

from compevo_core.baselines import Forecaster
from compevo_core.benchmark.methods import LANGUAGE_MODEL_SEEDS, FitInputs, Method
from compevo_core.benchmark.network_fits import Describe, fit_network, tune_network
from compevo_core.config import RunConfig

if TYPE_CHECKING:
    from compevo_core.networks.forecaster import NetworkKind


def list_news_aware() -> list[Method]:
    """Return the news-aware methods, GPT4MTS with its control."""
    text = Method(
        name="news2forecast",
        family="news-aware",
        fit=_fit_news2forecast,
        seeds=LANGUAGE_MODEL_SEEDS,
        reads_news=True,
        configure=_configure_news2forecast,
        # Some 17 seconds each on a processor core.
        known_windows=24,
    )
    # The control reads of the news no more than their times, which are checked as for its twin.
    networks: dict[str, tuple[Describe, bool]] = {
        "gpt4mts": (partial(_describe_gpt4mts, "gpt4mts", True), True),
        "gpt4mts-no-news": (partial(_describe_gpt4mts, "gpt4mts-no-news", False), True),
        "ltp-llm": (_describe_ltp_llm, False),
    }
    return [
        text,
        *(
            Method(
                name=name,
                family="news-aware",
                fit=partial(fit_network, name, describe),
                tune=partial(tune_network, name, describe),
                seeds=LANGUAGE_MODEL_SEEDS,
                reads_news=reads_news,
            )
            for name, (describe, reads_news) in networks.items()
        ),
    ]


def _configure_news2forecast(inputs: FitInputs) -> RunConfig:
    # In here, as the command line and Dagster read the table of methods.
    from compevo_core.news_aware.news2forecast import configure_news2forecast

    return configure_news2forecast(inputs.seed, inputs.learning_rate)


def _fit_news2forecast(inputs: FitInputs) -> Forecaster:
    from compevo_core.lm.backbone import load_backbone
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.news_aware.news2forecast import VALIDATION_WINDOWS, News2Forecast

    news = inputs.require_news("news2forecast")
    config = _configure_news2forecast(inputs)
    return News2Forecast.fit(
        inputs.train,
        inputs.val,
        news,
        config=config,
        # Not the shared one: a fit puts its adapter into the backbone.
        backbone=load_backbone(config.backbone),
        encoder=load_encoder(news.encoder_name),
        updates=inputs.budget.rounds,
        update_windows=inputs.budget.round_windows,
        # A forecast costs what an update's window does: judging spends the budget too.
        validation_windows=min(VALIDATION_WINDOWS, inputs.budget.rounds),
    )


def _describe_gpt4mts(name: str, reads_news: bool, inputs: FitInputs) -> "NetworkKind":
    from compevo_core.lm.backbone import load_packaged
    from compevo_core.news_aware.gpt4mts import make_gpt4mts

    return make_gpt4mts(inputs.require_news(name), load_packaged(), reads_news=reads_news)


def _describe_ltp_llm(_: FitInputs) -> "NetworkKind":
    from compevo_core.lm.backbone import load_packaged
    from compevo_core.lm.encoder import PACKAGED_ENCODER, load_encoder
    from compevo_core.lm.packaged_models import DEFAULT_CACHE
    from compevo_core.news_aware.ltp_llm import make_ltp_llm
    from compevo_core.news_aware.pattern_writer import PatternWriter

    # Seeds run in processes of their own; what one of them wrote is there for the others.
    writer = PatternWriter(load_packaged(), DEFAULT_CACHE)
    return make_ltp_llm(writer, load_encoder(PACKAGED_ENCODER))
