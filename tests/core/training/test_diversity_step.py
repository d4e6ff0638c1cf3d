"""The diversity term acts on what agents think before they exchange it (decision 12)."""

import pytest

from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.objective import diversity_loss
from tests.support.rounds import build_round_trainer, run_step


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
