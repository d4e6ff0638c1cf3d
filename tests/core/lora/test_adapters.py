"""A backward pass uses the adapters of its forward pass, wherever it is called."""

import json
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from compevo_core.agents.decoders import FORECAST, LOGIC
from compevo_core.config.sections import PopulationConfig
from compevo_core.errors import CheckpointMismatch
from compevo_core.lora import attention
from compevo_core.lora import backbone as backbones
from compevo_core.lora.adapters import AdapterRoute
from compevo_core.lora.batch import PromptGroup
from tests.support import tiny_backbone as tiny

PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
WAYS = [(False, 0.0), (False, 0.4), (True, 0.0), (True, 0.4)]
CONDITIONS = pytest.mark.parametrize(("checkpointing", "dropout"), WAYS)
ATTENTION = "scaled_dot_product_attention"
PRODUCTS = ((torch, "bmm"), (torch.nn.functional, ATTENTION))


def _loss(population):
    torch.manual_seed(7)  # of the adapters' dropout
    packed = population.pack([[PromptGroup(prompt)] for prompt in PROMPTS])
    return population.read_out(packed).square().sum()


def _gradients(population):
    """Gradients of both kinds of adapters, forecast first."""
    kinds = (population.adapter_parameters(kind) for kind in (FORECAST, LOGIC))
    return [parameter.grad for parameters in kinds for parameter in parameters]


def _assert_equal(found, expected):
    """Same adapters with a gradient, bit-equal, and not all zero."""
    assert [one is None for one in found] == [one is None for one in expected]
    pairs = [(one, other) for one, other in zip(found, expected, strict=True) if one is not None]
    assert all(torch.equal(one, other) for one, other in pairs)
    assert any(float(one.abs().max()) > 0 for one, _ in pairs)


def _backward_inside(*, checkpointing, dropout):
    population = tiny.build_population(checkpointing=checkpointing)
    with population.use_adapters(FORECAST, dropout=dropout):
        _loss(population).backward()
    return _gradients(population)


@pytest.mark.parametrize(
    "other",
    [
        AdapterRoute(),
        AdapterRoute(kind=LOGIC),
        AdapterRoute(kind=LOGIC, dropout=0.9),
        AdapterRoute(kind=FORECAST, rows=slice(0, 1)),
        AdapterRoute(kind=FORECAST, dropout=0.9),
    ],
    ids=["frozen backbone", "other kind", "other kind and dropout", "other agents", "more dropout"],
)
@CONDITIONS
def test_another_route_in_backward_changes_nothing(other, checkpointing, dropout):
    population = tiny.build_population(checkpointing=checkpointing)
    with population.use_adapters(FORECAST, dropout=dropout):
        loss = _loss(population)
        with population.use_adapters(other.kind, rows=other.rows, dropout=other.dropout):
            loss.backward()

    inside = _backward_inside(checkpointing=checkpointing, dropout=dropout)
    _assert_equal(_gradients(population), inside)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_recomputed_layers_give_bit_equal_gradients(dropout):
    kept = _backward_inside(checkpointing=False, dropout=dropout)
    _assert_equal(_backward_inside(checkpointing=True, dropout=dropout), kept)


@CONDITIONS
def test_a_kept_graph_is_sent_back_twice(checkpointing, dropout):
    population = tiny.build_population(checkpointing=checkpointing)
    with population.use_adapters(FORECAST, dropout=dropout):
        loss = _loss(population)
    loss.backward(retain_graph=True)
    with population.use_adapters(LOGIC):
        loss.backward()

    once = _backward_inside(checkpointing=checkpointing, dropout=dropout)
    _assert_equal(_gradients(population), [None if one is None else 2 * one for one in once])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_adapters_multiply_in_the_products_type(dropout, monkeypatch, spy):
    monkeypatch.setattr(backbones, "WIDENS_BFLOAT16", False)
    products = {name: spy(module, name) for module, name in PRODUCTS}
    measured = {}
    for dtype in ("float32", "mixed"):
        population = tiny.build_population(dtype=dtype)
        for calls in products.values():
            calls.clear()
        with population.use_adapters(FORECAST, dropout=dropout):
            # Masks of the same numbers: dropout draws before anything is rounded.
            loss = _loss(population)
        loss.backward()
        called = [(name, tensors) for name, calls in products.items() for tensors, _ in calls]
        seen = {(name, tensor.dtype) for name, tensors in called for tensor in tensors}
        gradients = [one for one in _gradients(population) if one is not None]
        measured[dtype] = (seen, float(loss.detach()), torch.cat([g.flatten() for g in gradients]))

    (exact_types, exact_loss, exact), (types, loss, rounded) = measured.values()
    assert {dtype for _, dtype in exact_types} == {torch.float32}
    assert types == {("bmm", torch.bfloat16), (ATTENTION, torch.float32)}
    assert rounded.dtype == torch.float32  # trained tensors stay exact
    assert loss == pytest.approx(exact_loss, rel=0.02) and loss != exact_loss
    assert float((rounded - exact).norm() / exact.norm()) < 0.03


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("meta", torch.bfloat16)])
def test_attention_changes_type_only_on_accelerators(device, dtype):
    module = Mock(layer_idx=0, **{"q_proj.base.weight.dtype": torch.bfloat16})
    backend, x = Mock(max_distance=1), torch.empty(2, 2, device=device)
    attention._attention_forward(module, x, x, x, None, backend, scaling=1.0)
    assert backend.attend.call_args.args[0].value.dtype == dtype


def test_a_route_always_ends_with_its_block():
    population = tiny.build_population(checkpointing=True)
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


def test_checkpointing_that_a_user_enables_uses_the_same_adapters():
    population = tiny.build_population()
    population.backbone.model.activation_checkpointing_enable()
    with population.use_adapters(FORECAST):
        loss = _loss(population)
    loss.backward()
    _assert_equal(_gradients(population), _backward_inside(checkpointing=False, dropout=0.0))


