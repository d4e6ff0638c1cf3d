"""Lists of named changes: one change each, and the paper's value is among them."""

import pytest

from compevo_core.errors import ConfigError
from compevo_core.experiments.sweeps import (
    REFERENCES,
    SWEEPS,
    change_windows,
    configure_change,
    find_experiment,
)
from compevo_core.report.paper.published import list_subjects
from compevo_core.report.paper.variants import PRINTED
from tests.support.population import tiny
from tests.support.population import windows as make_windows


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_every_change_makes_settings_that_are_allowed(name):
    experiment = SWEEPS[name]
    for change in experiment.list_names():
        configure_change(tiny(), experiment, change)
        if not experiment.windows:
            change_windows(make_windows("train", 2), experiment, change)


@pytest.mark.parametrize("name", sorted(set(SWEEPS) - {"ablation", "news"}))
def test_a_change_differs_from_the_reference_in_its_own_settings_alone(name):
    experiment = SWEEPS[name]
    base = tiny()
    keys = set()
    for change in experiment.list_names():
        changed = configure_change(base, experiment, change).to_dict()
        keys |= {
            f"{section}.{key}"
            for section, values in changed.items()
            for key, value in values.items()
            if value != base.to_dict()[section][key]
        }
    assert len(keys - {"population.members"}) == 1


def test_every_reference_is_a_change_of_its_experiment_and_names_no_other():
    references = [experiment.reference for experiment in SWEEPS.values()]
    assert len(set(references)) == len(references) == len(REFERENCES)
    for experiment in SWEEPS.values():
        assert experiment.reference in experiment.list_names()


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_what_the_paper_prints_is_varied_here_too(name):
    assert set(list_subjects(PRINTED[name])) <= set(SWEEPS[name].list_names())


def test_more_agents_than_members_go_round_with_draws_of_their_own():
    base = tiny(
        population__agents=2, population__members=[{"prior": "gbm"}, {"lookback_steps": 24}]
    )
    members = configure_change(base, SWEEPS["agents"], "agents=3").population.members
    assert [(member.prior, member.seed) for member in members] == [
        ("gbm", 0),
        ("shared", 1),
        ("gbm", 2),
    ]


def test_an_unknown_experiment_or_change_is_refused_by_name():
    with pytest.raises(ConfigError, match="known: ablation, lambda-pg"):
        find_experiment("lamda")
    with pytest.raises(ConfigError, match="no change 'tau=7'"):
        configure_change(tiny(), SWEEPS["tau"], "tau=7")
