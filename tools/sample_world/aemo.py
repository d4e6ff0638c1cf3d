"""Synthetic AEMO files in AEMO's own formats, for the sample mode.

What belongs here: bytes of HISTDEMAND reports, PRICE_AND_DEMAND months and operational-demand days,
made from the synthetic world. What does not: parsing; the same parsers read these and the real
files.
"""

import json
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_pipeline.sources.common.nem import HALF_HOUR, PERIODS_PER_DAY, REGIONS
from tools.sample_world.world import WORLD_REGIONS, SampleWorld, days_between

# Something of every span of the split plan: train in two measures, validation, test, inference.
HISTDEMAND_SPAN = (date(2019, 11, 1), date(2019, 12, 31))
PRICE_MONTHS = (date(2020, 1, 1), date(2020, 12, 1), date(2021, 1, 1))
LAST_MEASURED_DAY = date(2026, 3, 30)
# The day after it is tomorrow: its forecast is published, its demand not yet measured.
# A month of the train span, then the end of validation, and test.
OPERATIONAL_SPANS = ((date(2025, 8, 2), date(2025, 8, 31)), (date(2026, 2, 8), date(2026, 3, 31)))

_POE_SPREAD = 0.07  # distance of POE10 and POE90 from the median, as a share of it


def make_histdemand_reports(world: SampleWorld) -> Iterator[tuple[str, bytes]]:
    """Yield one report a day."""
    for number, day in enumerate(days_between(*HISTDEMAND_SPAN)):
        stamp = f"{day:%Y/%m/%d} 00:00:00"
        issued = f"{day + timedelta(days=1):%Y/%m/%d},02:00:00"
        lines = [
            f"C,SAMPLE.WORLD,LFCST_HISTDEMAND,SYNTHETIC,PUBLIC,{issued},{number:016d},,",
            "I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND",
        ]

        for region in REGIONS:
            demand = world.demand(region, day)
            lines += [
                f'D,DEMAND,HISTORIC,1,{region},"{stamp}",{period + 1},{demand[period]:.0f}'
                for period in range(PERIODS_PER_DAY)
            ]

        # The footer counts itself too.
        lines.append(f'C,"END OF REPORT",{len(lines) + 1}')
        content = "".join(line + "\n" for line in lines).encode()
        yield f"PUBLIC_HISTDEMAND_{day:%Y%m%d}_{number:016d}.csv", content


def make_price_and_demand_months(world: SampleWorld) -> Iterator[tuple[str, bytes]]:
    """Yield one 30-minute month a region."""
    for first in PRICE_MONTHS:
        # 32 days after the first is always in the next month.
        next_month = (first + timedelta(days=32)).replace(day=1)
        month = list(days_between(first, next_month - timedelta(days=1)))

        for region in REGIONS:
            demand = np.concatenate([world.demand(region, day) for day in month])
            # AUD/MWh, rising with demand.
            price = 20 + 60 * (demand / demand.mean() - 0.8) ** 2 + 15 * (demand / demand.max())

            lines = ["REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE"]
            for index, (megawatts, dollars) in enumerate(zip(demand, price, strict=True)):
                end = datetime.combine(first, time()) + (index + 1) * HALF_HOUR
                lines.append(
                    f"{region},{end:%Y/%m/%d %H:%M:%S},{megawatts:.2f},{dollars:.2f},TRADE"
                )

            content = "".join(line + "\r\n" for line in lines).encode()
            yield f"PRICE_AND_DEMAND_{first:%Y%m}_{region}.csv", content


def make_operational_days(world: SampleWorld) -> Iterator[tuple[str, bytes]]:
    """Yield a file per day: actuals, forecasts in three quantiles, and forecast solar power."""
    for day in (day for span in OPERATIONAL_SPANS for day in days_between(*span)):
        ends = [
            datetime.combine(day, time()) + (period + 1) * HALF_HOUR
            for period in range(PERIODS_PER_DAY)
        ]
        intervals = [f"{end:%Y-%m-%dT%H:%M}+10:00" for end in ends]

        document = {
            "tradingDate": f"{day:%Y-%m-%d}",
            "forecastIssuedAt": f"{day - timedelta(days=1):%Y-%m-%d}T17:00+10:00",
            "regions": {
                region: {
                    "demand": {"intervals": intervals, **_quantiles(world, region, day)},
                    "rooftopPv": {"intervals": intervals, "poe50": _solar(region, day)},
                }
                for region in REGIONS
            },
        }
        content = json.dumps(document, separators=(",", ":")).encode()
        yield f"{day:%Y-%m-%d}.json", content


def _quantiles(world: SampleWorld, region: str, day: date) -> dict[str, list[float | None]]:
    """Return the forecast quantiles and the actual of a day in whole MW (48 each).

    The actual of a day that is not over is null, as the publisher writes it.
    """
    actual = world.demand(region, day)
    median = actual + world.forecast_error(region, day)
    fields: dict[str, FloatArray] = {
        "poe10": median * (1 + _POE_SPREAD),
        "poe50": median,
        "poe90": median * (1 - _POE_SPREAD),
        "actual": actual,
    }
    values: dict[str, list[float | None]] = {
        name: [float(value) for value in np.round(row)] for name, row in fields.items()
    }
    if day > LAST_MEASURED_DAY:
        values["actual"] = [None] * PERIODS_PER_DAY
    return values


def _solar(region: str, day: date) -> list[float]:
    """Return the forecast power of rooftop solar in whole MW (48): a half-sine from 6:00 to 18:00.

    The season is a yearly wave that is highest at midsummer; no cloud ever passes.
    """
    hours = (np.arange(PERIODS_PER_DAY) + 0.5) / 2
    daylight = np.clip(np.sin(np.pi * (hours - 6) / 12), 0, None) * ((hours > 6) & (hours < 18))
    season = 1 + 0.3 * np.cos(2 * np.pi * day.timetuple().tm_yday / 365.25)
    peak = WORLD_REGIONS[region].base_mw / 4
    return [float(value) for value in np.round(peak * season * daylight)]