# Rows of unlike length; (tokens, tokens of the parent) of some segments repeat between agents.
GROUPS = [
    [PromptGroup([5, 6, 7], [[8, 9], [10, 11], [12]]), PromptGroup([13, 14])],
    [PromptGroup([15, 16, 17], [[18, 19], [20], [21, 22, 23]]), PromptGroup([24, 25])],
    [PromptGroup([26, 27], [[28, 29], [30, 31]]), PromptGroup([32]), PromptGroup([33, 34, 35])],
]


def test_one_call_a_shape_and_layer(spy):
    population = tiny.build_population()
    calls = spy(torch.nn.functional, ATTENTION)
    population.hidden_states(population.pack(GROUPS))
    assert len(calls) == 2 * 7


@pytest.mark.parametrize("keys", [1, 8, 1 << 14])
@pytest.mark.parametrize("build", [tiny.build_backbone, tiny.build_gemma])
def test_states_do_not_depend_on_batches(build, keys, monkeypatch):
    monkeypatch.setattr(attention, "_KEYS_PER_BATCH", keys)
    population = tiny.insert_adapters(build())

    def list_prompts(groups):
        """One by one, prefix and suffix in one piece."""
        pairs = ((group.prefix, suffix) for group in groups for suffix in group.suffixes or [[]])
        return [[PromptGroup([*prefix, *suffix])] for prefix, suffix in pairs]

    with torch.no_grad():
        together = population.read_out(population.pack(GROUPS))
        packed = map(population.pack, zip(*map(list_prompts, GROUPS), strict=True))
        alone = [population.read_out(prompts)[:, 0] for prompts in packed]

    assert torch.allclose(together, torch.stack(alone, 1), atol=1e-5)


def test_padding_reaches_no_state_or_gradient():
    population = tiny.build_population()
    packed = population.pack(GROUPS)
    embeds_ALD = population.embed(packed.ids_AL)
    width = packed.ids_AL.shape[1]
    lengths = [max(map(max, row)) % width + 1 for row in packed.prompts]
    assert len(set(lengths)) > 1  # some rows are padded

    noisy_ALD = embeds_ALD.clone()
    for agent, length in enumerate(lengths):
        noisy_ALD[agent, length:] = 100.0
    noisy_ALD.requires_grad_()
    with population.use_adapters(FORECAST):
        clean, noisy = (population.read_out(packed, each) for each in (embeds_ALD, noisy_ALD))
    assert torch.equal(clean, noisy)

    noisy.square().sum().backward()
    for agent, length in enumerate(lengths):
        assert not noisy_ALD.grad[agent, length:].any()


TWO_AGENTS = PopulationConfig(agents=2, rank=4, alpha=8.0, dropout=0.0)


def _made_by_peft(folder, seed, **settings):
    """A LoRA adapter made by PEFT, with both factors away from zero, saved by PEFT."""
    wanted = {"r": 4, "lora_alpha": 8, "target_modules": list(backbones.LORA_TARGETS)}
    config = LoraConfig(task_type="CAUSAL_LM", **wanted | settings)
    model = get_peft_model(tiny.build_backbone().model, config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1, generator=generator)
    model.save_pretrained(folder)
    return model.eval()


def test_an_adapter_survives_a_population_unchanged(tmp_path):
    population = tiny.insert_adapters(tiny.build_backbone(), TWO_AGENTS)
    weights = dict(population.backbone.model.named_parameters())
    frozen = {name: p.clone() for name, p in weights.items() if "lora_" not in name}
    _made_by_peft(tmp_path / "in", seed=3)

    population.load_adapter(1, LOGIC, tmp_path / "in")
    population.save_adapter(1, LOGIC, tmp_path / "out")

    files = (tmp_path / side / "adapter_model.safetensors" for side in ("in", "out"))
    before, after = map(load_file, files)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    weights = dict(population.backbone.model.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in frozen.items())
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 4, 8.0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"r": 8}, "r = 8 where the population has 4"),
        ({"lora_alpha": 16}, "lora_alpha = 16"),
        ({"use_rslora": True}, "use_rslora = True"),
        ({"target_modules": ["q_proj", "v_proj"]}, "differ in"),
        ({"use_dora": True}, "use_dora = True"),
        ({"alpha_pattern": {"q_proj": 64}}, "alpha_pattern = {'q_proj': 64}"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern = {'q_proj': 8}"),
        ({"init_lora_weights": "olora"}, "init_lora_weights = olora"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = pissa"),
        ({"alora_invocation_tokens": [5]}, r"alora_invocation_tokens = \[5\]"),
    ],
)
def test_adapters_of_another_shape_are_refused(settings, says, tmp_path):
    _made_by_peft(tmp_path, seed=0, **settings)
    with pytest.raises(CheckpointMismatch, match=says):
        tiny.insert_adapters(tiny.build_backbone(), TWO_AGENTS).load_adapter(0, LOGIC, tmp_path)


@pytest.mark.parametrize("agent", [1, 2])
def test_later_agents_processes_keep_an_adapter(agent, tmp_path):
    tiny.build_population().save_adapter(agent, FORECAST, tmp_path / "whole")

    later = tiny.insert_adapters(tiny.build_backbone(), local=range(1, 3))
    later.load_adapter(agent, FORECAST, tmp_path / "whole")
    rows = [layer.lora_b[FORECAST].abs().sum((1, 2)) for layer in later.layers.values()]
    assert all(bool(row[agent - 1] > 0) and bool(row[2 - agent] == 0) for row in rows)

    later.save_adapter(agent, FORECAST, tmp_path / "part")
    files = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "part")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
