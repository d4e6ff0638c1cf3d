"""All settings of a training run as one frozen value: presets, overrides, renamed keys, its hash.

What belongs here: putting the sections together, checks across them. What does not: the settings
themselves (``config_sections``), reading the environment, building objects.

    config = RunConfig.preset("default").with_overrides({"population.agents": 5})
"""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from compevo_core.config_errors import describe_error
from compevo_core.config_sections import (
    BackboneConfig,
    CalibrationConfig,
    DebateConfig,
    EvolutionConfig,
    ForecastConfig,
    GrpoConfig,
    NewsConfig,
    ObjectiveConfig,
    OptimConfig,
    PopulationConfig,
    RunLengthConfig,
    SelectionConfig,
    SettingsSection,
)
from compevo_core.config_systems import list_differing
from compevo_core.errors import ConfigError

RENAMED_SETTINGS = {
    "backbone.spec": "backbone.name_or_path",
    "backbone.context_tokens": "backbone.context_length",
    "evolution.logic_tokens": "evolution.max_new_tokens",
    "grpo.kl": "grpo.kl_coefficient",
    "grpo.clip": "grpo.clip_range",
    "optim.gradient_clip": "optim.max_grad_norm",
    "run.batch_windows": "run.batch_size",
    "run.micro_windows": "run.micro_batch_size",
}
"""Old name to new name. Presets, run folders and overrides with old names still load."""

_PRESETS = resources.files("compevo_core") / "presets"


class RunConfig(SettingsSection):
    """All settings of one run; two runs with equal hashes and equal data are the same run."""

    backbone: BackboneConfig = BackboneConfig()
    population: PopulationConfig = PopulationConfig()
    forecast: ForecastConfig = ForecastConfig()
    news: NewsConfig = NewsConfig()
    selection: SelectionConfig = SelectionConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    evolution: EvolutionConfig = EvolutionConfig()
    grpo: GrpoConfig = GrpoConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    debate: DebateConfig = Field(
        default=DebateConfig(), exclude_if=lambda debate: debate == DebateConfig()
    )
    optim: OptimConfig = OptimConfig()
    run: RunLengthConfig = RunLengthConfig()

    @model_validator(mode="after")
    def _check_known_errors(self) -> Self:
        base, agents = self.forecast.known_errors, self.calibration.known_errors
        if base != "none" and agents != "none":
            raise ValueError(
                f"forecast.known_errors = {base!r} and calibration.known_errors = {agents!r} would "
                "add the drift of validation twice: set one of them to 'none'"
            )
        return self

    @model_validator(mode="after")
    def _check_system(self) -> Self:
        system = self.population.system
        if differing := list_differing(system, self):
            raise ValueError(
                f"population.system = {system!r} needs {', '.join(differing)}: choose it with "
                f"compevo train --variant {system}, which sets all of them"
            )
        if system == "mad-rl" and self.forecast.decoder == "text":
            raise ValueError(
                "population.system = 'mad-rl' tries forecasts around those of the numeric head, "
                "and answers as text have none: set forecast.decoder = 'head'"
            )
        if system == "mad-rl" and self.population.agents < 2:
            raise ValueError("a debate needs another agent: set population.agents to 2 or more")
        return self

    @classmethod
    def from_mapping(cls, tree: Mapping[str, Mapping[str, Any]]) -> Self:
        """Build a configuration from ``{section: {setting: value}}``.

        Raises:
            ConfigError: a section or setting is unknown, of a wrong type or out of bounds, or is
                given under its old and its new name.
        """
        for name, values in tree.items():
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                raise ConfigError(f"unknown section [{name}]; known: {known}")
            if not isinstance(values, Mapping):
                raise ConfigError(f"[{name}] is {values!r}; give a table of settings")

        sections = {name: _with_new_names(name, values) for name, values in tree.items()}
        try:
            return cls.model_validate(sections)
        except ValidationError as error:
            described = [describe_error(details, cls) for details in error.errors()]
            raise ConfigError("; ".join(described)) from error

    @classmethod
    def preset(cls, name: str) -> Self:
        """Load ``compevo_core/presets/<name>.toml``, or a path that ends in .toml."""
        if name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8")
            return cls.from_mapping(tomllib.loads(text))

        known = list_presets()
        if name not in known:
            raise ConfigError(
                f"no preset {name!r}; known: {', '.join(known)}, or give a path to a .toml file"
            )
        entry = _PRESETS / f"{name}.toml"
        return cls.from_mapping(tomllib.loads(entry.read_text(encoding="utf-8")))

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Return a copy with dotted settings replaced, e.g. ``{"population.agents": 3}``."""
        tree: dict[str, dict[str, Any]] = self.to_dict()
        for dotted, value in overrides.items():
            section, _, key = RENAMED_SETTINGS.get(dotted, dotted).partition(".")
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
    files = (file.name for file in _PRESETS.iterdir())
    return sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml"))


def iterate_settings() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting as its dotted name and its pydantic field, for the documentation."""
    for section, info in RunConfig.model_fields.items():
        kind = info.annotation
        assert isinstance(kind, type) and issubclass(kind, SettingsSection)  # noqa: S101 - by construction
        for name, field in kind.model_fields.items():
            yield f"{section}.{name}", field


def _with_new_names(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{section}.{key}"
        new_key = RENAMED_SETTINGS.get(name, name).partition(".")[2]
        if new_key in renamed or (new_key != key and new_key in values):
            raise ConfigError(
                f"{name} was renamed {section}.{new_key}, and both are given; keep one"
            )
        renamed[new_key] = value
    return renamed
