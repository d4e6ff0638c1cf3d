"""Every epoch has an order of its own."""

from compevo_core.training.sampler import DaySampler
from tests.support.population import windows


def test_two_epochs_visit_the_days_in_different_orders() -> None:
    sampler = DaySampler(windows("train", 9), 2, seed=1)
    rounds = sampler.rounds_per_epoch
    first, second = (
        [sampler.indices(epoch * rounds + r) for r in range(rounds)] for epoch in range(2)
    )
    assert first != second
    assert sorted(map(sorted, first)) == sorted(map(sorted, second))
