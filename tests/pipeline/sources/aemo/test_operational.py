"""Day files of operational demand: actuals, quantiles, and documents that changed."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo import parse_operational
from compevo_pipeline.sources.common.nem import REGIONS
from tests.support.sources import raw

NAME = "2026-02-19.json"
START = datetime(2026, 2, 18, 14, 0, tzinfo=UTC)


def make_document():
    first = datetime(2026, 2, 19)  # noqa: DTZ001  # NEM time, as published
    intervals = [
        f"{first + timedelta(minutes=30 * (k + 1)):%Y-%m-%dT%H:%M}+10:00" for k in range(48)
    ]
    demand = {
        "intervals": intervals,
        "poe10": [110.0 + k for k in range(48)],
        "poe50": [100.0 + k for k in range(48)],
        "poe90": [90.0 + k for k in range(48)],
        "actual": [101 + k for k in range(48)],
    }
    regions = {
        region: {"demand": json.loads(json.dumps(demand)), "rooftopPv": {}} for region in REGIONS
    }
    return {
        "tradingDate": "2026-02-19",
        "forecastIssuedAt": "2026-02-18T17:00+10:00",
        "regions": regions,
    }


def make_raw(content):
    return raw(
        NAME,
        content if isinstance(content, str) else json.dumps(content),
        "aemo_operational_demand",
    )


def test_a_day_gives_actuals_and_three_forecasts_of_five_regions():
    frame = validate_series(parse_operational.parse_operational(make_raw(make_document())))
    assert frame.height == 5 * 4 * 48
    actual = frame.filter(series_id="AEMO/OPERATIONAL_DEMAND/SA1")
    assert actual["start_utc"].to_list() == [START + timedelta(minutes=30 * k) for k in range(48)]
    assert actual["value"].to_list() == [101.0 + k for k in range(48)]
    assert actual["variable"].unique().to_list() == ["demand_mw"]
    median = frame.filter(series_id="AEMO/POE50/SA1")
    assert median["value"].to_list() == [100.0 + k for k in range(48)]
    assert median["variable"].unique().to_list() == ["demand_forecast_mw"]


def test_a_published_forecast_was_available_at_seventeen_hours_nem_time_the_day_before():
    frame = parse_operational.parse_published(make_raw(make_document()))
    assert frame["available_at"].unique().to_list() == [datetime(2026, 2, 18, 7, 0, tzinfo=UTC)]
    assert frame["available_at"].max() < frame["start_utc"].min()
    first = frame.filter(entity="NSW1", start_utc=START).sort("quantile")
    assert first.select("quantile", "value").rows() == [(0.1, 90.0), (0.5, 100.0), (0.9, 110.0)]


def test_a_null_actual_is_missing_and_not_zero():
    day = make_document()
    day["regions"]["VIC1"]["demand"]["actual"][3] = None
    frame = validate_series(parse_operational.parse_operational(make_raw(day)))
    row = frame.filter(
        series_id="AEMO/OPERATIONAL_DEMAND/VIC1", start_utc=START + timedelta(minutes=90)
    )
    assert row.select("value", "flag").rows() == [(None, "missing")]


def edit_document(path, value):
    day = make_document()
    where = day
    *parents, last = path
    for key in parents:
        where = where[key]
    where[last] = value
    return day


SA1 = ["regions", "SA1", "demand"]


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ([*SA1, "actual", 7], "lots", r"regions\.SA1\.demand\.actual\.7: .* 'lots'"),
        ([*SA1, "actual", 7], True, r"regions\.SA1\.demand\.actual\.7: .* 'True'"),
        ([*SA1, "poe50"], [1.0] * 47, r"regions\.SA1\.demand\.poe50: .* 48 items .* not 47"),
        ([*SA1, "intervals", 2], "2026-02-19T02:00+10:00", r"SA1\.demand\.intervals: not the 48"),
        (SA1, None, r"regions\.SA1\.demand: .* 'None'"),
        (["regions"], {}, r"regions: .*holds \[\]"),
        (["tradingDate"], "19/02/2026", r"tradingDate: .* '19/02/2026'"),
        (["forecastIssuedAt"], "2026-02-18T17:00", r"forecastIssuedAt: .* timezone"),
        (["forecastIssuedAt"], "0001-01-01T00:00+10:00", r"forecastIssuedAt: .*1900"),
        (["forecastIssuedAt"], None, r"forecastIssuedAt: .* 'None'"),
    ],
)
def test_a_changed_document_is_named_with_file_path_and_remedy(path, value, match):
    with pytest.raises(SchemaDrift, match=rf"{NAME}, at .*{match}.*; fetch"):
        parse_operational.parse_operational(make_raw(edit_document(path, value)))
