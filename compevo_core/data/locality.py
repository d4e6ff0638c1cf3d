"""Which articles are of a place: the country's own news, and those that name one of its regions.

What belongs here: names, domains and words of every country and region that a data set names. What
does not: when an article was available (``data.news``), where the people of an entity live
(``data.datasets``), ranking.

GDELT's stored polls carry no country of the publisher, so that a country's news is known by any one
of three signs: the publisher's country, the ending of its domain, or a word of the text. Words that
other countries share (Victoria, Newcastle, Perth, SA) are no sign of a country; within a country's
news they are a sign of the region.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from compevo_core.data.calendar import Place
from compevo_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """Signs of a country's news.

    ``names`` are the spellings of the publisher's country in lower case, ``domains`` endings of
    addresses, ``words`` whole words of a title or body, and ``regions`` the words of each
    subdivision.
    """

    names: tuple[str, ...]
    domains: tuple[str, ...]
    words: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]]


COUNTRIES: dict[str, Country] = {
    "AU": Country(
        names=("australia", "au"),
        domains=(".au",),
        words=(
            "Australia",
            "Australian",
            "Australians",
            "Aussie",
            "NSW",
            "New South Wales",
            "Queensland",
            "Tasmania",
            "Sydney",
            "Melbourne",
            "Brisbane",
            "Adelaide",
            "Hobart",
            "Canberra",
            "AEMO",
        ),
        regions={
            "NSW": ("NSW", "New South Wales", "Sydney", "Newcastle", "Wollongong"),
            "QLD": ("QLD", "Queensland", "Brisbane", "Gold Coast", "Cairns", "Townsville"),
            "SA": ("SA", "South Australia", "Adelaide"),
            "TAS": ("TAS", "Tasmania", "Hobart", "Launceston"),
            "VIC": ("VIC", "Victoria", "Melbourne", "Geelong"),
        },
    ),
    "US": Country(
        names=("united states", "us", "usa"),
        domains=(".us", ".gov"),
        words=("United States", "California", "Bay Area", "San Francisco", "Los Angeles"),
        regions={"CA": ("California", "Bay Area", "San Francisco", "Oakland", "San Jose")},
    ),
}
"""Signs by ISO code. A data set with another country needs an entry here."""

_LONGEST_ACRONYM = 4


def is_of_country(country: str) -> pl.Expr:
    """Return the expression of "this article is the country's own news" over an article frame.

    Args:
        country: ISO code; "" stands for no country, of which every article is.

    Raises:
        ConfigError: nothing is known of the country.
    """
    if not country:
        return pl.lit(value=True)
    signs = _find_signs(country)

    has_name = pl.col("country").fill_null("").str.to_lowercase().is_in(list(signs.names))
    domain = pl.col("domain").fill_null("").str.to_lowercase()
    has_domain = pl.any_horizontal(domain.str.ends_with(ending) for ending in signs.domains)
    return has_name | has_domain | _holds_word(signs.words)


def names_region(place: Place) -> pl.Expr:
    """Return the expression of "this article names the place's own region".

    Args:
        place: one without a region (``subdivision``) is named by every article.

    Raises:
        ConfigError: nothing is known of the country or the region.
    """
    if not place.subdivision:
        return pl.lit(value=True)

    regions = _find_signs(place.country).regions
    if place.subdivision not in regions:
        raise ConfigError(
            f"no words are known of region {place.subdivision!r} of {place.country}; add it to "
            "COUNTRIES in compevo_core/data/locality.py"
        )
    return _holds_word(regions[place.subdivision])


def _find_signs(country: str) -> Country:
    if country not in COUNTRIES:
        raise ConfigError(
            f"nothing is known of the news of country {country!r} (known: "
            f"{', '.join(COUNTRIES)}); add it to COUNTRIES in compevo_core/data/locality.py"
        )
    return COUNTRIES[country]


def _holds_word(words: Sequence[str]) -> pl.Expr:
    text = pl.concat_str(pl.col("title").fill_null(""), pl.col("body").fill_null(""), separator=" ")
    # An acronym counts in capitals alone: "sa" and "vic" are also parts of ordinary text.
    patterns = [
        re.escape(word) if _is_acronym(word) else f"(?i:{re.escape(word)})" for word in words
    ]
    return text.str.contains(rf"\b(?:{'|'.join(patterns)})\b")


def _is_acronym(word: str) -> bool:
    return word.isupper() and len(word) <= _LONGEST_ACRONYM
