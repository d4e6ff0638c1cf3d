"""The architectural ablation: the full method and five variants, one change each (paper 5.4).

What belongs here: the names and the changes. What does not: training and scoring the variants (the
``ablation`` asset of the pipeline).
"""

from compevo_core.config import RunConfig

#: The variant that changes nothing, which all others are compared with.
FULL_METHOD = "compevo"

#: Variant name to the settings it changes. Every other setting, the data and the budget stay as
#: they are, so that a difference in the scores is due to the one change.
VARIANTS: dict[str, dict[str, object]] = {
    FULL_METHOD: {},
    # No opponent context, no gates, no soft prompt: an agent rewrites its logic from text alone.
    "simplified-logic": {"evolution.update": "simplified"},
    "uniform-weights": {"selection.uniform": True},
    "no-diversity": {"objective.lambda_div": 0.0},
    "no-pruning": {"objective.lambda_prune": 0.0},
    # Logics are still sampled and the best one is carried, but no policy step is taken.
    "no-grpo": {"grpo.enabled": False},
}


def configure_variant(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration of one variant of the ablation.

    Args:
        config: of the full method.
        name: a key of :data:`VARIANTS`.
    """
    return config.with_overrides(VARIANTS[name])
