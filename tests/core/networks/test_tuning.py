"""The learning rate of a network: what validation prefers after equal short fits."""

import logging

import pytest

from compevo_core.errors import LeakageError, NonFiniteLoss
from compevo_core.networks.fitting import FitBudget
from compevo_core.networks.forecaster import NetworkBaseline
from compevo_core.networks.tuning import choose_learning_rate
from tests.core.networks.test_fitting import TRAIN, VAL, make_split

SHORT = FitBudget(passes=4, batch_size=8)


def choose(rates, train=TRAIN, val=VAL):
    return choose_learning_rate("dlinear", train, val, rates=rates, budget=SHORT)


def test_the_rate_with_the_least_validation_loss_is_chosen(caplog):
    rates = (1e-5, 3e-3, 1e30)
    with caplog.at_level(logging.INFO, logger="compevo_core.networks.tuning"):
        assert choose(rates) == 3e-3
    assert len(caplog.records) == len(rates)

    losses = [
        NetworkBaseline.fit(
            "dlinear", TRAIN, VAL, learning_rate=rate, budget=SHORT
        ).report.validation_loss
        for rate in rates[:2]
    ]
    assert losses[1] < losses[0]


def test_a_network_that_diverges_with_every_rate_and_a_later_split_are_refused():
    with pytest.raises(NonFiniteLoss, match="dlinear diverges with every learning rate"):
        choose((1e30, 1e31))
    with pytest.raises(LeakageError):
        choose((1e-3,), val=make_split(4, "test", first=60))
