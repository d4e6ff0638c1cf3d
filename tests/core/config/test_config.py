"""Settings: defaults of the paper, errors that name what is wrong, presets."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

from compevo_core.config.run import RunConfig, iterate_settings, list_presets
from compevo_core.config.sections import MemberConfig
from compevo_core.data.splits import FOLDS
from compevo_core.errors import ConfigError
from compevo_core.paper.changes import find_variant
from compevo_core.paper.report.inputs import read_configs
from tests.support.population import tiny

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
PRESETS = list_presets()
REPO = Path(__file__).parents[3]
KEPT = {
    "debate": "the rival MAD-RL, with the values of its source",
    "evolution.selector": "names a server",
    "forecast.zero_shot_model": "names a model that is not shipped",
    "grpo.iterations": "the paper's clip range acts on the second update of a group",
    "optim.max_grad_norm": "belongs to AdamW",
}
"""Settings, and a section, that no preset or row has moved from their default; why they stay."""


@pytest.mark.parametrize("source", ["defaults", "paper"])
def test_defaults_and_paper_preset_hold_the_papers_hyperparameters(source):
    tree = (RunConfig() if source == "defaults" else RunConfig.preset("paper")).to_dict()
    settings = {f"{s}.{name}": value for s, names in tree.items() for name, value in names.items()}
    assert {name: settings[name] for name in PAPER} == PAPER
    assert FOLDS == 5
    assert all(len(field.description or "") > 5 for _, field in iterate_settings())


def test_every_setting_is_varied_or_has_a_reason():
    configs = [RunConfig.preset(name) for name in PRESETS]
    assert len({config.hash for config in configs}) == len(PRESETS)
    configs += map(RunConfig.from_mapping, read_configs(REPO / "results").values())
    members = [member for config in configs for member in config.population.members]

    idle = {
        name
        for name, field in iterate_settings()
        if all(attrgetter(name)(config) == field.default for config in configs)
    } - PAPER.keys()
    assert {name if name in KEPT else name.partition(".")[0] for name in idle} == KEPT.keys()
    for name, field in MemberConfig.model_fields.items():
        assert any(getattr(member, name) != field.default for member in members), name


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"populations": {}}, "populations"),
        ({"population": {"agent": 3}}, "unknown setting population.agent"),
        ({"population": {"agents": 0}}, "agents = 0 should be greater than or equal to 1"),
        ({"population": {"agents": "3"}}, "integer"),
        ({"population": {"agents": True}}, "integer"),
        ({"population": 3}, "population = 3 should be a table of settings"),
        ({"selection": {"ema": 1.0}}, "0.9999"),
        ({"forecast": {"decoder": "words"}}, "should be 'head', 'text', 'linear' or 'none'"),
        ({"optim": {"fusion_lr": "x"}}, "optim.fusion_lr = 'x' should be a valid number"),
        ({"optim": {"fusion_lr": -1.0}}, "optim.fusion_lr = -1.0 should be"),
        ({"run": {"seed": -1}}, "run.seed"),
        ({"evolution": {"start": ["one"]}}, "1 logics for 10 agents"),
        ({"evolution": {"flat_share": 0.5}}, "writes logics without slots"),
        ({"evolution": {"cross_share": 0.5, "form": "slots"}}, "evolution.flat_share"),
        ({"evolution": {"topics": ["heat"]}}, "writes logics without slots"),
        ({"evolution": {"flat_share": 1.0, "form": "slots"}}, "fills slots by chance"),
        ({"news": {"linear": True}, "forecast": {"decoder": "text"}}, "set news.linear = false"),
    ],
)
def test_unknown_or_out_of_bounds_settings_are_refused(tree, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig.from_mapping(tree)


ONE_METHOD = {
    "forecast": {"decoder": "none"},
    "population": {"agents": 1, "members": [{"prior": "calendar-ridge"}]},
}
BASES = {name: find_variant(name).configure(tiny()) for name in ("mad-rl", "mae-gpt", "mael")}
BASES |= {"tiny": tiny(), "specialists": RunConfig.preset("specialists")}
BASES |= {"one method": RunConfig.from_mapping(ONE_METHOD)}
ENDPOINT = {"evolution.selector": "endpoint:m"}
ONLINE = {"selection.online": True}
MEMBERS = "population.members"
CONTRADICTIONS = [
    ("tiny", {"population.system": "mael"}, r"objective.lambda_pred = 0\.0, .*--variant mael"),
    ("mael", {"evolution.every": 1}, r"set evolution\.every = 0, or choose"),
    ("mad-rl", {"forecast.decoder": "text"}, r'set forecast\.decoder = "head"'),
    ("mad-rl", {"population.agents": 1}, r"set population\.agents to 2"),
    ("mae-gpt", {"evolution.selector": "gpt"}, "selector = 'gpt' .* 'endpoint:NAME'"),
    ("mae-gpt", ENDPOINT | {"evolution.form": "slots"}, 'set evolution.form = "free"'),
    ("one method", {"evolution.every": 2}, "evolution.every need a language model"),
    ("one method", {MEMBERS: [{"prior": "gbm", "news_scope": "none"}]}, r"\[0\].news_scope"),
    ("one method", {"calibration.blend": True}, "calibration.blend"),
    ("one method", {MEMBERS: [{"prior": "none"}]}, "a base model or a"),
    ("one method", {"population.agents": 2, MEMBERS: []}, "2 members .* by 1 base models"),
    ("specialists", {"news.linear": False}, "set news.linear = true"),
    ("specialists", {"evolution.flat_share": 0.5}, "set evolution.flat_share = 1.0"),
    ("specialists", {"objective.lambda_own": 1.0}, "set objective.lambda_own = 0.0"),
    ("specialists", {"grpo.reward_windows": 10}, "too few to fit readings"),
    ("specialists", ONLINE | {"selection.rule": "paper"}, 'set selection.rule = "boa"'),
    ("specialists", ONLINE | {"news.fit": "own"}, 'set selection.rule = "boa"'),
]


@pytest.mark.parametrize(("base", "changes", "said"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused(base, changes, said):
    with pytest.raises(ConfigError, match=said):
        BASES[base].with_overrides(changes)


@pytest.mark.parametrize("content", [b"[run", b"\xff", None])
def test_an_unreadable_preset_is_one_named_error(tmp_path, content):
    file = tmp_path / "own.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file}: (not TOML|cannot be read)"):
        RunConfig.preset(str(file))


def test_overrides_change_one_setting_and_the_hash():
    config = RunConfig.preset("tiny")
    changed = config.with_overrides({"run.seed": 9})
    assert changed.run.seed == 9
    assert changed.hash != config.hash
    assert changed.with_overrides({"run.seed": config.run.seed}) == config
    for wrong in ("seed", "runs.seed", "run."):
        with pytest.raises(ConfigError):
            config.with_overrides({wrong: 1})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([{"prio": "gbm"}, {}], "unknown setting population.members[0].prio; known: calibration_"),
        ([{}, {"prior": "gb"}], "members[1].prior = 'gb' should be 'none', 'last-value'"),
        ([{"window_share": 0}, {}], "members[0].window_share = 0 should be greater than 0"),
        ([{"seed": "3"}, {}], "members[0].seed = '3' should be a valid"),
        ([1, {}], "population.members[0] = 1 should be a table of settings"),
        ("gbm", "population.members = 'gbm' should be a list"),
        ([{}], "population: 1 members for 2 agents: give one entry for each agent, or none"),
    ],
)
def test_a_wrong_member_is_named_by_number(members, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        tiny().with_overrides({"population.agents": 2, "population.members": members})
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("should be") <= 1


def test_members_are_read_from_any_markup():
    changes = {"population.agents": 2, "population.members": [{"prior": "gbm"}, {"seed": 7}]}
    config = RunConfig.preset("tiny").with_overrides(changes)
    assert config.population.list_members()[0].prior == "gbm"
    assert config.population.list_members()[1].seed == 7
    # What a run folder keeps gives the same configuration again.
    assert RunConfig.from_mapping(config.to_dict()) == config
