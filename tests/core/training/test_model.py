"""What a population is made of before its first round."""

import torch

from compevo_core.lm.backbone import load_backbone
from compevo_core.training.model import PopulationModel
from tests.support.models import fit_inputs
from tests.support.population import tiny


def test_soft_prompts_start_near_the_embedding_of_the_end_of_text_and_not_of_padding() -> None:
    config = tiny()
    backbone = load_backbone(config.backbone, device="cpu")
    tokenizer = backbone.tokenizer
    # Some backbones pad with the end of text; here the two must be told apart.
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(7)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id

    model = PopulationModel(config, backbone, fit_inputs(config))
    ids = torch.tensor([tokenizer.eos_token_id])
    assert torch.equal(model.fusion.neutral_D, model.population.embed(ids)[0].detach().float())
