r"""Reading the JSON and the timestamps of GDELT, whose JSON is known to be broken at times.

What belongs here: a strict reading first, then a repair that is counted; times in a stated format.
What does not: which keys a document has (``gdelt.doc``, ``gdelt.bulk``).

Repair: a backslash that starts no JSON escape is doubled, control characters are dropped, half a
surrogate pair becomes U+FFFD.
"""

import re
from datetime import UTC, datetime

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.decode import parse_json

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def load_json(text: str, name: str) -> tuple[object, int]:
    """Decode JSON, repairing it where the strict reading fails.

    Returns:
        The document and the number of repairs.

    Raises:
        SchemaDrift: still not JSON; names line and column.
    """
    try:
        return parse_json(text, name)
    except SchemaDrift:
        pass

    clean, dropped = _CONTROL.subn("", text)
    clean, doubled = _double_stray_backslashes(clean)
    document, mended = parse_json(clean, f"{name} (after repair)", strict=False)
    return document, dropped + doubled + mended


def parse_utc(text: object, form: str) -> datetime | None:
    """Return the UTC time that ``text`` states in ``form``, or None where it states none."""
    if not isinstance(text, str):
        return None

    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None


def _double_stray_backslashes(text: str) -> tuple[str, int]:
    # The pattern takes whole escapes first, so a lone backslash in a match is a stray one.
    strays = sum(match[0] == "\\" for match in _ESCAPE.finditer(text))
    doubled = _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else "\\\\", text)
    return doubled, strays
