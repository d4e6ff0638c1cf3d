"""What agents observe, and what is left out where it does not fit."""

import dataclasses

import pytest

from compevo_core.agents.decoders import RetrievedArticle
from compevo_core.agents.observation import Observation, fit_logic_prompt, list_most_read
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config import RunConfig
from compevo_core.config_sections import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import HashingEncoder
from tests.support.population import TITLES, tiny

TOKENIZER = load_backbone(BackboneConfig(name_or_path="tiny-random"), device="cpu").tokenizer
OBSERVATION = Observation(
    logics=list(SEED_LOGICS[:3]),
    rewards=[-0.1234, -0.2345, -0.3456],
    peers=[[1, 2], [2], [0]],
    headlines=[list(TITLES[:3]), [], []],
    recent="NSW1 6351 to 9804 MW, mean 8011",
)

#: What may never be cut: system text, own logic and reward, task, and the cue at the very end.
KEPT = (
    "You are a strategy analyst",
    f'Current Logic: "{SEED_LOGICS[0]}"',
    "-0.1234",
    "Task: Based on all this information",
)
#: What goes first to last.
CUT = (TITLES[2], TITLES[1], TITLES[0], OBSERVATION.recent, SEED_LOGICS[2], SEED_LOGICS[1])


def _fit(length: int, **overrides: object) -> tuple[str, int, bool]:
    config: RunConfig = tiny(backbone__context_length=length, **overrides)
    prompt = fit_logic_prompt(OBSERVATION, 0, config, TOKENIZER)
    return TOKENIZER.decode(prompt.ids), len(prompt.ids), prompt.was_cut


def test_a_prompt_that_fits_is_whole_and_one_token_less_cuts_it() -> None:
    text, length, was_cut = _fit(4096)
    assert all(piece in text for piece in (*KEPT, *CUT))
    assert not was_cut

    # The soft prompt takes a place of its own.
    assert _fit(length + 1) == (text, length, False)
    assert _fit(length)[2]
    assert _fit(length, evolution__update="simplified") == (text, length, False)


def test_news_is_cut_first_then_history_then_peers_and_never_what_is_the_agents_own() -> None:
    shown: set[tuple[bool, ...]] = set()
    shortest = _shortest_length()
    for length in range(shortest, _fit(4096)[1] + 2):
        text, n_tokens, was_cut = _fit(length)
        assert n_tokens < length
        assert all(piece in text for piece in KEPT)
        assert text.endswith("New Refined Logic:")

        is_there = tuple(piece in text for piece in CUT)
        assert was_cut == (not all(is_there))
        shown.add(is_there)

    # Nothing goes before what comes earlier in the order, and each piece is cut at some length.
    expected = {tuple(place >= cut for place in range(len(CUT))) for cut in range(len(CUT) + 1)}
    assert shown == expected


def _shortest_length() -> int:
    with pytest.raises(ConfigError, match=r"needs (\d+) tokens") as caught:
        _fit(64)
    return int(str(caught.value).partition("needs ")[2].split()[0])


def test_a_prompt_that_cannot_fit_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"backbone\.context_length = 300 is too short"):
        _fit(300)


def test_an_agent_without_evidence_sees_its_peers_alone() -> None:
    bare = dataclasses.replace(OBSERVATION, headlines=(), recent="")
    text = TOKENIZER.decode(fit_logic_prompt(bare, 0, tiny(), TOKENIZER).ids)
    assert "Recent Data" not in text
    assert "News Read" not in text
    assert SEED_LOGICS[2] in text


def test_the_titles_read_in_most_windows_come_first_and_better_matches_before_others() -> None:
    articles = [
        RetrievedArticle(title, "01 Jan", title, HashingEncoder().encode([title])[0])
        for title in "abcd"
    ]
    a, b, c, d = articles
    assert list_most_read([(a, b), (c, b), (d, a)], count=3) == ["a", "b", "c"]
    assert list_most_read([(), ()]) == []
