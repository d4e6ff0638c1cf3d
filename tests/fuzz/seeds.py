"""One small, valid file of every parser, to be mutated.

What belongs here: the parsers by name and the files they start from. What does not: mutating
(``tests.fuzz.mutations``), counting (``tests.fuzz.run``).
"""

import gzip
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from compevo_pipeline.sources.aemo import parse_operational, parse_tables
from compevo_pipeline.sources.bitinfocharts import source as bitinfocharts
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.decode import gunzip, untar, unzip
from compevo_pipeline.sources.exchange import source as exchange
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.gdelt import parse as doc
from compevo_pipeline.sources.gdelt.live import parse_list
from compevo_pipeline.sources.gdelt.parse import parse_gal, parse_gkg
from compevo_pipeline.sources.news2forecast import parse as n2f_parsers
from compevo_pipeline.sources.own import frames
from compevo_pipeline.sources.own.declaration import CovariateKeys, NewsKeys, make_label
from compevo_pipeline.sources.pems import live as clearinghouse
from compevo_pipeline.sources.pems import source as pems
from compevo_pipeline.sources.weather import forecast as weather_runs
from compevo_pipeline.sources.weather import observed as weather
from tests.support import nemweb
from tests.support.own_tables import declare, wrap
from tests.support.sources import clock, raw
from tests.support.weather import RUN, make_run

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
SDMX = """KEY,FREQ,CURRENCY,CURRENCY_DENOM,EXR_TYPE,EXR_SUFFIX,TIME_PERIOD,OBS_VALUE
EXR.D.AUD.EUR.SP00.A,D,AUD,EUR,SP00,A,2026-11-19,1.60
EXR.D.AUD.EUR.SP00.A,D,AUD,EUR,SP00,A,2026-11-20,1.61
EXR.D.USD.EUR.SP00.A,D,USD,EUR,SP00,A,2026-11-19,1.10
EXR.D.USD.EUR.SP00.A,D,USD,EUR,SP00,A,2026-11-20,1.12
"""
PEMS_FILE = "d04_text_station_hour_2026_10.txt.gz"
PEMS_LIST = json.dumps(
    {"data": {"October": [{"file_name": PEMS_FILE, "url": "/?download=1", "bytes": 7}]}}
)
RBA = """F11.1  EXCHANGE RATES
Title,A$1=USD,A$1=CNY,A$1=JPY,A$1=EUR,A$1=SGD,A$1=NZD,A$1=GBP,A$1=CAD,A$1=CHF
Description,"AUD/USD; see notes, below.",CNY,JPY,EUR,SGD,NZD,GBP,CAD,CHF
Frequency,Daily,Daily,Daily,Daily,Daily,Daily,Daily,Daily,Daily
Units,USD,CNY,JPY,EUR,SGD,NZD,GBP,CAD,CHF
Publication date,20-Nov-2026,20-Nov-2026
Series ID,FXRUSD,FXRCR,FXRJY,FXREUR,FXRSD,FXRNZD,FXRUKPS,FXRCD,FXRSF
18-Nov-2026,0.6500,4.68,97.50,0.6020,0.85,1.0760,0.5080,0.90,0.57
19-Nov-2026,,,,,,,,,
20-Nov-2026,0.6600,4.70,98.00,0.6040,0.86,1.0750,0.5100,0.91,0.58
"""


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A parser and a file that it reads."""

    parse: Callable[[RawFile], object]
    raw: RawFile


@cache
def sample_file(dataset: str, source: str, ending: str = "", lines: int = 0) -> RawFile:
    """The first synthetic file of a product, cut to its first lines."""
    for feed in default_feeds()[dataset]:
        for found in feed.read_files(Mode.SAMPLE, None, clock):
            if found.source == source and found.name.endswith(ending):
                if not lines:
                    return found
                content = b"".join(found.content.splitlines(keepends=True)[:lines])
                return raw(found.name, content, source)
    raise LookupError(f"{dataset} has no sample of {source}")


def end_report(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in [*rows, f'C,"END OF REPORT",{len(rows) + 1}'])


def make_operational_day() -> bytes:
    ends = [
        f"{datetime(2026, 2, 19) + timedelta(minutes=30 * (k + 1)):%Y-%m-%dT%H:%M}+10:00"  # noqa: DTZ001
        for k in range(48)
    ]
    demand = {"intervals": ends} | {
        name: [100.0 + k for k in range(48)] for name in ("poe10", "poe50", "poe90", "actual")
    }
    solar = {"intervals": ends, "poe50": [1.0] * 48}
    regions = {region: {"demand": demand, "rooftopPv": solar} for region in REGIONS}
    document = {"tradingDate": "2026-02-19", "forecastIssuedAt": "2026-02-18T17:00+10:00"}
    return json.dumps(document | {"regions": regions}).encode()


def make_histdemand() -> str:
    rows = [
        "C,NEMP.WORLD,LFCST_HISTDEMAND,AEMO,PUBLIC,2019/01/02,02:00:01,0000000302837680,,1",
        "I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND",
        *(
            f'D,DEMAND,HISTORIC,1,NSW1,"2019/01/01 00:00:00",{period},{7000 + period}'
            for period in range(1, 49)
        ),
    ]
    return end_report(rows)


def make_mmsdm() -> str:
    rows = [
        "C,SETP.WORLD,DVD_TRADINGREGIONSUM,AEMO,PUBLIC,2020/02/10,15:08:09,1644469689,,",
        "I,TRADING,REGIONSUM,4,SETTLEMENTDATE,RUNNO,REGIONID,PERIODID,TOTALDEMAND",
        *(
            f'D,TRADING,REGIONSUM,4,"2020/01/01 {k // 2:02d}:{30 * (k % 2):02d}:00",1,NSW1,{k},7{k}'
            for k in range(1, 20)
        ),
    ]
    return end_report(rows)


def make_page() -> bytes:
    points = ",".join(f'[new Date("2020/01/{day:02d}"),{7000 + day}]' for day in range(1, 25))
    return f"<html><script>new Dygraph(document, [{points}], {{}});</script></html>".encode()


def make_list() -> bytes:
    stem = "http://data.gdeltproject.org/gdeltv2/2026021500"
    return b"".join(
        f"{1000 + k} {k:032x} {stem}{15 * k:02d}00.gkg.csv.zip\n".encode() for k in range(4)
    )


@cache
def make_seeds() -> Mapping[str, Seed]:
    """Return a seed a parser."""
    hours = gunzip(sample_file("traffic", "pems", ".txt.gz").content, "hours")
    hours = b"".join(hours.splitlines(keepends=True)[:12])
    price_file = sample_file("electricity", "aemo_price_and_demand", lines=12)
    gal = sample_file("news", "gdelt_bulk", ".gal.json.gz")
    gkg = sample_file("news", "gdelt_bulk", ".gkg.csv.zip")
    gkg_text = next(iter(unzip(gkg.content, gkg.name)))[1]
    poll = json.dumps(
        {
            "fetched_at": "2026-03-10T06:20:00+00:00",
            "events": [
                {
                    "url": f"https://example.com/{k}",
                    "title": f"Power plan {k}",
                    "timestamp": "20260310T060000Z",
                    "source_name": "example.com",
                }
                for k in range(4)
            ],
        }
    )
    half_hours = "".join(
        f"2020-01-01 {k:02d}:00:00,{1000 + k}\n2020-01-01 {k:02d}:30:00,1\n" for k in range(9)
    )
    ecb = sample_file("exchange", "ecb_wheel").content.splitlines(keepends=True)[:12]
    n2f = "".join(f"{k},1/{k + 1}/2020,0.7{k},1,2,3,4,5,6\n" for k in range(9))
    n2f_head = ",Time,AUD/USD,AUGDP,AUUN,AUIR,USAGDP,USAUN,USAIR\n"

    def day(parse: Callable[[RawFile], object]) -> Seed:
        return Seed(
            parse=parse,
            raw=raw("2026-02-19.json", make_operational_day(), "aemo_operational_demand"),
        )

    def seed(
        parse: Callable[[RawFile], object], name: str, content: bytes | str, source: str
    ) -> Seed:
        return Seed(parse=parse, raw=raw(name, content, source))

    benchmark = sample_file("electricity", "n2f_benchmark")
    samples = json.dumps(json.loads(benchmark.content)[:2])
    return {
        "aemo-price": Seed(parse=parse_tables.parse_price, raw=price_file),
        "aemo-histdemand": seed(
            parse_tables.parse_histdemand,
            "PUBLIC_HISTDEMAND_20190101_0000000302837680.csv",
            make_histdemand(),
            "aemo_histdemand",
        ),
        "aemo-mmsdm": seed(
            parse_tables.parse_mmsdm,
            "PUBLIC_DVD_TRADINGREGIONSUM_202001010000.CSV",
            make_mmsdm(),
            "aemo_mmsdm",
        ),
        "aemo-collected": seed(
            parse_tables.parse_collected,
            "load.csv",
            f"datetime,load_act\n{half_hours}",
            "aemo_totaldemand_half_hourly",
        ),
        "aemo-operational-actual": day(parse_operational.parse_operational),
        "aemo-operational-published": day(parse_operational.parse_published),
        "aemo-operational-solar": day(parse_operational.parse_step_covariates),
        "weather": Seed(
            parse=weather.parse, raw=sample_file("electricity", weather.SOURCE, lines=9)
        ),
        "ecb": seed(exchange.parse, "eurofxref-hist.csv", b"".join(ecb), "ecb_bulk"),
        "ecb-zip": seed(
            exchange.parse,
            "eurofxref-hist.zip",
            nemweb.pack(("eurofxref-hist.csv", b"".join(ecb))),
            "ecb_bulk",
        ),
        "aud-usd": seed(exchange.parse, exchange.N2F_FILE, n2f_head + n2f, "n2f_exchange"),
        "bitcoin-table": Seed(
            parse=bitinfocharts.parse,
            raw=sample_file("bitcoin", bitinfocharts.SOURCE, lines=12),
        ),
        "bitcoin-page": seed(
            bitinfocharts.parse, "bitcoin-price.html", make_page(), bitinfocharts.SOURCE
        ),
        "pems-hours": seed(
            pems.parse, "d04_text_station_hour_2016_01.txt.gz", gzip.compress(hours), "pems"
        ),
        "gdelt-doc": seed(doc.parse_doc, "poll.json", poll, "gdelt_doc"),
        "gdelt-gal": Seed(parse=parse_gal, raw=gal),
        "gdelt-gal-text": seed(
            parse_gal, gal.name.removesuffix(".gz"), gunzip(gal.content, gal.name), gal.source
        ),
        "gdelt-gkg": Seed(parse=parse_gkg, raw=gkg),
        "gdelt-gkg-text": seed(parse_gkg, gkg.name.removesuffix(".zip"), gkg_text, gkg.source),
        "gdelt-list": seed(
            lambda one: parse_list(one.content, one.name), "lastupdate.txt", make_list(), "gdelt"
        ),
        "n2f-news": Seed(
            parse=n2f_parsers.parse_news, raw=sample_file("news", "n2f_news", lines=9)
        ),
        "n2f-benchmark": seed(
            n2f_parsers.parse_benchmark, benchmark.name, samples, benchmark.source
        ),
        "n2f-prompt-news": seed(
            n2f_parsers.parse_prompt_articles, benchmark.name, samples, benchmark.source
        ),
        **make_own_seeds(),
        "ecb-sdmx": seed(exchange.parse, "eur_2026-11-13.csv", SDMX, "ecb_sdmx"),
        "rba": seed(exchange.parse, "f11.1-data.csv", RBA, "rba_f11"),
        "pems-five-minutes": seed(
            pems.parse, "d04_text_station_5min_2026_11_01.txt", make_five_minutes(), "pems"
        ),
        "aemo-operational-report": seed(
            parse_operational.parse_operational,
            "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH_202607190030_20260719003001.CSV",
            make_operational_report(),
            "aemo_operational_demand",
        ),
        "weather-run": seed(
            weather_runs.parse,
            weather_runs.name_run(RUN),
            json.dumps(make_run(hours=6)),
            weather_runs.SOURCE,
        ),
        "pems-list": seed(
            lambda one: clearinghouse.parse_list(one.content, one.name),
            "list.json",
            PEMS_LIST,
            "pems",
        ),
        "tar": seed(
            lambda one: list(untar(one.content, one.name)), "polls.tar.gz", make_tar(), "tar"
        ),
    }


def make_own_seeds() -> dict[str, Seed]:
    declaration = declare()
    keys = CovariateKeys(file="weather.csv", time="day", values=["temperature"])
    entity = make_label("load_mw")
    news_keys = declaration.model_copy(
        update={"news": NewsKeys(articles="news.csv", url="url", body="text")}
    )
    rows = "".join(
        f"2024-01-01 {k:02d}:00,{900 + k}.5\n2024-01-01 {k:02d}:30,9\n" for k in range(9)
    )
    days = "".join(f"2024-01-0{k},{20 + k}.5\n" for k in range(1, 9))
    articles_rows = "".join(
        f'2024-01-0{k}T08:00:00Z,"Wind, again {k}",https://example.org/{k},some text\n'
        for k in range(1, 9)
    )
    return {
        "own-series": Seed(
            parse=lambda one: frames.parse_series(one, declaration)[0],
            raw=wrap(f"stamp,load_mw\n{rows}"),
        ),
        "own-covariates": Seed(
            parse=lambda one: frames.parse_covariates(one, declaration, keys, [entity]),
            raw=wrap(f"day,temperature\n{days}", "weather.csv"),
        ),
        "own-articles": Seed(
            parse=lambda one: frames.parse_articles(one, news_keys),
            raw=wrap(f"published_at,title,url,text\n{articles_rows}", "news.csv"),
        ),
    }


def make_five_minutes() -> str:
    cells = f"400001,4,101,S,ML,.415,80,100,120,.03,65.1{',10' * 20}{',' * 20}"
    return "".join(f"10/31/2026 08:{5 * step:02d}:00,{cells}\n" for step in range(12))


def make_operational_report() -> str:
    rows = [
        "C,NEMP.WORLD,ACTUAL_OPERATIONAL_DEMAND_HH,AEMO,PUBLIC,2026/07/19,00:30:01,01,DEMAND,01",
        "I,OPERATIONAL_DEMAND,ACTUAL,3,REGIONID,INTERVAL_DATETIME,OPERATIONAL_DEMAND,"
        "OPERATIONAL_DEMAND_ADJUSTMENT,WDR_ESTIMATE,LASTCHANGED",
        *(
            f'D,OPERATIONAL_DEMAND,ACTUAL,3,{region},"2026/07/19 00:30:00",7000,50,5,'
            '"2026/07/19 00:30:00"'
            for region in REGIONS
        ),
    ]
    return end_report(rows)


def make_tar() -> bytes:
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for k in range(3):
            info = tarfile.TarInfo(f"poll_{k}.json")
            info.size = 20
            bundle.addfile(info, io.BytesIO(b"x" * 20))
    return buffer.getvalue()
