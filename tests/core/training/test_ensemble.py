"""Populations without a language model: what they forecast, and that they need nothing else."""

from datetime import timedelta

import numpy as np
import pytest
import torch

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.baselines import fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.quantiles import LEVELS
from compevo_core.data.scaling import Scaler
from compevo_core.errors import CheckpointMismatch, ConfigError
from compevo_core.forecast.explain import explain
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.issued import issue_forecast, widen
from compevo_core.lm.backbone import load_backbone
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import name_members, name_method
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.trainer import train
from compevo_core.training.training_data import join_for_refit
from tests.support.models import build_model, fit_inputs
from tests.support.population import news_pool, tiny, tiny_variant, windows
from tests.support.rounds import build_round_trainer, run_step
from tests.support.tiny_run import train_days
from tests.support.trees import read_tree

TRAIN, VAL = windows("train", 24), windows("val", 12, first_day=30)
TEST = windows("test", 8, first_day=50)
MIXED = ("calendar-ridge", "persistence", "seasonal-mean")


def members(*priors, **overrides):
    changes = {name.replace("__", "."): value for name, value in overrides.items()}
    shared = {"forecast.decoder": "none", "population.agents": len(priors)}
    shared["population.members"] = [{"prior": prior} for prior in priors]
    return RunConfig().with_overrides(shared | changes)


def train_members(out, config):
    train(config, TRAIN, VAL, None, out)
    return CompEvoForecaster.load(out)


@pytest.mark.parametrize("name", ["calendar-ridge", "persistence", "seasonal-mean", "theta"])
def test_one_member_is_its_prior_with_bands(name, tmp_path):
    population = train_members(tmp_path, members(name))
    alone = fit_baseline(name, TRAIN)
    prediction = population.predict_by_agent(TEST.views())

    np.testing.assert_allclose(prediction.aggregate, alone.predict(TEST.views()), rtol=1e-12)
    assert (prediction.step_weights == 1.0).all()
    assert (population.name, population.members, population.logics) == (name, [name], [])
    errors_NH = population.experience.errors(Scaler.fit(TRAIN)).error_NH
    expected_NH = VAL.truth() - alone.predict(VAL.views())
    np.testing.assert_allclose(errors_NH, expected_NH, rtol=1e-9, atol=1e-9)
    assert np.isfinite(prediction.quantiles).all()
    assert population.trainable_parameters == 0 and population.knowledge_cutoff == ""


def test_a_refit_keeps_the_earlier_errors(tmp_path):
    once = train_members(tmp_path / "once", members("calendar-ridge"))
    again = train_members(tmp_path / "again", members("calendar-ridge", run__refit=True))
    joined = join_for_refit(TRAIN, VAL)
    alone = fit_baseline("calendar-ridge", joined)

    np.testing.assert_allclose(again.predict(TEST.views()), alone.predict(TEST.views()), rtol=1e-12)
    assert not np.allclose(again.predict(TEST.views()), once.predict(TEST.views()), rtol=1e-6)
    # In the unit of the series: the scale of train and validation is another.
    before_NH = once.experience.errors(Scaler.fit(TRAIN)).error_NH
    after_NH = again.experience.errors(Scaler.fit(joined)).error_NH
    np.testing.assert_allclose(before_NH, after_NH, rtol=1e-9, atol=1e-9)


def test_weights_begin_with_those_of_the_members(tmp_path):
    weights = [{"prior": MIXED[0], "weight": 3.0}, {"prior": MIXED[1]}]
    online = {"selection__online": True, "selection__rule": "boa"}
    weighed = members(*MIXED[:2], population__members=weights, **online)

    history = train_members(tmp_path, weighed).experience

    first_NH = 0.75 * history.agents_NAH[:, 0] + 0.25 * history.agents_NAH[:, 1]
    np.testing.assert_allclose(history.mixture_NH[0], first_NH[0])
    assert not np.allclose(history.mixture_NH[-1], first_NH[-1], rtol=1e-3)
    with pytest.raises(ConfigError, match="rule = 'paper'"):
        weighed.with_overrides({"selection.online": False, "selection.rule": "paper"})


def test_a_sealed_run_refuses_other_settings(tmp_path):
    config = members(*MIXED)
    summary = train(config, TRAIN, VAL, None, tmp_path)
    before = read_tree(tmp_path)
    assert train(config, TRAIN, VAL, None, tmp_path) == summary
    assert read_tree(tmp_path) == before
    assert "rounds" not in summary and RunFolder(tmp_path).read_rounds() == []
    with pytest.raises(CheckpointMismatch, match="config_hash"):
        train(members(*MIXED, run__seed=3), TRAIN, VAL, None, tmp_path)

    # A kill between model and summary: the same model is made again.
    RunFolder(tmp_path).metrics_file.unlink()
    assert train(config, TRAIN, VAL, None, tmp_path)["artifact_hash"] == summary["artifact_hash"]
    file = next((tmp_path / "model" / "prior").rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointMismatch, match="altered"):
        CompEvoForecaster.load(tmp_path)


