"""Forecast prompts as text: the agent's own base and lookback, and what is cut where it is long."""

import numpy as np
import pytest

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.text_prompts import ReadingPrompts, TextPromptBuilder
from compevo_core.config_sections import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.backbone import load_backbone
from tests.support.population import tiny, windows

TOKENIZER = load_backbone(BackboneConfig(name_or_path="tiny-random"), device="cpu").tokenizer
VIEW = windows("train", 1).views()[0]
NEWS = [("01 Jan", "Best match"), ("02 Jan", "Second match"), ("03 Jan", "Third match")]
LOGICS = SEED_LOGICS[:2]


def _build(length: int = 4096, *, points: int = 8, lookback: int = 48) -> ReadingPrompts:
    """The prompts of one window under two logics, the first of which found news."""
    config = tiny(
        forecast__decoder="text",
        forecast__history_points=points,
        backbone__context_length=length,
    )
    builder = TextPromptBuilder(config, TOKENIZER)
    return builder.build(VIEW, LOGICS, [NEWS, []], None, lookback)


def _texts(prompts: ReadingPrompts) -> list[str]:
    group = prompts.group
    return [TOKENIZER.decode([*group.prefix, *suffix]) for suffix in group.suffixes]


def _longest(prompts: ReadingPrompts) -> int:
    return len(prompts.group.prefix) + max(map(len, prompts.group.suffixes))


def _history(text: str) -> list[str]:
    return text.partition("Historical data in MW: ")[2].partition("\n")[0].split(", ")


def test_history_is_in_the_unit_of_the_series_averaged_down() -> None:
    text = _texts(_build(points=48))[0]
    assert _history(text) == [f"{value:.1f}" for value in VIEW.x]

    means = VIEW.x.reshape(8, 6).mean(1)
    assert _history(_texts(_build(points=8))[0]) == [f"{value:.1f}" for value in means]


@pytest.mark.parametrize(("lookback", "count"), [(48, 8), (12, 2), (3, 1)])
def test_an_agent_is_shown_no_step_before_its_lookback(lookback: int, count: int) -> None:
    means = [part.mean() for part in np.split(VIEW.x[-lookback:], count)]
    shown = _history(_texts(_build(lookback=lookback))[0])
    assert shown == [f"{value:.1f}" for value in means]


def test_all_logics_of_a_window_share_everything_but_logic_and_news() -> None:
    prompts = _build()
    assert prompts.n_cut == 0
    first, second = _texts(prompts)
    assert TOKENIZER.decode(prompts.group.suffixes[0]).startswith(f"Logic: {LOGICS[0]}\nNews 01")
    assert TOKENIZER.decode(prompts.group.suffixes[1]).startswith(f"Logic: {LOGICS[1]}\nNews: none")
    for text in (first, second):
        assert "Answer with 48 values in MW." in text
        assert text.endswith("Forecast:")


def test_the_least_similar_news_goes_first_and_then_the_oldest_history() -> None:
    whole = _build()
    all_history = _history(_texts(whole)[0])
    shown: list[tuple[int, int]] = []

    for length in range(_shortest_length(), _longest(whole) + 1):
        prompts = _build(length)
        assert _longest(prompts) <= length
        first, second = _texts(prompts)
        for logic, text in zip(LOGICS, (first, second), strict=True):
            assert f"Logic: {logic}" in text
            assert "Predict next-day electricity load for NSW1" in text
            assert text.endswith("Forecast:")

        # What is left of the news are the best matches, of the history the newest values.
        titles = [title for _, title in NEWS if title in first]
        history = _history(first)
        assert titles == [title for _, title in NEWS][: len(titles)]
        assert history == all_history[len(all_history) - len(history) :]
        shown.append((len(titles), len(history)))

        is_cut = len(titles) < 3 or len(history) < 8
        assert prompts.n_cut == (2 if len(history) < 8 else int(is_cut))

    # History goes only where no news is left, and every step of the way occurs.
    assert set(shown) == {(0, count) for count in range(1, 8)} | {(kept, 8) for kept in range(4)}
    assert shown == sorted(shown)


def _shortest_length() -> int:
    with pytest.raises(ConfigError) as caught:
        _build(64)
    return int(str(caught.value).partition(" has ")[2].split()[0])


def test_a_prompt_that_cannot_fit_is_an_error_that_names_setting_and_window() -> None:
    with pytest.raises(ConfigError, match=r"backbone\.context_length = 64 is too short") as caught:
        _build(64)
    assert VIEW.window_id in str(caught.value)
