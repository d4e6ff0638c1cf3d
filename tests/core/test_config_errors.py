"""Wrong settings of members and sections are named where they stand."""

import re

import pytest

from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([{"prio": "gbm"}, {}], "unknown setting population.members[0].prio; known: calibration_"),
        ([{}, {"prior": "gb"}], "members[1].prior = 'gb' is not one of none, persistence"),
        ([{}, {"first_step": 99}], "population.members[1].first_step = 99 is above 47: first"),
        ([{}, {"first_step": 9, "last_step": 1}], "members[1]: first_step = 9 is after last"),
        ([{"window_share": 0}, {}], "population.members[0].window_share = 0 is not above 0"),
        ([{"lookback_steps": "3"}, {}], "population.members[0].lookback_steps must be int"),
        ([{"entities": "NSW1"}, {}], "population.members[0].entities must be a list"),
        ([{"entities": [1]}, {}], "population.members[0].entities[0] must be str, got 1"),
        ([1, {}], "population.members[0] must be a table of settings, got 1"),
        ("gbm", "population.members must be a list, got 'gbm'"),
        ([{}], "population: 1 members for 2 agents: give one entry for each agent, or none"),
    ],
)
def test_a_wrong_member_is_named_by_its_number_and_setting(members: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        RunConfig.preset("tiny").with_overrides(
            {"population.agents": 2, "population.members": members}
        )
    assert "\n" not in str(caught.value)


def test_one_wrong_choice_of_a_prior_is_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping({"population": {"agents": 1, "members": [{"prior": "gb"}]}})
    assert str(caught.value).count("is not one of") == 1
    assert str(caught.value).endswith("zero-shot, shared")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"optim": {"head_lr": "x"}}, "optim.head_lr must be float, got 'x'"),
        ({"optim": {"head_lr": -1.0}}, "optim.head_lr = -1.0 is below 0"),
        ({"population": 3}, "[population] is 3; give a table of settings"),
    ],
)
def test_a_number_that_may_be_left_out_and_a_section_are_described(
    tree: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig.from_mapping(tree)


def test_members_may_be_given_as_the_tables_that_toml_json_and_yaml_have() -> None:
    changes = {"population.agents": 2, "population.members": [{"prior": "gbm"}, {"seed": 7}]}
    config = RunConfig.preset("tiny").with_overrides(changes)
    assert config.population.member(0).prior == "gbm"
    assert config.population.member(1).seed == 7
    # What a run folder keeps gives the same configuration again.
    assert RunConfig.from_mapping(config.to_dict()) == config
