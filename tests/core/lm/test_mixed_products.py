"""How far products with the frozen layers in bfloat16 (``backbone.dtype = "mixed"``) move a round.

Compared with float32 on the packaged backbone with adapters away from their start: forecasts, the
order of the rewards, log-probabilities of sampled logics, and the direction of both gradients.
"""

import pytest
import torch

from benchmarks.world import World, configuration
from compevo_core.agents.logic_writer import Observation, Proposal, seed_agent_generators
from compevo_core.lm.adapter_routing import FORECAST, LOGIC

AGENTS, SAMPLES, TOKENS = 2, 4, 8


class Seen:
    """A population's forecasts, log-probabilities of sampled logics and gradients, in one type."""

    def __init__(self, dtype: str, sampled: Proposal | None = None) -> None:
        sizes = {"grpo.group_size": SAMPLES, "evolution.max_new_tokens": TOKENS}
        world = World(configuration(AGENTS, quick=False, dtype=dtype).with_overrides(sizes), 1)
        player, self.task = world.start_over(), world.tasks[0][0]
        population = world.learner.population
        self.weight_types = {layer.base.weight.dtype for layer in population.layers.values()}
        value_ABH = player.executor.forecast(world.logics, [self.task], train=True).values_ABH
        (
            value_ABH - torch.tensor(self.task.truth_H, dtype=torch.float32)
        ).square().mean().backward()
        self.forecasts = value_ABH.detach()[:, 0]
        groups = [
            [*world.logics, "Read about heat, storms and outages.", "Ignore the news."]
            for _ in range(AGENTS)
        ]
        self.group_AGH = player.executor.forecast_groups(groups, [self.task]).values_AGBH[:, :, 0]
        self.proposal = sampled or player.writer.propose(
            Observation(world.logics, [-0.5, -0.6], [[1], [0]]),
            player.writer.encode_logics(world.logics),
            seed_agent_generators(0, range(AGENTS), torch.device("cpu")),
        )
        assert self.proposal.soft_prompt_AD is not None
        logp_AGT = player.writer.logp(
            self.proposal, slice(None), self.proposal.soft_prompt_AD.detach()
        )
        (logp_AGT.mean(2) * torch.tensor([1.2, -0.4, 0.3, -1.1])).sum().backward()
        self.logp = logp_AGT.detach()
        self.gradient = {
            kind: [
                torch.cat(
                    [
                        p.grad[agent].flatten()
                        for p in population.adapter_parameters(kind)
                        if p.grad is not None
                    ]
                ).double()
                for agent in range(AGENTS)
            ]
            for kind in (FORECAST, LOGIC)
        }


@pytest.fixture(scope="module")
def both() -> tuple[Seen, Seen]:
    exact = Seen("float32")
    return exact, Seen("mixed", exact.proposal)


def test_only_the_frozen_layers_under_adapters_are_bfloat16(both: tuple[Seen, Seen]) -> None:
    exact, mixed = both
    assert exact.weight_types == {torch.float32}
    assert mixed.weight_types == {torch.bfloat16}
    assert not torch.equal(exact.forecasts, mixed.forecasts)


def test_forecasts_move_by_less_than_two_percent_of_the_correction_to_the_prior(
    both: tuple[Seen, Seen],
) -> None:
    exact, mixed = both
    correction = exact.forecasts - torch.tensor(exact.task.base_H, dtype=torch.float32)
    assert float((mixed.forecasts - exact.forecasts).norm()) < 0.02 * float(correction.norm())


def test_the_logics_of_a_group_keep_their_order(both: tuple[Seen, Seen]) -> None:
    truth = torch.tensor(both[0].task.truth_H, dtype=torch.float32)
    exact, mixed = ((seen.group_AGH - truth).square().mean(-1) for seen in both)
    assert torch.equal(exact.argsort(1), mixed.argsort(1))


def test_log_probabilities_move_by_a_few_hundredths_without_leaning_to_one_side(
    both: tuple[Seen, Seen],
) -> None:
    moved = both[1].logp - both[0].logp
    assert float(moved.abs().mean()) < 0.03
    assert abs(float(moved.mean())) < 0.01


@pytest.mark.parametrize("kind", [FORECAST, LOGIC])
def test_every_agents_gradient_keeps_its_direction_and_size(
    both: tuple[Seen, Seen], kind: str
) -> None:
    for exact, mixed in zip(both[0].gradient[kind], both[1].gradient[kind], strict=True):
        assert float(torch.nn.functional.cosine_similarity(exact, mixed, dim=0)) > 0.998
        assert float(mixed.norm() / exact.norm()) == pytest.approx(1.0, abs=0.01)
