"""Counts of parameters are those of the systems that train."""

import pytest

from compevo_core.errors import ConfigError
from compevo_core.experiments import built_parameters
from compevo_core.experiments.built_parameters import count_built, report_built_parameters
from compevo_core.experiments.controls import configure_experiment
from compevo_core.lm.architectures import Architecture, load_architecture
from compevo_core.lm.backbone import load_backbone
from tests.support.models import build_model
from tests.support.population import tiny

#: Of the paper's table "Multi-agent baseline configurations" (D.4), in millions.
PUBLISHED_MILLIONS = {
    "sa": 41.9,
    "mael": 419.4,
    "mae-gpt": 419.4,
    "mad-rl": 1258.4,
    "compevo": 922.8,
}
SYSTEMS = sorted(PUBLISHED_MILLIONS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_built_system_has_the_published_number_of_parameters(system: str) -> None:
    llama = load_architecture("llama-3.1-8b")
    built = count_built(llama, system, agents=10, rank=16)
    assert round(built / 1e6, 1) == PUBLISHED_MILLIONS[system]


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_system_that_is_counted_is_the_one_that_trains(system: str) -> None:
    config = configure_experiment(tiny(), system)
    sizes = load_backbone(config.backbone, device="cpu").model.config.to_dict()
    architecture = Architecture.from_mapping(sizes, name="tiny")
    counted = count_built(architecture, system, agents=3, rank=4)
    model = build_model(config)
    decoder = sum(p.numel() for p in model.decoder.module.parameters())
    assert model.trainable_parameters == counted + decoder


def test_a_system_that_is_built_otherwise_than_listed_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert report_built_parameters("smollm2-135m", methods=["mael"])["methods"]["mael"]
    monkeypatch.setattr(built_parameters, "count_built", lambda *_, **__: 7)
    with pytest.raises(ConfigError, match="mael as built trains 7 parameters"):
        report_built_parameters("smollm2-135m", methods=["mael"])
