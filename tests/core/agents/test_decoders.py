"""Both decoders, with and without priors: what was trained forecasts alike after it was sealed."""

from dataclasses import replace

import pytest
import torch

from compevo_core.baselines import gbm
from compevo_core.data.window import WindowSet
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.population import Population
from compevo_core.training import trainer
from compevo_core.training.prior import make_view_examples
from tests.support.answers import answer_in_numbers
from tests.support.models import build_executor
from tests.support.population import news_pool, tiny, windows

PRIORS = {"head": ("none", "published", "blend"), "text": ("none", "persistence", "gbm")}
CASES = [
    pytest.param(decoder, prior, marks=() if prior == "blend" else pytest.mark.slow)
    for decoder, priors in PRIORS.items()
    for prior in priors
]


def _with_published_forecast(drawn):
    """The same windows with a forecast that was out before the origin."""
    return WindowSet(
        [
            replace(window, view=replace(window.view, published=1.01 * window.view.x))
            for window in drawn
        ],
        dataset=drawn.dataset,
    )


@pytest.mark.parametrize(("decoder", "prior"), CASES)
def test_what_was_trained_saved_and_loaded_predicts_as_the_trainer_would(
    decoder, prior, tmp_path, monkeypatch
):
    monkeypatch.setattr(gbm.BoostedTrees, "_rounds", 5)
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))
    trained = []
    write_model = trainer.write_model

    def record_and_write(folder, model, logics, priors, facts):
        trained.append((model, logics, priors))
        return write_model(folder, model, logics, priors, facts)

    monkeypatch.setattr(trainer, "write_model", record_and_write)
    config = tiny(
        forecast__decoder=decoder,
        forecast__prior=prior,
        forecast__prior_folds=2,
        run__rounds=2,
        run__validate_every=0,
        evolution__every=0,
        optim__forecast_lr=0.02,
    )
    train, val, test = (
        _with_published_forecast(windows(split, days, first_day=first))
        for split, days, first in (("train", 40, 0), ("val", 2, 60), ("test", 2, 80))
    )
    trainer.train(config, train, val, news_pool(), tmp_path)
    ((model, logics, priors),) = trained

    loaded = CompEvoForecaster.load(tmp_path, news_pool())
    restored = loaded._model.tensors()
    assert all(torch.equal(value, restored[name]) for name, value in model.tensors().items())
    prediction = loaded.predict_by_agent(test.views())
    # Every third of 3 agents x 4 windows.
    assert prediction.n_unparsed == (4 if decoder == "text" else 0)
    assert (prediction.prior is None) == (prior == "none")

    # The agents say something of their own, whatever validation made of it afterwards.
    examples = make_view_examples(test.views(), priors.forecast(test.views()), model.scaler)
    executor = build_executor(model)
    values_ABH = executor.forecast(logics, examples).values_ABH
    assert torch.allclose(
        loaded._executor.forecast(loaded.logics, examples).values_ABH, values_ABH, atol=1e-6
    )
    assert not torch.allclose(values_ABH, executor.base_forecasts(examples), atol=1e-3)
