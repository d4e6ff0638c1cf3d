"""Windows whose forecast weather is replaced: none, or another day's.

What belongs here: controls that say what the weather of a window is worth. All else is as it was.
"""

from datetime import timedelta

from compevo_core.data.context import PAST_MEAN
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

OWN, NONE, EARLIER = "own", "none", "nine-days-before"
WEATHER_CHANGES = (OWN, NONE, EARLIER)
"""What a window may be given in place of its own forecast weather."""

DISTANCE = timedelta(days=9)
"""How far the day that lends its weather lies back: another weekday, and the season is the same."""


def change_weather(windows: WindowSet, name: str) -> WindowSet:
    """Return the windows with other forecast weather, and all else as it was.

    A window has no weather if its earlier day has no window. ConfigError for another name.
    """
    if name not in WEATHER_CHANGES:
        raise ConfigError(f"no weather {name!r}; known: {', '.join(WEATHER_CHANGES)}")
    if name == OWN:
        return windows

    by_key = {_find_key(view, timedelta(0)): view for view in windows.views()}
    changed = []
    for window in windows:
        view = window.view
        names = {name for name in view.step_covariates if _is_weather(view, name)}
        other = by_key.get(_find_key(view, DISTANCE)) if name == EARLIER else None
        lent = {} if other is None else other.step_covariates
        rest = {key: values for key, values in view.step_covariates.items() if key not in names}
        changed.append(
            window.change_view(
                step_covariates=rest | {key: lent[key] for key in names if key in lent}
            )
        )
    return windows.with_windows(changed)


def _find_key(view: WindowView, back: timedelta) -> tuple[str, object, int]:
    return view.entity, view.origin_utc - back, view.unknown_steps


def _is_weather(view: WindowView, name: str) -> bool:
    """Whether a covariate by step is weather: neither own past, nor a publication, nor a power."""
    stem = name.removesuffix("_lag1").removesuffix(PAST_MEAN)
    return not stem.startswith(("past", "published")) and not stem.endswith(f"_{view.unit.lower()}")
