"""The table of methods that ``compevo paper benchmark`` and its assets run, and running one.

What belongs here: every method by its name, one method under one seed from its learning rate to its
rows. What does not: the contract of a method (``paper.method``) or its code. Libraries are imported
in the functions: the command line lists methods without torch. Every seed of a method has the
learning rate that seed 0 chose, wherever it runs.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from compevo_core.baselines import BASELINES, ViewForecaster, fit_baseline, is_applicable
from compevo_core.baselines.smoothing import Theta
from compevo_core.baselines.zero_shot import PREFIX, ZeroShot, is_zero_shot, short_name
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, NonFiniteLoss
from compevo_core.evaluation.baseline_scores import (
    BaselineScores,
    Candidate,
    score_candidates,
)
from compevo_core.evaluation.scopes import Scope
from compevo_core.paper.agent_systems import list_agents
from compevo_core.paper.method import CHEAP_SEEDS, LANGUAGE_MODEL_SEEDS, Budget, FitInputs, Method
from compevo_core.paper.paper_windows import LastWeek, TrainLookUp

if TYPE_CHECKING:
    from compevo_core.paper.as_published import Form
    from compevo_core.paper.networks.forecaster import NetworkKind

log = logging.getLogger(__name__)

EXPERIMENT = "test"  # what rows say under ``experiment``, as in all tests on ordinary splits

ALL = "all"

# Named here as well, since torch takes seconds to import and the command line lists methods.
NETWORK_NAMES = (
    *("dlinear", "itransformer", "film", "pyraformer", "fedformer", "gpt4ts"),
    "gpt4ts-no-lm",
)
_WITH_LANGUAGE_MODEL = ("gpt4ts",)

Describe = Callable[[FitInputs], "NetworkKind"]
"""Makes a network and its inputs for the windows of a fit."""


def list_numeric() -> list[Method]:
    """Return the numeric methods, baselines first."""
    baselines = [
        Method(
            name=name,
            family="numeric",
            fit=partial(_fit_baseline, name),
            seeds=CHEAP_SEEDS if baseline.draws else 1,
            has_budget=False,
            is_applicable=partial(is_applicable, name),
        )
        for name, baseline in BASELINES.items()
    ]

    # Not among the baselines that every evaluation fits: theta takes a tenth of a second a window,
    # and the others say what the paper's test sets are like.
    plain = [
        Method(
            name=kind.name,
            family="numeric",
            fit=partial(_fit_plain, kind),
            seeds=1,
            has_budget=False,
            is_applicable=getattr(kind, "is_applicable", lambda _: True),
        )
        for kind in (LastWeek, Theta, TrainLookUp)
    ]

    networks = [
        Method(
            name=name,
            family="numeric",
            fit=partial(fit_network, name, None),
            is_tuned=True,
            seeds=LANGUAGE_MODEL_SEEDS if name in _WITH_LANGUAGE_MODEL else CHEAP_SEEDS,
        )
        for name in NETWORK_NAMES
    ]
    return [*baselines, *plain, *networks]


def _fit_plain(kind: type[Any], inputs: FitInputs) -> ViewForecaster:
    return cast(ViewForecaster, kind.fit(inputs.train))


def _fit_baseline(name: str, inputs: FitInputs) -> ViewForecaster:
    return fit_baseline(name, inputs.train, seed=inputs.seed)


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
                is_tuned=True,
                seeds=LANGUAGE_MODEL_SEEDS,
                reads_news=reads_news,
            )
            for name, (describe, reads_news) in networks.items()
        ),
    ]


def make_zero_shot(name: str) -> Method:
    """Return the method of ``zero-shot:`` and a pretrained model's folder or hub id."""
    return Method(
        # Rows are read on other machines, where this one's folders mean nothing.
        name=f"zero-shot-{short_name(name.removeprefix(PREFIX))}",
        family="zero-shot",
        fit=lambda inputs: ZeroShot.fit(inputs.train, seed=inputs.seed, name=name),
        # Nothing is random, and nothing is fitted.
        seeds=1,
        has_budget=False,
    )


