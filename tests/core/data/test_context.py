"""Revisions: of several values for one moment, the newest that was out before the origin counts."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.context import MEDIAN, CovariateIndex, StepValues
from compevo_core.data.schemas import COVARIATE_SCHEMA, PUBLISHED_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_core.errors import DataError
from tests.support.window_samples import HALF_HOUR, from_nem

ORIGIN = from_nem(2019, 3, 2)
HOUR = timedelta(hours=1)


def test_a_revision_replaces_the_value_it_revises_whatever_the_order_of_the_rows():
    day = from_nem(2019, 3, 1, 12).date()
    issues = [(290.0, 9), (291.0, 2), (292.0, -1)]  # the last one comes after the origin
    rows = [
        ("NSW1", "max_temp_k", day, value, ORIGIN - hours * HOUR, "archive:x")
        for value, hours in issues
    ]
    for order in (rows, rows[::-1]):
        index = CovariateIndex(pl.DataFrame(order, schema=COVARIATE_SCHEMA, orient="row"), 2)
        target = ORIGIN.date() + timedelta(days=1)
        assert index.find_before("NSW1", target, ORIGIN) == {"max_temp_k_lag1": 291.0}


def test_a_forecast_issued_again_before_the_origin_is_the_one_handed_on():
    rows = [
        ("NSW1", ORIGIN + i * HALF_HOUR, level + i, ORIGIN - hours * HOUR, 0.5, "archive:x")
        for level, hours in ((900.0, 2), (500.0, 7), (100.0, -1))
        for i in range(48)
    ]
    frame = pl.DataFrame(rows, schema=PUBLISHED_SCHEMA, orient="row")
    found = StepValues.from_published(frame, HALF_HOUR, 48).find("NSW1", MEDIAN, ORIGIN, ORIGIN)
    assert found.tolist() == [900.0 + i for i in range(48)]


def test_two_values_by_step_for_one_moment_are_refused_unless_one_is_a_revision():
    row = ("NSW1", "solar_mw", ORIGIN, 1.0, ORIGIN - HOUR, "archive:x")
    revised = ("NSW1", "solar_mw", ORIGIN, 2.0, ORIGIN - HOUR / 2, "archive:x")

    def find(*rows):
        frame = pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA, orient="row")
        return StepValues(frame, HALF_HOUR).find("NSW1", "solar_mw", ORIGIN, ORIGIN)

    found = find(revised, row)
    assert found[0] == 2.0 and np.isnan(found[1:]).all()
    with pytest.raises(DataError, match="two values for one entity, name"):
        find(row, row)
