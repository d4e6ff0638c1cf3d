"""The systems of agents that the paper compares its method with, as methods and by their size.

What belongs here: training a system, the sealed model as a method, the parameters that a system
trains on a published architecture (D.4). What does not: the settings that make a system
(``config.run``), its place in the ablation (``paper.changes``), the paper's code
(``paper.fine_tuned``). All systems have the same budget, the updates and windows of the preset
``default``; logics may change in the last updates (:data:`EVOLUTION_SHARE`).
"""

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compevo_core.baselines.base import MethodFacts
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.errors import ConfigError
from compevo_core.evaluation.scoring import describe_population
from compevo_core.paper.changes import find_variant
from compevo_core.paper.declared import Budget
from compevo_core.paper.method_table import FitInputs, TrainingPlan

if TYPE_CHECKING:
    from compevo_core.forecast.forecaster import CompEvoForecaster

# What agents of the benchmark are trained with; its encoder finds the news of every method.
PRESET = "default"
# One update in so many may rewrite logics, and at most as many as the preset has.
EVOLUTION_SHARE = 8
PAPER_ORDER = ("sa", "mael", "mae-gpt", "mad-rl", "compevo")
PAPER_AGENTS = 10
PAPER_RANK = 16


def configure_method(system: str, inputs: FitInputs) -> RunConfig:
    """Return the settings for training a system with the budget and the seed of its inputs."""
    preset = RunConfig.preset(PRESET)
    settings = spend(inputs.budget, preset) | {"run.seed": inputs.seed}
    return find_variant(system).configure(preset.with_overrides(settings))


