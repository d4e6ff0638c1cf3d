"""The architectural ablation: the full method and five variants, one change each (paper 5.4).

What belongs here: the names and the changes. What does not: running them (an asset, the command line).
"""

from compevo_core.config import RunConfig

#: Variant name to the settings it changes; every other setting, the data and the budget stay as they are.
VARIANTS: dict[str, dict[str, object]] = {
    "compevo": {},
    "simplified-logic": {"evolution.update": "simplified"},
    "uniform-weights": {"selection.uniform": True},
    "no-diversity": {"objective.lambda_div": 0.0},
    "no-pruning": {"objective.lambda_prune": 0.0},
    "no-grpo": {"grpo.enabled": False},
}


def variant(config: RunConfig, name: str) -> RunConfig:
    """The configuration of one variant."""
    return config.with_overrides(VARIANTS[name])
