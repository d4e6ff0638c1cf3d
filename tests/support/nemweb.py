"""AEMO's hosts in miniature for the replay server: listings, half-hours, weeks, months."""

import io
import math
import re
import zipfile
from datetime import date, datetime, timedelta

from compevo_pipeline.sources.common.nem import HALF_HOUR, REGIONS
from tests.support.replay import Answer

HOST = "nemweb.com.au"
PRICES = "aemo.com.au"
PRICE_FOLDER = "/aemo/data/nem/priceanddemand"
JULY = date(2026, 7, 1)
ACTUAL = "Operational_Demand/ACTUAL_HH"
FORECAST = "Operational_Demand/FORECAST_HH"
ROOFTOP = "ROOFTOP_PV/FORECAST"
ACTUAL_INDEX = (
    "I,OPERATIONAL_DEMAND,ACTUAL,3,REGIONID,INTERVAL_DATETIME,OPERATIONAL_DEMAND,"
    "OPERATIONAL_DEMAND_ADJUSTMENT,WDR_ESTIMATE,LASTCHANGED"
)
FORECAST_INDEX = (
    "I,OPERATIONAL_DEMAND,FORECAST,1,REGIONID,INTERVAL_DATETIME,LOAD_DATE,"
    "OPERATIONAL_DEMAND_POE10,OPERATIONAL_DEMAND_POE50,OPERATIONAL_DEMAND_POE90,LASTCHANGED"
)
ROOFTOP_INDEX = (
    "I,ROOFTOP,FORECAST,1,VERSION_DATETIME,REGIONID,INTERVAL_DATETIME,POWERMEAN,POWERPOE50,"
    "POWERPOELOW,POWERPOEHIGH,LASTCHANGED"
)
SHARES = {"SA1": 0.25, "TAS1": 0.2}
"""What smaller regions use of what the others do."""


