"""The order in which days are forecast and become known."""

from dataclasses import replace

from compevo_core.data.replay import replay_days
from tests.support.window_samples import make_window


def _views(*days: int, unknown: int = 0):
    return [
        replace(make_window(day, window_id=f"d{day}-{unknown}").view, unknown_steps=unknown)
        for day in days
    ]


def _replay(views):
    events = []
    left = replay_days(
        views,
        lambda today: events.append(("forecast", [views[i].window_id for i in today])),
        lambda ended: events.append(("observe", [views[i].window_id for i in ended])),
    )
    return events, [views[i].window_id for i in left]


def test_a_day_is_observed_before_the_next_is_forecast_at_midnight() -> None:
    events, left = _replay(_views(3, 1, 2))
    assert events == [
        ("forecast", ["d1-0"]),
        ("observe", ["d1-0"]),
        ("forecast", ["d2-0"]),
        ("observe", ["d2-0"]),
        ("forecast", ["d3-0"]),
    ]
    assert left == ["d3-0"]


def test_at_the_hour_of_issue_the_day_before_is_not_over() -> None:
    events, left = _replay(_views(1, 2, 3, unknown=14))
    assert events == [
        ("forecast", ["d1-14"]),
        ("forecast", ["d2-14"]),
        ("observe", ["d1-14"]),
        ("forecast", ["d3-14"]),
    ]
    assert left == ["d2-14", "d3-14"]


def test_both_views_of_a_day_become_known_together() -> None:
    events, _ = _replay([*_views(1, 2), *_views(1, 2, unknown=14)])
    assert ("observe", ["d1-14", "d1-0"]) in events
    # Day 2 is forecast at 17:00 of day 1, before day 1 is known, and again at midnight, after.
    assert events.index(("forecast", ["d2-14"])) < events.index(("observe", ["d1-14", "d1-0"]))
