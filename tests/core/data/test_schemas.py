"""Columns and types of the frame contracts."""

import polars as pl
import pytest

from compevo_core.data.schemas import (
    ARTICLE_SCHEMA,
    BENCHMARK_SCHEMA,
    COLUMN_MEANINGS,
    COVARIATE_SCHEMA,
    PUBLISHED_SCHEMA,
    SERIES_SCHEMA,
    validate_frame,
)
from compevo_core.errors import DataError

SCHEMAS = (ARTICLE_SCHEMA, BENCHMARK_SCHEMA, COVARIATE_SCHEMA, PUBLISHED_SCHEMA, SERIES_SCHEMA)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_columns_come_back_in_the_order_of_the_contract_without_others(schema):
    frame = pl.DataFrame(schema=schema).with_columns(extra=pl.lit(1))
    shuffled = frame.select(frame.columns[::-1])
    assert validate_frame(shuffled, schema, "a frame").schema == pl.Schema(schema)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_missing_column_is_named_with_the_frame(schema):
    last = list(schema)[-1]
    with pytest.raises(DataError, match=rf"a frame lacks column\(s\) {last}"):
        validate_frame(pl.DataFrame(schema=schema).drop(last), schema, "a frame")


def test_integers_in_a_list_of_numbers_are_refused_and_not_cast():
    frame = pl.DataFrame(schema=BENCHMARK_SCHEMA).with_columns(pl.col("x").cast(pl.List(pl.Int64)))
    with pytest.raises(DataError, match=r"x is List\(Int64\), not List\(Float64\)"):
        validate_frame(frame, BENCHMARK_SCHEMA, "benchmark frame")


def test_every_column_of_a_contract_has_a_meaning_and_no_meaning_is_left_over():
    assert {column for schema in SCHEMAS for column in schema} == set(COLUMN_MEANINGS)
