"""Which method forecasts a data set: the requested one, or the choice of validation.

What belongs here: the way from stored windows and a name to the settings of a training. What does
not: the choice itself (``compevo_core.evaluation.method_choice``), training.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compevo_core.baselines import SharedFits
from compevo_core.baselines.zero_shot import make_folder_name
from compevo_core.config.run import RunConfig
from compevo_core.data.datasets import DATASETS
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.method_choice import AUTO, POPULATION, choose_method, configure_method
from compevo_core.training.prior import MIXTURE, name_members, name_method
from compevo_pipeline.storage.runs import POPULATION_LABEL, find_population
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import read_news

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodPlan:
    """What to train as a method."""

    name: str  # of the method
    dataset: str
    config: RunConfig  # settings of its training
    facts: Mapping[str, Any] = field(default_factory=dict)  # its manifest's record of the choice
    sentence: str = ""  # the choice or the preset in one line; empty if a method was named
    news: str = ""  # whether its news helps, in one line; empty if none was compared
    trained: Path | None = None  # the run, if it is trained already

    @property
    def label(self) -> str:
        """The prefix of its run folders."""
        return f"{make_folder_name(self.name)}-{self.dataset}"


def choose_name(dataset: str, method: str | None, preset: str | None) -> str:
    """Return the intended method: presets and built-in data sets mean a population.

    ConfigError if a preset is given for a method that has none.
    """
    if method is None:
        return POPULATION if preset or dataset in DATASETS else AUTO
    if preset and method != POPULATION:
        raise ConfigError(
            f"preset {preset!r} is for the method {POPULATION}, not for {method!r}: leave one out"
        )
    return method


def plan_preset(config: RunConfig, dataset: str, preset: str = "") -> MethodPlan:
    """Return what to train for a preset: a population of agents, or methods and their weights."""
    name = what = name_method(config)
    if config.has_agents:
        name, what = POPULATION_LABEL, "a population of agents"
    elif name == MIXTURE:
        what = f"{name} of {', '.join(name_members(config))}"
    sentence = f"{what}, preset {preset}"
    return MethodPlan(name=name, dataset=dataset, config=config, sentence=sentence)


def configure_chosen(method: str, changes: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a method, or of the simplest one if validation is to choose.

    ConfigError if there is no such method, or it has no such setting.
    """
    name = "persistence" if method in (AUTO, MIXTURE) else method
    return configure_method(name).with_overrides(changes)


def plan_method(
    deployment: Deployment,
    dataset: str,
    windows: WindowSet,
    method: str,
    changes: Mapping[str, Any],
    *,
    fits: SharedFits,
    on_step: Callable[[str], None],
) -> MethodPlan:
    """Return what to train for a method without a language model, or for the best one.

    ``method`` is a name or ``auto``; ``changes`` are settings by dotted name; the training finds
    the fits of the choice in ``fits``. ConfigError if there is no such method, or it has no such
    setting; DataError if validation has no window to choose on.
    """
    # A misspelt setting is refused before all candidates are fitted, which takes minutes.
    config = configure_chosen(method, changes)
    if method not in (AUTO, MIXTURE):
        return MethodPlan(name=method, dataset=dataset, config=config, facts={"method": method})

    population = find_population(deployment.layout, dataset, windows)
    news = None
    learnt = [view for view in windows.views() if view.split in ("train", "val")]
    # The news of a built-in data set is for agents: embedding an archive takes minutes.
    if dataset not in DATASETS and any(view.candidate_ids for view in learnt):
        news = read_news(deployment, RunConfig().encoder, learnt, log=log)
    choice = choose_method(
        windows.split("train"),
        windows.split("val"),
        population=population,
        news=news,
        fit=fits,
        on_step=on_step,
    )
    name = choice.method if method == AUTO else MIXTURE
    trained = population if name == POPULATION else None
    if trained is not None:
        from compevo_core.training.ensemble import read_config

        config = read_config(trained)
    else:
        config = configure_method(name, choice.members, train=windows.split("train"))
        config = config.with_overrides(changes)
    return MethodPlan(
        name=name,
        dataset=dataset,
        config=config,
        facts={"method": name, "choice": choice.to_json()},
        sentence=choice.sentence if method == AUTO else "",
        news=choice.news.sentence if choice.news else "",
        trained=trained,
    )