def fit_network(name: str, describe: Describe | None, inputs: FitInputs) -> ViewForecaster:
    """Fit a network; without ``describe`` it is one of the table of networks."""
    from compevo_core.paper.networks.forecaster import FitBudget, NetworkBaseline

    budget = inputs.budget
    return NetworkBaseline.fit(
        name,
        inputs.train,
        inputs.val,
        seed=inputs.seed,
        learning_rate=inputs.learning_rate,
        budget=FitBudget(
            passes=budget.passes,
            patience=budget.patience,
            pass_windows=budget.pass_windows,
            val_windows=budget.val_windows,
        ),
        kind=describe(inputs) if describe else None,
    )


def _configure_news2forecast(inputs: FitInputs) -> RunConfig:
    from compevo_core.paper.news2forecast import configure_news2forecast

    return configure_news2forecast(inputs.seed, inputs.learning_rate)


def _fit_news2forecast(inputs: FitInputs) -> ViewForecaster:
    from compevo_core.lm.backbone import load_backbone
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.paper.news2forecast import VALIDATION_WINDOWS, News2Forecast

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


def list_as_published() -> list[Method]:
    """Return the paper's code and the paper's method at its size.

    The code has its own prompt, a mended one, or swapped news; the method is whole, without its
    four parts, or has swapped news.
    """
    forms: tuple[Form, ...] = ("code", "mended", "swapped")
    return [
        Method(
            name="as-published" if form == "code" else f"as-published-{form}",
            family="agents",
            fit=partial(_fit_as_published, form),
            seeds=LANGUAGE_MODEL_SEEDS,
            reads_news=True,
            configure=_configure_as_published,
            known_windows=24,  # half a second each
        )
        for form in forms
    ] + [
        Method(
            name=name,
            family="agents",
            fit=partial(_fit_as_written, name),
            seeds=LANGUAGE_MODEL_SEEDS,
            reads_news=True,
            configure=partial(_configure_as_written, name),
            leaves_run=True,
            known_windows=24,
        )
        for name in ("as-written", "as-written-plain", "as-written-swapped")
    ]


def _configure_as_published(inputs: FitInputs) -> RunConfig:
    from compevo_core.paper.as_published import configure_as_published

    return configure_as_published(inputs.seed)


def _configure_as_written(name: str, inputs: FitInputs) -> RunConfig:
    from compevo_core.paper.as_published import configure_as_written

    return configure_as_written(name, inputs)


def _fit_as_written(name: str, inputs: FitInputs) -> ViewForecaster:
    from compevo_core.paper.as_published import AsWritten

    return AsWritten(name, _configure_as_written(name, inputs), inputs)


def _fit_as_published(form: "Form", inputs: FitInputs) -> ViewForecaster:
    from compevo_core.lm.backbone import load_backbone
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.paper.as_published import AsPublished

    news = inputs.require_news("as-published")
    config = _configure_as_published(inputs)
    return AsPublished.fit(
        inputs.train,
        news,
        config=config,
        backbone=load_backbone(config.backbone),
        encoder=load_encoder(news.encoder_name),
        form=form,
        updates=inputs.budget.rounds,
        update_windows=inputs.budget.round_windows,
    )


def _describe_gpt4mts(name: str, reads_news: bool, inputs: FitInputs) -> "NetworkKind":
    from compevo_core.lm.backbone import load_packaged
    from compevo_core.paper.text_networks import make_gpt4mts

    return make_gpt4mts(inputs.require_news(name), load_packaged(), reads_news=reads_news)


def _describe_ltp_llm(_: FitInputs) -> "NetworkKind":
    from compevo_core.lm.backbone import load_packaged
    from compevo_core.lm.encoder import PACKAGED_ENCODER, load_encoder
    from compevo_core.lm.model_sources import DEFAULT_CACHE
    from compevo_core.paper.text_networks import PatternWriter, make_ltp_llm

    # Seeds run in processes of their own; what one of them wrote is there for the others.
    writer = PatternWriter(load_packaged(), DEFAULT_CACHE)
    return make_ltp_llm(writer, load_encoder(PACKAGED_ENCODER))


