"""LTP-LLM: sentences by content, what the memory decodes, and the numeric model without it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import LeakageError
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.networks.fitting import FitBudget
from compevo_core.networks.forecaster import NetworkBaseline
from compevo_core.paper import ltp_llm
from compevo_core.paper.ltp_llm import (
    PatternMemory,
    PatternWriter,
    make_ltp_llm,
    write_pattern_prompt,
)
from tests.support.population import windows

TRAIN = windows("train", 4)
VAL = windows("val", 2, first_day=8)
ENCODER = HashingEncoder()


@pytest.fixture(scope="module")
def backbone():
    return load_backbone(BackboneConfig(name_or_path=TINY), device="cpu")


@pytest.fixture(autouse=True)
def write_short_sentences(monkeypatch):
    monkeypatch.setattr(ltp_llm, "SENTENCE_TOKENS", 6)


class Scribe(PatternWriter):
    """Writes the facts themselves, and counts how often it is asked."""

    asked = 0

    def _generate(self, prompts):
        self.asked += len(prompts)
        return [prompt[::-1] for prompt in prompts]


def test_a_sentence_is_written_once_for_equal_facts_and_kept_between_processes(backbone, tmp_path):
    views = TRAIN.views()
    # Another size of the same shape has the same facts.
    larger = [replace(view, x=view.x * 1.5) for view in views]
    writer = Scribe(backbone, tmp_path)
    sentences = writer.write(views)
    assert writer.write(larger) == sentences
    assert writer.asked == len({write_pattern_prompt(view) for view in views}) < 2 * len(views)

    again = Scribe(backbone, tmp_path)
    assert again.write(views) == sentences and again.asked == 0
    assert sentences == [write_pattern_prompt(view)[::-1] for view in views]


def test_a_prompt_holds_facts_in_words_from_before_the_origin():
    view = TRAIN[0].view
    rising = replace(view, x=np.linspace(4000.0, 5000.0, 48))
    # 2 January 2019 in Sydney, a Wednesday after New Year's Day.
    assert write_pattern_prompt(rising) == (
        "Predict next-day electricity load for NSW1. The last 48 values rose, were highest in "
        "their last quarter and lowest in their first quarter. The target day is a working day "
        "between December and February, after a public holiday (New Year's Day).\n"
        "Pattern to expect, in one sentence: The values"
    )
    assert " fell, " in write_pattern_prompt(replace(view, x=rising.x[::-1]))
    wave = np.sin(np.linspace(0, 2 * np.pi, 48))
    assert "ended where they began" in write_pattern_prompt(replace(view, x=wave * wave))


def test_the_memory_is_a_mixture_of_its_values_by_the_fit_of_their_keys():
    memory = PatternMemory(embedding_size=3, width=2)
    with torch.no_grad():
        memory.query.weight.zero_()
        memory.query.bias.zero_()
        memory.keys.zero_()
        memory.values.copy_(torch.arange(32.0).reshape(16, 2))
        # No key fits better than another: the mean of all values.
        assert memory(torch.ones(1, 3)).tolist() == [[15.0, 16.0]]

        # One key fits by ln 15 more, behind the scale of eight: half of all.
        memory.query.bias[0] = 1.0
        memory.keys[2, 0] = 8 * np.log(15)
        rest = (memory.values.sum(0) - memory.values[2]) / 15
        expected = (memory.values[2] + rest) / 2
        torch.testing.assert_close(memory(torch.ones(1, 3))[0], expected)


def test_it_fits_saves_and_refuses_later_windows(backbone, tmp_path):
    budget = FitBudget(passes=2, batch_size=4)

    def fit(train=TRAIN, seed=0):
        kind = make_ltp_llm(Scribe(backbone), ENCODER)
        return NetworkBaseline.fit("ltp-llm", train, VAL, seed=seed, budget=budget, kind=kind)

    fitted = fit()
    forecast = fitted.predict(VAL.views())
    assert forecast.tobytes() == fit().predict(VAL.views()).tobytes()
    assert forecast.tobytes() != fit(seed=1).predict(VAL.views()).tobytes()
    poisoned = VAL.with_truth(np.full_like(VAL.truth(), 1e9))
    assert fitted.predict(poisoned.views()).tobytes() == forecast.tobytes()

    fitted.save(tmp_path)
    loaded = NetworkBaseline.load(tmp_path, make_ltp_llm(Scribe(backbone), ENCODER))
    assert loaded.predict(VAL.views()).tobytes() == forecast.tobytes()
    assert loaded.predict([]).shape == (0, 48)
    with pytest.raises(LeakageError, match="test"):
        fit(windows("test", 2, first_day=20))
