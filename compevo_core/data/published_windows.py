"""The published 100-window electricity test set as a named subset.

What belongs here: turning benchmark records into windows. What does not: reading the benchmark's
file (the pipeline's parser) or its prompts, which hold the predicted day's own weather and news and
are not used.

The benchmark's day is the rows *stamped* 00:00 to 23:30. Stamps are interval ends, so its day
starts at 23:30 NEM time of the day before. From 2021-10-01, when AEMO changed to five minutes, its
values are means of rows t to t + 25 minutes, 25 minutes later than AEMO's half-hours. Those windows
carry the second subset name as well, and keep the earlier origin for news and covariates.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.context import ContextBuilder, WindowLabels
from compevo_core.data.cutting import InputValues
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.schemas import BENCHMARK_SCHEMA, validate_frame
from compevo_core.data.view import HORIZON, LOOKBACK, Window
from compevo_core.errors import DataError

SUBSET = "n2f-test-100"
SHIFTED_SUBSET = "n2f-shifted-25min"
FIVE_MINUTE_DAY = date(2021, 10, 1)
ORIGIN_BEFORE_MIDNIGHT = timedelta(minutes=30)
UNIT = "MW"


def find_origin(target_date: date, market_offset: timedelta) -> datetime:
    """Return the start of the first target half-hour: 23:30 market time of the day before."""
    midnight = datetime(target_date.year, target_date.month, target_date.day, tzinfo=UTC)
    return midnight - market_offset - ORIGIN_BEFORE_MIDNIGHT


def build_benchmark_windows(
    spec: DatasetSpec, records: pl.DataFrame, context: ContextBuilder
) -> list[Window]:
    """Return one test window per record; ``x`` and ``y`` are the published numbers.

    Raises:
        DataError: a record has not 48 numbers, or predicts a day outside the test span.
    """
    records = validate_frame(records, BENCHMARK_SCHEMA, "benchmark frame")

    windows = []
    for record in records.sort("record").iter_rows(named=True):
        _check_record(spec, record)
        day: date = record["target_date"]

        labels = WindowLabels(
            series_id=f"N2F/TOTALDEMAND/{record['entity']}",
            entity=record["entity"],
            variable=spec.variable,
            unit=UNIT,
            split="test",
            subsets=(SUBSET, SHIFTED_SUBSET) if day >= FIVE_MINUTE_DAY else (SUBSET,),
        )
        origin = find_origin(day, spec.market_offset)
        x = np.array(record["x"], dtype=np.float64)
        y = np.array(record["y"], dtype=np.float64)
        inputs = InputValues(origin_utc=origin, x=x, n_filled=0)
        windows.append(Window(view=context.build_view(labels, inputs), y=y))
    return windows


def _check_record(spec: DatasetSpec, record: Mapping[str, Any]) -> None:
    # A day of the train years would put its target into the data that every method is fitted on.
    day: date = record["target_date"]
    is_test_day = any(
        span.first_day <= day <= span.last_day for span in spec.spans if span.split == "test"
    )
    if not is_test_day:
        raise DataError(
            f"benchmark record {record['record']} predicts {day}, outside the test span of "
            f"{spec.name}; give the benchmark's test file"
        )

    if len(record["x"]) != LOOKBACK or len(record["y"]) != HORIZON:
        raise DataError(
            f"benchmark record {record['record']} has {len(record['x'])} inputs and "
            f"{len(record['y'])} outputs, expected {LOOKBACK} and {HORIZON}; fetch the file again"
        )
