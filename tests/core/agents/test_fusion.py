"""Opponent context, the two gates at their limits, and the soft prompt."""

import pytest
import torch

from compevo_core.agents.fusion import StrategyFusion

D = 6


def _fusion(agents=3):
    return StrategyFusion(agents, torch.linspace(-1, 1, D), torch.Generator().manual_seed(0))


def _states():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, D, generator=generator), torch.randn(3, D, generator=generator)


def test_the_fused_state_follows_equations_9_to_13():
    fusion, (candidate, previous) = _fusion(), _states()
    fusion.scores_AA.data.normal_(generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        fused = fusion(candidate, previous)
        scores = fusion.scores_AA

        for i in range(3):
            peers = [j for j in range(3) if j != i]
            alpha = torch.exp(scores[i, peers]) / torch.exp(scores[i, peers]).sum()
            context = sum(a * previous[j] for a, j in zip(alpha, peers, strict=True))

            g2 = torch.sigmoid(fusion.gate2(torch.cat([previous[i], context])))
            informed = (1 - g2) * previous[i] + g2 * context
            g3 = torch.sigmoid(fusion.gate3(torch.cat([informed, candidate[i]])))
            assert torch.allclose(fused[i], (1 - g3) * informed + g3 * candidate[i], atol=1e-6)

    # A lone agent has no opponent context.
    assert _fusion(1).interaction_weights().tolist() == [[0.0]]


def test_the_previous_round_carries_no_gradient():
    fusion, (candidate, previous) = _fusion(), _states()
    candidate.requires_grad_()
    previous.requires_grad_()
    fusion.soft_prompt(fusion(candidate, previous)).sum().backward()
    assert previous.grad is None
    assert candidate.grad is not None
    assert fusion.scores_AA.grad is not None


@pytest.mark.parametrize("hidden", [32, 128, 576, 2048])
def test_a_fresh_soft_prompt_is_near_neutral(hidden):
    generator = torch.Generator().manual_seed(1)
    neutral_D = 0.02 * torch.randn(hidden, generator=generator)
    fusion = StrategyFusion(3, neutral_D, torch.Generator().manual_seed(0))

    prompts = fusion.soft_prompt(torch.randn(8, hidden, generator=generator)).detach()

    departure = (prompts - neutral_D).norm(dim=1) / neutral_D.norm()
    assert departure.mean().item() == pytest.approx(0.1, rel=0.1)
    assert departure.min() > 0.07 and departure.max() < 0.13

    # In bfloat16 too they differ from neutral and from each other.
    rounded = prompts.bfloat16()
    assert (rounded == neutral_D.bfloat16()).float().mean() < 0.2
    assert (rounded[0] == rounded[1]).float().mean() < 0.2
