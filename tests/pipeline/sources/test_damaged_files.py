"""Damage to a small valid file of every parser: each ends in its class, with file and place.

What belongs here: one table of files that are refused, by publisher. What does not: random damage
(``tests/fuzz``), values that are wrong (``tests/content_faults``).
"""

import gzip
import json
import re

import pytest

from compevo_core.errors import SchemaDrift, SourceBlocked, SourceRejected, SourceTransient
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from tests.fuzz.seeds import make_seeds
from tests.support.nemweb import pack
from tests.support.sources import raw

HEADED = ("aemo-price", "aemo-collected", "aud-usd", "bitcoin-table", "ecb", "weather")
TABLES = (*HEADED, "rba", "pems-hours", "pems-five-minutes")
WITH_NUMBERS = ("aemo-price", "aud-usd", "weather", "rba")
FORMS = (*TABLES, "aemo-histdemand", "aemo-mmsdm", "aemo-operational-report")


def cut_last_line(content):
    last = content.rstrip().rsplit(b"\n", 1)[-1]
    return content.rstrip()[: -len(last) // 2]


def spoil_byte(content):
    lines = content.split(b"\n")
    return b"\n".join([*lines[:2], b"\xff" + lines[2], *lines[3:]])


def repeat_last_row(content):
    return content.rstrip() + b"\n" + content.rstrip().rsplit(b"\n", 1)[-1] + b"\n"


def spoil_number(content):
    return re.sub(rb"\.\d+(?=[^.]*$)", b".x", content)


def swap(old, new):
    return lambda content: content.replace(old.encode(), new.encode())


def whole(content):
    return lambda _: content if isinstance(content, bytes) else content.encode()


def put(*path, value):
    def change(content):
        document = place = json.loads(content)
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(document).encode()

    return change


#: Damage that several forms have, what it ends in, and what is said.
COMMON = {
    "empty": (FORMS, lambda _: b"", SourceTransient, "empty"),
    "page": (FORMS, lambda _: b"<!DOCTYPE html><title>403</title>", SchemaDrift, "web page"),
    # The notes of the RBA come in two encodings.
    "byte": ([one for one in FORMS if one != "rba"], spoil_byte, SchemaDrift, "line 3: byte 0xff"),
    "header": (HEADED, lambda content: b"a,b" + content, SchemaDrift, "line 1: the header"),
    "rows": (HEADED, lambda content: content.split(b"\n")[0] + b"\n", SchemaDrift, "no rows"),
    "cut": (FORMS, cut_last_line, SchemaDrift, r"line \d+: "),
    "twice": (TABLES, repeat_last_row, SchemaDrift, r"line \d+: .* is a duplicate"),
    "number": (WITH_NUMBERS, spoil_number, SchemaDrift, r"line \d+: .* not a number"),
}

SA1 = ("regions", "SA1", "demand")
HOURS = '"2025-11-10T22:00", "2025-11-10T23:00"'
ROW = '"2019/01/01 00:00:00",1,7001'
NEWS = "time,news,region,rationality,date\n{}\n"
END = "the pressure is 1024.2. "
STAMPED = "On 2021-04-03 99:57:00, the news can change the time series fluctuation that it is"
DATED = "On 2021-04-99, in the state of QLD, the news was: 'Heat'. Rationality behind it:"
EMPTY = (EmptyNewsAnswer, "not 'no news'")
THROTTLE = (SourceTransient, "line 1: a throttle")

#: By parser: damage that only its form knows, and what is said; another class than drift before it.
REFUSED = {
    "aemo-price": [
        (swap("7277.13", ""), "line 2: TOTALDEMAND is '', not a number"),
        (swap("TRADE", '"TRA\nDE"'), "line 2: 5 cells"),
    ],
    "aemo-collected": [
        (whole("DATETIME,TOTALDEMAND,REGIONID\n1/1/2010 0:00,8,NSW\n"), "line 2: region is 'NSW'"),
        (whole("DATETIME,TOTALDEMAND,REGIONID\n2010-01-01,8,NSW1\n"), "line 2: DATETIME is '2010-"),
        (swap("2020-01-01 00:30:00,1\n", ""), "line 3: .*timestamps"),
    ],
    "aemo-histdemand": [
        (swap(f"NSW1,{ROW}", 'NSW1,"2019/01/01 00:00:00",49,1'), "line 3: PERIODID is 49"),
        (swap(f"NSW1,{ROW}", 'NSW1,"2019/01/01 00:00:00",1.5,1'), "line 3: PERIODID is 1.5"),
        (swap(f"NSW1,{ROW}", f"NSW2,{ROW}"), "line 3: REGIONID is 'NSW2'"),
        (swap(f"D,DEMAND,HISTORIC,1,NSW1,{ROW}", "I,DEMAND,X,1,ID"), "line 3: .*D record"),
        (swap('REPORT",51', 'REPORT",52'), "line 51: .* 52 .* 51"),
        (swap('REPORT",51', f'REPORT",{"9" * 5000}'), "line 51: .*END OF REPORT"),
        (swap("PERIODID,DEMAND", "PERIODID,LOAD"), "line 2: .*DEMAND"),
        (swap("I,DEMAND,HISTORIC", "I,DEMAND,FORECAST"), "line 2: .* DEMAND,HISTORIC"),
        (whole("REGION,SETTLEMENTDATE\nNSW1,2019\n"), "line 1: .*C record"),
    ],
    "aemo-operational-actual": [
        (put(*SA1, "actual", 7, value="lots"), r"regions\.SA1\.demand\.actual\.7: .* 'lots'"),
        (put(*SA1, "actual", 7, value=True), r"regions\.SA1\.demand\.actual\.7: .* 'True'"),
        (put(*SA1, "poe50", value=[1.0] * 47), r"SA1\.demand\.poe50: .* 48 items .* not 47"),
        (put(*SA1, "intervals", 2, value="2026"), r"SA1\.demand\.intervals: not the 48"),
        (put(*SA1, value=None), r"regions\.SA1\.demand: .* 'None'"),
        (put("regions", value={}), r"regions: .*holds \[\]"),
        (put("tradingDate", value="19/02/2026"), "tradingDate: .* '19/02/2026'"),
        (put("forecastIssuedAt", value="2026-02-18T17:00"), "forecastIssuedAt: .* timezone"),
        (put("forecastIssuedAt", value="0001-01-01T00:00+10:00"), "forecastIssuedAt: .*1900"),
        (put("forecastIssuedAt", value=None), "forecastIssuedAt: .* 'None'.*; fetch"),
    ],
    "weather": [(swap("NSW", "WA"), "line 2: State is 'WA'")],
    "weather-run": [
        (whole('{"error": true, "reason": "Cannot start"}'), SourceRejected, "Cannot start"),
        (whole('{"hourly": {}}'), "at the document: .* list"),
        (lambda content: json.dumps(json.loads(content)[:4]).encode(), "5 items .* not 4"),
        (lambda content: json.dumps(json.loads(content)[::-1]).encode(), "not near .* of NSW1"),
        (put(1, "utc_offset_seconds", value=36000), r"at 1\.utc_offset_seconds: .* 0 .* '36000'"),
        (swap(HOURS, HOURS.replace("23:00", "23:30")), "stamps"),
        (swap("2025-11-10T18:00", "10/11/2025"), "stamps"),
        (swap(HOURS, '"2025-11-10T22:00"'), "value"),
        (swap("[21.0", "[1e999"), r"0\.hourly\.temperature_2m\.0: .* finite"),
        (put(0, "hourly_units", "temperature_2m", value="°F"), "'°F'.*'°C'"),
        (whole('{\n "a": [1,'), "line 2, column 10"),
        *((whole(text * 100_000), "nested") for text in ("[", '{"a":')),
        (whole('{"mw": ' + "9" * 5_000 + "}"), "number"),
        (whole('{"region": "NSW\\ud83d"}'), "surrogate"),
    ],
    "ecb": [(swap("AUD", "AUX"), r"line 1: the header lacks \['AUD'\]")],
    "ecb-zip": [(whole(pack(("readme.txt", "hello"))), "the header lacks")],
    "aud-usd": [
        (swap("2,1/3/2020,0.72,1,2,3,4,5,6\n", ""), "line 4: .*missing"),
        (swap("AUGDP,AUUN", "AUUN,AUGDP"), "line 1: .*another order"),
    ],
    "rba": [(swap("Series ID", "Series"), "'Series ID'")],
    "bitcoin-table": [(swap("0,2019-05-01,active", "0,2019-05-01,in"), "line 2: unknown ID 'in_")],
    "bitcoin-page": [
        (swap("7003", "__import__('os').abort()"), "line 1: .*chart"),
        (lambda content: content[: content.index(b"7003")], "line 1: .*chart"),
        (whole("<html><title>Just a moment...</title>"), SourceBlocked, "circumvented"),
    ],
    "pems-hours": [(swap("01/01/2016 00", "03/13/2016 02"), "line 1: 2016-03-13 02:.*Los_Angeles")],
    "pems-five-minutes": [
        (swap("10/31/2026 08:00:00", "Timestamp,Station\n10/31/2026 08:00:00"), "line 1: 2 cells"),
        (swap("08:05:00", "08:02:00"), "08:02:00"),
    ],
    "pems-list": [
        *((whole(text), "") for text in ("{", '{"data": ["a"]}', "[" * 100_000)),
        *(
            (whole(f'{{"data": {{"May": [{entry}]}}}}'), "")
            for entry in ("3", '{"url": "/"}', '{"file_name": "../../etc/passwd", "url": "/"}')
        ),
    ],
    "gdelt-gkg": [(whole(pack(("a.csv", "x"), ("b.csv", "x"))), "holds 2 files")],
    "gdelt-gal": [
        (lambda content: content[:-9], SourceTransient, "truncated"),
        (whole(gzip.compress(b"")), EmptyNewsAnswer, "line"),
    ],
    "gdelt-doc": [
        *((whole(text), *EMPTY) for text in ("{}", '{"articles": []}')),
        (whole('{"fetched_at": "2026-03-18T10:50:16Z", "events": []}'), *EMPTY),
        *((whole(text), SourceTransient, "empty") for text in ("", "  \n")),
        (whole("Please limit requests to one every 5 seconds"), *THROTTLE),
        (whole("<html>Too Many Requests</html>"), *THROTTLE),
        (whole("Queries with OR must be in ()."), SourceRejected, ""),
        (whole('{"timeline": []}'), "at articles: .*'timeline'"),
        (whole("[1]"), "at the document: "),
        (whole('{"articles": {}}'), "at articles: .* list"),
        (whole('{"articles": ' + "[" * 100_000), "nested"),
        (put("fetched_at", value="yesterday"), "at fetched_at: .*'yesterday'"),
    ],
    "n2f-benchmark": [
        (swap("7085.6,", ""), "sample 0: .*47"),
        (put(0, "output", value="nan"), "sample 0: output holds 'nan'"),
        (swap("prediction is NSW", "prediction is WA"), "sample 0: "),
        (swap("on 2021-1-5", "on 2021-1-32"), "sample 0: '2021-1-32'"),
        (whole('[{"input": ""}]'), r"0\.instruction"),
        (whole("[]"), "at the document: .* 1 item"),
    ],
    "n2f-prompt-news": [
        (swap(END, f"{END}{STAMPED} hot."), "sample 0: "),
        (swap(END, f"{END}{DATED} hot."), "sample 0: "),
        (swap(END, f"{END}Breaking: something happened."), "sample 0: "),
    ],
    "n2f-news": [
        (whole(NEWS.format(row)), said)
        for row, said in (
            ("2019-13-03 17:57:00,Heat,SA,r,2019-01-03", "line 2: time '2019-13-03 17"),
            ("0001-01-01 00:30:00,Heat,SA,r,2019-01-03", "line 2: time '0001-01-01 00"),
            ("2019-01-03 17:57:00,Heat,SA,r,9999-12-31", "line 2: date '9999-12-31'"),
            ("2019-01-03 17:57:00,Heat,SA,r,3 Jan", "line 2: date '3 Jan'"),
            ('2019-01-03 17:57:00,"two\nlines",SA,r,2019-01-03\n,Heat,SA,r,', "line 4: date ''"),
            ("2019-01-03 17:57:00,Heat,SA", "line 2: 3 cells, not 5"),
            (",no suitable news,,,2019-01-03", "no news"),
        )
    ],
}

DAMAGES = [
    *((name, kind, *case) for kind, (names, *case) in COMMON.items() for name in names),
    *(
        (name, f"form-{number}", damage, *([SchemaDrift] if len(said) == 1 else []), *said)
        for name, rows in REFUSED.items()
        for number, (damage, *said) in enumerate(rows)
    ),
]


@pytest.mark.parametrize(
    ("name", "damage", "expected", "match"),
    [pytest.param(*case[:1], *case[2:], id=f"{case[0]}-{case[1]}") for case in DAMAGES],
)
def test_a_damaged_file_names_its_place(name, damage, expected, match):
    seed = make_seeds()[name]
    content, file_name = seed.raw.content, seed.raw.name
    if file_name.endswith(".txt.gz"):
        content, file_name = gzip.decompress(content), file_name.removesuffix(".gz")
    assert damage(content) != content

    with pytest.raises(expected, match=f"{re.escape(file_name)}.*{match}"):
        seed.parse(raw(file_name, damage(content), seed.raw.source))
