"""The systems of agents that one training loop trains: the paper's method and its rivals (D.4).

What belongs here: which modules a system trains, and how its agents learn. What does not: the
settings that a system needs (``config_systems``), building the modules (``training.model``), what
happens in a round (``training.round``).

    compevo   the paper's method: competition, fused logics, fitness as weights
    sa        a single agent: one forecast adapter, the logic it starts with, its own error
    mael      multi-agent ensemble learning: such agents in parallel, their forecasts averaged; the
              paper gives one sentence, "parallel-agent averaging without interaction or evolution"

An ensemble of one agent is the single agent.
"""

import dataclasses
from collections.abc import Mapping

from compevo_core.lm.adapter_routing import FORECAST, LOGIC


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """What a system trains.

    Attributes:
        adapters: kinds of adapters of each agent.
        competes: whether agents see each other in training: fused logics, gates, one gradient norm.
            Otherwise each learns as if the others were not there.
    """

    adapters: tuple[str, ...]
    competes: bool


SYSTEMS: Mapping[str, System] = {
    "compevo": System(adapters=(FORECAST, LOGIC), competes=True),
    "sa": System(adapters=(FORECAST,), competes=False),
    "mael": System(adapters=(FORECAST,), competes=False),
}
"""Systems by the name that ``population.system`` gives them."""
