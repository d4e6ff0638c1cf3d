"""A backbone: its types, random layers as a control, packaged models."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import PACKAGED, TINY, load_backbone


def _load(name_or_path, dtype, weights="pretrained"):
    config = BackboneConfig(name_or_path=name_or_path, dtype=dtype, weights=weights)
    return load_backbone(config, device="cpu")


@pytest.fixture
def folder(tmp_path):
    tiny = _load(TINY, "float32")
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
@pytest.mark.parametrize("is_tiny", [True, False], ids=["tiny", "folder"])
def test_in_bfloat16_all_weights_are_and_no_buffer_is(folder, weights, is_tiny):
    model = _load(TINY if is_tiny else folder, "bfloat16", weights).model
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert buffers  # the rotary frequencies
    assert {buffer.dtype for buffer in buffers} == {torch.float32}


@torch.no_grad()
def test_a_backbone_in_bfloat16_reads_long_prompts_as_transformers_loads_it(folder):
    ours = _load(folder, "bfloat16").model
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tiny = _load(TINY, "bfloat16").model
    ids = torch.arange(1500)[None] % 256 + 3

    expected = plain(ids).logits
    assert torch.equal(ours(ids).logits, expected)
    assert torch.equal(tiny(ids).logits, expected)


@pytest.fixture
def far_folder(tmp_path):
    """A model whose weights are far from any start, with an output layer of its own."""
    tiny = _load(TINY, "float32")
    settings = tiny.model.config
    settings.tie_word_embeddings = False
    model = type(tiny.model)(settings)
    for parameter in model.parameters():
        parameter.data.normal_(3.0, 0.5, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_layers_and_norms_are_drawn_anew_and_the_vocabulary_stays(far_folder):
    pretrained, control = (
        dict(_load(str(far_folder), "float32", weights).model.named_parameters())
        for weights in ("pretrained", "random")
    )
    vocabulary = {"model.embed_tokens.weight", "lm_head.weight"}

    assert pretrained.keys() == control.keys() > vocabulary
    for name, parameter in control.items():
        if name in vocabulary:
            assert torch.equal(parameter, pretrained[name])
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:  # the architecture's own: zero mean, standard deviation 0.02
            assert abs(float(parameter.mean())) < 0.005
            assert float(parameter.std()) == pytest.approx(0.02, rel=0.1)


def test_the_control_is_the_same_in_every_run_and_leaves_the_callers_generator(far_folder):
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first = _load(str(far_folder), "float32", "random")
    assert torch.equal(torch.randn(3), expected)

    second = _load(str(far_folder), "float32", "random")
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_control_knows_nothing_and_says_so_and_is_frozen(far_folder):
    control = _load(str(far_folder), "float32", "random")
    assert control.knowledge_cutoff == "none (random weights)"
    assert not any(parameter.requires_grad for parameter in control.model.parameters())
    assert _load(str(far_folder), "float32", "pretrained").knowledge_cutoff == "unknown"


@pytest.mark.slow
def test_the_packaged_backbone_keeps_its_shared_vocabulary_matrix():
    pretrained, control = (
        _load(PACKAGED, "float32", weights).model for weights in ("pretrained", "random")
    )
    assert control.lm_head.weight is control.model.embed_tokens.weight
    assert torch.equal(control.lm_head.weight, pretrained.lm_head.weight)
    name = "model.layers.7.mlp.up_proj.weight"
    assert not torch.equal(control.get_parameter(name), pretrained.get_parameter(name))
