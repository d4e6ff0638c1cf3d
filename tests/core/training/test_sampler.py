"""Batches: whole days, every window once an epoch, a pure function of seed and round."""

from compevo_core.training.sampler import DaySampler
from tests.support.population import windows


def test_every_window_comes_once_an_epoch_and_none_is_dropped() -> None:
    data = windows("train", 7)
    sampler = DaySampler(data, 4, seed=3)
    assert sampler.rounds_per_epoch == 4
    for epoch in range(3):
        drawn = [i for r in range(4) for i in sampler.indices(4 * epoch + r)]
        assert sorted(drawn) == list(range(14))


def test_the_windows_of_a_day_stay_together() -> None:
    data = windows("train", 6)
    for round_number in range(6):
        batch = DaySampler(data, 2, seed=0).indices(round_number)
        assert len({data[i].view.origin_utc for i in batch}) == 1


def test_a_round_is_the_same_whatever_was_asked_before() -> None:
    data = windows("train", 9)
    one, other = DaySampler(data, 3, seed=1), DaySampler(data, 3, seed=1)
    expected = [one.indices(r) for r in range(12)]
    assert [other.indices(r) for r in reversed(range(12))] == expected[::-1]
    assert [DaySampler(data, 3, seed=2).indices(r) for r in range(12)] != expected
