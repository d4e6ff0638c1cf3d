"""What changes about a trained population while it is used: levels, priors, weights, experience.

What belongs here: these four moving on with a truth that became known. What does not: what never
changes after training (adapters, gates, logics), forecasts (``forecaster``).

Shapes: A agents, N windows, H horizon.
"""

import copy
import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Self

from compevo_core.agents.calibration import ErrorCalibration
from compevo_core.baselines.known_errors import count_minutes
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import Window
from compevo_core.online.experience import Experience
from compevo_core.online.selection import PopulationWeights
from compevo_core.training.prior import PriorSet


@dataclasses.dataclass
class DailyState:
    """What a population knows of the days that are over.

    Attributes:
        calibration: levels of the agents' known errors.
        priors: numeric priors, their levels, and their fits where these go on.
        weighting: weights of the agents.
        experience: forecasts of days whose truth is known.
        known_until: end of the newest observed target; None before the first.
    """

    calibration: ErrorCalibration
    priors: PriorSet
    weighting: PopulationWeights
    experience: Experience
    known_until: datetime | None = None

    @property
    def minute(self) -> int:
        """Origin of the last window whose truth is known, in minutes since 1970."""
        return max(int(self.calibration.minute), self.priors.levels.minute, self.experience.minute)

    def observe(
        self,
        windows: Sequence[Window],
        blended_NAH: FloatArray,
        agents_NAH: FloatArray,
        mixture_NH: FloatArray,
        truth_NH: FloatArray,
    ) -> None:
        """Take note of windows in the order of time.

        Args:
            windows: with their truth in the series' unit.
            blended_NAH: what the agents forecast without level, scaled.
            agents_NAH: what they forecast, scaled.
            mixture_NH: what the population forecast, scaled.
            truth_NH: scaled; NaN where missing.
        """
        views = [window.view for window in windows]
        if self.calibration.level_rule.form != "none":
            error_ANH = (truth_NH[:, None] - blended_NAH).swapaxes(0, 1)
            entities = [view.entity for view in views]
            self.calibration.observe(count_minutes(views), entities, error_ANH)

        self.priors.observe(windows)
        self.weighting.observe(views, agents_NAH, mixture_NH, truth_NH)
        self.experience = self.experience.add(views, agents_NAH, mixture_NH, truth_NH)
        self.known_until = max(view.end_utc for view in views)

    def copy(self) -> Self:
        """Return a state that moves on by itself."""
        return dataclasses.replace(
            self,
            calibration=copy.deepcopy(self.calibration),
            priors=self.priors.copy(),
            weighting=copy.deepcopy(self.weighting),
        )
