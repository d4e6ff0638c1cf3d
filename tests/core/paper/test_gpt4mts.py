"""GPT4MTS: what it reads, in which order, and against a computation known without it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.data.scaling import Scaler
from compevo_core.errors import LeakageError
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.networks.fitting import FitBudget
from compevo_core.networks.forecaster import NetworkBaseline
from compevo_core.networks.gpt4ts import GPT4TS
from compevo_core.networks.layers import count_trainable
from compevo_core.paper.gpt4mts import GPT4MTS, NEWS_DAYS, NewsReader, make_gpt4mts
from compevo_core.paper.news_changes import swap_news
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
