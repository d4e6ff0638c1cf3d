"""The long Bitcoin table and chart pages."""

from datetime import date

import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift, SourceBlocked
from compevo_pipeline.sources.bitinfocharts import source as bitinfocharts
from compevo_pipeline.sources.common.base import Mode
from tests.support.sources import clock, raw

LONG = ",TIME,ID,VALUE\n0,2020-01-01,price,7200.5\n1,2020-01-02,price,\n2,2020-01-01,tweets,21000\n"
PAGE = """<html><body><script>
d = new Dygraph(x,[[new Date("2020/01/01"),null],[new Date("2020/01/02"),1.5e3],
[new Date("2020/01/03"),1600],[new Date("2020/01/04"),12]], {labels:["Date"]});
</script></body></html>"""


def long(text=LONG):
    return validate_series(bitinfocharts.parse(raw("bitcoin_daily.csv", text)))


def page(text=PAGE, name="bitcoin-transactions.html"):
    return validate_series(bitinfocharts.parse(raw(name, text)))


def test_an_unknown_variable_names_the_line():
    with pytest.raises(SchemaDrift, match="line 4: unknown ID 'moods'"):
        long(LONG.replace("tweets", "moods"))


def test_a_page_gives_every_day_but_the_unfinished_last_one():
    frame = page()
    assert frame["series_id"].unique().to_list() == ["BITINFOCHARTS/transactions"]
    assert frame["start_utc"].dt.date().to_list() == [
        date(2020, 1, 1),
        date(2020, 1, 2),
        date(2020, 1, 3),
    ]
    assert frame["value"].to_list() == [None, 1500.0, 1600.0]


def test_a_joined_page_gives_its_metrics_in_the_order_of_its_name():
    text = '[[new Date("2020/01/01"),5,7200],[new Date("2020/01/02"),6,7300]]'
    frame = page(text, "transactions-price-btc.html")
    values = dict(frame.select("series_id", "value").iter_rows())
    assert values == {"BITINFOCHARTS/transactions": 5.0, "BITINFOCHARTS/price": 7200.0}


@pytest.mark.parametrize(
    "text",
    [PAGE.replace("1600", "__import__('os').abort()"), PAGE[: PAGE.index("1600")]],
    ids=["code", "cut"],
)
def test_a_cut_page_is_refused_and_code_in_one_is_never_run(text):
    with pytest.raises(SchemaDrift, match=r"line 3: .* is not a chart point"):
        page(text)


def test_a_page_without_a_chart_is_blocked():
    with pytest.raises(SourceBlocked, match="which is not circumvented"):
        page("<html><title>Just a moment...</title></html>")


@pytest.mark.parametrize("name", ["ethereum-price.html", "index.html", "transactions-price.html"])
def test_a_page_under_another_name_is_refused(name):
    with pytest.raises(SchemaDrift, match="not the name of a Bitcoin chart page"):
        page(PAGE, name)


def test_a_page_saved_by_hand_into_the_archive_is_read(tmp_path):
    (tmp_path / "bitcoin").mkdir()
    (tmp_path / "bitcoin" / "price-btc.html").write_text(PAGE)
    (file,) = bitinfocharts.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock)
    assert bitinfocharts.parse(file)["series_id"].unique().to_list() == ["BITINFOCHARTS/price"]
