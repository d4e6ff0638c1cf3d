"""One small, valid file of every parser, to be mutated.

What belongs here: the parsers by name and the files they start from. What does not: mutating
(``tests.fuzz.mutations``), counting (``tests.fuzz.run``).
"""

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from compevo_pipeline.feeds import default_feeds
from compevo_pipeline.sources import exchange, weather
from compevo_pipeline.sources.aemo import collected, histdemand, mmsdm, operational, price
from compevo_pipeline.sources.bitinfocharts import source as bitinfocharts
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.unpack import gunzip, untar, unzip
from compevo_pipeline.sources.gdelt import doc
from compevo_pipeline.sources.gdelt.bulk import parse_gal, parse_gkg
from compevo_pipeline.sources.gdelt.file_lists import parse_list
from compevo_pipeline.sources.news2forecast import news, prompts
from compevo_pipeline.sources.pems import source as pems
from tests.support.sources import clock, raw

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")


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


def pack_zip(content: bytes, member: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(member, content)
    return buffer.getvalue()


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


def make_histdemand() -> bytes:
    rows = [
        "C,NEMP.WORLD,LFCST_HISTDEMAND,AEMO,PUBLIC,2019/01/02,02:00:01,0000000302837680,,1",
        "I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND",
        *(
            f'D,DEMAND,HISTORIC,1,NSW1,"2019/01/01 00:00:00",{period},{7000 + period}'
            for period in range(1, 49)
        ),
    ]
    return "".join(f"{row}\n" for row in [*rows, f'C,"END OF REPORT",{len(rows) + 1}']).encode()


def make_mmsdm() -> bytes:
    rows = [
        "C,SETP.WORLD,DVD_TRADINGREGIONSUM,AEMO,PUBLIC,2020/02/10,15:08:09,1644469689,,",
        "I,TRADING,REGIONSUM,4,SETTLEMENTDATE,RUNNO,REGIONID,PERIODID,TOTALDEMAND",
        *(
            f'D,TRADING,REGIONSUM,4,"2020/01/01 {k // 2:02d}:{30 * (k % 2):02d}:00",1,NSW1,{k},7{k}'
            for k in range(1, 20)
        ),
    ]
    return "".join(f"{row}\n" for row in [*rows, f'C,"END OF REPORT",{len(rows) + 1}']).encode()


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
    price_file = sample_file("electricity", price.SOURCE, lines=12)
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
            parse=parse, raw=raw("2026-02-19.json", make_operational_day(), operational.SOURCE)
        )

    def seed(
        parse: Callable[[RawFile], object], name: str, content: bytes | str, source: str
    ) -> Seed:
        return Seed(parse=parse, raw=raw(name, content, source))

    benchmark = sample_file("electricity", "n2f_benchmark")
    samples = json.dumps(json.loads(benchmark.content)[:2])
    return {
        "aemo-price": Seed(parse=price.parse, raw=price_file),
        "aemo-histdemand": seed(
            histdemand.parse,
            "PUBLIC_HISTDEMAND_20190101_0000000302837680.csv",
            make_histdemand(),
            histdemand.SOURCE,
        ),
        "aemo-mmsdm": seed(
            mmsdm.parse,
            "PUBLIC_DVD_TRADINGREGIONSUM_202001010000.CSV",
            make_mmsdm(),
            mmsdm.SOURCE,
        ),
        "aemo-collected": seed(
            collected.parse, "load.csv", f"datetime,load_act\n{half_hours}", collected.SOURCE
        ),
        "aemo-operational-actual": day(operational.parse),
        "aemo-operational-published": day(operational.parse_published),
        "aemo-operational-solar": day(operational.parse_step_covariates),
        "weather": Seed(
            parse=weather.parse, raw=sample_file("electricity", weather.SOURCE, lines=9)
        ),
        "ecb": seed(exchange.parse, "eurofxref-hist.csv", b"".join(ecb), "ecb_bulk"),
        "ecb-zip": seed(
            exchange.parse,
            "eurofxref-hist.zip",
            pack_zip(b"".join(ecb), "eurofxref-hist.csv"),
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
        "n2f-news": Seed(parse=news.parse, raw=sample_file("news", news.SOURCE, lines=9)),
        "n2f-benchmark": seed(prompts.parse_benchmark, benchmark.name, samples, benchmark.source),
        "n2f-prompt-news": seed(
            prompts.parse_prompt_articles, benchmark.name, samples, benchmark.source
        ),
        "tar": seed(
            lambda one: list(untar(one.content, one.name)), "polls.tar.gz", make_tar(), "tar"
        ),
    }


def make_tar() -> bytes:
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for k in range(3):
            info = tarfile.TarInfo(f"poll_{k}.json")
            info.size = 20
            bundle.addfile(info, io.BytesIO(b"x" * 20))
    return buffer.getvalue()
