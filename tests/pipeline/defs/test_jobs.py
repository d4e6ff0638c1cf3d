"""The demo asks for settings that exist, of members that the presets have."""

from compevo_core.paper.changes import FULL_METHOD, list_changes
from compevo_pipeline.defs.assets.research import AblationConfig
from compevo_pipeline.defs.assets.training import TrainConfig
from compevo_pipeline.defs.jobs import build_demo_config

OPS = {name: op["config"] for name, op in build_demo_config("electricity")["ops"].items()}


def test_the_demos_trainings_resolve_and_the_ablation_is_the_smaller_one():
    training = TrainConfig(**OPS["models__compevo__electricity"]).resolve("demo")
    ablation = AblationConfig(**OPS["ablation__variants__electricity"]).resolve("demo")
    assert ablation.population.agents == len(ablation.population.members) == 2
    assert 0 < ablation.run.rounds < training.run.rounds
    assert 0 < ablation.run.supervised_rounds < training.run.supervised_rounds


def test_no_variant_of_the_demos_ablation_repeats_the_full_method():
    config = AblationConfig(**OPS["ablation__variants__electricity"])
    changes, base = config.select_variants(), config.resolve("demo")
    assert changes[0].name == FULL_METHOD
    assert {change.name for change in changes} < set(list_changes("variant", "control"))
    assert not any(change.changes_nothing(base) for change in changes)
