"""An ensemble: models that forecast, and what combines them.

What belongs here: weights, calibration and experience of one model or several; the ensemble of
agents, which correct their models; the files of both, sealed as ``<run>/model``. What does not:
fitting the models (``training.prior``) and what combines them (``training.calibration``), adapters
and rounds (``training.model``, ``training.loop``). Nothing here imports torch, which takes longer
than most fits of a table.

The hash over the files of the sealed folder is the artifact hash of every result row, and
predicting must not change it (decision 11-settings). Names of files and tensors are therefore part
of the format.

Shapes: A members, B windows, P base models, H horizon.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from compevo_core.agents import decoders
from compevo_core.agents.linear_reader import LinearReader, SealedReadings
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.online_selection import ErrorCalibration, Experience
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, evenly_spaced, to_array
from compevo_core.data.scaling import Scaler
from compevo_core.errors import CheckpointMismatch
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.files import read_json, write_json, write_text
from compevo_core.training.prior import PriorSet, mix_priors
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_sealed_folder

if TYPE_CHECKING:
    from torch import Tensor

    from compevo_core.agents.joint_reader import TrainNews
    from compevo_core.agents.strategy import ReadingExecutor

_SCALER_FILE, _EXPERIENCE_FILE = "scaler.json", "experience.safetensors"
_INPUTS_FILE, _LOGICS_FILE = "inputs.json", "logics.json"
_HEAD_FILE = "head.safetensors"
_STATE_FILE = "state.safetensors"
_HEAD_PREFIXES = ("answers.", "debate.", "linear.", "calibration.blend")
"""Prefixes of an agent's stored tensors other than its adapters."""
_PACKAGES = (
    "compevo",
    "torch",
    "transformers",
    "peft",
    "polars",
    "numpy",
    "sentence-transformers",
    "lightgbm",
)


class Ensemble:
    """One model or several, and what weighs and corrects their forecasts.

    ``mix_AP`` is the share of each fitted model in a member. Without agents the weights of
    ``selection`` are equal and there are no ``logics``, the texts (A,) by which agents read news.
    ``calibration`` changes nothing until it is fitted; ``experience`` begins with validation.
    ``priors`` are set when fitted. ``trainable_parameters`` counts what rounds change.
    """

    priors: PriorSet
    device, knowledge_cutoff, trainable_parameters = "cpu", "", 0

    def __init__(self, config: RunConfig, scaler: Scaler, horizon: int) -> None:
        members, entities = config.population.agents, sorted(scaler.mean)
        self.config = config
        self.scaler = scaler
        self.mix_AP = mix_priors(config)[1]
        self.logics: list[str] = []
        # A ``FitnessSelection`` if there are rounds.
        self.selection: Any = decoders.EqualFitness(members)
        self.calibration = ErrorCalibration(members, entities, horizon)
        self.experience = Experience.start(entities, members, horizon)

    def base_forecasts(self, examples: Sequence[decoders.ForecastExample]) -> FloatArray:
        """Return the forecast of each member's models, scaled, (A, B, H)."""
        return decoders.mix_bases(self.mix_AP, examples)

    def forecast(self, examples: Sequence[decoders.ForecastExample]) -> decoders.BatchForecasts:
        """Forecast examples by every member, before anything corrects or weighs the forecasts."""
        return decoders.BatchForecasts(self.base_forecasts(examples))

    def save(self, folder: Path) -> None:
        """Write settings, fitted models, weights, calibration and experience."""
        self.save_shared(folder)
        write_text(folder / _SCALER_FILE, self.scaler.to_json())
        _write_values(self.calibration.state(), folder / _STATE_FILE)

    def save_shared(self, folder: Path) -> None:
        """Write what every ensemble has."""
        write_json(folder / "config.json", self.config.to_dict())
        self.priors.save(folder)
        self.experience.save(folder / _EXPERIENCE_FILE)

    @classmethod
    def read(cls, config: RunConfig, folder: Path) -> Self:
        """Read what :meth:`save` wrote but the fitted models (:meth:`PriorSet.load`)."""
        scaler = Scaler.from_json((folder / _SCALER_FILE).read_text(encoding="utf-8"))
        experience = Experience.load(sorted(scaler.mean), folder / _EXPERIENCE_FILE)
        ensemble = cls(config, scaler, experience.truth_NH.shape[1])
        saved = load_file(folder / _STATE_FILE)
        for name, array in ensemble.calibration.state().items():
            array[...] = saved[name]
        ensemble.experience = experience
        return ensemble


