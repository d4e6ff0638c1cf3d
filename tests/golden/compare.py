"""Compares two trees of plain values: text and whole numbers exactly, floats closely.

What belongs here: the rules. What does not: how the values are made (``compute``).
"""

import dataclasses
import difflib
import fnmatch
import math
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Closeness:
    """By how much two floats may differ: a share of their size, and a part of 1 near zero."""

    relative: float
    absolute: float


CLOSE = Closeness(1e-6, 1e-9)
#: Another processor adds in another order, and the updates of a training let that grow: 28 of them
#: to 2e-4 of a loss, and to 2e-4 of a policy loss whose terms cancel (one of AMD against another).
TRAINED_ELSEWHERE = Closeness(1e-3, 5e-4)
ABSENT = "(absent)"
FLOAT_BITS = "float_bits"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value of a tree and every list without a tree in it, by path."""
    if isinstance(value, dict) and value and set(value) != {FLOAT_BITS}:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        yield f"{path}/length", len(value)
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{index}")
    else:
        yield path, value


def differences(old: Any, new: Any, *, same_machine: bool) -> list[str]:
    """One line for every value that differs.

    With ``same_machine`` hashes over floats and printed numbers must be equal; without, such hashes
    are passed over, a printed number may be off by one in its last digit, and what was trained may
    differ by ``TRAINED_ELSEWHERE``.
    """
    before, after = dict(leaves(old)), dict(leaves(new))
    found = []
    for path in [*before, *(path for path in after if path not in before)]:
        was, now = before.get(path, ABSENT), after.get(path, ABSENT)
        if not same_machine and is_hash(was) and is_hash(now):
            continue

        is_trained = fnmatch.fnmatchcase(path, "run_*")
        close = TRAINED_ELSEWHERE if is_trained and not same_machine else CLOSE
        if not equal(was, now, exact=same_machine, close=close):
            found.append(f"{path}: {describe_difference(was, now)}")
    return found


def is_hash(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {FLOAT_BITS}


def equal(was: Any, now: Any, *, exact: bool, close: Closeness = CLOSE) -> bool:
    """Whether two values are the same by the rules; ``exact`` is for printed numbers in lists."""
    if isinstance(was, list) and isinstance(now, list):
        scale = max([1.0, *(abs(one) for one in was if number(one) and math.isfinite(one))])
        pairs = list(zip(was, now, strict=False))
        are_alike = (alike(a, b, scale, exact=exact, close=close) for a, b in pairs)
        return len(was) == len(now) and all(are_alike)
    return alike(was, now, 1.0, exact=exact, close=close)


def alike(was: Any, now: Any, scale: float, *, exact: bool, close: Closeness) -> bool:
    if number(was) and number(now) and (isinstance(was, float) or isinstance(now, float)):
        return math.isclose(was, now, rel_tol=close.relative, abs_tol=close.absolute * scale)
    if not exact and isinstance(was, str) and isinstance(now, str) and was != now:
        return printed_alike(was, now)
    return type(was) is type(now) and was == now


def printed_alike(was: str, now: str) -> bool:
    """Whether two printed numbers have as many decimals and differ by at most one in the last."""
    decimals = [len(one.partition(".")[2]) for one in (was, now)]
    try:
        values = [float(one.replace(",", "").replace("\u2212", "-")) for one in (was, now)]
    except ValueError:
        return False
    return decimals[0] == decimals[1] > 0 and abs(values[0] - values[1]) < 1.5 * 10 ** -decimals[0]


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe_difference(was: Any, now: Any) -> str:
    if not (isinstance(was, list) and isinstance(now, list)):
        return f"was {was!r:.200}, is {now!r:.200}"
    if len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        where = [place for place, (a, b) in pairs if not equal(a, b, exact=True)]
        first = where[0] if where else 0
        pair = f"was {was[first]!r}, is {now[first]!r}"
        return f"{len(where)} of {len(was)} differ, first [{first}]: {pair}"
    texts = ([str(one) for one in values] for values in (was, now))
    lines = difflib.unified_diff(*texts, lineterm="", n=2)
    return f"had {len(was)}, has {len(now)} values: {' '.join(list(lines)[2:30])}"
