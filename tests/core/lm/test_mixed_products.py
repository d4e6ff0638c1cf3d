"""How far products with the frozen layers in bfloat16 (``backbone.dtype = "mixed"``) move a round.

Compared with float32 on the packaged backbone with adapters away from their start: forecasts, the
order of the rewards, log-probabilities of sampled logics, and the direction of both gradients.
"""

import pytest
import torch

from benchmarks.world import World, build_config
from compevo_core.agents.logic_writer import Proposal, seed_agent_generators
from compevo_core.agents.observation import Observation
from compevo_core.lm.adapter_routing import FORECAST, LOGIC

AGENTS, SAMPLES, TOKENS = 2, 4, 8


class Measured:
    """A population's forecasts, log-probabilities of sampled logics and gradients, in one type."""

    def __init__(self, dtype: str, sampled: Proposal | None = None) -> None:
        sizes = {"grpo.group_size": SAMPLES, "evolution.max_new_tokens": TOKENS}
        config = build_config(AGENTS, quick=False, dtype=dtype).with_overrides(sizes)
        world = World(config, 1)
        trainer = world.build_trainer(rewrites=True)
        self.example = world.days[0][0]
        self.base_AH = trainer.executor.base_forecasts([self.example])[:, 0]
        self.population = world.model.population

        value_ABH = trainer.executor.forecast(world.logics, [self.example], train=True).values_ABH
        truth_H = torch.tensor(self.example.truth_H, dtype=torch.float32)
        (value_ABH - truth_H).square().mean().backward()
        self.forecast_AH = value_ABH.detach()[:, 0]

        others = ["Read about heat, storms and outages.", "Ignore the news."]
        groups = [[*world.logics, *others] for _ in range(AGENTS)]
        grouped = trainer.executor.forecast_groups(groups, [self.example])
        self.group_AGH = grouped.values_AGBH[:, :, 0]

        self.proposal = sampled or trainer.writer.propose(
            Observation(world.logics, [-0.5, -0.6], [[1], [0]]),
            trainer.writer.encode_logics(world.logics),
            seed_agent_generators(0, range(AGENTS), torch.device("cpu")),
        )
        assert self.proposal.soft_prompt_AD is not None
        soft_prompt_AD = self.proposal.soft_prompt_AD.detach()
        logp_AGT = trainer.writer.logp(self.proposal, slice(None), soft_prompt_AD)
        (logp_AGT.mean(2) * torch.tensor([1.2, -0.4, 0.3, -1.1])).sum().backward()
        self.logp_AGT = logp_AGT.detach()

    def weight_types(self) -> set[torch.dtype]:
        return {layer.base.weight.dtype for layer in self.population.layers.values()}

    def gradients(self, kind: str) -> list[torch.Tensor]:
        """Gradient of each agent's adapters of one kind, as one vector."""
        parameters = self.population.adapter_parameters(kind)
        return [
            torch.cat([p.grad[agent].flatten() for p in parameters if p.grad is not None]).double()
            for agent in range(AGENTS)
        ]


@pytest.fixture(scope="module")
def both() -> tuple[Measured, Measured]:
    exact = Measured("float32")
    return exact, Measured("mixed", exact.proposal)


def test_only_the_frozen_layers_under_adapters_are_bfloat16(
    both: tuple[Measured, Measured],
) -> None:
    exact, mixed = both
    assert exact.weight_types() == {torch.float32}
    assert mixed.weight_types() == {torch.bfloat16}
    assert not torch.equal(exact.forecast_AH, mixed.forecast_AH)


def test_forecasts_move_by_less_than_a_tenth_of_the_correction_to_the_prior(
    both: tuple[Measured, Measured],
) -> None:
    exact, mixed = both
    correction = exact.forecast_AH - exact.base_AH
    assert float((mixed.forecast_AH - exact.forecast_AH).norm()) < 0.1 * float(correction.norm())


def test_the_logics_of_a_group_keep_their_order(both: tuple[Measured, Measured]) -> None:
    truth = torch.tensor(both[0].example.truth_H, dtype=torch.float32)
    exact, mixed = ((measured.group_AGH - truth).square().mean(-1) for measured in both)
    assert torch.equal(exact.argsort(1), mixed.argsort(1))


def test_log_probabilities_move_by_a_few_hundredths_without_leaning_to_one_side(
    both: tuple[Measured, Measured],
) -> None:
    moved = both[1].logp_AGT - both[0].logp_AGT
    assert float(moved.abs().mean()) < 0.03
    assert abs(float(moved.mean())) < 0.01


@pytest.mark.parametrize("kind", [FORECAST, LOGIC])
def test_every_agents_gradient_keeps_its_direction_and_size(
    both: tuple[Measured, Measured], kind: str
) -> None:
    for exact, mixed in zip(both[0].gradients(kind), both[1].gradients(kind), strict=True):
        assert float(torch.nn.functional.cosine_similarity(exact, mixed, dim=0)) > 0.998
        assert float(mixed.norm() / exact.norm()) == pytest.approx(1.0, abs=0.02)