class AgentEnsemble(Ensemble):
    """Agents, each of which corrects its models by what it reads.

    Each process has the tensors of its local agents, and of what all agents share; without
    ``shards`` all agents are local. ``executor`` forecasts by them under their logics, and
    ``linear`` has the sealed fits of their ridges, if news is read by ridges.
    """

    executor: "ReadingExecutor"
    linear: SealedReadings | None = None

    def __init__(
        self, config: RunConfig, inputs: NumericInputs, shards: AgentShards | None = None
    ) -> None:
        super().__init__(config, inputs.scaler, inputs.horizon)
        self.inputs = inputs
        self.shards = shards or AgentShards(config.population.agents)
        self.local_mix_AP = self.mix_AP[list(self.shards.local_agents)]
        if config.news.linear:
            members = {
                agent: config.population.list_members()[agent] for agent in self.shards.local_agents
            }
            self.linear = SealedReadings(members, inputs.article_size, inputs.horizon)

    def read_news(
        self, examples: Sequence[decoders.ForecastExample], retriever: NewsRetriever
    ) -> "TrainNews":
        """Return how ridges read the news of train windows for these agents."""
        from compevo_core.agents.joint_reader import TrainNews

        return TrainNews(self.config, self.mix_AP, examples, retriever, self.selection)

    def find_reader(
        self, examples: Sequence[decoders.ForecastExample], retriever: NewsRetriever
    ) -> LinearReader | None:
        """Return what reads linearly: fits on train windows, or sealed fits if none are given."""
        if self.linear is None or not examples:
            return self.linear
        return self.read_news(examples, retriever).fit()

    def settle(self, logics: Sequence[str]) -> None:
        """Forecast under these logics from now on; fit joint readings to them, if there are any."""
        from compevo_core.agents.joint_reader import JointReader

        self.logics = list(logics)
        reader = self.executor.linear_reader
        if isinstance(reader, JointReader):
            reader.settle(logics)

    def forecast(self, examples: Sequence[decoders.ForecastExample]) -> decoders.BatchForecasts:
        """Forecast examples by every agent under its logic, without dropout and gradient.

        Forecasts are the same on every process; news are only what local agents read.
        """
        logics, size = self.shards.local(self.logics), self.config.run.micro_batch_size
        starts = range(0, len(examples), size)
        played = [self.executor.play(logics, examples[start : start + size]) for start in starts]
        values = [self.shards.all_gather(part.values_ABH, "forecasts") for part in played]
        weights = [to_array(part.weights_BA) for part in played if part.weights_BA is not None]
        by_agent = zip(*(part.news for part in played), strict=True)
        return decoders.BatchForecasts(
            values_ABH=np.concatenate([to_array(part) for part in values], axis=1),
            weights_BA=np.concatenate(weights) if weights else None,
            news=[[ids for part in parts for ids in part] for parts in by_agent],
            n_unparsed=sum(part.n_unparsed for part in played),
        )

    def score_logics(
        self,
        logics: Sequence[str],
        candidates: Sequence[Sequence[str]],
        examples: Sequence[decoders.ForecastExample],
    ) -> FloatArray:
        """Return the reward (A, C) of each agent's candidates while all play ``logics``.

        It is the reward of a rewriting, on as many of the examples: what ridges gain by the news
        that a logic finds, or minus the error of the agent's forecast. Nothing is changed.
        """
        count = self.config.grpo.reward_windows or len(examples)
        examples = [examples[i] for i in evenly_spaced(len(examples), count)]
        if self.config.pays_for_readings:
            news = self.read_news(examples, self.executor.news_retriever)
            return news.compare(logics, candidates)
        executor: Any = self.executor  # has a language model, as others are paid for readings
        values_ACBH = to_array(executor.forecast_groups(candidates, examples).values_ABH)
        truth_BH = np.stack([each.truth_H for each in examples if each.truth_H is not None])
        return np.asarray(-np.nanmean(np.square(values_ACBH - truth_BH), axis=-1).mean(-1))

    def shared_parameters(self) -> list[Any]:
        """Return the parameters that all agents share; each row of another belongs to an agent."""
        return []

    def tensors(self) -> "dict[str, Tensor]":
        """Return every learned or running value by its stored name, detached."""
        return self.agent_tensors() | self.shared_tensors()

    def agent_tensors(self) -> "dict[str, Tensor]":
        """Return the tensors of the local agents by stored name, a row for each."""
        blend = {"blend_AH": self.shards.local(self.calibration.blend_AH)}
        readings = {} if self.linear is None else self.linear.arrays
        return _share("calibration", blend) | _share("linear", readings)

    def shared_tensors(self) -> "dict[str, Tensor]":
        """Return gates, fitness and what calibration shares, by stored name."""
        selection = add_prefix("selection", self.selection.state_dict())
        return selection | _share("calibration", self.calibration.shared_state())

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Set every value of :meth:`tensors`, given as arrays or as tensors.

        CheckpointMismatch if a name or a shape differs from this configuration's.
        """
        import torch

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
            value.copy_(torch.as_tensor(tensors[name]))

    def save(self, folder: Path) -> None:
        """Write what this process's agents have of their own; the first one also what all share."""
        tensors = self.agent_tensors()
        for agent in self.shards.written_agents:
            row = self.shards.local_agents.index(agent)
            # Agents that answer by text have no head, but a calibration.
            head = {k: value[row] for k, value in tensors.items() if k.startswith(_HEAD_PREFIXES)}
            name_agent(folder, agent).mkdir(parents=True, exist_ok=True)
            _write_values(head, name_agent(folder, agent) / _HEAD_FILE)

        if self.shards.is_first:
            _write_values(self.shared_tensors(), folder / _STATE_FILE)
            write_json(folder / _LOGICS_FILE, self.logics)
            write_text(folder / _INPUTS_FILE, self.inputs.to_json())
            self.save_shared(folder)

    def restore(self, folder: Path) -> None:
        """Set every value to what :meth:`save` wrote for the same configuration."""
        files = [name_agent(folder, agent) / _HEAD_FILE for agent in self.shards.local_agents]
        heads = [load_file(file) for file in files]
        # Adapters are in place already, but ``load`` needs every tensor.
        tensors = {
            k: v for k, v in self.agent_tensors().items() if not k.startswith(_HEAD_PREFIXES)
        }
        tensors |= {name: np.stack([head[name] for head in heads]) for name in heads[0]}
        self.load(tensors | load_file(folder / _STATE_FILE))
        self.experience = Experience.load(sorted(self.scaler.mean), folder / _EXPERIENCE_FILE)
        self.logics = list(json.loads((folder / _LOGICS_FILE).read_text(encoding="utf-8")))


