"""Products with frozen weights: equal to torch's, in every type and shape, and in bfloat16."""

import pytest
import torch

from benchmarks.world import World, build_config
from compevo_core.agents.logic_writer import Observation, Proposal
from compevo_core.lm import frozen_linear as module
from compevo_core.lm.adapters import FORECAST, LOGIC
from compevo_core.lm.frozen_linear import (
    frozen_linear,
    is_onednn_faster,
    lacks_bfloat16,
    token_logp,
)
from compevo_core.training.schedule import seed_agent_generators


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel in turn, whichever this processor would use."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(module, "_USES_ONEDNN", request.param)


def test_amds_processors_multiply_by_onednn_and_others_as_torch_chooses() -> None:
    assert is_onednn_faster("processor\t: 0\nvendor_id\t: AuthenticAMD\n")
    assert not is_onednn_faster("processor\t: 0\nvendor_id\t: GenuineIntel\n")
    assert not is_onednn_faster("")


def test_a_processor_without_bfloat16_is_known_by_its_features() -> None:
    assert lacks_bfloat16("flags\t\t: fma avx2 avx512f\n")
    assert not lacks_bfloat16("flags\t\t: fma avx2 avx512_bf16\n")
    assert not lacks_bfloat16("flags\t\t: fma avx2 amx_bf16 amx_tile\n")
    assert not lacks_bfloat16("")


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (2, 70, 48), (0, 48)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_frozen_product_and_its_gradient_are_torchs_own(
    shape: tuple[int, ...], with_bias: bool
) -> None:
    x, weight, bias = (
        _drawn(*shape).requires_grad_(),
        _drawn(32, 48),
        _drawn(32) if with_bias else None,
    )
    found, expected = frozen_linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = _drawn(*expected.shape)
    mine, theirs = (torch.autograd.grad(out, x, upstream)[0] for out in (found, expected))
    assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("widens", [True, False], ids=["float32", "bfloat16"])
def test_a_bfloat16_weight_multiplies_in_bfloat16_and_answers_in_the_inputs_type(
    widens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WIDENS_BFLOAT16", widens)
    x, weight, bias = _drawn(4, 48).requires_grad_(), _drawn(32, 48).bfloat16(), _drawn(32)
    out = frozen_linear(x, weight, bias)
    assert out.dtype == torch.float32
    expected = torch.nn.functional.linear(x.bfloat16(), weight, bias.bfloat16()).float()
    # One rounding of the sum at most: terms may be added in another order.
    assert torch.allclose(out, expected, rtol=2**-7, atol=0)
    assert torch.equal(out, out.bfloat16().float())
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tokens", [0, 64, 150])
def test_token_log_probabilities_and_their_gradient_are_those_of_a_log_softmax_over_all_scores(
    tokens: int, temperature: float, cap: float | None
) -> None:
    states, weight, bias = _drawn(tokens, 16).requires_grad_(), _drawn(90, 16), _drawn(90)
    ids = torch.randint(0, 90, (tokens,), generator=torch.Generator().manual_seed(0))
    scores = states @ weight.t() + bias
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    expected = torch.log_softmax(scores / temperature, -1).gather(1, ids[:, None]).squeeze(1)
    found = token_logp(states, ids, weight, bias, temperature=temperature, cap=cap)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = _drawn(tokens)
    mine, theirs = (
        torch.autograd.grad(out, states, upstream, retain_graph=True)[0]
        for out in (found, expected)
    )
    assert torch.allclose(mine, theirs, atol=1e-5)


AGENTS, SAMPLES, TOKENS = 2, 4, 8


class Measured:
    """A population's forecasts, log-probabilities of sampled logics and gradients, in one type."""

    def __init__(self, dtype: str, sampled: Proposal | None = None) -> None:
        settings = {
            "grpo.enabled": True,
            "grpo.group_size": SAMPLES,
            "evolution.max_new_tokens": TOKENS,
            "evolution.update": "three-stage",
        }
        config = build_config(AGENTS, quick=False, dtype=dtype, settings=settings)
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


@pytest.mark.slow
def test_in_bfloat16_forecasts_logics_and_gradients_stay_close_to_those_in_float32() -> None:
    exact = Measured("float32")
    mixed = Measured("mixed", exact.proposal)
    assert exact.weight_types() == {torch.float32}
    assert mixed.weight_types() == {torch.bfloat16}  # of the frozen layers under adapters

    # Forecasts move by less than a tenth of the correction to the prior, but they do move.
    moved_AH = mixed.forecast_AH - exact.forecast_AH
    assert 0.0 < float(moved_AH.norm()) < 0.1 * float((exact.forecast_AH - exact.base_AH).norm())
    truth_H = torch.tensor(exact.example.truth_H, dtype=torch.float32)
    ranks = [(one.group_AGH - truth_H).square().mean(-1).argsort(1) for one in (exact, mixed)]
    assert torch.equal(*ranks)

    # Log-probabilities move by a few hundredths, without leaning to one side.
    shift_AGT = mixed.logp_AGT - exact.logp_AGT
    assert float(shift_AGT.abs().mean()) < 0.03
    assert abs(float(shift_AGT.mean())) < 0.01

    for kind in (FORECAST, LOGIC):
        for one, other in zip(exact.gradients(kind), mixed.gradients(kind), strict=True):
            assert float(torch.nn.functional.cosine_similarity(one, other, dim=0)) > 0.995
            assert float(other.norm() / one.norm()) == pytest.approx(1.0, abs=0.05)
