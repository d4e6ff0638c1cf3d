"""Tiny pretrained models of time series with random weights, saved as their makers save theirs."""

import torch

QUANTILES = [level / 10 for level in range(1, 10)]
SIZES = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
PATCHES = {"context_length": 64, "input_patch_size": 16, "input_patch_stride": 16}


def save_random(model_class, config, folder):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model_class(config).save_pretrained(folder)
    return folder


def save_timesfm(folder):
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    config = TimesFm2_5Config(
        patch_length=32,
        context_length=64,
        horizon_length=64,
        num_hidden_layers=1,
        hidden_size=32,
        intermediate_size=32,
        head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        output_quantile_len=64,
        max_position_embeddings=64,
    )
    return save_random(TimesFm2_5ModelForPrediction, config, folder)


def save_chronos_2(folder):
    from chronos import Chronos2Model
    from chronos.chronos2.config import Chronos2CoreConfig

    forecasting = PATCHES | {"output_patch_size": 16, "max_output_patches": 4}
    config = Chronos2CoreConfig(
        **SIZES,
        chronos_config=forecasting | {"quantiles": QUANTILES, "use_reg_token": True},
        chronos_pipeline_class="Chronos2Pipeline",
    )
    return save_random(Chronos2Model, config, folder)


def save_chronos_bolt(folder):
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    config = T5Config(
        **SIZES,
        num_decoder_layers=1,
        vocab_size=2,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        chronos_config=PATCHES | {"prediction_length": 64, "quantiles": QUANTILES},
        chronos_pipeline_class="ChronosBoltPipeline",
    )
    return save_random(ChronosBoltModelForForecasting, config, folder)
