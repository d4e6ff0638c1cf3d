"""Near-identical headlines: one story that many outlets carry under almost the same title.

What belongs here: which of several articles stays. What does not: equal addresses and equal words
(``data.news.deduplicate_articles``), storage.

Two titles are near-identical if their sets of words overlap by four fifths (Jaccard), every number
in one is in the other, and the language is the same. Only titles that share one of their rarest
words are compared, which finds every such pair (the prefix filter of set-similarity joins). A word
that very many titles share is looked up in the newest of them alone, so that made-up headlines cost
no more than real ones.
"""

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from datetime import datetime, timedelta

import polars as pl

LEAST_OVERLAP = 0.8
"""Share of common words from which two titles are one story."""

NEAR = timedelta(days=3)
"""A title that comes back later is news of its own, such as a yearly event."""

MOST_COMPARED = 200
"""Kept titles that a title is compared with for one word, the newest ones."""

_KNOWN = "_is_known"
_FEWEST_WORDS = 5  # one word of difference in four is a different headline
_WORD = re.compile(r"\w+")
_OUTLET = re.compile("\\s+[|\u2013\u2014-]\\s+[^|\u2013\u2014-]{2,40}$")


def drop_near_identical(frame: pl.DataFrame, known: pl.DataFrame | None = None) -> pl.DataFrame:
    """Keep of near-identical titles the article that was available first.

    Args:
        frame: follows ``ARTICLE_SCHEMA``.
        known: articles that are stored already, which all stay; one of them that was available
            earlier takes the place of an article of ``frame``.

    Returns:
        The kept articles of ``frame``, by availability and id.
    """
    given = frame.with_columns(pl.lit(value=False).alias(_KNOWN))
    if known is not None:
        # What is given again is the given one's matter.
        others = known.join(frame, on="article_id", how="anti").select(frame.columns)
        given = pl.concat([given, others.with_columns(pl.lit(value=True).alias(_KNOWN))])
    ordered = given.sort("available_at", "article_id")
    is_known: list[bool] = ordered[_KNOWN].to_list()
    titles = [split_words(title or "") for title in ordered["title"]]
    frequency = Counter(word for words in titles for word in words)

    kept: list[int] = []
    by_word: dict[tuple[str, str], deque[int]] = defaultdict(lambda: deque(maxlen=MOST_COMPARED))
    moments: list[datetime] = ordered["available_at"].to_list()
    languages = ordered["language"].fill_null("").to_list()

    for row, words in enumerate(titles):
        keys = [(languages[row], word) for word in _rarest_words(words, frequency)]
        earlier = {other for key in keys for other in by_word[key]}
        if not is_known[row] and any(
            moments[row] - moments[other] <= NEAR and _are_near(words, titles[other])
            for other in earlier
        ):
            continue

        kept.append(row)
        for key in keys:
            by_word[key].append(row)
    return ordered[kept].filter(~pl.col(_KNOWN)).drop(_KNOWN)


def split_words(title: str) -> frozenset[str]:
    """Return the words of a headline in lower case, without the outlet's name at its end."""
    return frozenset(_WORD.findall(_OUTLET.sub("", title).lower()))


def _rarest_words(words: frozenset[str], frequency: Counter[str]) -> Sequence[str]:
    """Return the words of which two near-identical titles share at least one."""
    if len(words) < _FEWEST_WORDS:
        return []
    length = len(words) - math.ceil(LEAST_OVERLAP * len(words)) + 1
    return sorted(words, key=lambda word: (frequency[word], word))[:length]


def _are_near(words: frozenset[str], others: frozenset[str]) -> bool:
    common = len(words & others)
    if common < LEAST_OVERLAP * len(words | others):
        return False

    # "3,000 homes" and "5,000 homes" are two stages of a story.
    return not any(char.isdigit() for word in words ^ others for char in word)
