"""From a declaration to the ``DatasetSpec`` that windows are cut by.

What belongs here: which grid, clock, split plan and news rule a declaration means. What does not:
the keys of the file (``own.declaration``), reading tables.
"""

import re
from datetime import date, timedelta

from compevo_core.data.calendar import Place
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.news import OWN_PUBLISHER
from compevo_core.data.splits import Span
from compevo_pipeline.sources.own.clocks import find_standard_offset
from compevo_pipeline.sources.own.declaration import (
    DAY,
    Declaration,
    SplitKeys,
    read_step,
)

SERIES_PREFIX = "OWN"
_NO_LABEL = re.compile(r"[^A-Za-z0-9._+]+")
_PATTERN = r"^OWN/(.+)$"
_LAST_DAY = date(2199, 12, 31)
_FIRST_DAY = date(1900, 1, 1)


def make_spec(declaration: Declaration) -> DatasetSpec:
    """Return how windows of a declared data set are cut.

    Windows of a grid below a day start at midnight of the clock without daylight saving, one each
    day; windows of longer steps start at every step.
    """
    step = read_step(declaration.grid.step)
    is_daily = step >= DAY
    news = declaration.news
    place = Place(
        timezone=declaration.place.time_zone,
        country=declaration.place.country,
        subdivision=declaration.place.subdivision,
    )

    return DatasetSpec(
        name=declaration.name,
        variable=name_variable(declaration),
        step=step,
        stride_steps=1 if is_daily else DAY // step,
        series=((_PATTERN, ""),),
        places={},
        default_place=place,
        market_offset=find_standard_offset(declaration.series.time_zone),
        align_to_market_day=not is_daily,
        spans=_make_spans(declaration.splits),
        fractions=declaration.splits.fractions or (0.7, 0.1, 0.2),
        max_fill_steps=declaration.grid.max_fill_steps,
        max_filled_inputs=declaration.grid.max_filled_inputs,
        news_lookback=timedelta(days=news.lookback_days),
        news_longest_lookback=timedelta(days=max(28, news.lookback_days)),
        # Chosen where articles are read: an article without one of the words is not stored.
        news_source=name_publisher(declaration.name),
        mape_threshold=declaration.evaluation.mape_threshold,
        task=declaration.prompt.task
        or f"Predict the next 48 values of {{entity}}, {declaration.grid.step} each",
    )


def name_publisher(name: str) -> str:
    """Return the publisher of a data set's own files and articles."""
    return OWN_PUBLISHER + name


def name_variable(declaration: Declaration) -> str:
    """Return the variable of the series: the column of values, or "value" for several."""
    values = declaration.series.values
    return make_label(values[0]) if len(values) == 1 else "value"


def make_label(text: str) -> str:
    """Return a column's or series' name as a label that file names and prompts may hold."""
    return _NO_LABEL.sub("-", text).strip("-.")


def _make_spans(splits: SplitKeys) -> tuple[Span, ...]:
    if splits.validation_from is None or splits.test_from is None:
        return ()

    bounds = {
        "train": (_FIRST_DAY, splits.validation_from - DAY),
        "val": (splits.validation_from, splits.test_from - DAY),
        "test": (splits.test_from, _LAST_DAY),
    }
    return tuple(
        Span(split=split, series_pattern=_PATTERN, first_day=first, last_day=last)
        for split, (first, last) in bounds.items()
    )
