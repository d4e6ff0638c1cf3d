"""Holidays that a new release of their library moves are found in the windows."""

from dataclasses import replace

from compevo_core.data.build import build_windows
from compevo_core.data.calendar import HOLIDAYS_VERSION, Calendar
from compevo_core.data.calendar_changes import find_holiday_changes
from compevo_core.data.view import WindowView
from tests.support.window_samples import make_daily_values, make_series, make_spec, make_window_set


def name_holiday(view: WindowView, name: str) -> WindowView:
    calendar = Calendar.from_dict(view.calendar.as_dict() | {"target_holiday": name})
    return replace(view, calendar=calendar)


def test_a_day_that_becomes_a_holiday_is_found_and_days_that_only_one_set_has_are_not(tmp_path):
    windows = make_window_set(6)
    assert find_holiday_changes(tmp_path, windows.views()).height == 0
    windows[:4].write(tmp_path)
    assert find_holiday_changes(tmp_path, windows.views()).height == 0

    views = list(windows.views())
    changed = [
        name_holiday(view, "Day of the Market") if i in (2, 5) else view
        for i, view in enumerate(views)
    ]
    found = find_holiday_changes(tmp_path, changed)
    day = views[2].calendar.target_date.isoformat()
    assert found.rows() == [
        (views[2].entity, day, views[2].calendar.target_holiday, "Day of the Market")
    ]


def test_windows_say_which_release_named_their_holidays():
    windows = build_windows(make_spec(), make_series(make_daily_values(20, seed=1)))
    assert windows.manifest["holidays_version"] == HOLIDAYS_VERSION
