"""Populations with made-up forecasts, for tests of what follows training.

What belongs here: a stand-in for the model and its executor that needs no language model. What does
not: the sealed model and its forecaster (``tests.support.models``).
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import torch

from compevo_core.agents.calibration import ErrorCalibration
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import SelectionConfig
from compevo_core.data.scaling import Scaler
from compevo_core.runtime.distributed import AgentShards
from tests.support.window_samples import make_window

SERIES = ("NSW1", "SA1")
Correct = Callable[[int, np.ndarray], np.ndarray]
"""(window number, residual truth - base (48,)) to a correction (48,)."""


def make_examples(
    days: int,
    *,
    drift: float = 0.0,
    noise: float = 1.0,
    series: Sequence[str] = SERIES,
    first_day: int = 0,
    split: str = "val",
) -> list[ForecastExample]:
    """Return windows whose truth is the base plus a drift plus noise; the base is zero."""
    rng = np.random.default_rng(first_day)
    return [
        ForecastExample(
            view=make_window(
                first_day + day, entity=entity, window_id=f"{entity}-{first_day + day}", split=split
            ).view,
            priors_PH=np.zeros((1, 48)),
            truth_H=drift + noise * rng.normal(size=48),
        )
        for day in range(days)
        for entity in series
    ]


class MadeUpPopulation:
    """A model and executor whose agents forecast base plus a made-up correction.

    ``calls`` keeps the ``train`` flag of every forecast.
    """

    def __init__(self, corrections: Sequence[Correct], shards: AgentShards | None = None) -> None:
        agents = len(corrections)
        self.corrections = corrections
        self.calls: list[bool] = []
        self.shards = shards or AgentShards(agents)
        self.selection = FitnessSelection(agents, SelectionConfig())
        self.calibration = ErrorCalibration(agents, SERIES, len(self.shards.local_agents))
        self.scaler = Scaler(mean=dict.fromkeys(SERIES, 0.0), std=dict.fromkeys(SERIES, 1.0))
        self.config = SimpleNamespace(run=SimpleNamespace(micro_batch_size=3))

    def base_forecasts(self, examples: Sequence[ForecastExample]) -> torch.Tensor:
        base_BH = np.concatenate([example.priors_PH for example in examples])
        return torch.tensor(np.stack([base_BH] * len(self.shards.local_agents))).float()

    def forecast(
        self, logics: Sequence[str], examples: Sequence[ForecastExample], *, train: bool = False
    ) -> SimpleNamespace:
        self.calls.append(train)
        values_ABH = np.array(
            [
                [
                    example.priors_PH[0]
                    + self.corrections[agent](
                        example.view.origin_utc.toordinal(),
                        np.nan_to_num(example.truth_H - example.priors_PH[0]),
                    )
                    for example in examples
                ]
                for agent in self.shards.local_agents
            ]
        )
        assert len(logics) == len(values_ABH)
        return SimpleNamespace(values_ABH=torch.tensor(values_ABH).float(), weights_BA=None)

    def sealed(self, examples: Sequence[ForecastExample]) -> np.ndarray:
        """Return the calibrated forecasts (A, B, H)."""
        entities = [example.view.entity for example in examples]
        values_ABH = self.forecast([""] * len(self.corrections), examples).values_ABH
        return self.calibration(values_ABH, self.base_forecasts(examples), entities).numpy()

    def aggregate(self, examples: Sequence[ForecastExample]) -> np.ndarray:
        """Return the population's calibrated forecast (B, H)."""
        entities = [example.view.entity for example in examples]
        weights_BA = self.calibration.weigh(self.selection.weights(entities)).detach()
        return np.einsum("abh,ba->bh", self.sealed(examples), weights_BA.numpy())


def settings(**changes: object) -> RunConfig:
    """Return a configuration that calibrates as said."""
    return RunConfig.from_mapping({"calibration": changes})


def mean_error(forecast_BH: np.ndarray, examples: Sequence[ForecastExample]) -> float:
    """Return the mean absolute error, mean over windows."""
    truth_BH = np.stack([example.truth_H for example in examples])
    return float(np.nanmean(np.abs(forecast_BH - truth_BH), axis=1).mean())
