"""Blend and guard: what is fitted on validation."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from compevo_core.agents.decoders import BatchForecasts, ForecastExample
from compevo_core.agents.online_selection import ErrorCalibration
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import SelectionConfig
from compevo_core.data.scaling import Scaler
from compevo_core.errors import DataError
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.calibration import AgentForecasts, calibrate, fit_blend
from compevo_core.training.ensemble import AgentEnsemble
from tests.support.window_samples import make_window

SERIES = ("NSW1", "SA1")


def make_examples(days, *, drift=0.0, noise=1.0):
    """Return windows whose truth is the base plus a drift plus noise; the base is zero."""
    rng = np.random.default_rng(0)
    return [
        ForecastExample(
            view=make_window(day, entity=entity, window_id=f"{entity}-{day}", split="val").view,
            priors_PH=np.zeros((1, 48)),
            truth_H=drift + noise * rng.normal(size=48),
        )
        for day in range(days)
        for entity in SERIES
    ]


class MadeUpPopulation(AgentEnsemble):
    """A model and executor whose agents forecast base plus a made-up correction.

    A correction (48,) is made of a window's number and its residual, truth less base (48,).
    """

    def __init__(self, corrections, shards=None):
        agents = len(corrections)
        self.corrections = corrections
        self.shards = shards or AgentShards(agents)
        self.selection = FitnessSelection(agents, SelectionConfig())
        self.calibration = ErrorCalibration(agents, SERIES)
        self.scaler = Scaler(mean=dict.fromkeys(SERIES, 0.0), std=dict.fromkeys(SERIES, 1.0))
        self.config = settings()
        self.executor, self.logics = self, [""] * agents

    def base_forecasts(self, examples):
        base_BH = np.concatenate([example.priors_PH for example in examples])
        return np.stack([base_BH] * len(self.corrections)).astype(np.float32)

    def play(self, logics, examples):
        agents = list(self.shards.local_agents)
        assert len(logics) == len(agents)
        values_ABH = np.zeros((len(agents), len(examples), 48))
        for (row, agent), (column, example) in product(enumerate(agents), enumerate(examples)):
            base_H, day = example.priors_PH[0], example.view.origin_utc.toordinal()
            residual_H = np.nan_to_num(example.truth_H - base_H)
            values_ABH[row, column] = base_H + self.corrections[agent](day, residual_H)
        return BatchForecasts(torch.tensor(values_ABH).float())

    def sealed(self, examples):
        """Return the calibrated forecasts (A, B, H)."""
        found = self.forecast(examples)
        return self.calibration.blend(found.values_ABH, self.base_forecasts(examples))

    def aggregate(self, examples):
        """Return the population's calibrated forecast (B, H)."""
        entities = [example.view.entity for example in examples]
        weights_BA = self.calibration.weigh(self.selection.weights(entities).detach().numpy())
        return np.einsum("abh,ba->bh", self.sealed(examples), weights_BA)


def settings(**changes):
    return RunConfig.from_mapping({"calibration": changes, "run": {"micro_batch_size": 3}})


def mean_error(forecast_BH, examples):
    truth_BH = np.stack([example.truth_H for example in examples])
    return float(np.nanmean(np.abs(forecast_BH - truth_BH), axis=1).mean())


def correct_by(share):
    return lambda day, residual_H: share * residual_H


HALF_TOO_MUCH, TOO_LITTLE, AGAINST, NOTHING = map(correct_by, (2.0, 0.25, -1.0, 0.0))


def _calibrate(population, examples, **changes):
    population.config = settings(**changes)
    return calibrate(population, examples)


def test_the_blend_is_a_bounded_least_squares_share():
    population = MadeUpPopulation([HALF_TOO_MUCH, TOO_LITTLE, AGAINST, NOTHING])
    # A target that is masked changes nothing.
    mask_H = np.where(np.arange(48) == 7, np.nan, 0.0)
    examples = [replace(given, truth_H=given.truth_H + mask_H) for given in make_examples(20)]

    _calibrate(population, examples, blend=True)

    blend_AH = population.calibration.blend_AH
    assert np.allclose(blend_AH[0], 0.5)
    assert np.array_equal(blend_AH[1], np.ones(48))  # plain least squares gives 4
    assert not blend_AH[2:].any()  # and -1 here


def test_an_untaught_agent_returns_its_prior():
    examples = make_examples(30)
    # Noise fits some of the windows it is fitted on, in about half of all draws.
    draws = [lambda day, _, k=k: np.random.default_rng([day, k]).normal(size=48) for k in range(12)]
    population = MadeUpPopulation(draws)

    report = _calibrate(population, examples, blend=True)
    sealed_ABH = population.sealed(examples)

    kept = [value for value in report.blend if value > 0]
    assert len(kept) <= 3 and max(kept, default=0.0) < 0.1
    assert not sealed_ABH[np.array(report.blend) == 0].any()


def test_a_correction_is_kept_where_it_helps():
    def morning(day, residual_H):
        noise_H = np.random.default_rng(day).normal(size=48)
        return np.where(np.arange(48) < 24, residual_H, noise_H)

    population = MadeUpPopulation([morning])
    _calibrate(population, make_examples(120), blend=True)

    blend_H = population.calibration.blend_AH[0]
    assert blend_H[:16].min() > 0.8
    assert blend_H[32:].max() < 0.4