def pack(*members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members:
            # A fixed time, so that the same content is the same bytes.
            bundle.writestr(zipfile.ZipInfo(name, (2026, 7, 20, 0, 0, 0)), content)
    return buffer.getvalue()


def unzip_all(packed):
    with zipfile.ZipFile(io.BytesIO(packed)) as bundle:
        return [(name, bundle.read(name)) for name in bundle.namelist()]


def report(name, index, records, created):
    head = f"C,NEMP.WORLD,{name},AEMO,PUBLIC,{created:%Y/%m/%d,%H:%M:%S},0000000528134281,X,0"
    lines = [head, index, *records]
    return "".join(f"{line}\r\n" for line in [*lines, f'C,"END OF REPORT",{len(lines) + 1}'])


def pack_report(stem, index, records, created):
    name = re.split(r"_\d", stem)[0].removeprefix("PUBLIC_")
    return f"{stem}.zip", pack((f"{stem}.CSV", report(name, index, records, created)))


def stamp(moment):
    return f'"{moment:%Y/%m/%d %H:%M:%S}"'


def actual(end, value=8000.0):
    """The zip of one half-hour's actuals: its name and its bytes; times are NEM time."""
    made = end + timedelta(seconds=7)
    rows = [
        f"D,OPERATIONAL_DEMAND,ACTUAL,3,{region},{stamp(end)},"
        f"{(value + place) * SHARES.get(region, 1)},0,0,{stamp(made)}"
        for place, region in enumerate(REGIONS)
    ]
    stem = f"PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH_{end:%Y%m%d%H%M}_{made:%Y%m%d%H%M%S}"
    return pack_report(stem, ACTUAL_INDEX, rows, made)


def forecast(issued, steps=96, value=8100.0, spread=300.0, created=None):
    """One issue; ``created`` is what the first record says where that is another instant."""
    ends = [issued + HALF_HOUR * (step + 1) for step in range(steps)]
    rows = [
        f"D,OPERATIONAL_DEMAND,FORECAST,1,{region},{stamp(end)},{stamp(issued)},"
        + "".join(
            f"{level * SHARES.get(region, 1)}," for level in (value + spread, value, value - spread)
        )
        + stamp(issued)
        for region in REGIONS
        for end in ends
    ]
    stem = f"PUBLIC_FORECAST_OPERATIONAL_DEMAND_HH_{ends[0]:%Y%m%d%H%M}_{issued:%Y%m%d%H%M%S}"
    return pack_report(stem, FORECAST_INDEX, rows, created or issued)


def rooftop(issued, factor=1.0):
    rows = [
        f"D,ROOFTOP,FORECAST,1,{stamp(issued)},{region},{stamp(issued + HALF_HOUR * (step + 1))},"
        f"99.9,{factor * (step + 0.5)},1,2,{stamp(issued)}"
        for region in REGIONS
        for step in range(96)
    ]
    stem = f"PUBLIC_ROOFTOP_PV_FORECAST_{issued:%Y%m%d%H%M%S}_0000000528134281"
    return pack_report(stem, ROOFTOP_INDEX, rows, issued)


def listing(folder, names):
    """The page of a folder as IIS writes it: links in capitals, each name twice."""
    lines = [
        f"  Saturday, July 25, 2026  4:33 PM          462 "
        f'<A HREF="/Reports/CURRENT/{folder}/{name}">{name}</A><br>'
        for name in names
    ]
    body = f"<html><head><title>{HOST}</title></head><body><pre>{''.join(lines)}</pre></body>"
    return Answer(body=body.encode(), kind="text/html; charset=UTF-8")


def serve_folder(replay, folder, files):
    """Lists files under the folder's own spelling; their links say ``CURRENT``."""
    names = [name for name, _ in files]
    replay.serve({(HOST, f"/Reports/Current/{folder}/"): listing(folder, names)})
    for name, body in files:
        answer = Answer(body=body, kind="application/x-zip-compressed", etag=f'"{name}"')
        replay.serve({(HOST, f"/Reports/CURRENT/{folder}/{name}"): answer})


def serve_day(replay, count=8):
    """One day of actuals, one issue of both forecasts at 17:00 of it, archives of another year."""
    day = datetime(2026, 7, 19)  # noqa: DTZ001 - NEM time
    issued = day.replace(hour=17)
    folders = {
        ACTUAL: [actual(day + HALF_HOUR * (step + 1)) for step in range(count)],
        FORECAST: [forecast(issued)],
        ROOFTOP: [rooftop(issued)],
    }
    for folder, files in folders.items():
        serve_folder(replay, folder, files)
        page = listing(folder, [re.split(r"_\d", files[0][0])[0] + "_20250601.zip"])
        replay.serve({(HOST, f"/Reports/Archive/{folder}/"): page})


def usual(step):
    """Return a day's wave that differs a little from day to day, by five minutes of a month."""
    return 8000 + 1500 * math.sin(2 * math.pi * step / 288) + step // 288


def price_file(
    region="NSW1", month=JULY, *, days=3, minutes=5, level=usual, price=80.5, shift=timedelta(0)
):
    """One month's file: its name and its bytes; 5-minute rows of its first days."""
    first = datetime(month.year, month.month, 1) + shift  # noqa: DTZ001 - NEM time
    rows = [
        f"{region},{first + timedelta(minutes=minutes * (step + 1)):%Y/%m/%d %H:%M:%S},"
        f"{level(step) * SHARES.get(region, 1):.2f},{price},TRADE"
        for step in range(days * 24 * 60 // minutes)
    ]
    text = "\r\n".join(["REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE", *rows, ""])
    return f"PRICE_AND_DEMAND_{month:%Y%m}_{region}.csv", text.encode()


def serve_prices(replay, *months, **kwargs):
    for month in months:
        for region in REGIONS:
            name, body = price_file(region, month, **kwargs)
            path = f"{PRICE_FOLDER}/{name}"
            replay.serve({(PRICES, path): Answer(body=body, kind="text/csv", etag=f'"{path}"')})
