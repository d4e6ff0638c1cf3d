"""Every setting of a training run: unit, bounds, and where the paper states it.

What belongs here: frozen, keyword-only settings, their bounds, presets and overrides.
What does not: reading the environment, building objects, defaults hidden elsewhere.
The defaults are the paper's (table "Main implementation hyperparameters" of D.2, and appendix E).
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Self, get_type_hints

from compevo_core.errors import ConfigError


def _setting(
    default: Any,
    note: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    return dataclasses.field(
        default=default, metadata={"note": note, "low": low, "high": high, "choices": choices}
    )


class _Section:
    """Checks every field of a section against its type, bounds and choices."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, expected, name = (
                getattr(self, field.name),
                hints[field.name],
                f"{type(self).__name__}.{field.name}",
            )
            if expected is float and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            if type(value) is not expected:
                raise ConfigError(
                    f"{name} must be {expected.__name__}, got {value!r}: correct the preset or override"
                )
            _check_bounds(name, value, field.metadata)


def _check_bounds(name: str, value: object, meta: Mapping[str, Any]) -> None:
    low, high, choices = meta["low"], meta["high"], meta["choices"]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if low is not None and value < low:
            raise ConfigError(f"{name} = {value} is below {low}: {meta['note']}")
        if high is not None and value > high:
            raise ConfigError(f"{name} = {value} is above {high}: {meta['note']}")
    if choices and value not in choices:
        raise ConfigError(f"{name} = {value!r} is not one of {', '.join(choices)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneConfig(_Section):
    """The frozen language model all agents share (paper 5.1, D.2)."""

    spec: str = _setting(
        "meta-llama/Llama-3.1-8B-Instruct",
        "hub id, folder, 'packaged:smollm2-135m' or 'tiny-random'",
    )
    dtype: str = _setting(
        "float32",
        "storage and compute type of the frozen weights; mixed: bfloat16 in the products "
        "with frozen layers, float32 between them",
        choices=("float32", "bfloat16", "mixed"),
    )
    context_tokens: int = _setting(4096, "longest prompt in tokens (paper D.2)", low=64)
    gradient_checkpointing: bool = _setting(
        False, "recompute activations in the backward pass to save memory"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationConfig(_Section):
    """Agents and their adapters (paper D.2)."""

    agents: int = _setting(10, "number of agents I", low=1, high=64)
    exposed_peers: int = _setting(2, "peers whose logic and reward an agent sees in a round", low=0)
    rank: int = _setting(16, "LoRA rank", low=1, high=256)
    alpha: float = _setting(32.0, "LoRA scaling numerator", low=0.0)
    dropout: float = _setting(
        0.05, "LoRA input dropout while forecasting adapters train", low=0.0, high=0.9
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastConfig(_Section):
    """How an agent turns its evidence into 48 numbers."""

    decoder: str = _setting(
        "head",
        "numeric head on the last state, or the paper's answer text",
        choices=("head", "text"),
    )
    prior: str = _setting(
        "calendar-ridge",
        "forecaster fitted on train that the agents correct",
        choices=("none", "persistence", "calendar-ridge", "gbm", "published"),
    )
    prior_folds: int = _setting(
        5, "blocks for out-of-fold prior forecasts on the train windows; 1 = in sample", low=1
    )
    history_points: int = _setting(
        48, "history numbers in the prompt; 24 = means of two", low=1, high=48
    )
    logic_in_prompt: bool = _setting(True, "whether the logic itself stands in the forecast prompt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewsConfig(_Section):
    """Which news an agent may see and how much of it (paper 4.1)."""

    top_k: int = _setting(5, "articles an agent reads per window", low=0, high=64)
    title_characters: int = _setting(160, "characters of a headline that reach the prompt", low=8)
    encoder: str = _setting(
        "packaged:minilm", "sentence encoder of articles and logics; the paper uses BAAI/bge-m3"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionConfig(_Section):
    """Fitness and weights (paper 4.2)."""

    temperature: float = _setting(0.5, "tau of the softmax over gated fitness", low=1e-3)
    ema: float = _setting(
        0.9, "beta of the fitness average ('moderate' in the paper)", low=0.0, high=0.9999
    )
    fitness_shift: str = _setting(
        "none",
        "'none' is the printed rule, 'min' subtracts the population's minimum",
        choices=("none", "min"),
    )
    uniform: bool = _setting(False, "ablation: w_i = 1/I")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolutionConfig(_Section):
    """Logic generation (paper 4.3)."""

    update: str = _setting(
        "three-stage",
        "'simplified' is the ablation: no opponent context, no gates, no soft prompt",
        choices=("three-stage", "simplified"),
    )
    instruction: str = _setting(
        "original",
        "wording of the logic-update task (paper E.9)",
        choices=("original", "paraphrased"),
    )
    logic_tokens: int = _setting(48, "longest logic in tokens", low=4, high=512)
    temperature: float = _setting(0.7, "T_gen of logic sampling", low=0.01, high=5.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoConfig(_Section):
    """Group relative policy optimisation of the logics (paper 4.3, D.2)."""

    enabled: bool = _setting(True, "ablation: False keeps sampling but takes no policy step")
    group_size: int = _setting(8, "logics G sampled per agent and round", low=2, high=64)
    kl: float = _setting(0.04, "KL coefficient against the frozen reference", low=0.0)
    clip: float = _setting(0.2, "clip range of the probability ratio", low=0.0, high=1.0)
    iterations: int = _setting(1, "policy updates per group of samples", low=1, high=16)
    carry: str = _setting(
        "best", "which logic of the group the agent carries on", choices=("best", "first")
    )
    reward_windows: int = _setting(0, "windows of the round used to score a logic; 0 = all", low=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(_Section):
    """The joint objective and its weights (paper 4.4)."""

    metric: str = _setting(
        "mse", "L_metric on scaled values, for rewards and L_pred", choices=("mse", "mae")
    )
    lambda_pg: float = _setting(0.5, "weight of L_pg", low=0.0)
    lambda_div: float = _setting(0.1, "weight of L_div", low=0.0)
    lambda_prune: float = _setting(0.01, "weight of L_prune", low=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig(_Section):
    """AdamW with warm-up and cosine decay (paper D.2)."""

    forecast_lr: float = _setting(
        1e-4, "learning rate of forecast adapters, heads and gates", low=0.0
    )
    policy_lr: float = _setting(
        1e-6, "learning rate of logic adapters, fusion gates and soft prompt", low=0.0
    )
    warmup_ratio: float = _setting(0.03, "share of rounds with rising rate", low=0.0, high=1.0)
    weight_decay: float = _setting(0.0, "AdamW decoupled decay", low=0.0)
    gradient_clip: float = _setting(1.0, "largest gradient norm; 0 = no clipping", low=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfigSection(_Section):
    """Length, seed and bookkeeping of a run."""

    seed: int = _setting(0, "seed of every generator", low=0)
    epochs: int = _setting(
        3, "full passes over the train windows (paper: 2,193 steps = 3 x 731 days)", low=1
    )
    rounds: int = _setting(0, "stop after this many rounds; 0 = all epochs", low=0)
    batch_windows: int = _setting(5, "windows a round: one day of five regions", low=1)
    micro_windows: int = _setting(
        5, "windows in one forward and backward; memory, not numbers", low=1
    )
    validate_every: int = _setting(50, "rounds between validations; 0 = never", low=0)
    validation_windows: int = _setting(60, "evenly spaced validation windows; 0 = all", low=0)
    checkpoint_every: int = _setting(10, "rounds between checkpoints", low=1)
    fixed_logics: int = _setting(
        2,
        "fixed seed logics K an agent's regret is measured against, scored each round "
        "without gradient (theorem B.3.2); 0 = off",
        low=0,
        high=10,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of one run; two runs with equal hashes and equal data are the same run."""

    backbone: BackboneConfig = dataclasses.field(default_factory=BackboneConfig)
    population: PopulationConfig = dataclasses.field(default_factory=PopulationConfig)
    forecast: ForecastConfig = dataclasses.field(default_factory=ForecastConfig)
    news: NewsConfig = dataclasses.field(default_factory=NewsConfig)
    selection: SelectionConfig = dataclasses.field(default_factory=SelectionConfig)
    evolution: EvolutionConfig = dataclasses.field(default_factory=EvolutionConfig)
    grpo: GrpoConfig = dataclasses.field(default_factory=GrpoConfig)
    objective: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    run: RunConfigSection = dataclasses.field(default_factory=RunConfigSection)

    @classmethod
    def from_mapping(cls, tree: Mapping[str, Mapping[str, Any]]) -> Self:
        """Builds a configuration from ``{section: {key: value}}``; unknown keys are refused."""
        sections = {f.name: f.default_factory for f in dataclasses.fields(cls)}
        built: dict[str, Any] = {}
        for name, values in tree.items():
            if name not in sections:
                raise ConfigError(f"unknown section [{name}]; known: {', '.join(sections)}")
            kind: Any = sections[name]
            known = {f.name for f in dataclasses.fields(kind)}
            for key in values:
                if key not in known:
                    raise ConfigError(
                        f"unknown setting {name}.{key}; known: {', '.join(sorted(known))}"
                    )
            built[name] = kind(**values)
        return cls(**built)

    @classmethod
    def preset(cls, name: str) -> Self:
        """Loads ``compevo_core/presets/<name>.toml``, or a path ending in .toml."""
        if name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8")
        else:
            folder = resources.files("compevo_core") / "presets"
            entry = folder / f"{name}.toml"
            if not entry.is_file():
                known = sorted(
                    p.name.removesuffix(".toml")
                    for p in folder.iterdir()
                    if p.name.endswith(".toml")
                )
                raise ConfigError(
                    f"no preset {name!r}; known: {', '.join(known)}, or give a path to a .toml file"
                )
            text = entry.read_text(encoding="utf-8")
        return cls.from_mapping(tomllib.loads(text))

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Returns a copy with dotted settings replaced, e.g. ``{"population.agents": 3}``."""
        tree: dict[str, dict[str, Any]] = {k: dict(v) for k, v in self.to_dict().items()}
        for dotted, value in overrides.items():
            section, _, key = dotted.partition(".")
            if section not in tree or not key:
                raise ConfigError(
                    f"override {dotted!r} is not section.setting; sections: {', '.join(tree)}"
                )
            tree[section][key] = value
        return type(self).from_mapping(tree)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The settings as nested plain values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """First 16 hex digits of the sha256 of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def describe() -> list[tuple[str, Any, str]]:
    """Every setting as (dotted name, default, note), for the documentation."""
    rows = []
    for section in dataclasses.fields(RunConfig):
        kind: Any = section.default_factory
        rows += [
            (f"{section.name}.{f.name}", f.default, f.metadata["note"])
            for f in dataclasses.fields(kind)
        ]
    return rows