def issue(population):
    views = [view for view in TEST.views() if view.origin_utc == TEST[0].view.origin_utc]
    facts = {"market_offset": timedelta(hours=10), "issued_at": views[0].origin_utc}
    return issue_forecast(population, views, news=None, commit="abc", **facts)


def test_issues_are_explained_by_member_names(tmp_path):
    issued = issue(train_members(tmp_path, members(*MIXED)))
    explained = explain(issued, "NSW1")
    columns = [name for name in widen(issued).columns if "-q0" not in name]

    assert [part.name for part in explained.parts] == list(MIXED)
    np.testing.assert_allclose(explained.weigh("prior"), explained.forecast, rtol=1e-9)
    assert not explained.weigh("correction").any() and list(explained.columns) == ["forecast"]
    assert issued.facts["newest_candidate"] is None and issued.facts["logics"] == []
    assert columns[3:] == ["unit", "mixture", "mixture-equal", *MIXED, "compevo"]


def test_one_method_is_issued_as_itself(tmp_path):
    issued = issue(train_members(tmp_path, members("calendar-ridge")))
    explained = explain(issued, "NSW1")

    bands = [f"calendar-ridge-q{level:g}" for level in LEVELS]
    assert widen(issued).columns[4:] == ["calendar-ridge", *bands, "compevo"]
    (part,) = explained.parts
    assert explained.is_single and part.name == "calendar-ridge"
    np.testing.assert_allclose(part.prior + part.level, explained.forecast, rtol=1e-12)
    assert not [path for path in tmp_path.rglob("*") if path.name == "logics.json"]


def test_equal_methods_are_separated_by_days():
    days = [{"prior": "gbm", "calibration_days": 90}, {"prior": "gbm"}, {"prior": "persistence"}]
    config = members("gbm", "gbm", "persistence", population__members=days)
    assert name_members(config) == ["gbm-90d", "gbm", "persistence"]
    assert (name_method(config), name_method(members("gbm"))) == ("mixture", "gbm")


def test_soft_prompts_start_near_the_end_embedding():
    config = tiny()
    backbone = load_backbone(config.backbone, device="cpu")
    tokenizer = backbone.tokenizer
    # Some backbones pad with the end of text; here the two must differ.
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(7)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id

    model = PopulationModel(config, backbone, fit_inputs(config))
    ids = torch.tensor([tokenizer.eos_token_id])
    assert torch.equal(model.fusion.neutral_D, model.population.embed(ids)[0].detach().float())


ROUNDS = 3


def count_adapters(model):
    return sum(p.numel() for kind in model.population.kinds for p in adapters(model, kind))


def adapters(model, kind):
    return model.population.adapter_parameters(kind)


def test_an_ensembles_agent_learns_as_if_single():
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


def test_the_ensemble_forecasts_its_agents_mean(tmp_path):
    config = tiny_variant("mael", run__validation_windows=2, run__rounds=ROUNDS)
    train_days(config, tmp_path, days=6, val_days=2)
    forecaster = CompEvoForecaster.load(tmp_path, news_pool())
    found = forecaster.predict_by_agent(windows("test", 2, first_day=40).views())

    # Weights are kept in single precision.
    assert np.allclose(found.aggregate, found.agents.mean(0), rtol=1e-7)
    assert forecaster.name == "mael" and len(found.agents) == 3
    # Neither logics nor weights evolve.
    assert forecaster.logics == list(SEED_LOGICS[:3]) and np.allclose(found.weights, 1 / 3)


@pytest.mark.parametrize(("system", "agents"), [("sa", 1), ("mael", 3)])
def test_agents_without_competition_train_only_adapters(system, agents):
    full, model = build_model(tiny()), build_model(tiny_variant(system))
    assert model.population.kinds == ("forecast",)
    assert count_adapters(model) == count_adapters(full) * agents // 6
    assert sum(p.numel() for p in model.shared_parameters()) == 0 == len(model.policy_parameters())
    starts = zip(adapters(full, "forecast"), adapters(model, "forecast"), strict=True)
    if system == "mael":  # its members start as those of the full method
        assert all(torch.equal(ours, theirs) for ours, theirs in starts)
