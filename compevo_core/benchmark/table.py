"""The table of methods: every one that ``compevo benchmark`` and its assets can run.

What belongs here: the one list, and finding methods by name. What does not: the methods.
"""

from collections.abc import Sequence

from compevo_core.baselines.zero_shot import PREFIX, is_zero_shot
from compevo_core.benchmark.agents import list_agents
from compevo_core.benchmark.methods import Method
from compevo_core.benchmark.news_aware import list_news_aware
from compevo_core.benchmark.numeric import list_numeric
from compevo_core.benchmark.zero_shot import make_zero_shot
from compevo_core.errors import ConfigError

ALL = "all"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        # One line a family.
        *list_numeric(),
        *list_news_aware(),
        *list_agents(),
    )
}
"""Every method by its name, in the order of tables."""


def find_method(name: str) -> Method:
    """Return a method.

    Args:
        name: one of :data:`METHODS`, or ``zero-shot:`` and a pretrained model.

    Raises:
        ConfigError: the name is unknown.
    """
    if is_zero_shot(name):
        return make_zero_shot(name)
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; known: {', '.join(METHODS)}, {PREFIX}PATH")
    return METHODS[name]


def select_methods(names: Sequence[str]) -> list[Method]:
    """Return methods by name, each once; ``all`` stands for every one, a family's name for its own.

    Raises:
        ConfigError: no name, or an unknown one.
    """
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
