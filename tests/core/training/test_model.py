"""The modules of a population, and the systems of agents beside the paper's method."""

import numpy as np
import pytest
import torch

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.backbone import load_backbone
from compevo_core.paper.changes import find_variant
from compevo_core.training.model import PopulationModel
from tests.support.models import build_model, fit_inputs
from tests.support.population import news_pool, tiny, windows
from tests.support.rounds import build_round_trainer, run_step
from tests.support.tiny_run import train_days


def test_soft_prompts_start_near_the_embedding_of_the_end_of_text_and_not_of_padding():
    config = tiny()
    backbone = load_backbone(config.backbone, device="cpu")
    tokenizer = backbone.tokenizer
    # Some backbones pad with the end of text; here the two must be told apart.
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(7)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id

    model = PopulationModel(config, backbone, fit_inputs(config))
    ids = torch.tensor([tokenizer.eos_token_id])
    assert torch.equal(model.fusion.neutral_D, model.population.embed(ids)[0].detach().float())


ROUNDS = 3


def settings(system, **overrides):
    return find_variant(system).configure(tiny(**overrides))


def trainable(model):
    parts = {
        "adapters": [p for kind in model.population.kinds for p in adapters(model, kind)],
        "heads": model.head_parameters(),
        "shared": model.shared_parameters(),
    }
    return {name: sum(p.numel() for p in parameters) for name, parameters in parts.items()}


def adapters(model, kind):
    return model.population.adapter_parameters(kind)


def run_here(system, out, **overrides):
    config = settings(system, run__validation_windows=2, **overrides)
    train_days(config, out, days=6, val_days=2)
    return CompEvoForecaster.load(out, news_pool())


def test_an_agent_of_the_ensemble_learns_exactly_as_it_would_alone():
    # A low limit, so that the gradients are clipped: one norm over all agents would couple them.
    overrides = {"optim__max_grad_norm": 1e-3}
    together, state, batch = build_round_trainer(system="mael", **overrides)
    start = {name: value.clone() for name, value in together.model.agent_tensors().items()}
    logics = list(state.logics)
    for _ in range(ROUNDS):
        run_step(together, state, batch)

    for agent in range(len(logics)):
        alone, own_state, _ = build_round_trainer(system="sa", **overrides)
        own = {name: value[agent : agent + 1] for name, value in start.items()}
        alone.model.load(alone.model.tensors() | own)
        own_state.logics = [logics[agent]]
        for _ in range(ROUNDS):
            run_step(alone, own_state, batch)

        ended = together.model.agent_tensors()
        for name, value in alone.model.agent_tensors().items():
            assert torch.allclose(value[0], ended[name][agent], rtol=1e-5, atol=1e-7), name
        assert not torch.equal(own["answers.readout.bias_AH"], ended["answers.readout.bias_AH"])


def test_the_ensemble_forecasts_the_plain_mean_of_its_agents(tmp_path):
    forecaster = run_here("mael", tmp_path, run__rounds=ROUNDS)
    found = forecaster.predict_by_agent(windows("test", 2, first_day=40).views())
    # Weights are kept in single precision.
    assert np.allclose(found.aggregate, found.agents.mean(0), rtol=1e-7)
    assert forecaster.name == "mael" and len(found.agents) == 3
    # Neither logics nor weights evolve.
    assert forecaster.logics == list(SEED_LOGICS[:3]) and np.allclose(found.weights, 1 / 3)


@pytest.mark.parametrize(("system", "agents"), [("sa", 1), ("mael", 3)])
def test_agents_that_do_not_compete_train_forecast_adapters_alone(system, agents):
    full, model = build_model(tiny()), build_model(settings(system))
    own = trainable(model)
    assert model.population.kinds == ("forecast",) and own["shared"] == 0
    assert own["adapters"] == trainable(full)["adapters"] * agents // 6
    assert model.policy_parameters() == []
    starts = zip(adapters(full, "forecast"), adapters(model, "forecast"), strict=True)
    if system == "mael":  # its members start as those of the full method
        assert all(torch.equal(ours, theirs) for ours, theirs in starts)


def test_a_system_without_its_settings_is_refused_with_the_way_to_choose_it():
    with pytest.raises(ConfigError, match=r"objective.lambda_pred = 0\.0, .*--variant mael"):
        tiny(population__system="mael")
    with pytest.raises(ConfigError, match=r"needs evolution\.every = 0: choose"):
        settings("mael").with_overrides({"evolution.every": 1})


def test_the_settings_of_the_full_method_name_no_system():
    # Their hash is in every committed row.
    assert "system" not in tiny().to_dict()["population"]
    assert settings("mael").to_dict()["population"]["system"] == "mael"
    assert RunConfig.from_mapping(settings("mael").to_dict()) == settings("mael")
