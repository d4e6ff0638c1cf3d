"""Clipping, the conflict of gradients, the diversity term of an update."""

import pytest
import torch

from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.objective import diversity_loss
from compevo_core.errors import NonFiniteLoss
from compevo_core.training.diagnostics import gradient_conflict
from compevo_core.training.update import Gradients
from tests.support.models import build_model
from tests.support.population import tiny
from tests.support.rounds import build_round_trainer, run_step


@pytest.fixture
def model():
    return build_model(tiny())


def fill(parameters, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def test_clipping_is_torchs(model):
    groups = [model.forecast_parameters(), model.policy_parameters()]
    for limit in (1.0, 1e9, 0.0):
        for group in groups:
            fill(group)
        theirs = [torch.nn.utils.clip_grad_norm_(group, limit or float("inf")) for group in groups]
        expected = [p.grad.clone() for group in groups for p in group]
        for group in groups:
            fill(group)
        norm = Gradients(model).clip(groups, limit, 0)
        assert norm == pytest.approx(float(torch.stack(theirs).norm()), rel=1e-5)
        for parameter, wanted in zip([p for group in groups for p in group], expected, strict=True):
            assert torch.allclose(parameter.grad, wanted, rtol=1e-5, atol=1e-8)


def test_a_gradient_that_is_not_finite_is_traced_to_its_agent(model):
    group = model.forecast_parameters()
    fill(group)
    group[0].grad[1, 0, 0] = float("inf")
    with pytest.raises(
        NonFiniteLoss, match=r"the gradient is not finite in round 7 for agent\(s\) \[1\]"
    ):
        Gradients(model).clip([group], 1.0, 7)
    fill(group)
    model.selection.gates_A.grad[0] = float("nan")
    with pytest.raises(
        NonFiniteLoss, match="gates and fusion is not finite in round 7 for the population; nothing"
    ):
        Gradients(model).clip([group], 1.0, 7)


def test_the_conflict_counts_every_agent_and_what_they_share_once(model):
    policy = model.policy_parameters()
    fill(policy)
    strategy = [None if n % 3 == 0 else 0.5 * p.grad.roll(1, 0) for n, p in enumerate(policy)]
    regular = [
        torch.zeros_like(p) if s is None else s for p, s in zip(policy, strategy, strict=True)
    ]
    main = torch.cat([(p.grad - r).flatten() for p, r in zip(policy, regular, strict=True)])
    strategic = torch.cat([r.flatten() for r in regular])
    expected = gradient_conflict(
        float(main.norm()), float(strategic.norm()), float(main @ strategic)
    )
    found = Gradients(model).conflict(policy, strategy)
    assert found.cosine == pytest.approx(expected.cosine, rel=1e-4)
    assert found.margin == pytest.approx(expected.margin, rel=1e-4)


def test_diversity_pulls_the_candidates_apart_and_leaves_the_fusion_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, state, examples = build_round_trainer(
        objective__lambda_pg=0.0, objective__lambda_div=1.0, objective__lambda_prune=0.0
    )
    proposals: list[Proposal] = []
    propose = LogicWriter.propose

    def keep(*arguments: object) -> Proposal:
        proposals.append(propose(*arguments))
        return proposals[-1]

    monkeypatch.setattr(LogicWriter, "propose", keep)
    monkeypatch.setattr(trainer.update, "_take_step", lambda *_: 0.0)
    record = run_step(trainer, state, examples)

    assert record.loss_div == pytest.approx(float(diversity_loss(proposals[0].candidate_AD)))
    fusion = [p.grad for p in trainer.model.fusion_parameters() if p.grad is not None]
    assert all(float(gradient.abs().max()) == 0.0 for gradient in fusion)
    adapters = [p.grad for p in trainer.model.policy_adapter_parameters()]
    assert any(float(gradient.abs().max()) > 0.0 for gradient in adapters)
