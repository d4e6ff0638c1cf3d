"""Controls: what is left of the method's skill when one of its sources is taken away.

What belongs here: the names of the controls, the settings each changes, and the one entry to
controls and ablation variants alike. What does not: the paper's own ablation
(``experiments.ablation``), how windows are changed (``experiments.perturbations``), training and
scoring (the ``ablation`` asset of the pipeline, ``compevo train --variant``).

A claim that agents read news, learn logics or profit from their number is worth as much as the row
of the control that does without. All train from the start: a model that was trained with news and
is then shown none would only show that it misses what it was used to.
"""

from compevo_core.config import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.experiments.ablation import FULL_METHOD, VARIANTS, configure_variant
from compevo_core.experiments.perturbations import swap_news
from compevo_core.experiments.systems import SYSTEMS, configure_system

#: The control in which the settings stay, and each window gets the news of another day.
SWAPPED_NEWS = "swapped-news"

#: Which news a window gets instead is part of the control, as its windows are: seeds of one method
#: differ by training alone, and are scored on the same windows.
_SWAP_SEED = 0

#: Control name to the settings it changes; all else stays, as in the ablation.
CONTROLS: dict[str, dict[str, object]] = {
    # Embeddings stay, so that words are still told apart; what the layers learnt is gone.
    "random-layers": {"backbone.weights": "random"},
    "no-news": {"news.top_k": 0},
    SWAPPED_NEWS: {},
    "fixed-logics": {"evolution.every": 0},
    "one-agent": {"population.agents": 1},
    "equal-weights": {"selection.uniform": True},
    "no-known-errors": {"calibration.known_errors": "none", "forecast.known_errors": "none"},
    "alike-agents": {"population.members": ()},
}

#: Every variant of the ablation, then every control, then every rival among the agents.
EXPERIMENTS = (*VARIANTS, *CONTROLS, *SYSTEMS)


def configure_experiment(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration of one variant of the ablation, one control or one system.

    Args:
        config: of the full method.
        name: one of :data:`EXPERIMENTS`.

    Raises:
        ConfigError: no variant and no control has that name.
    """
    if name in VARIANTS:
        return configure_variant(config, name)
    if name in SYSTEMS:
        return configure_system(config, name)
    _require_known(name)

    changes = CONTROLS[name]
    if name == "one-agent":
        # The first member, as a population has one entry for each agent or none.
        changes = changes | {"population.members": config.population.members[:1]}
    return config.with_overrides(changes)


def prepare_windows(windows: WindowSet, name: str) -> WindowSet:
    """Return the windows that a variant or control is trained and scored on.

    Args:
        windows: those of the full method, of all splits.
        name: one of :data:`EXPERIMENTS`.

    Raises:
        ConfigError: no variant and no control has that name.
    """
    _require_known(name)
    return swap_news(windows, _SWAP_SEED) if name == SWAPPED_NEWS else windows


def changes_nothing(config: RunConfig, name: str) -> bool:
    """Whether a variant or control is the full method itself under these settings.

    Its row would repeat that of the full method and look like a finding.
    """
    if name == FULL_METHOD:
        return False
    # Without any article to read, those of another day are the same.
    if name == SWAPPED_NEWS:
        return config.news.top_k == 0
    return configure_experiment(config, name) == config


def _require_known(name: str) -> None:
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"no variant or control {name!r}; known: {', '.join(EXPERIMENTS)}: correct the name"
        )