METHODS: dict[str, Method] = {
    method.name: method
    for method in (*list_numeric(), *list_news_aware(), *list_agents(), *list_as_published())
}
"""Every method by its name, in the order of tables."""


def find_method(name: str) -> Method:
    """Return one of :data:`METHODS`, or of a pretrained model; ConfigError if it is unknown."""
    if is_zero_shot(name):
        return make_zero_shot(name)
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; known: {', '.join(METHODS)}, {PREFIX}PATH")
    return METHODS[name]


def select_methods(names: Sequence[str]) -> list[Method]:
    """Return methods by name, each once; ``all`` or a family's name selects several."""
    families = {method.family for method in METHODS.values()}
    chosen: dict[str, Method] = {}
    for name in names:
        if name == ALL or name in families:
            chosen |= {m.name: m for m in METHODS.values() if name in (ALL, m.family)}
        else:
            method = find_method(name)
            chosen[method.name] = method

    if not chosen:
        raise ConfigError(f"no method is named; known: {', '.join(METHODS)}, or {ALL}")
    return list(chosen.values())


def prepare_inputs(
    method: Method,
    train: WindowSet,
    val: WindowSet,
    budget: Budget,
    *,
    news: NewsPool | None = None,
) -> FitInputs:
    """Return the inputs of every fit of a method; validation chooses its learning rate here."""
    inputs = FitInputs(
        train=train,
        val=val,
        seed=0,
        budget=budget,
        learning_rate=budget.learning_rates[0],
        news=news,
    )
    # One rate leaves nothing to choose, and a try of it would only cost time.
    if not method.is_tuned or len(budget.learning_rates) == 1:
        return inputs
    return replace(inputs, learning_rate=choose_learning_rate(method, inputs))


def choose_learning_rate(method: Method, inputs: FitInputs) -> float:
    """Return the rate with the least validation loss after equal short fits with seed 0.

    NonFiniteLoss if a fit diverges with every rate.
    """
    rates = inputs.budget.learning_rates
    short = replace(inputs, budget=replace(inputs.budget, passes=inputs.budget.tuning_passes))
    losses: dict[float, float] = {}
    for rate in rates:
        try:
            fitted: Any = method.fit(replace(short, learning_rate=rate))
        except NonFiniteLoss:
            # A rate that diverges is a rate that is not chosen.
            losses[rate] = math.inf
        else:
            losses[rate] = fitted.report.validation_loss
        log.info("%s, learning rate %g: validation loss %.5f", method.name, rate, losses[rate])

    best = min(losses, key=losses.__getitem__)
    if not math.isfinite(losses[best]):
        raise NonFiniteLoss(
            f"{method.name} diverges with every learning rate of {rates}; give lower ones"
        )
    return best


def score_seed(
    method: Method,
    inputs: FitInputs,
    seed: int,
    scopes: Sequence[Scope],
    *,
    commit: str,
    on_fitted: Callable[[str, int, float], None] | None = None,
) -> BaselineScores:
    """Fit a method with one seed and score it on the scopes that it can forecast.

    ``inputs`` come from :func:`prepare_inputs`; ``on_fitted`` gets name, seed and seconds of the
    fit.
    """
    candidate = Candidate(
        name=method.name,
        seeds=[seed],
        fit=lambda seed: method.fit(replace(inputs, seed=seed)),
        is_applicable=method.is_applicable,
        # Rows of a method that spends no budget must not differ by the name of one.
        budget=inputs.budget.name if method.has_budget else "",
        is_measured=True,
        known_windows=method.known_windows,
    )

    return score_candidates(
        [candidate],
        inputs.train,
        scopes,
        experiment=EXPERIMENT,
        commit=commit,
        val=inputs.val,
        on_fitted=on_fitted,
    )
