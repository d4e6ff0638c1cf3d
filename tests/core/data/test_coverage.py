"""What windows cover, and in how many of them a logic has a choice of news."""

from compevo_core.data.build import build_windows
from compevo_core.data.coverage import (
    count_coverage,
    find_missing_years,
    measure_news_choice,
    share_with_choice,
)
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.window import WindowSet
from tests.support.window_samples import (
    from_nem,
    make_articles,
    make_electricity_series,
    make_window,
)


def test_coverage_counts_windows_by_split_entity_and_year_and_shows_what_is_missing():
    views = build_windows(ELECTRICITY, make_electricity_series()).views()
    coverage = count_coverage(views)
    assert coverage["train"] == {"NSW1": {"2019": 59, "2020": 19}, "SA1": {"2019": 59}}
    assert coverage["inference"] == {"NSW1": {"2026": 40}, "SA1": {}}
    assert find_missing_years(coverage) == [
        "train: SA1 has no window in 2020",
        "test: NSW1 has no window in 2021",
        "inference: SA1 has no window in 2026",
    ]


def test_a_logic_has_a_choice_where_candidates_outnumber_what_an_agent_reads():
    counts = (0, 1, 2, 6)
    windows = [make_window(i, candidate_ids=tuple("abcdef"[:n])) for i, n in enumerate(counts)]
    held_out = make_window(9, split="test")
    views = WindowSet([*windows, held_out], dataset="electricity").views()
    assert measure_news_choice(views) == {
        "train": {
            "windows": 4,
            "mean_candidates": 2.25,
            "more_than_1": 0.5,
            "more_than_3": 0.25,
            "more_than_5": 0.25,
        },
        "test": {
            "windows": 1,
            "mean_candidates": 0.0,
            "more_than_1": 0.0,
            "more_than_3": 0.0,
            "more_than_5": 0.0,
        },
    }
    assert (share_with_choice(counts, 6), share_with_choice([], 1)) == (0.0, 0.0)


def test_the_manifest_says_both_and_keeps_them_over_a_file(tmp_path):
    articles = make_articles([from_nem(2019, 11, 2, hour) for hour in range(4)])
    windows = build_windows(ELECTRICITY, make_electricity_series(), articles=articles)
    windows.write(tmp_path)
    manifest = WindowSet.read(tmp_path).manifest
    assert manifest["coverage"] == count_coverage(windows.views())
    assert manifest["news_choice"] == measure_news_choice(windows.views())
    assert 0 < manifest["news_choice"]["train"]["more_than_3"] < 1
