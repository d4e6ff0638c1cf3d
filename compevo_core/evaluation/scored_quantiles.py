"""Quantiles of scored methods, as each could have issued them day by day.

What belongs here: which past errors a scored method has. What does not: quantiles from past errors
(``compevo_core.quantiles``), their scores (``evaluation.quantile_scores``).

The past of a method are its errors on validation, and on the scored windows as they end. Its model
stays as it was fitted.

Shapes: N windows, Q levels, H horizon (48).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from compevo_core.baselines import Forecaster, is_applicable
from compevo_core.baselines.error_levels import follow_levels
from compevo_core.baselines.published import PublishedForecast
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.recalibration import (
    RECALIBRATED,
    RECALIBRATED_BASELINES,
    KnownErrorLevel,
)
from compevo_core.evaluation.result_rows import forecast_windows
from compevo_core.quantiles import (
    PastErrors,
    drop_crossing,
    estimate_quantiles,
    stack_published_quantiles,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationForecasts:
    """What a fitted baseline forecast of validation, and the level of its errors there.

    Attributes:
        windows: the validation windows; none where the baseline cannot forecast all of them.
        by_method: (N, H) by method: the baseline, and its recalibrated form where there is one.
        level: what recalibration adds later on; None without it.
    """

    windows: WindowSet
    by_method: Mapping[str, FloatArray] = field(default_factory=dict)
    level: KnownErrorLevel | None = None

    @classmethod
    def make(cls, name: str, fitted: Forecaster, val: WindowSet, scaler: Scaler) -> Self:
        """Forecast validation with a baseline that was fitted on train.

        Args:
            name: name of the baseline.
            fitted: the baseline.
            val: windows of the validation split.
            scaler: fitted on train.
        """
        if not len(val) or not is_applicable(name, val):
            return cls(windows=val[:0])

        forecast_NH = forecast_windows(fitted, val)
        if name not in RECALIBRATED_BASELINES:
            return cls(windows=val, by_method={name: forecast_NH})

        level = KnownErrorLevel.fit(val, forecast_NH, scaler)
        # With its final level a window's error would be that of a method which had seen it.
        followed_NPH = follow_levels(level.rule, scaler, val, forecast_NH[:, None])
        return cls(
            windows=val,
            by_method={name: forecast_NH, f"{name}{RECALIBRATED}": followed_NPH[:, 0]},
            level=level,
        )

    def follow(self, method: str, windows: WindowSet, forecast_NH: FloatArray) -> FloatArray:
        """Return the quantiles (N, Q, H) of a method, from the errors known at each origin.

        Those of a published forecast are the publisher's own, none in a window where they cross.

        Args:
            method: the baseline or its recalibrated form.
            windows: what is scored.
            forecast_NH: its forecasts.
        """
        views = windows.views()
        if method == PublishedForecast.name:
            return drop_crossing(stack_published_quantiles(views))

        past = PastErrors.from_windows(windows, forecast_NH)
        if method in self.by_method:
            # Validation itself may be what is scored: an error counts once.
            scored = {view.window_id for view in views}
            earlier = [i for i, v in enumerate(self.windows.views()) if v.window_id not in scored]
            past = PastErrors.from_windows(
                [self.windows[i] for i in earlier], self.by_method[method][earlier]
            ).join(past)
        return estimate_quantiles(past, views, forecast_NH)
