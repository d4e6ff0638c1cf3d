"""The systems of agents that one training loop trains: the paper's method and its rivals (D.4).

What belongs here: which modules a system trains, and how its agents learn. What does not: the
settings that a system needs (``config_systems``), building the modules (``training.model``), what
happens in a round (``training.round``).

    compevo   the paper's method: competition, fused logics, fitness as weights
    sa        a single agent: one forecast adapter, the logic it starts with, its own error
    mael      multi-agent ensemble learning: such agents in parallel, their forecasts averaged; the
              paper gives one sentence, "parallel-agent averaging without interaction or evolution"
    mae-gpt   multi-agent evolution: the ensemble, whose logics a frozen language model mutates; of
              a logic and its mutations each agent keeps the fittest (``agents.prompt_mutation``)
    mad-rl    multi-agent debate with reinforcement learning: agents that read each other's
              forecasts and revise their own, verified and weighed (``agents.debate``)

An ensemble of one agent is the single agent; evolution that never mutates is the ensemble.
"""

import dataclasses
from collections.abc import Mapping

from compevo_core.lm.adapter_routing import DEBATE_KINDS, FORECAST, LOGIC


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """What a system trains.

    Attributes:
        adapters: kinds of adapters of each agent.
        competes: whether agents see each other in training: fused logics, gates, one gradient norm.
            Otherwise each learns as if the others were not there.
        mutates: whether a frozen model rewrites the logics.
        debates: whether agents revise their forecasts after reading those of the others.
    """

    adapters: tuple[str, ...]
    competes: bool
    mutates: bool = False
    debates: bool = False


SYSTEMS: Mapping[str, System] = {
    "compevo": System(adapters=(FORECAST, LOGIC), competes=True),
    "sa": System(adapters=(FORECAST,), competes=False),
    "mael": System(adapters=(FORECAST,), competes=False),
    "mae-gpt": System(adapters=(FORECAST,), competes=False, mutates=True),
    "mad-rl": System(adapters=DEBATE_KINDS, competes=False, debates=True),
}
"""Systems by the name that ``population.system`` gives them."""
