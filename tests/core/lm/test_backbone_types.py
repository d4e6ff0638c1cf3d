"""The type of a backbone is that of its weights; what positions are computed from stays exact."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from compevo_core.config_sections import BackboneConfig
from compevo_core.lm.backbone import TINY, Backbone, load_backbone


def _load(name_or_path: str, dtype: str, weights: str = "pretrained") -> Backbone:
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
def test_in_bfloat16_all_weights_are_and_no_buffer_is(
    folder: str, weights: str, is_tiny: bool
) -> None:
    model = _load(TINY if is_tiny else folder, "bfloat16", weights).model
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert buffers  # the rotary frequencies
    assert {buffer.dtype for buffer in buffers} == {torch.float32}


@torch.no_grad()
def test_a_backbone_in_bfloat16_reads_long_prompts_as_transformers_loads_it(folder: str) -> None:
    ours = _load(folder, "bfloat16").model
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tiny = _load(TINY, "bfloat16").model
    ids = torch.arange(1500)[None] % 256 + 3

    expected = plain(ids).logits
    assert torch.equal(ours(ids).logits, expected)
    assert torch.equal(tiny(ids).logits, expected)
