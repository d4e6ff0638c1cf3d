"""What a view knows of the news: its candidates by day, and a check that none came out later.

What belongs here: the check of every article's time, mean embeddings by age. What does not: which
articles are candidates (``data.context``), ranking by a logic (``agents.strategy``).

Shapes: N views, S days, E width of a title's embedding.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.errors import LeakageError

NEWS_DAYS = 7
"""Days before a view is made that have a token each; older articles count as the first of them."""

_DAY = timedelta(days=1)


def raise_if_later_news(views: Sequence[WindowView], pool: NewsPool) -> None:
    """Raise LeakageError if a view names an article which came out after it was made.

    Views that copy a published leaky prompt are marked, and so are their result rows.
    """
    for view in views:
        # An article of the very instant counts as later: nobody had read it when the view was made.
        later = [name for name in view.candidate_ids if pool.get_date(name) >= view.known_before]
        if later and not view.leaky:
            raise LeakageError(
                f"window {view.window_id} names {len(later)} article(s) that were not available "
                f"before {view.known_before}, first {later[0]}; build the windows again"
            )


def embed_days(views: Sequence[WindowView], pool: NewsPool) -> npt.NDArray[np.float32]:
    """Return the mean embedding of each day's articles, oldest day first, (N, S, E); else zeros."""
    raise_if_later_news(views, pool)
    days_NSE = np.zeros((len(views), NEWS_DAYS, pool.embeddings.shape[1]), dtype=np.float32)

    for number, view in enumerate(views):
        # The mean of a day does not grow with how much was written on it.
        rows = pool.find_rows(view.candidate_ids)
        ages = np.array([_count_days(view, pool, name) for name in view.candidate_ids], dtype=int)
        for age in np.unique(ages):
            days_NSE[number, NEWS_DAYS - 1 - age] = pool.embeddings[rows[ages == age]].mean(axis=0)
    return days_NSE


def _count_days(view: WindowView, pool: NewsPool, article_id: str) -> int:
    """Return how many whole days before the view an article came out."""
    age = (view.known_before - pool.get_date(article_id)) // _DAY
    return min(max(age, 0), NEWS_DAYS - 1)
