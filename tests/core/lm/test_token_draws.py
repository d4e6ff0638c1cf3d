"""The edges of a draw: numbers that a generator gives once in a very long while."""

import pytest
import torch

from compevo_core.lm.decode import draw_uniform, invert_distribution


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.5, 3), (1.0 - 2.0**-53, 3)])
def test_a_token_without_probability_is_not_drawn_at_the_edges_of_the_unit_interval(
    uniform: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probabilities = torch.tensor([[[0.0, 0.5, 0.0, 0.5, 0.0]]])
    is_alive = torch.ones(1, 1, dtype=torch.bool)
    monkeypatch.setattr(
        torch, "rand", lambda shape, **_: torch.full(shape, uniform, dtype=torch.float64)
    )
    numbers = draw_uniform(is_alive, [torch.Generator()])
    assert invert_distribution(probabilities, numbers).item() == token