def spend(budget: Budget, preset: RunConfig) -> dict[str, int]:
    """Return the settings with which a training spends exactly a budget."""
    # At least one, or the systems that rewrite logics would equal those that do not.
    evolution = min(preset.run.rounds, max(1, budget.rounds // EVOLUTION_SHARE))
    return {
        "run.supervised_rounds": budget.rounds - evolution,
        "run.rounds": evolution,
        "run.batch_size": budget.round_windows,
        "run.micro_batch_size": budget.round_windows,
    }


def fit_method(system: str, inputs: FitInputs) -> "SealedAgents":
    """Train a system, or resume its training where it was stopped."""
    return fit_sealed(configure_method(system, inputs), inputs)


def fit_sealed(config: RunConfig, inputs: FitInputs) -> "SealedAgents":
    """Train agents by any settings, or resume their training where it was stopped."""
    # Imported here, since the command line and Dagster read the table of methods.
    from compevo_core.forecast.forecaster import CompEvoForecaster
    from compevo_core.training.trainer import train

    system = config.population.system
    news = inputs.require_news(system)
    # The sealed model is read into memory before a folder of its own goes.
    with tempfile.TemporaryDirectory(prefix=f"compevo-{system}-") as folder:
        training = inputs.training or TrainingPlan(folder=Path(folder))
        summary = train(
            config,
            inputs.train,
            inputs.val,
            news,
            training.folder,
            on_round=training.on_round,
            fit=training.fit,
        )
        forecaster = CompEvoForecaster.load(training.folder, news, fit=training.fit)
        return SealedAgents(forecaster, summary)


class SealedAgents:
    """The sealed model of a training, with its summary, as a method of the benchmark."""

    def __init__(self, forecaster: "CompEvoForecaster", summary: Mapping[str, Any]) -> None:
        self.name = forecaster.name
        self._forecaster = forecaster
        self._summary = summary
        self._unread = 0
        self._answers = 0

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecast N windows, (N, H) in the views' unit."""
        prediction = self._forecaster.predict_by_agent(views)
        self._unread += prediction.n_unparsed
        # Every agent answers for every window.
        self._answers += len(prediction.agents) * len(views)
        return prediction.aggregate

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        return dataclasses.replace(
            describe_population(self._forecaster),
            trainable_parameters=self._forecaster.trainable_parameters,
            learning_rate=self._forecaster.config.optim.forecast_lr,
            # A clock around the fit would miss the time before an interruption.
            train_seconds=self._summary["seconds"],
            peak_memory_gb=self._summary["peak_memory_gb"],
        )

    def count_answers(self) -> tuple[int, int]:
        """Return how many answers could not be read so far, and how many there were."""
        # A head answers in numbers, which are always read; its share is 0, not missing.
        return self._unread, self._answers


_PRESETS = resources.files("compevo_core.config") / "presets" / "architectures"
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def known_architectures() -> list[str]:
    """List the names of the architectures in ``presets/architectures``."""
    names = (path.name for path in _PRESETS.iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def load_architecture(backbone: str) -> Any:  # noqa: ANN401 - a transformers configuration
    """Load a model's sizes by a preset, ``.json`` file or folder; ConfigError if none is there."""
    # The table of methods is read by commands that need no torch.
    from transformers import AutoConfig

    # A name with a suffix or a folder is a path; all else is the name of a preset.
    path = Path(backbone)
    source: Traversable = path / "config.json" if path.is_dir() else path
    if not backbone.endswith(".json") and not path.is_dir():
        source = _PRESETS / f"{backbone.lower()}.json"
    if not source.is_file():
        raise ConfigError(
            f"no architecture {backbone!r}; known: {', '.join(known_architectures())}; "
            "or give a config.json or a model folder"
        )
    try:
        values = json.loads(source.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{source} is not JSON (line {error.lineno}): give the model's config.json"
        ) from error

    # Every model's file is called config.json: only its folder names the model.
    name = path.parent.name if path.name == "config.json" else path.stem
    # Models from before grouped-query attention state no key/value heads: one for each head.
    filled = {"num_key_value_heads": values.get("num_attention_heads"), **values}
    # type() rather than isinstance(): true is an integer in Python.
    bad = [key for key in _SIZES if type(filled.get(key)) is not int or filled[key] < 1]
    if bad or not isinstance(filled.get("model_type"), str):
        raise ConfigError(
            f"architecture {name}: {', '.join(bad) or 'model_type'} missing or not a positive "
            "integer; give the model's config.json as published"
        )
    return AutoConfig.for_model(
        filled["model_type"],
        name_or_path=str(filled.get("name", name)),
        # Some models (Gemma 2) have heads of another width than hidden size over heads.
        head_dim=filled.get("head_dim") or filled["hidden_size"] // filled["num_attention_heads"],
        tie_word_embeddings=bool(filled.get("tie_word_embeddings", False)),
        **{key: filled[key] for key in _SIZES},
    )


def build_model(architecture: Any, **settings: object) -> Any:  # noqa: ANN401
    """Return a transformers model of random weights on torch's present device."""
    from transformers import AutoModelForCausalLM

    config = type(architecture).from_dict(architecture.to_dict() | settings)
    return AutoModelForCausalLM.from_config(config)


def build_meta_model(architecture: Any) -> Any:  # noqa: ANN401
    """Return the language model on the meta device, which downloads and allocates nothing."""
    import torch

    with torch.device("meta"):
        model = build_model(architecture)
        model.tie_weights()  # else a shared vocabulary matrix would count twice
    return model


def list_adapter_tensors(model: Any, rank: int) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return the module, LoRA shapes and parameters of each linear layer of one block."""
    from torch import nn

    # A is (rank, in) and B is (out, rank), without bias.
    return [
        {
            "module": name.rpartition(".")[2],
            "lora_A": [rank, layer.in_features],
            "lora_B": [layer.out_features, rank],
            "parameters": rank * (layer.in_features + layer.out_features),
        }
        for name, layer in model.get_decoder().layers[0].named_modules()
        if isinstance(layer, nn.Linear)
    ]


_LORA = "lora_A (r, in) and lora_B (out, r) of {modules} in every block"
_HEAD = "weight (1, d) and bias (1)"
# What the names of trained weights hold, their part, its tensors, its copies; 0: one for each agent
_PARTS = (
    (r"\.forecast$", "forecast adapters", _LORA, 0),
    (r"\.logic$", "logic adapters", _LORA, 0),
    (r"\.value$", "value adapters", _LORA, 0),
    (r"\.verifier$", "verifier adapters", _LORA, 0),
    (r"\.value_", "value heads", _HEAD, 0),
    (r"\.verifier_", "verifier heads", _HEAD, 0),
    # Paper 4.2 and 4.3.
    (r"^fusion\.gate", "fusion gates", "W_g2, W_g3 (d, 2d), bias (d), shared", 2),
    (r"^fusion\.projection", "soft-prompt projection", "weight (d, d), bias (d), shared", 1),
    (r"^fusion\.scores", "interaction scores", "alpha (I, I)", 1),
    (r"^selection\.gates", "selection gates", "g (I)", 1),
)


def list_trainable_parts(
    architecture: Any,  # noqa: ANN401
    system: str,
    *,
    agents: int = PAPER_AGENTS,
    rank: int = PAPER_RANK,
) -> list[dict[str, Any]]:
    """Build a system without a decoder on the meta device; list what it trains (paper D.4).

    The paper prints totals only. "sa" always has one agent; ConfigError for an unknown system, or
    if it trains weights that are in no part.
    """
    import torch
    from torch import nn

    from compevo_core.lora.backbone import Backbone
    from compevo_core.runtime.distributed import AgentShards
    from compevo_core.training.model import SystemModules

    settings = {"population.agents": agents, "population.rank": rank}
    config = find_variant(system).configure(RunConfig().with_overrides(settings))
    agents = config.population.agents
    model = build_meta_model(architecture).requires_grad_(False)
    adapted = ", ".join(layer["module"] for layer in list_adapter_tensors(model, rank))
    with torch.device("meta"):
        backbone = Backbone(model, None, architecture.name_or_path, "")
        # Outside of the meta device: the soft prompt's start is measured, not only shaped.
        neutral_D = torch.zeros(architecture.hidden_size, device="cpu")
        built = SystemModules(config, backbone, AgentShards(agents), (), neutral_D)

    modules = {"fusion": built.fusion, "selection": built.selection, "debate": built.debate}
    known = {name: module for name, module in modules.items() if module is not None}
    trained = nn.ModuleDict({"adapters": built.population.adapters, **known})
    left = {name: each.numel() for name, each in trained.named_parameters() if each.requires_grad}
    parts = []
    for pattern, part, tensors, copies in _PARTS:
        total = sum(left.pop(name) for name in list(left) if re.search(pattern, name))
        if total:
            each = total // (copies or agents)
            facts = {"copies": copies or agents, "each": each, "parameters": total}
            # What the others forecast with is the policy of a debate.
            part = part.replace("forecast", "policy") if system == "mad-rl" else part
            parts.append({"part": part, "tensors": tensors.format(modules=adapted), **facts})
    if left:
        raise ConfigError(f"{system} trains {min(left)}, which is in no part: extend the list")
    return parts


def build_parameter_report(
    backbone: str, *, agents: int = PAPER_AGENTS, rank: int = PAPER_RANK
) -> dict[str, Any]:
    """Build the JSON of ``compevo paper params``: counts by system and part, one adapter's tensors.

    ConfigError for an unknown backbone.
    """
    architecture = load_architecture(backbone)
    model = build_meta_model(architecture)
    methods = {}
    for system in PAPER_ORDER:
        parts = list_trainable_parts(architecture, system, agents=agents, rank=rank)
        total = sum(part["parameters"] for part in parts)
        methods[system] = {
            "agents": 1 if system == "sa" else agents,
            "trainable_parameters": total,
            "millions": round(total / 1e6, 1),
            "parts": parts,
        }

    return {
        "backbone": architecture.name_or_path,
        "hidden_size": architecture.hidden_size,
        "rank": rank,
        "derivation": "the paper prints totals; the parts are derived so that all five totals "
        "agree on Llama-3.1-8B",
        "verified_on_meta_device": True,
        "frozen_backbone_parameters": sum(weight.numel() for weight in model.parameters()),
        "adapter": {
            "parameters": methods["sa"]["trainable_parameters"],  # a single agent's
            "blocks": architecture.num_hidden_layers,
            "tensors_of_one_block": list_adapter_tensors(model, rank),
        },
        "methods": methods,
    }
