"""The update of a round: the weights of its terms, clipping, the schedule, and what stops it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from compevo_core.agents.grpo import PolicyLoss
from compevo_core.agents.logic_writer import LogicWriter
from compevo_core.diagnostics.regret import RegretTracker
from compevo_core.errors import NonFiniteLoss
from compevo_core.lm.adapter_routing import LOGIC
from compevo_core.training import policy_step
from compevo_core.training.round_record import RoundResult
from compevo_core.training.schedule import set_learning_rates
from tests.support.rounds import build_round_trainer, run_step


def _collect_gradients(pg: float, div: float, prune: float) -> dict[str, torch.Tensor]:
    """Every gradient just before the step, by group and position."""
    trainer, state, examples = build_round_trainer(
        objective__lambda_pg=pg, objective__lambda_div=div, objective__lambda_prune=prune
    )
    gradients: dict[str, torch.Tensor] = {}

    def copy_gradients(groups: list[dict[str, list[torch.nn.Parameter]]], _: int) -> float:
        for number, group in enumerate(groups):
            for i, p in enumerate(group["params"]):
                gradient = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                gradients[f"{number}.{i}"] = gradient
        return 0.0

    trainer.update._take_step = copy_gradients
    run_step(trainer, state, examples)
    return gradients


def test_the_gradient_of_a_round_is_the_sum_of_four_terms_with_their_weights() -> None:
    pred = _collect_gradients(0.0, 0.0, 0.0)
    with_pg = _collect_gradients(1.0, 0.0, 0.0)
    with_div = _collect_gradients(0.0, 1.0, 0.0)
    with_prune = _collect_gradients(0.0, 0.0, 1.0)
    together = _collect_gradients(0.5, 0.1, 0.01)

    moved = dict.fromkeys(("pred", "pg", "div", "prune"), 0.0)
    for name, base in pred.items():
        pg, div, prune = (other[name] - base for other in (with_pg, with_div, with_prune))
        expected = base + 0.5 * pg + 0.1 * div + 0.01 * prune
        scale = max(float(expected.abs().max()), 1e-3)
        assert torch.allclose(together[name], expected, atol=2e-4 * scale), name
        for key, part in zip(moved, (base, pg, div, prune), strict=True):
            moved[key] += float(part.abs().sum())
    assert min(moved.values()) > 0


def test_the_pruning_term_pulls_every_gate_towards_zero_by_its_weight() -> None:
    without, pruned = _collect_gradients(0.5, 0.1, 0.0), _collect_gradients(0.5, 0.1, 0.01)
    (gates,) = [
        name for name, value in without.items() if name.startswith("0.") and value.shape == (3,)
    ]
    assert torch.allclose(pruned[gates] - without[gates], torch.full((3,), 0.01), atol=1e-7)


def _run_policy_updates(
    clip: float, iterations: int
) -> tuple[list[torch.Tensor], RoundResult, list[float]]:
    """Run a round of large policy steps.

    Returns logic adapters after it, its record, and the widest ratio of every update.
    """
    trainer, state, examples = build_round_trainer(
        grpo__clip_range=clip,
        grpo__iterations=iterations,
        optim__policy_lr=0.05,
        optim__warmup_ratio=0.0,
        grpo__kl_coefficient=0.0,
        objective__lambda_div=0.0,
        optim__max_grad_norm=0.0,
    )
    widest: list[float] = []
    original = policy_step.policy_loss

    def measure_ratio(
        logp: torch.Tensor, old: torch.Tensor, *rest: torch.Tensor, **options: float
    ) -> PolicyLoss:
        mask = rest[-1].bool()
        widest.append(float(((logp.detach() - old).exp() - 1.0)[mask].abs().max()))
        return original(logp, old, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_step, "policy_loss", measure_ratio)
        record = run_step(trainer, state, examples)
    return (
        [p.detach().clone() for p in trainer.model.population.adapter_parameters(LOGIC)],
        record,
        widest,
    )


def _are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_with_one_update_a_group_the_ratio_is_one_and_the_clip_range_changes_nothing() -> None:
    narrow, record, widest = _run_policy_updates(0.2, 1)
    assert widest == [0.0] * 3
    assert record.clip_fraction == 0.0
    assert record.equal_groups == 0
    assert _are_equal(narrow, _run_policy_updates(0.01, 1)[0])


def test_at_the_second_update_the_ratio_has_moved_and_the_clip_binds() -> None:
    narrow, record, widest = _run_policy_updates(0.2, 2)
    assert widest[:3] == [0.0] * 3
    assert max(widest[3:]) > 0.2
    assert record.clip_fraction > 0.0
    wide, unclipped, _ = _run_policy_updates(1.0, 2)
    assert unclipped.clip_fraction < record.clip_fraction
    assert not _are_equal(narrow, wide)
    assert not _are_equal(narrow, _run_policy_updates(0.2, 1)[0])


@pytest.mark.parametrize(
    ("number", "factor"),
    [
        (0, 1 / 3),
        (1, 2 / 3),
        (2, 1.0),
        (3, 1.0),
        (27, 0.5 * (1 + np.cos(np.pi * 24 / 97))),
        (51, 0.5 * (1 + np.cos(np.pi * 48 / 97))),
        (99, 0.5 * (1 + np.cos(np.pi * 96 / 97))),
    ],
)
def test_both_rates_rise_over_three_percent_of_the_rounds_and_fall_along_a_cosine(
    number: int, factor: float
) -> None:
    trainer, _, _ = build_round_trainer(rounds=100, optim__forecast_lr=1e-4, optim__policy_lr=1e-6)
    assert type(trainer.optimizer) is torch.optim.AdamW
    set_learning_rates(trainer.optimizer, trainer.config.optim, number, 100)
    assert [g["lr"] for g in trainer.optimizer.param_groups] == pytest.approx(
        [1e-4 * factor, 1e-6 * factor]
    )


def test_a_round_trains_at_the_rate_of_its_number() -> None:
    trainer, state, examples = build_round_trainer(
        rounds=100, optim__forecast_lr=1e-4, optim__policy_lr=1e-6
    )
    state.round = 1
    run_step(trainer, state, examples)
    assert [g["lr"] for g in trainer.optimizer.param_groups] == pytest.approx(
        [1e-4 * 2 / 3, 1e-6 * 2 / 3]
    )


def _spoil_logp(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def logp(
        self: LogicWriter, proposal: object, agents: slice, soft: torch.Tensor | None
    ) -> torch.Tensor:
        values = original(self, proposal, agents, soft)
        return values * float("nan") if agents.start == 2 else values

    return logp


def _spoil_encode(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def encode(self: LogicWriter, rows: object) -> torch.Tensor:
        return original(self, rows).index_fill(0, torch.tensor([1]), float("inf"))

    return encode


@pytest.mark.parametrize(
    ("method", "spoil", "message"),
    [
        ("logp", _spoil_logp, r"L_pg .* round 0 for agent\(s\) \[2\]"),
        ("encode", _spoil_encode, r"L_div .* round 0 for agent\(s\) \[1\]"),
    ],
)
def test_a_non_finite_policy_or_diversity_term_names_its_agent_and_moves_nothing(
    method: str,
    spoil: Callable[..., Callable[..., torch.Tensor]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, state, examples = build_round_trainer(evolution__update="simplified")
    before = {name: value.clone() for name, value in trainer.model.tensors().items()}
    monkeypatch.setattr(LogicWriter, method, spoil(getattr(LogicWriter, method)))
    with pytest.raises(NonFiniteLoss, match=message):
        run_step(trainer, state, examples)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.tensors().items())
    assert not trainer.optimizer.state
    assert state.round == 0
    assert state.regret == RegretTracker.start(3, trainer.config.run.fixed_logics)


def test_a_round_weighs_by_the_fitness_before_it_and_hands_on_fitness_rewards_states_and_logics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, state, examples = build_round_trainer(selection__ema=0.75, selection__temperature=0.5)
    selection = trainer.model.selection
    before = selection.population_fitness()
    proposals = []
    propose = LogicWriter.propose
    monkeypatch.setattr(
        LogicWriter, "propose", lambda *a: proposals.append(propose(*a)) or proposals[-1]
    )
    record = run_step(trainer, state, examples)
    rewards = torch.tensor(record.rewards)
    assert record.weights == pytest.approx(torch.softmax(before / 0.5, 0).tolist(), abs=1e-6)
    assert torch.allclose(selection.population_fitness(), 0.75 * before + 0.25 * rewards)
    assert state.rewards == record.rewards
    assert torch.equal(state.previous_AD, proposals[0].candidate_AD)
    assert not state.previous_AD.requires_grad
    best = [
        group[int(np.argmax(scores))]
        for group, scores in zip(record.group_logics, record.group_rewards, strict=True)
    ]
    assert state.logics == best
    assert state.logics != record.logics


def test_an_agent_sees_its_own_logic_and_reward_and_those_of_the_stated_number_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, state, examples = build_round_trainer(
        population__agents=4, population__exposed_peers=2
    )
    observations = []
    propose = LogicWriter.propose
    monkeypatch.setattr(
        LogicWriter,
        "propose",
        lambda self, o, *rest: observations.append(o) or propose(self, o, *rest),
    )
    logics = list(state.logics)
    record = run_step(trainer, state, examples)
    (observed,) = observations
    assert observed.logics == logics
    assert observed.rewards == record.rewards
    for agent, peers in enumerate(observed.peers):
        assert len(set(peers)) == 2
        assert agent not in peers
