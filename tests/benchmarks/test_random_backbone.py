"""A random backbone has its published shape, and every row of it is drawn."""

import pytest
import torch

from benchmarks import random_backbone, rows
from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import TINY, load_backbone


def test_a_random_backbone_loads_with_its_shape_and_without_a_row_of_zeros(tmp_path, monkeypatch):
    tokenizer = tmp_path / "tokenizer"
    load_backbone(BackboneConfig(name_or_path=TINY), device="cpu").tokenizer.save_pretrained(
        tokenizer
    )
    shape = random_backbone.SHAPES["smollm2-135m"] | {"num_hidden_layers": 1, "vocab_size": 300}
    monkeypatch.setitem(random_backbone.SHAPES, "small", shape)
    default = torch.get_default_dtype()
    try:
        random_backbone.main(tmp_path / "backbone", "small", str(tokenizer))
    finally:
        torch.set_default_dtype(default)

    config = BackboneConfig(name_or_path=str(tmp_path / "backbone"), dtype="bfloat16")
    backbone = load_backbone(config, device="cpu")
    assert (backbone.hidden_size, len(backbone.decoder.layers)) == (576, 1)
    embeddings = backbone.model.get_input_embeddings().weight
    assert embeddings.shape == (300, 576) and bool(embeddings.abs().sum(1).all())


def test_a_copy_without_git_says_its_commit(monkeypatch):
    monkeypatch.setenv("COMPEVO_COMMIT", "abc1234")
    monkeypatch.setattr(rows, "_run_git", lambda *_: pytest.fail("git was asked"))
    assert rows.describe_surroundings()["commit"] == "abc1234"
