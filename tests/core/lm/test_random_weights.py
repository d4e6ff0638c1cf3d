"""The control without pretrained layers: other layers, the same embeddings, nothing known."""

import pytest
import torch

from compevo_core.config_sections import BackboneConfig
from compevo_core.lm.backbone import PACKAGED, TINY, Backbone, load_backbone


def _load(folder, weights: str) -> Backbone:
    config = BackboneConfig(name_or_path=str(folder), weights=weights)
    return load_backbone(config, device="cpu")


@pytest.fixture
def folder(tmp_path):
    """A model whose weights are far from any start, with an output layer of its own."""
    tiny = load_backbone(BackboneConfig(name_or_path=TINY), device="cpu")
    settings = tiny.model.config
    settings.tie_word_embeddings = False
    model = type(tiny.model)(settings)
    for parameter in model.parameters():
        parameter.data.normal_(3.0, 0.5, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_layers_and_norms_are_drawn_anew_and_the_vocabulary_stays(folder) -> None:
    pretrained, control = (
        dict(_load(folder, weights).model.named_parameters())
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


def test_the_control_is_the_same_in_every_run_and_leaves_the_callers_generator(folder) -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first = _load(folder, "random")
    assert torch.equal(torch.randn(3), expected)

    second = _load(folder, "random")
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_control_knows_nothing_and_says_so_and_is_frozen(folder) -> None:
    control = _load(folder, "random")
    assert control.knowledge_cutoff == "none (random weights)"
    assert not any(parameter.requires_grad for parameter in control.model.parameters())
    assert _load(folder, "pretrained").knowledge_cutoff == "unknown"


def test_the_packaged_backbone_keeps_its_shared_vocabulary_matrix() -> None:
    pretrained, control = (
        load_backbone(BackboneConfig(name_or_path=PACKAGED, weights=weights), device="cpu").model
        for weights in ("pretrained", "random")
    )
    assert control.lm_head.weight is control.model.embed_tokens.weight
    assert torch.equal(control.lm_head.weight, pretrained.lm_head.weight)
    name = "model.layers.7.mlp.up_proj.weight"
    assert not torch.equal(control.get_parameter(name), pretrained.get_parameter(name))
