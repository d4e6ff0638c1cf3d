"""All settings of a training run as one frozen value: presets, overrides, checks, its hash.

config = RunConfig.preset("default").with_overrides({"population.agents": 5})

All systems of agents (paper D.4) share backbone, news, base models, context, batches and steps.
What sets them apart are settings, so that the hash of a run's settings identifies the system.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from compevo_core.config import sections
from compevo_core.errors import ConfigError
from compevo_core.runtime.files import read_toml

#: No agent knows of another: each learns from its own error, and their forecasts are averaged.
_ALONE: dict[str, object] = {
    "objective.lambda_pred": 0.0,
    "objective.lambda_own": 1.0,
    "objective.lambda_div": 0.0,
    "objective.lambda_prune": 0.0,
    "news.linear": False,
    "news.fit": "own",
    "evolution.credit": "own",
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
    "mae-gpt": {
        **_ALONE,
        "evolution.update": "simplified",
        "grpo.carry": "best",
        "evolution.flat_share": 0.0,
        "evolution.cross_share": 0.0,
    },
    # The same agents, which read each other's forecasts and revise their own.
    "mad-rl": dict(_ALONE),
}
"""Name of a system to the settings it needs."""


_LEAST_SCORED = 20  # windows, to be cut into blocks of which each is judged by fits on the others

_PRESETS = Path(__file__).with_name("presets")
_FAULTS = {
    "tuple_type": "should be a list",
    "model_type": "should be a table of settings",
    "string_pattern_mismatch": "is none of its values",
}
"""What a reader of TOML calls what pydantic finds."""


_NUMERIC = {
    "population": ("agents", "members"),
    "selection": tuple(sections.SelectionConfig.model_fields),
    "forecast": (
        "decoder",
        "prior",
        "zero_shot_model",
        "known_errors",
        "prior_folds",
        "refit_days",
    ),
    "run": ("seed", "refit", "micro_batch_size", "validate_every", "validation_windows"),
}
"""Settings that act without a language model, by section."""


class RunConfig(sections.SettingsSection):
    """All settings of one run; two runs with equal hashes and equal data are the same run."""

    backbone: sections.BackboneConfig = sections.BackboneConfig()
    population: sections.PopulationConfig = sections.PopulationConfig()
    forecast: sections.ForecastConfig = sections.ForecastConfig()
    news: sections.NewsConfig = sections.NewsConfig()
    selection: sections.SelectionConfig = sections.SelectionConfig()
    calibration: sections.CalibrationConfig = sections.CalibrationConfig()
    evolution: sections.EvolutionConfig = sections.EvolutionConfig()
    grpo: sections.GrpoConfig = sections.GrpoConfig()
    objective: sections.ObjectiveConfig = sections.ObjectiveConfig()
    debate: sections.DebateConfig = sections.DebateConfig()
    optim: sections.OptimConfig = sections.OptimConfig()
    run: sections.RunLengthConfig = sections.RunLengthConfig()

    @model_validator(mode="after")
    def _check_systems(self) -> Self:
        system, selection, evolution = self.population.system, self.selection, self.evolution
        self._require(
            f"population.system = {system!r}",
            SYSTEM_SETTINGS[system],
            otherwise=f"choose it with compevo paper train --variant {system}, which sets all",
        )
        if system == "mad-rl":
            what = "population.system = 'mad-rl' tries forecasts around the numeric head's"
            self._require(what, {"forecast.decoder": "head"})
            if self.population.agents < 2:
                raise ValueError("a debate needs another agent: set population.agents to 2 or more")

        if self.forecast.decoder == "text":
            what = "forecast.decoder = 'text' writes answers by all layers"
            self._require(what, {"forecast.layers": 0, "news.linear": False})
        if selection.rule != "paper" or selection.parts != 1:
            what = (
                f"selection.rule = {selection.rule!r} with parts = {selection.parts} weighs online"
            )
            self._require(what, {"selection.online": True})
        if selection.uniform:
            what = "selection.uniform keeps equal weights, as rule = 'equal' does online"
            self._require(what, {"selection.online": False})
        weighed = any(member.weight != 1.0 for member in self.population.members)
        if weighed and selection.rule == "paper":
            raise ValueError(
                "population.members have weights, and selection.rule = 'paper' does not begin with "
                "them: set selection.rule = 'boa' or 'equal', or leave them out"
            )

        if evolution.start and len(evolution.start) != self.population.agents:
            raise ValueError(
                f"evolution.start has {len(evolution.start)} logics for {self.population.agents} "
                "agents: give one for each agent, or none"
            )
        if evolution.form == "free":
            what = "evolution.form = 'free' writes logics without slots"
            self._require(what, {"evolution.flat_share": 0.0, "evolution.topics": ()})
        if evolution.selector != "backbone":
            what = f"evolution.selector = {evolution.selector!r} writes free text"
            self._require(what, {"evolution.form": "free"})
        if evolution.cross_share and not evolution.flat_share:
            raise ValueError(
                "evolution.cross_share crosses logics that are drawn by chance: set "
                "evolution.flat_share, or leave it out"
            )
        if evolution.flat_share == 1.0:
            what = "evolution.flat_share = 1 fills slots by chance, without a policy to train"
            self._require(what, {"grpo.enabled": False})
        return self

    @model_validator(mode="after")
    def _check_members_alone(self) -> Self:
        """Check the settings of members without a language model."""
        if self.has_agents:
            return self
        differing = [
            f"{section}.{name}"
            for section, changed in self.model_dump(exclude_defaults=True).items()
            for name in changed
            if name not in _NUMERIC.get(section, ())
        ]
        differing += [
            f"population.members[{agent}].{name}"
            for agent, member in enumerate(self.population.members)
            for name in member.model_dump(exclude_defaults=True)
            if name not in ("prior", "calibration_days", "weight")
        ]
        if differing:
            raise ValueError(
                "forecast.decoder = 'none' forecasts only by the members' base models, and "
                f"{', '.join(sorted(differing))} need a language model: leave them out"
            )

        keys = [
            (prior, m.calibration_days)
            for prior, m in zip(self.priors, self.population.list_members(), strict=True)
        ]
        if "none" in self.priors:
            raise ValueError("a base model or a language model is needed to forecast: set one")
        if len(set(keys)) < len(keys):
            raise ValueError(
                f"{len(keys)} members without a language model forecast by {len(set(keys))} "
                "base models: set population.agents = 1, or give each member its own prior"
            )
        return self

    @model_validator(mode="after")
    def _check_readers(self) -> Self:
        """Check the settings of agents whose news are read by ridges."""
        reads_everything = any(m.reads == "everything" for m in self.population.members)
        choices = {
            "forecast.decoder = 'linear'": self.forecast.decoder == "linear",
            "news.fit = 'joint'": self.news.fit == "joint",
            "evolution.credit = 'contribution'": self.evolution.credit == "contribution",
            "a member that reads 'everything'": reads_everything,
        }
        what = next((choice for choice, is_made in choices.items() if is_made), None)
        if what is None:
            return self

        needed: dict[str, object] = {"news.linear": True}
        if self.pays_for_readings:
            needed |= {"grpo.carry": "record", "run.fixed_logics": 0}
            if self.selection.online and self.selection.rule == "paper":
                # It continues each agent's own error, and these agents have earned gains.
                needed |= {"selection.rule": "boa"}
        if self.news.fit == "joint":
            # An agent's own forecast overshoots, and no agent was fitted with another logic's news.
            needed |= {"objective.lambda_own": 0.0, "news.other_logics": 0.0}
            if self.selection.online:
                # Jointly fitted agents have no equal weights to keep.
                needed |= {"selection.rule": "boa"}
        if self.forecast.decoder == "linear":
            needed |= {
                "evolution.form": "slots",
                "evolution.flat_share": 1.0,
                "run.supervised_epochs": 0,
                "run.supervised_rounds": 0,
            }
        self._require(what, needed)

        if self.pays_for_readings and 0 < self.grpo.reward_windows < _LEAST_SCORED:
            raise ValueError(
                f"grpo.reward_windows = {self.grpo.reward_windows} are too few to fit readings and "
                f"to judge them on others: set {_LEAST_SCORED} or more, or 0 for all of train"
            )
        return self

    def _require(
        self, what: str, needed: Mapping[str, object], *, otherwise: str = "leave it out"
    ) -> None:
        """Raise a ValueError that names the settings which differ from what something needs."""
        differing = [
            f"{dotted} = {json.dumps(value)}"
            for dotted, value in needed.items()
            if attrgetter(dotted)(self) != value
        ]
        if differing:
            raise ValueError(f"{what}: set {', '.join(differing)}, or {otherwise}")

    @property
    def priors(self) -> list[str]:
        """Base model of each member, by name."""
        members, shared = self.population.list_members(), self.forecast.prior
        return [shared if member.prior == "shared" else member.prior for member in members]

    @property
    def encoder(self) -> str:
        """Name of the encoder of the news that members read; empty where none does."""
        from compevo_core.baselines.news_ridge import reads_news

        reads = self.has_agents or any(map(reads_news, self.priors))
        return self.news.encoder if reads else ""

    @property
    def has_agents(self) -> bool:
        """Whether members are agents that read news, and not numeric methods."""
        return self.forecast.decoder != "none"

    @property
    def pays_for_readings(self) -> bool:
        """Whether a logic is paid for what ridges read, not for an agent's whole forecast."""
        is_linear = self.forecast.decoder == "linear" or self.news.fit == "joint"
        return is_linear or self.evolution.credit == "contribution"

    @classmethod
    def from_mapping(cls, tree: Mapping[str, Mapping[str, Any]]) -> Self:
        """Build a configuration from ``{section: {setting: value}}``.

        ConfigError if a section or setting is unknown, of a wrong type or out of bounds.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            described = [describe_error(details, cls) for details in error.errors()]
            raise ConfigError("; ".join(described)) from error

    @classmethod
    def preset(cls, name: str) -> Self:
        """Load ``compevo_core/config/presets/<name>.toml``, or a path that ends in .toml."""
        if name.endswith(".toml"):
            path = Path(name)
        elif name in (known := list_presets()):
            path = _PRESETS / f"{name}.toml"
        else:
            raise ConfigError(
                f"no preset {name!r}; known: {', '.join(known)}, or give a path to a .toml file"
            )
        return cls.from_mapping(read_toml(path, "name a preset, or a file of settings"))

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Return a copy with dotted settings replaced, e.g. ``{"population.agents": 3}``."""
        tree: dict[str, dict[str, Any]] = self.to_dict()
        for dotted, value in overrides.items():
            section, _, key = dotted.partition(".")
            if section not in type(self).model_fields or not key:
                known = ", ".join(type(self).model_fields)
                raise ConfigError(f"override {dotted!r} is not section.setting; sections: {known}")
            tree.setdefault(section, {})[key] = value
        return type(self).from_mapping(tree)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings as nested plain values."""
        return self.model_dump()

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """First 16 hex digits of the sha256 of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def list_presets() -> list[str]:
    """Return the names of the shipped presets, sorted."""
    return sorted(file.stem for file in _PRESETS.glob("*.toml"))


