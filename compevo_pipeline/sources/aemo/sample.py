"""Synthetic AEMO files in AEMO's own formats, for the sample mode.

What belongs here: bytes of HISTDEMAND reports, PRICE_AND_DEMAND months and operational-demand days, made from the
synthetic world. What does not: parsing; the same parsers read these and the real files.
"""

import json
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

import numpy as np

from compevo_pipeline.sources.common.base import RawFile, sample_raw
from compevo_pipeline.sources.common.nem import HALF_HOUR, PERIODS_PER_DAY, REGIONS
from compevo_pipeline.sources.common.sample_world import SampleWorld, days

HISTDEMAND_SPAN = (date(2019, 10, 1), date(2019, 12, 31))
PRICE_MONTHS = (date(2020, 1, 1), date(2021, 1, 1))
OPERATIONAL_SPAN = (date(2026, 2, 16), date(2026, 3, 30))
_POE_SPREAD = 0.07


def histdemand(world: SampleWorld, source: str) -> Iterator[RawFile]:
    """Yield one report a day."""
    for number, day in enumerate(days(*HISTDEMAND_SPAN)):
        stamp, issued = f"{day:%Y/%m/%d} 00:00:00", f"{day + timedelta(days=1):%Y/%m/%d},02:00:00"
        lines = [
            f"C,SAMPLE.WORLD,LFCST_HISTDEMAND,SYNTHETIC,PUBLIC,{issued},{number:016d},,",
            "I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND",
        ]
        for region in REGIONS:
            values = world.demand(region, day)
            lines += [
                f'D,DEMAND,HISTORIC,1,{region},"{stamp}",{k + 1},{values[k]:.0f}'
                for k in range(PERIODS_PER_DAY)
            ]
        lines.append(f'C,"END OF REPORT",{len(lines) + 1}')
        content = "".join(line + "\n" for line in lines).encode()
        yield sample_raw(source, f"PUBLIC_HISTDEMAND_{day:%Y%m%d}_{number:016d}.csv", content)


def price_and_demand(world: SampleWorld, source: str) -> Iterator[RawFile]:
    """Yield one 30-minute month a region."""
    for first in PRICE_MONTHS:
        next_month = (first + timedelta(days=32)).replace(day=1)
        span = list(days(first, next_month - timedelta(days=1)))
        for region in REGIONS:
            demand = np.concatenate([world.demand(region, day) for day in span])
            price = 20 + 60 * (demand / demand.mean() - 0.8) ** 2 + 15 * (demand / demand.max())
            lines = ["REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE"]
            for index, (megawatts, dollars) in enumerate(zip(demand, price, strict=True)):
                end = datetime.combine(first, time()) + (index + 1) * HALF_HOUR
                lines.append(
                    f"{region},{end:%Y/%m/%d %H:%M:%S},{megawatts:.2f},{dollars:.2f},TRADE"
                )
            content = "".join(line + "\r\n" for line in lines).encode()
            yield sample_raw(source, f"PRICE_AND_DEMAND_{first:%Y%m}_{region}.csv", content)


def operational(world: SampleWorld, source: str) -> Iterator[RawFile]:
    """Yield one day with actuals and a day-ahead forecast in three quantiles."""
    for day in days(*OPERATIONAL_SPAN):
        ends = [datetime.combine(day, time()) + (k + 1) * HALF_HOUR for k in range(PERIODS_PER_DAY)]
        intervals = [f"{end:%Y-%m-%dT%H:%M}+10:00" for end in ends]
        regions: dict[str, object] = {}
        for region in REGIONS:
            actual = world.demand(region, day)
            median = actual + world.forecast_error(region, day)
            quantiles = {
                "poe10": median * (1 + _POE_SPREAD),
                "poe50": median,
                "poe90": median * (1 - _POE_SPREAD),
            }
            listed = {
                name: [float(v) for v in np.round(values)] for name, values in quantiles.items()
            }
            rounded = [float(v) for v in np.round(actual)]
            regions[region] = {"demand": {"intervals": intervals, **listed, "actual": rounded}}
        issued = f"{day - timedelta(days=1):%Y-%m-%d}T17:00+10:00"
        document = {
            "tradingDate": f"{day:%Y-%m-%d}",
            "forecastIssuedAt": issued,
            "regions": regions,
        }
        yield sample_raw(
            source, f"{day:%Y-%m-%d}.json", json.dumps(document, separators=(",", ":")).encode()
        )
