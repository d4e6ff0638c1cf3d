"""Rivals whose networks read words: what GPT4MTS and LTP-LLM read, and what they compute of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.data.scaling import Scaler
from compevo_core.errors import LeakageError
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.networks.fitting import FitBudget
from compevo_core.networks.forecaster import NetworkBaseline
from compevo_core.networks.gpt4ts import GPT4TS
from compevo_core.networks.layers import count_trainable
from compevo_core.paper import text_networks
from compevo_core.paper.news_changes import swap_news
from compevo_core.paper.text_networks import (
    GPT4MTS,
    NEWS_DAYS,
    NewsReader,
    PatternMemory,
    PatternWriter,
    make_gpt4mts,
    make_ltp_llm,
    write_pattern_prompt,
)
from tests.support.population import news_pool, windows

POOL = news_pool()
WIDTH, SIZE = 32, POOL.embeddings.shape[1]
TRAIN = windows("train", 4)
VAL = windows("val", 2, first_day=8)
QUICK = FitBudget(passes=1, batch_size=8)


@pytest.fixture(scope="module")
def backbone():
    return load_backbone(BackboneConfig(name_or_path=TINY), device="cpu")


def fit(backbone, *, reads_news=True, train=TRAIN):
    kind = make_gpt4mts(POOL, backbone, reads_news=reads_news)
    return NetworkBaseline.fit("gpt4mts", train, VAL, budget=QUICK, kind=kind)


def test_the_states_of_the_patches_are_those_of_all_tokens_read_in_order(backbone):
    # The published computation, written out with the backbone's own layers: what was written in
    # front, patches behind it, the states of the patches alone through one linear map.
    torch.manual_seed(3)
    network = GPT4MTS(backbone, embedding_size=SIZE, layers=2, matmul_dtype=None).eval()
    torch.nn.init.normal_(network.news.age)
    inputs = NewsReader(POOL, backbone, layers=2).encode(VAL.views(), Scaler.fit(TRAIN))

    values = inputs.values_NL
    patches = [values[:, start : start + 16] for start in range(0, 40, 8)]
    last = torch.cat([values[:, 40:], values[:, -1:].expand(-1, 8)], dim=1)
    tokens = [
        (inputs.instruction_ND @ network.instruction.weight.T + network.instruction.bias)[:, None],
        network.news(inputs.news_NSE),
        *[
            (part @ network.embedding.weight.T + network.embedding.bias)[:, None]
            for part in (*patches, last)
        ],
    ]
    states = backbone.decoder(inputs_embeds=torch.cat(tokens, dim=1)).last_hidden_state
    assert states.shape[1] == 1 + NEWS_DAYS + 6
    expected = states[:, -6:].flatten(1) @ network.projection.weight.T + network.projection.bias
    torch.testing.assert_close(network(inputs), expected, rtol=1e-4, atol=1e-5)


def test_it_trains_what_gpt4ts_trains_and_the_maps_of_its_prompts(backbone):
    instruction = WIDTH * WIDTH + WIDTH
    # Embedding and ages; attention among days; two linear maps and two norms.
    attention = 4 * (WIDTH * WIDTH + WIDTH)
    news = (SIZE + 1) * WIDTH + NEWS_DAYS * WIDTH + attention + 2 * (WIDTH + 1) * WIDTH + 4 * WIDTH
    plain = count_trainable(GPT4TS(backbone.decoder))
    without = GPT4MTS(backbone, embedding_size=SIZE, reads_news=False)
    assert count_trainable(without) == plain + instruction
    assert count_trainable(GPT4MTS(backbone, embedding_size=SIZE)) == plain + instruction + news


def test_news_change_the_forecast_and_the_twin_without_them_never_sees_them(backbone):
    views = VAL.views()
    without = [replace(view, candidate_ids=()) for view in views]
    own = fit(backbone)
    assert not np.array_equal(own.predict(views), own.predict(without))
    twin = fit(backbone, reads_news=False)
    assert np.array_equal(twin.predict(views), twin.predict(without))
    # The control of every news arm: another day's articles, on the same fitted network.
    assert own.predict(swap_news(VAL, 0).views()).shape == (len(views), 48)


def test_later_news_and_later_splits_are_refused(backbone):
    early = TRAIN[0].view
    leaking = replace(early, origin_utc=POOL.get_date(early.candidate_ids[0]))
    fitted = fit(backbone)
    with pytest.raises(LeakageError, match="not available before"):
        fitted.predict([leaking])
    with pytest.raises(LeakageError, match="test"):
        fit(backbone, train=windows("test", 2, first_day=20))


ENCODER = HashingEncoder()


@pytest.fixture(autouse=True)
def write_short_sentences(monkeypatch):
    monkeypatch.setattr(text_networks, "SENTENCE_TOKENS", 6)


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
