"""The demo asks for settings that exist, of members that the presets have."""

from compevo_core.experiments.ablation import FULL_METHOD, VARIANTS
from compevo_core.experiments.controls import changes_nothing
from compevo_pipeline.assets.ablation import AblationConfig
from compevo_pipeline.assets.training_config import TrainConfig
from compevo_pipeline.jobs import build_demo_config

OPS = {name: op["config"] for name, op in build_demo_config("electricity")["ops"].items()}


def test_the_demos_trainings_resolve_and_the_ablation_is_the_smaller_one():
    training = TrainConfig(**OPS["models__compevo__electricity"]).resolve("demo")
    ablation = AblationConfig(**OPS["ablation__variants__electricity"]).resolve("demo")
    assert ablation.population.agents == len(ablation.population.members) == 2
    assert ablation.run.rounds == 1 and ablation.run.supervised_epochs == 0
    assert training.run.supervised_epochs > 0, "the model of the demo itself learns"


def test_no_variant_of_the_demos_ablation_repeats_the_full_method():
    config = AblationConfig(**OPS["ablation__variants__electricity"])
    chosen, base = config.select_variants(), config.resolve("demo")
    assert chosen[0] == FULL_METHOD and set(chosen) < set(VARIANTS)
    assert [name for name in chosen if changes_nothing(base, name)] == []
    assert AblationConfig().select_variants() == list(VARIANTS)


def test_controls_are_chosen_by_name_beside_variants():
    chosen = AblationConfig(variants=["compevo", "no-news"]).select_variants()
    assert chosen == ["compevo", "no-news"]
