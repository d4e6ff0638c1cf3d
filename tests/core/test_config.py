"""Settings: defaults of the paper, refusal of unknown and out-of-bounds values, presets."""

from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compevo_core.config import RENAMED_SETTINGS, RunConfig, iterate_settings
from compevo_core.data.splits import FOLDS
from compevo_core.errors import ConfigError

PAPER = {
    "population.agents": 10,
    "population.rank": 16,
    "population.alpha": 32.0,
    "population.dropout": 0.05,
    "grpo.group_size": 8,
    "grpo.kl_coefficient": 0.04,
    "grpo.clip_range": 0.2,
    "optim.policy_lr": 1e-6,
    "optim.forecast_lr": 1e-4,
    "optim.warmup_ratio": 0.03,
    "backbone.context_length": 4096,
    "selection.temperature": 0.5,
    "objective.lambda_pg": 0.5,
    "objective.lambda_div": 0.1,
    "objective.lambda_prune": 0.01,
    "evolution.temperature": 0.7,
    "run.epochs": 3,
    "run.batch_size": 5,
    "population.exposed_peers": 2,
}
PRESETS = sorted(
    p.name.removesuffix(".toml")
    for p in (resources.files("compevo_core") / "presets").iterdir()
    if p.name.endswith(".toml")
)


@pytest.mark.parametrize("source", ["defaults", "paper"])
@pytest.mark.parametrize("name", sorted(PAPER))
def test_defaults_and_paper_preset_hold_the_papers_hyperparameters(name: str, source: str) -> None:
    config = RunConfig() if source == "defaults" else RunConfig.preset("paper")
    section, key = name.split(".")
    assert config.to_dict()[section][key] == PAPER[name]


def test_the_papers_five_validation_folds_are_the_default() -> None:
    assert FOLDS == 5


def test_the_paper_preset_answers_in_text_without_a_prior() -> None:
    config = RunConfig.preset("paper")
    assert (config.forecast.decoder, config.forecast.prior, config.news.encoder) == (
        "text",
        "none",
        "BAAI/bge-m3",
    )
    assert config.backbone.name_or_path == "meta-llama/Llama-3.1-8B-Instruct"


def test_the_small_paper_preset_is_the_papers_method_scaled_down() -> None:
    paper, small = RunConfig.preset("paper").to_dict(), RunConfig.preset("paper-small").to_dict()
    changed = {
        f"{section}.{key}"
        for section, settings in paper.items()
        for key, value in settings.items()
        if small[section][key] != value
    }
    # Decoder, prior, selection, objective and the form of logics are as printed.
    assert {name for name in changed if not name.startswith(("backbone.", "run."))} == {
        "population.agents",
        "population.dropout",
        "news.encoder",
        "evolution.every",
        "grpo.group_size",
        "grpo.reward_windows",
        "optim.forecast_lr",
    }


@pytest.mark.parametrize("name", PRESETS)
def test_every_shipped_preset_loads_and_differs_in_hash(name: str) -> None:
    assert (
        sum(RunConfig.preset(other).hash == RunConfig.preset(name).hash for other in PRESETS) == 1
    )


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"populations": {}}, "unknown section"),
        ({"population": {"agent": 3}}, "unknown setting population.agent"),
        ({"population": {"agents": 0}}, "below 1"),
        ({"population": {"agents": "3"}}, "must be int"),
        ({"population": {"agents": True}}, "must be int"),
        ({"selection": {"ema": 1.0}}, "above"),
        ({"forecast": {"decoder": "words"}}, "not one of head, text"),
    ],
)
def test_what_is_unknown_or_out_of_bounds_is_refused_by_name(
    tree: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_mapping(tree)


def test_overrides_change_one_setting_and_the_hash() -> None:
    config = RunConfig.preset("tiny")
    changed = config.with_overrides({"run.seed": 9})
    assert changed.run.seed == 9
    assert changed.hash != config.hash
    assert changed.with_overrides({"run.seed": config.run.seed}) == config
    for wrong in ("seed", "runs.seed", "run."):
        with pytest.raises(ConfigError):
            config.with_overrides({wrong: 1})


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"default, demo, operational, paper, paper-small, tiny"):
        RunConfig.preset("papers")


SETTINGS = dict(iterate_settings())


@given(st.sampled_from(sorted(SETTINGS)))
def test_every_setting_says_what_it_is(name: str) -> None:
    assert len(SETTINGS[name].description or "") > 5


OLD_VALUES = {
    "backbone.spec": "tiny-random",
    "backbone.context_tokens": 128,
    "evolution.logic_tokens": 9,
    "grpo.kl": 0.5,
    "grpo.clip": 0.7,
    "optim.gradient_clip": 3.0,
    "run.batch_windows": 7,
    "run.micro_windows": 4,
}


@pytest.mark.parametrize("old", sorted(RENAMED_SETTINGS))
def test_a_setting_under_its_old_name_loads_as_the_new_one(old: str) -> None:
    section, new = RENAMED_SETTINGS[old].split(".")
    value = OLD_VALUES[old]
    assert value != RunConfig().to_dict()[section][new]

    tree = {section: {old.split(".")[1]: value}}
    assert RunConfig.from_mapping(tree).to_dict()[section][new] == value
    assert RunConfig().with_overrides({old: value}).to_dict()[section][new] == value


def test_old_and_new_name_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.batch_windows was renamed run\.batch_size"):
        RunConfig.from_mapping({"run": {"batch_windows": 3, "batch_size": 3}})


def test_no_renamed_setting_is_still_a_setting() -> None:
    assert set(RENAMED_SETTINGS).isdisjoint(SETTINGS)
    assert set(RENAMED_SETTINGS.values()) <= set(SETTINGS)


def test_a_section_that_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="run"):
        RunConfig.from_mapping({"run": {"seed": -1}})
    assert RunConfig().run.seed == 0
