"""Text of strangers made safe to store: headlines, summaries, names of sites.

What belongs here: the one place that takes control characters and writing-direction marks out of
text. What does not: escaping for a page or a prompt, which each does where it shows the text
(``report.rendering``, ``assets.metadata``, ``agents.prompts``), and addresses (``articles``).

A headline may hold terminal commands, marks that turn a line around, or tags that nobody sees.
None of them is news. Joiners that Persian or Sinhala spelling needs (U+200C, U+200D) stay.
"""

import re

MAX_TITLE_CHARACTERS = 1000
"""A longer headline is none; the longest in two years of news has 306 characters."""

# Terminal commands first, whole: without its ESC the rest of one would stay as text.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x9b[0-?]*[@-~]")
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE_TAGS = "\U000e0000-\U000e007f"
_REMOVED = re.compile(f"[{_DIRECTIONS}{_INVISIBLE_TAGS}]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return text in one line, without control characters, direction marks or half characters."""
    # Nearly every headline has none of them, and this test is the quickest.
    if not text.isprintable():
        text = _CONTROLS.sub(" ", _REMOVED.sub("", _TERMINAL.sub("", text)))
        text = mend_surrogates(text)

    # Line breaks and repeated spaces differ between copies of one article.
    return " ".join(text.split())


def mend_surrogates(text: str) -> str:
    """Return text in which half a surrogate pair, which no file can hold, is U+FFFD."""
    return _HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", text)


def read_title(value: object) -> str | None:
    """Return the headline that a publisher's field holds, "" where it is empty.

    Returns:
        None where the field is no headline: no text, or a text of pages.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TITLE_CHARACTERS:
        return None
    return clean_text(value)
