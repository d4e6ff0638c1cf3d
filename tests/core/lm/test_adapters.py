"""A backward pass uses the adapters of its forward pass, wherever it is called."""

import pytest
import torch

from compevo_core.lm import frozen_linear
from compevo_core.lm.adapters import FORECAST, LOGIC, AdapterRoute
from compevo_core.lm.packing import PromptGroup
from tests.support.tiny_backbone import build_population

PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
CONDITIONS = pytest.mark.parametrize(
    ("checkpointing", "dropout"), [(False, 0.0), (False, 0.4), (True, 0.0), (True, 0.4)]
)
ATTENTION = "scaled_dot_product_attention"
PRODUCTS = ((torch, "bmm"), (torch.nn.functional, ATTENTION))


def _packed(population, agents=slice(None)):
    return population.pack([[PromptGroup(prompt)] for prompt in PROMPTS[agents]])


def _loss(population, agents=slice(None)):
    torch.manual_seed(7)  # of the adapters' dropout
    return population.last_token_states(_packed(population, agents)).square().sum()


def _gradients(population):
    """Gradients of both kinds of adapters, forecast first."""
    return [
        parameter.grad
        for kind in (FORECAST, LOGIC)
        for parameter in population.adapter_parameters(kind)
    ]


def _assert_equal(found, expected):
    """Same adapters with a gradient, bit-equal, and not all zero."""
    assert [one is None for one in found] == [one is None for one in expected]
    pairs = [(one, other) for one, other in zip(found, expected, strict=True) if one is not None]
    assert all(torch.equal(one, other) for one, other in pairs)
    assert any(float(one.abs().max()) > 0 for one, _ in pairs)


def _note_types(multiply, seen):
    def note(*tensors, **options):
        seen.update((multiply.__name__, tensor.dtype) for tensor in tensors)
        return multiply(*tensors, **options)

    return note


def _backward_inside(*, checkpointing, dropout):
    population = build_population(checkpointing=checkpointing)
    with population.use_adapters(FORECAST, dropout=dropout):
        _loss(population).backward()
    return _gradients(population)


@pytest.mark.parametrize(
    "other",
    [
        AdapterRoute(),
        AdapterRoute(kind=LOGIC),
        AdapterRoute(kind=LOGIC, dropout=0.9),
        AdapterRoute(kind=FORECAST, agents=slice(0, 1)),
        AdapterRoute(kind=FORECAST, dropout=0.9),
    ],
    ids=["frozen backbone", "other kind", "other kind and dropout", "other agents", "more dropout"],
)
@CONDITIONS
def test_another_route_that_is_active_in_the_backward_pass_changes_nothing(
    other, checkpointing, dropout
):
    population = build_population(checkpointing=checkpointing)
    with population.use_adapters(FORECAST, dropout=dropout):
        loss = _loss(population)
        with population.use_adapters(other.kind, agents=other.agents, dropout=other.dropout):
            loss.backward()

    _assert_equal(
        _gradients(population), _backward_inside(checkpointing=checkpointing, dropout=dropout)
    )


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_recomputed_layers_give_the_gradients_of_kept_ones_bit_for_bit(dropout):
    kept, recomputed = (
        _backward_inside(checkpointing=checkpointing, dropout=dropout)
        for checkpointing in (False, True)
    )
    _assert_equal(recomputed, kept)


@CONDITIONS
def test_a_kept_graph_is_sent_back_twice(checkpointing, dropout):
    population = build_population(checkpointing=checkpointing)
    with population.use_adapters(FORECAST, dropout=dropout):
        loss = _loss(population)
    loss.backward(retain_graph=True)
    with population.use_adapters(LOGIC):
        loss.backward()

    once = _backward_inside(checkpointing=checkpointing, dropout=dropout)
    _assert_equal(_gradients(population), [None if one is None else 2 * one for one in once])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_beside_bfloat16_products_adapters_have_that_type_and_attention_float32(
    dropout, monkeypatch
):
    monkeypatch.setattr(frozen_linear, "WIDENS_BFLOAT16", False)
    measured = {}
    for dtype in ("float32", "mixed"):
        population = build_population(dtype=dtype)
        seen = set()
        with monkeypatch.context() as patch, population.use_adapters(FORECAST, dropout=dropout):
            for module, name in PRODUCTS:
                patch.setattr(module, name, _note_types(getattr(module, name), seen))
            # Masks of the same numbers: dropout draws before anything is rounded.
            loss = _loss(population)
            loss.backward()
        gradients = [one for one in _gradients(population) if one is not None]
        measured[dtype] = (seen, float(loss.detach()), torch.cat([g.flatten() for g in gradients]))

    (exact_types, exact_loss, exact), (types, loss, rounded) = measured.values()
    assert {dtype for _, dtype in exact_types} == {torch.float32}
    assert types == {("bmm", torch.bfloat16), (ATTENTION, torch.float32)}
    assert rounded.dtype == torch.float32  # trained tensors stay exact
    assert loss == pytest.approx(exact_loss, rel=0.02) and loss != exact_loss
    assert float((rounded - exact).norm() / exact.norm()) < 0.03


def test_attention_has_the_type_of_the_products_on_an_accelerator_alone():
    weight = torch.empty(2, 2, dtype=torch.bfloat16)
    assert frozen_linear.attention_type(weight) == torch.float32
    assert frozen_linear.attention_type(weight.to("meta")) == torch.bfloat16


def test_a_route_ends_with_its_block_also_after_an_error_and_after_a_recomputation():
    population = build_population(checkpointing=True)
    with torch.no_grad():
        frozen = _loss(population)

    with pytest.raises(KeyError), population.use_adapters(LOGIC):
        raise KeyError
    with population.use_adapters(FORECAST):
        loss = _loss(population)
    loss.backward()

    with torch.no_grad():
        assert torch.equal(_loss(population), frozen)
        with population.use_adapters(LOGIC):
            assert not torch.equal(_loss(population), frozen)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_that_the_population_did_not_enable_is_an_error_in_the_backward_pass(
    reentrant,
):
    population = build_population()
    population.backbone.model.activation_checkpointing_enable({"use_reentrant": reentrant})
    with population.use_adapters(FORECAST):
        loss = _loss(population)
        with pytest.raises(RuntimeError, match=r"backbone\.gradient_checkpointing"):
            loss.backward()
