"""What every population has, with a language model or without: weights, calibration, experience.

What belongs here: these modules and their stored names, what a training is given and gives, and the
population that has nothing else: its members forecast their priors (``forecast.decoder = "none"``).
What does not: adapters and logics (``training.model``), rounds (``training.loop``), fitting priors
(``training.prior``). Nothing here imports torch: that takes longer than most fits of a table.

Shapes: A agents, P priors.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from compevo_core.agents.calibration import ErrorCalibration
from compevo_core.agents.decoders import BaseExecutor, EqualFitness, Executor
from compevo_core.agents.experience import Experience
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.errors import CheckpointMismatch
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.prior import describe_members, mix_priors
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.training_data import TrainingData

if TYPE_CHECKING:
    from compevo_core.lm.model_sources import Server, Transport

OnRound = Callable[[RoundRecord], None]


class MemberModel:
    """Members that forecast their own base: what weighs and calibrates them, and nothing trained.

    Each process holds the bases of its local members; without ``shards`` this process holds all.
    """

    knowledge_cutoff = ""  # of a language model
    device = "cpu"

    def __init__(
        self, config: RunConfig, inputs: NumericInputs, shards: AgentShards | None = None
    ) -> None:
        agents = config.population.agents
        self.config = config
        self.inputs = inputs
        self.scaler = inputs.scaler
        self.shards = shards or AgentShards(agents)
        self.mix_AP = mix_priors(config)[1][list(self.shards.local_agents)]

        entities = sorted(self.scaler.mean)
        # A ``FitnessSelection`` where there are rounds.
        self.selection: Any = EqualFitness(
            agents, entities if config.selection.scope == "series" else ()
        )
        # Changes nothing until it is fitted, after training.
        local = len(self.shards.local_agents)
        self.calibration = ErrorCalibration(agents, entities, local, inputs.horizon)
        # What it has forecast of days that are over; begins with validation.
        self.experience = Experience.start(entities, agents, inputs.horizon)

    @property
    def trainable_parameters(self) -> int:
        """How many numbers training changes, of this process's agents."""
        return 0

    def member_executor(self) -> BaseExecutor:
        """Return what forecasts by the members' bases."""
        return BaseExecutor(self.mix_AP)

    def save_adapters(self, agent: int, folder: Path) -> None:
        """Write the adapters of a local agent: a member that forecasts its base has none."""

    def load_adapters(self, agent: int, folder: Path) -> None:
        """Read what :meth:`save_adapters` wrote."""

    # Values are tensors where a language model is trained, and arrays otherwise.

    def tensors(self) -> dict[str, Any]:
        """Return every learned or running value by its stored name, detached."""
        return self.agent_tensors() | self.shared_tensors()

    def agent_tensors(self) -> dict[str, Any]:
        """Return what an agent has of its own by stored name, local agents first."""
        return add_prefix("calibration", self.calibration.agent_state())

    def shared_tensors(self) -> dict[str, Any]:
        """Return gates, fitness and what calibration shares, by stored name."""
        selection = add_prefix("selection", self.selection.state_dict())
        return selection | add_prefix("calibration", self.calibration.shared_state())

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Set every value of :meth:`tensors`.

        CheckpointMismatch if a name or a shape differs from this configuration's.
        """
        current = self.tensors()
        if differing := sorted(current.keys() ^ tensors.keys()):
            raise CheckpointMismatch(
                f"{len(differing)} tensor names differ, the first is {differing[0]}: the tensors "
                "have another configuration; load them with the one they were saved with"
            )

        for name, value in current.items():
            if value.shape != tensors[name].shape:
                raise CheckpointMismatch(
                    f"{name} has shape {tuple(tensors[name].shape)}, expected "
                    f"{tuple(value.shape)}: the tensors have another configuration"
                )
            value[...] = tensors[name]


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What both trainings of a run have in common."""

    config: RunConfig
    news: NewsPool
    identity: Mapping[str, str]  # hashes of settings and data
    shards: AgentShards
    start: int  # number of the run's start (``RunFolder.begin_again``)
    selector: "Transport | None"
    server: "Server | None"
    clock: Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a training ended with."""

    logics: list[str]  # of all agents
    round: int
    best_error: float  # lowest validation error of a round, scaled; infinite without any


class Training(Protocol):
    """One training of a run, and what it made."""

    setup: RunSetup
    data: TrainingData

    @property
    def model(self) -> MemberModel:
        """The population."""

    @property
    def executor(self) -> Executor:
        """What forecasts by it."""

    def train(self, *, resume: bool, on_round: OnRound | None = None) -> Outcome:
        """Train to the end, from the newest checkpoint with ``resume``."""

    def store_readings(self, logics: Sequence[str]) -> None:
        """Put what reads news into the model, where something does."""


class MemberTraining:
    """The training of members that forecast their bases: all is fitted already."""

    def __init__(
        self, setup: RunSetup, folder: RunFolder, data: TrainingData, **_of_rounds: object
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.data = data
        self.model = MemberModel(setup.config, data.inputs, setup.shards)
        self.executor = self.model.member_executor()

    def train(self, *, resume: bool, on_round: OnRound | None = None) -> Outcome:
        """Record that there was no round; there is nothing to go on from."""
        if self.setup.shards.is_first:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.remove_training()
            self.folder.truncate_rounds(0)
        self.setup.shards.barrier()
        return Outcome(describe_members(self.setup.config), 0, math.inf)

    def store_readings(self, logics: Sequence[str]) -> None:
        """Do nothing: no news is read."""


def add_prefix(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under names that begin with a prefix."""
    return {f"{prefix}.{name}": value for name, value in values.items()}
