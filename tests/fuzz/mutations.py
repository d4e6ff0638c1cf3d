"""Random damage to a file: bits, pieces, cells, numbers, times and brackets.

What belongs here: one function from bytes to damaged bytes. What does not: which files
(``tests.fuzz.seeds``).
"""

import gzip
import random
import re
import zlib

from tests.support.nemweb import pack, unzip_all

TOKENS = [
    *(b"", b"\x00", b"\x1b[2J", b'"', b"'", b",", b"\t", b"\n", b"\r\n"),
    *rb"\ { } [ ] null true NaN inf -0 1e999 -1e-999".split(),
    *(b"9" * 400, b"9" * 5000, b"0x10"),
    *(b"2065-01-01", b"0000-00-00", b"9999-12-31 23:59:59", b"1970/01/01", b"2020-02-30", b"24:00"),
    *b"0001-01-01T00:00:00+14:00 9999-12-31T23:59:59-14:00 20269999T999999Z".split(),
    b"99991231T235959Z",
    *(b"\\ud83d", b"\\udc00", b"\\u0000", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\xbd"),
    *("\u202e".encode(), "é".encode(), "\u2028".encode(), "٣".encode()),
    *(b"[" * 3000, b'{"a":' * 3000),
    *b"<html> <!-- %s {value} http://[ https:// https://a:99999/ https://[::1 D, I, C,".split(),
    *(b"&#55357;", b"&#0;", b"&#x110000;"),
]
NUMBER = re.compile(rb"\d+(?:\.\d+)?")
CELL = re.compile(rb"[^,\t\n\r\"]+")
TEXT = re.compile(rb'"[^"\\]*"')
_MOST_BYTES = 200_000


def mutate(content, rng):
    """Return a damaged copy; packed content is damaged outside or inside its packing."""
    if rng.random() < 0.8:
        if content.startswith(b"\x1f\x8b"):
            return gzip.compress(damage(gzip.decompress(content), rng), 1)
        if content.startswith(b"PK"):
            return pack(*((name, damage(data, rng)) for name, data in unzip_all(content)))
    return damage(content, rng)


def damage(content, rng):
    """Apply one to four random changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(CHANGES)(content, rng)[:_MOST_BYTES]
    return content


def _flip(content, rng):
    if not content:
        return content
    place = rng.randrange(len(content))
    return (
        content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    )


def _insert(content, rng):
    place = rng.randint(0, len(content))
    return content[:place] + rng.choice(TOKENS) + content[place:]


def _cut(content, rng):
    return content[: rng.randint(0, len(content))]


def _take_out(content, rng):
    first = rng.randint(0, len(content))
    return content[:first] + content[first + rng.randint(1, 40) :]


def _repeat(content, rng):
    first = rng.randint(0, len(content))
    piece = content[first : first + rng.randint(1, 200)]
    place = rng.randint(0, len(content))
    return content[:place] + piece + content[place:]


def _change_lines(content, rng):
    lines = content.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
        case 1:
            del lines[first]
        case _:
            lines.insert(second, lines[first])
    return b"\n".join(lines)


def _replace(pattern):
    def change(content, rng):
        found = list(pattern.finditer(content))
        if not found:
            return content
        one = rng.choice(found)
        # Half the time by a piece of the same file: a value of the right form in the wrong place.
        other = rng.choice(found)[0] if rng.random() < 0.5 else rng.choice(TOKENS)
        return content[: one.start()] + other + content[one.end() :]

    return change


CHANGES = (
    *(_flip, _insert, _cut, _take_out, _repeat, _change_lines),
    *(_replace(NUMBER), _replace(CELL), _replace(TEXT)),
)


def seed_of(name, number):
    """Return the generator of one case: any case can be made again by name and number."""
    return random.Random(zlib.crc32(f"{name}/{number}".encode()))  # noqa: S311  # no secret
