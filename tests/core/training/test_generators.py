"""Streams of random numbers are apart from each other and the same in a run that is repeated."""

import torch

from compevo_core.training.generators import RunGenerators, seed_dropout

CPU = torch.device("cpu")


def draw_dropout(seed: int, rank: int, round_number: int) -> list[float]:
    seed_dropout(seed, rank, round_number)
    return torch.rand(4).tolist()


def test_processes_and_rounds_drop_different_units_and_a_repeated_round_the_same() -> None:
    assert draw_dropout(0, 1, 5) == draw_dropout(0, 1, 5)
    others = [draw_dropout(1, 1, 5), draw_dropout(0, 0, 5), draw_dropout(0, 1, 6)]
    assert draw_dropout(0, 1, 5) not in others


def test_agents_sample_from_streams_of_their_own_whichever_process_holds_them() -> None:
    def draws(agents: range) -> list[list[float]]:
        streams = RunGenerators.from_seed(7, agents, CPU).agents
        return [torch.rand(4, generator=generator).tolist() for generator in streams]

    together = draws(range(3))
    assert len({tuple(stream) for stream in together}) == 3
    assert draws(range(1, 3)) == together[1:]