def name_agent(folder: Path, agent: int) -> Path:
    """Return the folder of an agent in a sealed model: each kind of adapter loads with PEFT."""
    return folder / "adapters" / f"agent_{agent:02d}"


def add_prefix(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under names that begin with a prefix."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def _share(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> "dict[str, Tensor]":
    """Return arrays as tensors of the same memory: writing into them changes the model."""
    import torch

    return add_prefix(prefix, {name: torch.from_numpy(array) for name, array in arrays.items()})


def _write_values(values: Mapping[str, Any], file: Path) -> None:
    # The format needs the order of C; a scalar stays one.
    save_file({k: np.array(to_array(v), order="C") for k, v in values.items()}, file)


def write_model(
    folder: RunFolder, model: Ensemble, facts: Mapping[str, Any], shards: AgentShards | None = None
) -> str:
    """Write the sealed model of a run atomically, with facts in its manifest; return its hash.

    Every process writes its own agents; the first one writes the rest.
    """
    shards = shards or AgentShards(1)
    of_model = {
        "versions": installed_versions(),
        "seed": model.config.run.seed,
        "device": model.device,
        "processes": shards.processes,
        "knowledge_cutoff": model.knowledge_cutoff,
    }
    with write_sealed_folder(folder.path, folder.model, {**facts, **of_model}, shards) as part:
        model.save(part)
    return str(read_json(folder.model_manifest_file, "train again")["hash"])


def read_config(run: Path) -> RunConfig:
    """Return the configuration that the model of a run was trained with."""
    file = RunFolder(run).model_config_file
    return RunConfig.from_mapping(read_json(file, "restore it or train again"))


def read_scaler(run: Path) -> Scaler:
    """Return the scale of each series, as the model of a run was fitted."""
    file = RunFolder(run).model_scaler_file
    if file.is_file():
        return Scaler.from_json(file.read_text(encoding="utf-8"))
    return read_inputs(run).scaler  # agents store it with their other statistics


def read_inputs(run: Path) -> NumericInputs:
    """Return how the agents of a run turn windows into numbers, as fitted on its train split."""
    return NumericInputs.from_json(RunFolder(run).model_inputs_file.read_text(encoding="utf-8"))


def read_experience(run: Path) -> Experience:
    """Return the forecasts of a run's model up to its sealing, with their truth."""
    return Experience.load(sorted(read_scaler(run).mean), RunFolder(run).model / _EXPERIENCE_FILE)


def read_model_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run's model after checking every file against it.

    It has facts of the training, ``files`` (sha256 by name) and the artifact's ``hash``.
    CheckpointMismatch if the model is unfinished or altered, or the run has been started over.
    """
    folder = RunFolder(run)
    manifest = verify_manifest(folder.model)
    if not folder.is_sealed:
        raise CheckpointMismatch(
            f"{folder.model} was left by an earlier start of this training; train to the end again"
        )
    return manifest


def installed_versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a number."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    return versions