@pytest.mark.parametrize(
    ("corrections", "fitness", "guard"),
    [
        ([TOO_LITTLE, TOO_LITTLE], [0.0, 0.0], "none"),
        # Two agents whose errors cancel, but the weights are all on one of them.
        ([lambda d, r: r + 3.0, lambda d, r: r - 3.0], [-90.0, 0.0], "equal"),
        ([TOO_LITTLE, lambda d, r: r + 9.0], [-90.0, 0.0], "best"),
        ([AGAINST, correct_by(-2.0)], [0.0, 0.0], "prior"),
    ],
)
def test_no_sealed_population_is_worse_than_its_prior(corrections, fitness, guard):
    examples = make_examples(20)
    population = MadeUpPopulation(corrections)
    population.selection.fitness_EA.copy_(torch.tensor([fitness]))

    report = _calibrate(population, examples)

    assert report.guard == guard
    for sealed_BH in (population.aggregate(examples), population.experience.mixture_NH):
        assert mean_error(sealed_BH, examples) == pytest.approx(report.calibrated_mae, 1e-5, 1e-6)
    assert report.calibrated_mae <= report.prior_mae
    assert report.prior_mae == pytest.approx(mean_error(np.zeros((40, 48)), examples), rel=1e-6)
    if guard == "prior":
        assert not population.aggregate(examples).any()


def test_the_best_prior_is_sealed_over_worse_agents():
    class Population(MadeUpPopulation):
        def base_forecasts(self, examples):
            return super().base_forecasts(examples) + np.array([3.0, 1.0])[:, None, None]

    examples = make_examples(20, noise=0.0)
    population = Population([lambda day, residual_H: residual_H + 20.0] * 2)

    report = _calibrate(population, examples)

    assert (report.guard, report.prior_mae) == ("prior", 1.0)
    assert int(population.calibration.best_prior) == 1
    assert np.allclose(population.aggregate(examples), 1.0)


def test_each_process_stores_its_own_agents():
    corrections = [HALF_TOO_MUCH, TOO_LITTLE, NOTHING]
    whole = MadeUpPopulation(corrections)
    examples = make_examples(12, drift=0.5)
    expected = _calibrate(whole, examples, blend=True)

    class Second(AgentShards):
        """The second of two processes; the first one's rows come from the whole population."""

        def all_gather(self, local, purpose):
            part = next(parts)
            assert torch.equal(part[2:], local)
            return part

    batches = [examples[start : start + 3] for start in range(0, len(examples), 3)]
    parts = (whole.play([""] * 3, batch).values_ABH for batch in batches)
    second = MadeUpPopulation(corrections, Second(3, rank=1, processes=2))

    report = _calibrate(second, examples, blend=True)
    stored = second.agent_tensors()

    assert report == expected
    state = whole.calibration.state()
    assert all(np.array_equal(v, state[k]) for k, v in second.calibration.state().items())
    assert np.array_equal(stored["calibration.blend_AH"], whole.calibration.blend_AH[2:])
    # What is read into it is in the calibration.
    stored["calibration.blend_AH"][...] = 7.0
    assert (second.calibration.blend_AH[2] == 7.0).all()
    assert second.calibration.blend_AH[0].max() < 7


def test_calibration_without_validation_is_refused():
    with pytest.raises(DataError, match="validation windows"):
        _calibrate(MadeUpPopulation([NOTHING]), [])


NOBODY = np.array([], dtype=np.intp)


@pytest.mark.parametrize(("step", "windows"), [(12, 6), (35, 6), (0, 10), (47, 10)])
def test_a_step_is_weighed_by_window_count(step, windows):
    # All corrections are one. In the half of the horizon that has the step they are right, in the
    # other one nothing is to be corrected: slopes of 1 and 0, and of 0.5 over all steps.
    is_right_H = (np.arange(48) < 24) == (step < 24)
    base_1BH = np.zeros((1, windows, 48))
    truth_BH = np.tile(is_right_H.astype(float), (windows, 1))
    forecasts = AgentForecasts(base_1BH + 1.0, base_1BH, truth_BH)

    blend_1H = fit_blend(forecasts, NOBODY, NOBODY)
    assert blend_1H[0, step] == pytest.approx((1.0 + 0.5) / 2)


def test_a_forecast_is_base_plus_the_blended_correction():
    calibration = ErrorCalibration(2, SERIES)
    values, base = np.random.default_rng(0).normal(size=(2, 2, 3, 48)).astype(np.float32)
    weights = np.random.default_rng(1).random((3, 2))

    # As long as nothing is fitted, it changes no bit.
    assert np.array_equal(calibration.blend(values, base), values)
    assert calibration.weigh(weights) is weights

    calibration.blend_AH.fill(0.25)
    found = calibration.blend(np.full((2, 2, 48), 8.0), np.full((2, 2, 48), 4.0))
    assert np.array_equal(found, np.full((2, 2, 48), 5.0))


def test_the_state_splits_into_own_and_shared():
    calibration = ErrorCalibration(5, SERIES)
    state, shared = calibration.state(), calibration.shared_state()
    assert {state[name].shape[0] for name in state.keys() - shared.keys()} == {5}
    assert state.keys() == vars(calibration).keys() - {"entities"}
