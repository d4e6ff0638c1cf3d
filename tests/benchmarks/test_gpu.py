"""A random backbone has its published shape, and every row of it is drawn."""

import json

from benchmarks.gpu import save_backbone
from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import load_backbone
from compevo_core.paper.agent_systems import load_architecture
from tests.support.tiny_backbone import build_backbone


def test_a_random_backbone_loads_without_zero_rows(tmp_path):
    shape = load_architecture("smollm2-135m").to_dict()
    shape |= {"num_hidden_layers": 1, "vocab_size": 300}
    (tmp_path / "small.json").write_text(json.dumps(shape))

    save_backbone(tmp_path / "backbone", str(tmp_path / "small.json"), build_backbone().tokenizer)

    config = BackboneConfig(name_or_path=str(tmp_path / "backbone"), dtype="bfloat16")
    backbone = load_backbone(config, device="cpu")
    assert (backbone.hidden_size, len(backbone.decoder.layers)) == (576, 1)
    embeddings = backbone.model.get_input_embeddings().weight
    assert embeddings.shape == (300, 576) and bool(embeddings.abs().sum(1).all())
