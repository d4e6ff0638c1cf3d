"""The experience that a population is sealed with: validation, day by day (decision 59).

What belongs here: the agents' forecasts of validation windows with levels and weights as they were
when only earlier days were known. What does not: what is fitted on validation
(``training.calibration``), daily use (``forecaster``).

Shapes: A agents, B windows, H horizon.
"""

import numpy as np

from compevo_core.baselines.known_errors import ErrorEvidence, LevelRule
from compevo_core.config import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.replay import replay_days
from compevo_core.data.view import HORIZON
from compevo_core.online.experience import Experience
from compevo_core.online.selection import PopulationWeights, mix_forecasts
from compevo_core.training.model import PopulationModel
from compevo_core.training.window_errors import WindowErrors


def follow_validation(
    model: PopulationModel,
    config: RunConfig,
    blended_ABH: FloatArray,
    errors: WindowErrors,
    rule: LevelRule,
    earlier: WindowErrors | None,
    own_weights_BA: FloatArray | None = None,
) -> Experience:
    """Return validation as the population would have lived through it.

    Args:
        model: the population; selection and guard are read from it.
        config: the run's settings.
        blended_ABH: forecasts of the agents without level, scaled.
        errors: theirs.
        rule: how known errors are remembered.
        earlier: errors that were known before validation; None where they do not count.
        own_weights_BA: weights that the forecasts come with; else those of the selection.
    """
    evidence = ErrorEvidence.start(len(blended_ABH), len(model.calibration.entities), HORIZON)
    has_level = rule.form != "none"
    if earlier is not None and has_level:
        evidence.add(rule, earlier.minutes, earlier.rows, earlier.error_ABH)

    views = [example.view for example in errors.examples]
    truth_BH = np.stack([np.asarray(example.truth_H) for example in errors.examples])
    agents_BAH = blended_ABH.swapaxes(0, 1).copy()
    mixture_BH = np.empty_like(truth_BH)
    weighting = PopulationWeights(config, model.selection, model.calibration)
    order: list[int] = []

    def forecast(today: list[int]) -> None:
        if has_level:
            rows = [errors.rows[i] for i in today]
            agents_BAH[today] += evidence.level()[:, rows].swapaxes(0, 1)
        own_BA = None if own_weights_BA is None else own_weights_BA[today]
        weights_BAH = weighting.weights([views[i] for i in today], own_BA)
        mixture_BH[today] = mix_forecasts(agents_BAH[today], weights_BAH)

    def observe(ended: list[int]) -> None:
        known = errors.take(np.array(ended, dtype=np.intp))
        if has_level:
            evidence.add(rule, known.minutes, known.rows, known.error_ABH)
        weighting.observe(
            [views[i] for i in ended], agents_BAH[ended], mixture_BH[ended], truth_BH[ended]
        )
        order.extend(ended)

    order.extend(replay_days(views, forecast, observe))
    return Experience.start(model.calibration.entities, len(blended_ABH)).add(
        [views[i] for i in order], agents_BAH[order], mixture_BH[order], truth_BH[order]
    )
