"""Text of strangers inside Markdown that Dagster's pages render.

What belongs here: escaping, in one place. What does not: tables, whose cells are text to the pages
(``assets.metadata``), the report (``compevo_core.report.rendering``).
"""

import re

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#!|~])")
_ADDRESS = re.compile(r"(?i)(https?|ftp|www)([:.])")


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is: no image, link or markup of it takes effect."""
    escaped = _MARKUP.sub(r"\\\1", " ".join(text.split()))
    # An address becomes a link even without brackets; a zero-width space breaks it.
    return _ADDRESS.sub("\\1\u200b\\2", escaped)
