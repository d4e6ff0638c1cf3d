"""Products with frozen weights: equal to torch's, in every type and shape, and in bfloat16."""

import pytest
import torch

from compevo_core.lora import backbone as module
from compevo_core.lora.backbone import TokenLogp, frozen_linear


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def kernel(request, monkeypatch):
    """Each kernel in turn, whichever this processor would use."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(module, "_USES_ONEDNN", request.param)


def _drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (2, 70, 48), (0, 48)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_frozen_product_matches_torch(shape, with_bias):
    x, weight = _drawn(*shape).requires_grad_(), _drawn(32, 48)
    bias = _drawn(32) if with_bias else None
    found, expected = frozen_linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = _drawn(*expected.shape)
    mine, theirs = (torch.autograd.grad(out, x, upstream)[0] for out in (found, expected))
    assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("widens", [True, False], ids=["float32", "bfloat16"])
def test_a_bfloat16_weight_answers_in_the_inputs_type(widens, monkeypatch):
    monkeypatch.setattr(module, "WIDENS_BFLOAT16", widens)
    x, weight, bias = _drawn(4, 48).requires_grad_(), _drawn(32, 48).bfloat16(), _drawn(32)
    out = frozen_linear(x, weight, bias)
    assert out.dtype == torch.float32
    expected = torch.nn.functional.linear(x.bfloat16(), weight, bias.bfloat16()).float()
    # One rounding of the sum at most: terms may be added in another order.
    assert torch.allclose(out, expected, rtol=2**-7, atol=0)
    assert torch.equal(out, out.bfloat16().float())
    out.sum().backward()

    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tokens", [0, 64, 150])
def test_token_log_probabilities_are_a_log_softmax(tokens, temperature, cap):
    states, weight, bias = _drawn(tokens, 16).requires_grad_(), _drawn(90, 16), _drawn(90)
    ids = torch.randint(0, 90, (tokens,), generator=torch.Generator().manual_seed(0))
    scores = states @ weight.t() + bias
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    expected = torch.log_softmax(scores / temperature, -1).gather(1, ids[:, None]).squeeze(1)
    found = TokenLogp.apply(states, ids, weight, bias, temperature, cap)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = _drawn(tokens)
    mine, theirs = (torch.autograd.grad(out, states, upstream)[0] for out in (found, expected))

    assert torch.allclose(mine, theirs, atol=1e-5)
