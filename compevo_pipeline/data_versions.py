"""Data versions: what Dagster compares to say whether an asset's inputs have changed.

What belongs here: one short text for what is stored of a data set, and one for the articles. What
does not: the hash of windows (``compevo_core.data.window``), versions of code
(``assets.definition``).

Writers leave files as they are where rows are equal, so the files say whether anything changed.
Without a version of its own an asset would keep one for ever, and new rows would mark nothing.
"""

from compevo_core.data.files import hash_text
from compevo_pipeline.resources import Workspace

DATA_VERSION_TAG = "dagster/data_version"
"""Tag by which an event that no asset returned gives the version; Dagster reads it by this name."""

_VERSION_DIGITS = 32


def hash_series(workspace: Workspace, dataset: str) -> str:
    """Return the version of what is stored of a data set.

    It covers series, the frames beside them, and articles of the data set's own.

    Args:
        workspace: the stores.
        dataset: name of a declared data set.

    Raises:
        ConfigError: there is no such data set.
        StoreBusy: a store was not free in time.
    """
    parts = [
        *workspace.series_store().hash_files(dataset),
        *workspace.frame_store().hash_files(dataset),
    ]
    publisher = workspace.registry()[dataset].spec.news_source
    news = workspace.news_store()
    # A user's data set brings its articles with its series, where it has any.
    if publisher and news.path.exists():
        parts.append(news.hash_content(publisher))
    return hash_text("\n".join(parts))[:_VERSION_DIGITS]


def hash_news(workspace: Workspace) -> str:
    """Return the version of all stored articles.

    Raises:
        DataError: nothing was ever stored.
        StoreBusy: the store was not free in time.
    """
    return hash_text(workspace.news_store().hash_content())[:_VERSION_DIGITS]
