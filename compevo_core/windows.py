"""Cuts windows out of series, covariates, articles and published forecasts (design 3).

What belongs here: ``build_windows``; the objects themselves are in ``windowset`` and are named here for convenience.
"""

from compevo_core.calendar import Calendar
from compevo_core.windowset import HORIZON, LOOKBACK, SPLITS, Window, WindowSet, WindowView

__all__ = ["HORIZON", "LOOKBACK", "SPLITS", "Calendar", "Window", "WindowSet", "WindowView"]
