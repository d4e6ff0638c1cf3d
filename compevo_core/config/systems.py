"""What the systems of agents settle about a run's settings (paper D.4).

All systems share backbone, news, priors, context, batches and steps. Their differences
are here, so that the hash of a run's settings identifies the system.
"""

from collections.abc import Mapping

#: No agent knows of another: each learns from its own error, and their forecasts are averaged.
_ALONE: dict[str, object] = {
    "objective.lambda_pred": 0.0,
    "objective.lambda_own": 1.0,
    "objective.lambda_div": 0.0,
    "objective.lambda_prune": 0.0,
    "selection.uniform": True,
    "selection.online": False,
    "selection.rule": "paper",
    "selection.parts": 1,
    "grpo.enabled": False,
    "run.fixed_logics": 0,
}

SYSTEM_SETTINGS: Mapping[str, Mapping[str, object]] = {
    "compevo": {},
    # One agent that keeps the logic it starts with.
    "sa": {**_ALONE, "population.agents": 1, "evolution.every": 0},
    # Agents in parallel, without interaction or evolution.
    "mael": {**_ALONE, "evolution.every": 0},
    # The same agents, whose logics a frozen model mutates; the fittest stays.
    "mae-gpt": {**_ALONE, "evolution.update": "simplified", "grpo.carry": "best"},
    # The same agents, which read each other's forecasts and revise their own.
    "mad-rl": dict(_ALONE),
}
"""Name of a system to the settings it needs."""
