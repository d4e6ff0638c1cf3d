"""How networks are fitted, and the contract that a fitted one keeps."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.baselines import ViewForecaster
from compevo_core.data.scaling import Scaler
from compevo_core.errors import DataError, NonFiniteLoss
from compevo_core.lm import backbone
from compevo_core.paper import networks
from compevo_core.paper.declared import STANDARD
from compevo_core.paper.method_table import FitInputs, choose_learning_rate, find_method
from compevo_core.paper.networks import GPT4TS, NETWORKS, NetworkBaseline, NetworkInputs
from compevo_core.paper.networks import count_trainable as count
from tests.support.oracles import draw_inputs
from tests.support.tiny_backbone import build_backbone
from tests.support.window_samples import from_nem, make_set, make_window

QUICK = replace(STANDARD, passes=2)


@pytest.fixture(autouse=True)
def use_a_tiny_backbone(monkeypatch):
    tiny = build_backbone()
    monkeypatch.setattr(backbone, "load_packaged", lambda: tiny)
    monkeypatch.setattr(networks, "BATCH_SIZE", 8)


def make_split(n, split="train", *, first=0):
    """Days whose values move together, so that there is something to learn."""
    levels = 1000 + np.random.default_rng(first).normal(0, 60, n)
    wave = 80 * np.sin(2 * np.pi * np.arange(48) / 48)
    return make_set(
        make_window(first + day, x=level + wave, y=level - wave, split=split)
        for day, level in enumerate(levels)
    )


TRAIN = make_split(24)
VAL = make_split(8, "val", first=40)


def fit(train=TRAIN, val=VAL, name="dlinear", **options):
    return NetworkBaseline.fit(name, train, val, **{"budget": QUICK} | options)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fit_is_settled_by_its_seed(name):
    first, again = (fit(name=name) for _ in range(2))
    assert isinstance(first, ViewForecaster) and first.name == name
    assert first.predict(VAL.views()).tobytes() == again.predict(VAL.views()).tobytes()


def test_a_fit_beats_repeating_the_input():
    fitted = fit(learning_rate=0.003, budget=replace(STANDARD, passes=60, patience=60))
    error = np.abs(fitted.predict(VAL.views()) - VAL.truth()).mean()
    repeated = np.abs(np.stack([view.x for view in VAL.views()]) - VAL.truth()).mean()
    assert error < 0.2 * repeated


def test_the_best_pass_is_kept_and_ends(monkeypatch):
    # Validation that train contradicts: every pass after the first few makes it worse.
    contrary = VAL.with_truth(np.stack([view.x for view in VAL.views()]))
    monkeypatch.setattr(networks, "BATCH_SIZE", 4)
    budget = replace(STANDARD, passes=30, patience=3)

    fitted = fit(val=contrary, learning_rate=0.003, budget=budget)
    report = fitted.report

    assert report.passes == report.best_pass + 3 < 30

    scaler = Scaler.fit(TRAIN)
    target = torch.tensor(np.stack([scaler.scale(w.y, w.view.entity) for w in contrary]))
    inputs = NetworkInputs.encode(contrary.views(), scaler)
    with torch.no_grad():
        forecast = networks.forecast_scaled(fitted.network, inputs).double()
    loss = torch.nn.functional.huber_loss(forecast, target)
    assert float(loss) == pytest.approx(report.validation_loss, rel=1e-4)


def test_masked_targets_teach_nothing():
    forecasts = []
    for value in (np.nan, 1e6):
        truth = TRAIN.truth()
        truth[:, 10] = value
        forecasts.append(fit(TRAIN.with_truth(truth)).predict(VAL.views()))

    assert np.isfinite(forecasts[0]).all() and not np.array_equal(*forecasts)


def test_time_features_use_the_series_clock():
    # 1 March 2019 00:00 of the market is 01:00 in Sydney, where daylight saving holds: a Friday.
    window = make_window(0, origin=from_nem(2019, 3, 1))
    inputs = NetworkInputs.encode([window.view], Scaler.fit([window]))
    DAY = (4 / 6 - 0.5, -0.5, 59 / 365 - 0.5)

    assert inputs.future_NHM[0, 0].tolist() == pytest.approx([1 / 24 - 0.5, *DAY])
    assert inputs.past_NLM[0, -1].tolist() == pytest.approx([0.5 / 24 - 0.5, *DAY])


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(DataError, match="no windows"):
        fit(val=VAL[:0])
    with pytest.raises(DataError, match="24 windows"):
        fit(TRAIN.with_truth(np.full((24, 48), np.nan)))
    with pytest.raises(NonFiniteLoss, match="lower learning rate"):
        fit(learning_rate=1e30)


def test_a_pass_stays_within_the_budget(monkeypatch):
    seen = []
    forecast = networks.forecast_scaled
    monkeypatch.setattr(
        networks,
        "forecast_scaled",
        lambda net, x: (seen.append((net.training, len(x))), forecast(net, x))[1],
    )
    fit(budget=replace(STANDARD, passes=2, pass_windows=12, val_windows=3))
    assert seen == [(True, 8), (True, 4), (False, 3)] * 2


def choose(rates):
    budget = replace(STANDARD, tuning_passes=4, learning_rates=rates)
    inputs = FitInputs(train=TRAIN, val=VAL, seed=0, budget=budget)
    return choose_learning_rate(find_method("dlinear"), inputs)


def test_the_rate_of_least_loss_is_chosen(caplog):
    rates = (1e-5, 3e-3, 1e30)
    with caplog.at_level(logging.INFO, logger="compevo_core.paper.method_table"):
        assert choose(rates) == 3e-3
    assert len(caplog.records) == len(rates)

    budget = replace(STANDARD, passes=4)
    slow, quick = (fit(learning_rate=rate, budget=budget).report for rate in rates[:2])
    assert quick.validation_loss < slow.validation_loss
    with pytest.raises(NonFiniteLoss, match="dlinear"):
        choose((1e30, 1e31))


def test_gpt4ts_trains_norms_and_maps_only():
    decoder = build_backbone().decoder
    layers = len(decoder.layers)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}

    network = GPT4TS(decoder, layers=1)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    width = decoder.config.hidden_size
    assert {name for name in trained if name.startswith("decoder.")} == {
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.post_attention_layernorm.weight",
        "decoder.norm.weight",
    }
    assert count(network) == count(networks.PatchNetwork(width=width)) + 3 * width

    network(draw_inputs()).sum().backward()
    torch.optim.SGD(network.parameters(), lr=1.0).step()
    assert len(decoder.layers) == layers
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())
