"""The regularising terms and the weighted sum by hand, and what stops an update."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from compevo_core.agents import objective
from compevo_core.config.sections import MemberConfig, ObjectiveConfig
from compevo_core.lora.backbone import TokenLogp
from tests.support.population import tiny, windows
from tests.support.tiny_backbone import build_backbone


def test_diversity_sums_the_cosines_of_all_pairs():
    states = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert objective.diversity_loss(states).item() == pytest.approx(0.0 - 1.0 + 0.0)
    assert objective.diversity_loss(torch.ones(4, 2)).item() == pytest.approx(6.0)


def test_the_total_is_the_weighted_sum_of_terms():
    config = ObjectiveConfig(lambda_own=2.0, lambda_pg=0.5, lambda_div=0.1, lambda_prune=0.01)
    terms = dict(zip(("pred", "own", "pg", "div", "prune"), (1.0, 5.0, 2.0, 3.0, 4.0), strict=True))
    total = objective.joint_loss({f"loss_{name}": value for name, value in terms.items()}, config)
    assert total == pytest.approx(1.0 + 10.0 + 1.0 + 0.3 + 0.04)


TRUTH_BH = torch.tensor([[0.0, float("nan"), 1.0], [2.0, 2.0, 2.0]])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", [(1 + 9) / 2, (0 + 0.25 + 4) / 3]),
        # Half the square up to an error of 1, and linear beyond it.
        ("huber", [(0.5 + 2.5) / 2, (0 + 0.125 + 1.5) / 3]),
    ],
)
def test_the_prediction_loss_covers_known_steps(loss, expected):
    forecast_BH = torch.tensor([[1.0, 7.0, 4.0], [2.0, 2.5, 0.0]], requires_grad=True)
    loss_B = objective.prediction_loss(forecast_BH, TRUTH_BH, ObjectiveConfig(loss=loss))
    assert loss_B.tolist() == pytest.approx(expected)
    loss_B.sum().backward()
    assert forecast_BH.grad[0, 1] == 0.0
    assert forecast_BH.grad.isfinite().all()


def test_window_shares_depend_on_window_agent_and_seeds():
    views = windows("train", 200).views()
    member = MemberConfig(window_share=0.3)

    def counted(member=member, views=views, seed=0, agent=0):
        return objective.draw_own_windows([member] * 2, views, seed)[agent].tolist()

    drawn = counted()
    assert all(counted(member=MemberConfig()))
    assert 0.2 < np.mean(drawn) < 0.4
    assert counted(views=views[::-1]) == drawn[::-1]
    assert counted(agent=1) != drawn
    assert counted(seed=1) != drawn
    assert counted(member=MemberConfig(window_share=0.3, seed=1)) != drawn


@given(
    st.floats(-1e3, 1e3, width=32),
    st.integers(2, 9),
    st.lists(st.floats(-5, 5, width=32), min_size=9, max_size=9),
)
@example(0.1, 3, [0.0] * 9)
@example(-0.0689, 7, [1.0] * 9)
def test_a_group_of_equal_rewards_gives_exactly_zero(value, size, other):
    advantage, equal = objective.group_advantages(torch.tensor([[value] * size, other[:size]]))
    assert advantage[0].tolist() == [0.0] * size
    assert equal == 1 + (len(set(other[:size])) == 1)


@pytest.fixture(scope="module", params=[1.0, 0.7])
def trl(request, tmp_path_factory):
    """TRL's trainer on the tiny backbone at one temperature; only its functions are used."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    backbone = build_backbone()
    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        # The classic objective, which the core uses, too.
        loss_type="grpo",
        epsilon=tiny().grpo.clip_range,
        use_bias_correction_kl=False,
        num_generations=4,
        per_device_train_batch_size=4,
        temperature=request.param,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        backbone.model.requires_grad_(True),
        args=arguments,
        processing_class=backbone.tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a"]}),
    )
    # Tied to the vocabulary, which is frozen here.
    trainer.model.get_input_embeddings().requires_grad_(False)
    # Given in the arguments, it would load a second model as the reference.
    trainer.beta = 0.04
    return trainer


def test_advantages_follow_trl_with_a_scaled_floor():
    from trl.trainer.utils import nanstd

    rewards = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    floor = 1e-4 * rewards.abs().mean(1, keepdim=True)
    theirs = (rewards - rewards.mean(1, keepdim=True)) / (nanstd(rewards, dim=1)[:, None] + floor)
    assert torch.allclose(objective.group_advantages(rewards)[0], theirs, atol=1e-6)


def test_an_empty_sample_earns_nothing():
    rewards = torch.tensor([[9.0, -1, -2, -3], [9, -1, -1, 9], [1, 2, 3, 4], [1, 2, 3, 4]])
    is_empty = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    advantage, equal = objective.group_advantages(rewards, is_empty)
    alone, _ = objective.group_advantages(rewards[:1, 1:])
    assert advantage[0, 0] == 0.0
    assert torch.allclose(advantage[0, 1:], alone[0])
    # Two equal samples, a single one, or none have nothing to be compared with.
    assert not advantage[1:].any()
    assert equal == 3


def test_loss_and_gradient_equal_those_of_trl(trl):
    model, temperature = trl.model, trl.temperature
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(3, 200, (1, 5), generator=generator).repeat(4, 1)
    completion = torch.randint(3, 200, (4, 6), generator=generator)
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[1, 4:] = 0
    ids = torch.cat([prompt, completion], 1)

    with torch.no_grad():
        our_logp = _logp(model, ids, completion, temperature)
        their_logp = trl._get_per_token_logps_and_entropies(model, ids, torch.ones_like(ids), 6)[0]
    assert torch.allclose(our_logp, their_logp, atol=1e-5)

    # Old policy and reference are moved away, so that clip and KL have something to do.
    old, ref = (our_logp + 0.3 * torch.randn(our_logp.shape, generator=generator) for _ in range(2))
    advantage, _ = objective.group_advantages(torch.tensor([[-1.0, -0.2, -3.0, -0.4]]))
    batch = {"prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt)}
    batch |= {"completion_ids": completion, "completion_mask": mask, "advantages": advantage[0]}
    batch |= {"old_per_token_logps": old, "ref_per_token_logps": ref}
    theirs = trl._compute_loss(model, batch | {"num_items_in_batch": mask.sum()})
    parameters = [p for p in model.parameters() if p.requires_grad]
    their_gradient = torch.autograd.grad(theirs, parameters)

    logp = _logp(model, ids, completion, temperature)
    logps = (logp[None], old[None], ref[None])
    settings = {"clip_range": 0.2, "kl_coefficient": 0.04}
    ours = objective.policy_loss(*logps, advantage, mask[None].float(), **settings)
    our_gradient = torch.autograd.grad(ours.loss, parameters)

    assert ours.clip_fraction > 0
    assert ours.loss.item() == pytest.approx(theirs.item(), abs=1e-5)
    assert max(float(g.abs().max()) for g in their_gradient) > 1e-3
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-5)


def _logp(model, ids, completion, temperature):
    states = model.model(ids).last_hidden_state[:, 4:-1]
    return TokenLogp.apply(
        states.flatten(0, 1), completion.flatten(), model.lm_head.weight, None, temperature
    ).reshape(completion.shape)
