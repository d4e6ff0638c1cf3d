"""The published 100-window electricity test set as a named subset (PROVENANCE 3; style, rule 15).

What belongs here: turning benchmark records into windows. What does not: reading the benchmark's file (the
pipeline's parser) or its prompts, which hold the predicted day's own weather and news and are not used.

The benchmark's day is the rows *stamped* 00:00 .. 23:30, and stamps are interval ends, so its day starts at 23:30 NEM
time of the day before. From 2021-10-01 on its values are means of rows t .. t+25 minutes, 25 minutes later than
AEMO's half-hours; those windows carry the second subset name as well, and keep the earlier origin for news and
covariates.
"""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data.context import Context, Names
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.series import BENCHMARK_SCHEMA, validate_frame
from compevo_core.data.window import HORIZON, LOOKBACK, Window
from compevo_core.errors import DataError

SUBSET = "n2f-test-100"
SHIFTED_SUBSET = "n2f-shifted-25min"
FIVE_MINUTE_DAY = date(2021, 10, 1)
ORIGIN_BEFORE_MIDNIGHT = timedelta(minutes=30)
UNIT = "MW"


def origin_of(target_date: date, market_offset: timedelta) -> datetime:
    """Start of the first target half-hour: 23:30 market time of the day before ``target_date``."""
    midnight = (
        datetime(target_date.year, target_date.month, target_date.day, tzinfo=UTC) - market_offset
    )
    return midnight - ORIGIN_BEFORE_MIDNIGHT


def benchmark_windows(spec: DatasetSpec, records: pl.DataFrame, context: Context) -> list[Window]:
    """One test window a record; ``x`` and ``y`` are the published numbers.

    Raises:
        DataError: a record has not 48 numbers, or predicts a day outside the test span.
    """
    records = validate_frame(records, BENCHMARK_SCHEMA, "benchmark frame")
    spans = [s for s in spec.spans if s.split == "test"]
    windows = []
    for row in records.sort("record").iter_rows(named=True):
        day: date = row["target_date"]
        if not any(s.first_day <= day <= s.last_day for s in spans):
            raise DataError(
                f"benchmark record {row['record']} predicts {day}, outside the test span of {spec.name}; "
                "give the benchmark's test file"
            )
        if len(row["x"]) != LOOKBACK or len(row["y"]) != HORIZON:
            raise DataError(
                f"benchmark record {row['record']} has {len(row['x'])} inputs and {len(row['y'])} outputs, not 48 each"
            )
        names = Names(
            series_id=f"N2F/TOTALDEMAND/{row['entity']}",
            entity=row["entity"],
            variable=spec.variable,
            unit=UNIT,
            split="test",
            subsets=(SUBSET, SHIFTED_SUBSET) if day >= FIVE_MINUTE_DAY else (SUBSET,),
        )
        origin = origin_of(day, spec.market_offset)
        view = context.view(names, origin, np.array(row["x"], dtype=np.float64), 0)
        windows.append(Window(view=view, y=np.array(row["y"], dtype=np.float64)))
    return windows
