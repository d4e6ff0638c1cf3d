"""Small worlds with planted news, and a search for evidence that takes seconds on no model."""

from functools import cache

import numpy as np

from compevo_core.lm.encoder import PACKAGED_ENCODER, load_encoder
from compevo_core.paper.planted_news import PlantedNews, plant_news
from tests.support.population import join_windows, tiny

SEARCH = {
    "forecast__prior": "calendar-ridge",
    "forecast__logic_in_prompt": False,
    "news__encoder": PACKAGED_ENCODER,
    "news__top_k": 1,
    "news__form": "token",
    "news__dropout": 0.3,
    "news__other_logics": 0.4,
    "news__linear": True,
    "evolution__form": "slots",
    "evolution__flat_share": 1.0,
    "grpo__enabled": False,
    "grpo__group_size": 8,
    "grpo__carry": "record",
    "grpo__reward_windows": 32,
    "run__rounds": 6,
    "evolution__every": 2,
    "run__validate_every": 0,
    "run__fixed_logics": 0,
    "run__batch_size": 8,
    "run__micro_batch_size": 8,
}
"""Settings of a search on the random backbone, which reads only with the ridge."""


def search(**changes):
    return tiny(**{**SEARCH, **changes})


@cache
def base_windows():
    """Windows of two regions: 120 days to train on, 15 to validate, 30 to test."""
    return join_windows(("train", 120, 0), ("val", 15, 130), ("test", 30, 160))


class RememberingEncoder:
    """An encoder that reads a text once, even if it comes in several worlds."""

    def __init__(self, encoder):
        self.name = encoder.name
        self._encoder, self._vectors = encoder, {}

    def encode(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors |= zip(new, self._encoder.encode(new), strict=True)
        return np.stack([self._vectors[text] for text in texts])


@cache
def sentence_encoder():
    """The packaged encoder, loaded once: hashed words do not know what a logic is about."""
    return RememberingEncoder(load_encoder(PACKAGED_ENCODER))


@cache
def planted_world(effect=3.0, **changes):
    return plant_news(base_windows(), PlantedNews(effect=effect, **changes), sentence_encoder())