def iterate_settings() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting as its dotted name and its pydantic field."""
    for section, values in RunConfig():
        for name, field in type(values).model_fields.items():
            yield f"{section}.{name}", field


def describe_error(error: Mapping[str, Any], root: type[BaseModel]) -> str:
    """Return an entry of ``ValidationError.errors()`` as a line: what was given, what it means.

    A setting is named as in ``population.members[0].prior``.
    """
    name, field = "", FieldInfo()
    section: type[BaseModel] | None = root
    for part in error["loc"]:
        if isinstance(part, int):
            name += f"[{part}]"
            continue
        if section is None:
            break  # below a setting, pydantic names the types that it tried

        name = f"{name}.{part}" if name else part
        if part not in section.model_fields:
            return f"unknown setting {name}; known: {', '.join(sorted(section.model_fields))}"
        field = section.model_fields[part]
        # A table of settings, itself or as entries of a list.
        kinds = (field.annotation, *get_args(field.annotation))
        tables = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        section = tables[0] if tables else None

    if error["type"] == "value_error":  # from a model's own check, which says what to do
        return f"{name}: {error['ctx']['error']}" if name else str(error["ctx"]["error"])
    fault = _FAULTS.get(error["type"], error["msg"].removeprefix("Input "))
    meaning = (field.description or "").replace("\n", " ")
    return f"{name} = {error['input']!r} {fault}: {meaning}"
