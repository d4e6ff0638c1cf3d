"""Which articles are of a place, by country, domain and words."""

import polars as pl
import pytest

from compevo_core.data.calendar import Place
from compevo_core.data.datasets import DATASETS
from compevo_core.data.locality import COUNTRIES, is_of_country, names_region
from compevo_core.errors import ConfigError
from tests.support.window_samples import NOW, SYDNEY, make_articles

ADELAIDE = Place(timezone="Australia/Adelaide", country="AU", subdivision="SA")


def holds(expression: pl.Expr, title: str, **columns: str | None) -> bool:
    values = {"country": None, "domain": "example.com"} | columns
    article = make_articles([NOW], [title]).with_columns(
        **{name: pl.lit(value, dtype=pl.String) for name, value in values.items()}
    )
    return bool(article.select(expression.alias("holds"))["holds"][0])


@pytest.mark.parametrize(
    ("title", "columns", "expected"),
    [
        ("Prices fall", {}, False),
        ("Prices fall", {"country": "Australia"}, True),
        ("Prices fall", {"country": "AU"}, True),
        ("Prices fall", {"country": "Austria"}, False),
        ("Prices fall", {"domain": "SMH.com.au"}, True),
        ("Prices fall", {"domain": "beau"}, False),
        ("Outage across sydney suburbs", {}, True),
        ("Australians buy batteries", {"country": "Japan"}, True),
        ("Newcastle beats Perth in the cup", {}, False),
        ("Menswear sale", {}, False),
        ("Prices fall", {"body": "Region: NSW."}, True),
    ],
)
def test_one_sign_of_a_country_is_enough(title, columns, expected):
    assert holds(is_of_country("AU"), title, **columns) is expected


def test_without_a_country_or_region_every_article_is_local():
    place = Place(timezone="UTC")
    assert holds(is_of_country(place.country), "Prices fall")
    assert holds(names_region(place), "Prices fall")


def test_a_region_is_named_in_full_or_as_an_acronym_in_capitals():
    assert holds(names_region(ADELAIDE), "Fire bans in SA on Saturday")
    assert holds(names_region(ADELAIDE), "Fire bans in south australia")
    assert not holds(names_region(ADELAIDE), "Sa va bien")
    assert not holds(names_region(SYDNEY), "Fire bans in SA on Saturday")


@pytest.mark.parametrize("spec", DATASETS.values(), ids=lambda spec: spec.name)
def test_every_place_of_a_data_set_is_known(spec):
    for place in (spec.default_place, *spec.places.values()):
        holds(is_of_country(place.country), "Prices fall")
        holds(names_region(place), "Prices fall")


def test_an_unknown_country_or_region_is_refused_with_where_to_add_it():
    with pytest.raises(ConfigError, match=r"'NZ'.*locality\.py"):
        is_of_country("NZ")
    with pytest.raises(ConfigError, match=r"region 'WA' of AU.*locality\.py"):
        names_region(Place(timezone="Australia/Perth", country="AU", subdivision="WA"))
    assert set(COUNTRIES) == {"AU", "US"}
