"""The systems of agents that the paper compares its method with, as changes of settings (D.4).

What belongs here: choosing a system under the settings of the full method. What does not: which
settings that is (``config_systems``), training and scoring.

Every setting that is no part of the system stays: backbone, news, priors, context, seeds, windows
and steps are those of the full method.
"""

from compevo_core.config import RunConfig
from compevo_core.config_systems import SYSTEM_SETTINGS
from compevo_core.experiments.ablation import FULL_METHOD

#: The rivals among the agents, in the order of the paper's table.
SYSTEMS = tuple(name for name in SYSTEM_SETTINGS if name != FULL_METHOD)


def configure_system(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration of one system.

    Args:
        config: of the full method.
        name: one of :data:`SYSTEMS`.
    """
    changes: dict[str, object] = {"population.system": name, **SYSTEM_SETTINGS[name]}
    if name == "sa":
        # The first member, on all windows: a share of them only sets agents apart.
        members = config.population.members[:1]
        changes["population.members"] = tuple(
            member.model_copy(update={"window_share": 1.0}) for member in members
        )
    return config.with_overrides(changes)
