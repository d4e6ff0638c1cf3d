"""Scores of issued days: what is known, what persistence says, what a revision changes; by step."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from scipy.signal import lfilter

from compevo_core.data.build import grid_chosen
from compevo_core.data.datasets import ELECTRICITY, ELECTRICITY_OPERATIONAL
from compevo_core.errors import CheckpointMismatch
from compevo_core.evaluation.issued_scores import (
    BEST_MEMBER,
    LIMIT,
    OPERATOR_SCHEMA,
    chart_growth,
    find_drift,
    measure_coverage,
    measure_skill,
    repeat_known,
    score_by_step,
    score_issued,
)
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.report.forecast_page import view_operator
from compevo_core.report.tomorrow import month_table, pool, score_table
from tests.support.scored_samples import FIRST_DAY, NOW, make_rows, write_forecast
from tests.support.window_samples import from_nem, make_series

SERIES_ID = "AEMO/OPERATIONAL_DEMAND/NSW1"
FIRST = from_nem(2026, 2, 10)
DAY = date(2026, 2, 24)  # the 15th day of the series
POINT = {("forecast", None): 110.0, ("published", None): 90.0}
CROSSING = {("published", 0.1): 91.0, ("published", 0.5): 90.0, ("published", 0.9): 99.0}
BAND = {("forecast", 0.1): 95.0, ("forecast", 0.5): 100.0, ("forecast", 0.9): 105.0}


def make_truth(last=100.0, before=80.0):
    """Each of 15 days has a value of its own: its number, but for the last two."""
    values = np.repeat(np.arange(15.0), 48)
    values[-48:], values[-96:-48] = last, before
    return list(values)


def grid(values):
    series = make_series(values, first=FIRST, series_id=SERIES_ID)
    return grid_chosen(ELECTRICITY_OPERATIONAL, series)


def score(root, values, before=None, hours=0):
    return score_issued(root, grid(values), before, scored_at=NOW + timedelta(hours=hours))


def by_method(rows, column):
    return dict(rows.select("method", column).iter_rows())


def test_every_method_of_a_day_is_scored(tmp_path):
    write_forecast(tmp_path, DAY, POINT | BAND | CROSSING)
    found = score(tmp_path, make_truth())
    assert (found.added, found.revised, found.waiting) == (4, 0, 0)
    assert set(found.rows["day"]) == {DAY} and set(found.rows["known_to"]) == {"issue-time"}

    errors = by_method(found.rows, "mae")
    assert (errors["forecast"], errors["published"]) == (10.0, 10.0)
    # Until 17:00 it repeats yesterday (80), for the evening the day before that (12).
    assert errors["persistence"] == pytest.approx((34 * 20 + 14 * 88) / 48)
    assert errors["weekly"] == 100 - 7

    # 0.1 x 5, 0.5 x 0 and 0.1 x 5, over three levels; a band that crosses has no score.
    pinball = by_method(found.rows, "pinball_10_50_90")
    assert (pinball["forecast"], pinball["published"]) == (pytest.approx(1 / 3), None)
    coverage = by_method(found.rows, "coverage_80")
    assert coverage == {"forecast": 1.0, "published": None, "persistence": None, "weekly": None}


def test_a_day_that_is_not_over_waits(tmp_path):
    write_forecast(tmp_path, DAY, POINT)
    write_forecast(tmp_path, DAY + timedelta(days=1), POINT)
    found = score(tmp_path, make_truth()[:-1])
    assert (found.rows.height, found.waiting) == (0, 2)
    assert score(tmp_path, make_truth()).waiting == 1


def test_the_truth_is_the_forecast_series_own(tmp_path):
    write_forecast(tmp_path, DAY, POINT)
    # Another measure of the same region, which reaches a day further.
    other = make_series([5000.0] * 48 * 16, first=FIRST, series_id="AEMO/TOTALDEMAND/NSW1")
    own = make_series(make_truth(), first=FIRST, series_id=SERIES_ID)
    truth = grid_chosen(ELECTRICITY, pl.concat([own, other]))

    found = score_issued(tmp_path, truth, None, scored_at=NOW)
    assert by_method(found.rows, "mae")["forecast"] == 10.0


def test_a_revised_truth_is_scored_again_and_noted(tmp_path):
    write_forecast(tmp_path, DAY, POINT)
    first = score(tmp_path, make_truth())
    revised = score(tmp_path, make_truth(last=104.0), first.rows, hours=24)

    row = revised.rows.row(by_predicate=pl.col("method") == "forecast", named=True)
    assert revised.revised == 4
    assert (row["mae"], row["first_mae"], row["revision"]) == (6.0, 10.0, 1)
    assert row["scored_at"] == NOW + timedelta(hours=24)

    # Another yesterday changes what repeats it.
    other = score(tmp_path, make_truth(before=90.0), first.rows, hours=24)
    revisions = {"forecast": 0, "persistence": 1, "published": 0, "weekly": 0}
    assert by_method(other.rows, "revision") == revisions
    again = score(tmp_path, make_truth(before=90.0), other.rows, hours=48)
    assert again.rows.equals(other.rows)


def test_what_is_repeated_was_known(tmp_path):
    (series,) = grid([float(i) for i in range(48 * 10)]).values()
    for unknown in (0, 14):
        position = 48 * 9
        repeated = repeat_known(series, position, position - unknown, 48, 48)
        assert repeated.max() < position - unknown
        assert set((np.arange(position, position + 48) - repeated) % 48) == {0}
    assert np.isnan(repeat_known(series, 48, 48, 7 * 48, 48)).all()
    # What is never known between the last value and the forecast is carried over.
    closed = repeat_known(series, len(series) + 2, len(series) + 2, 48, 48)

    assert (closed == [*series.filled[-46:], *[series.filled[-1]] * 2]).all()


def pick(skill, **wanted):
    (row,) = skill.filter(**wanted).iter_rows(named=True)
    return row


def test_skill_covers_and_counts_recent_days():
    errors = {"forecast": [100.0] * 3 + [50.0] * 7, "persistence": [100.0] * 10}
    # The last day lacks the published forecast, and the last member four days of the week.
    errors |= {"published": [100.0] * 9, "member-0": [120.0] * 10, "member-1": [100.0] * 10}
    skill = measure_skill(make_rows(errors | {"member-2": [10.0] * 6}))

    def pick_week(reference):
        return pick(skill, reference=reference, span_days=7, entity="NSW1")

    week, published, best = map(pick_week, ("persistence", "published", BEST_MEMBER))
    assert (week["n_days"], week["skill"]) == (7, pytest.approx(0.5))
    assert (published["n_days"], published["mae"]) == (6, 50.0)
    assert (best["reference_mae"], best["n_days"]) == (100.0, 7)
    month = pick(skill, reference="persistence", span_days=28, entity=POOLED)
    assert (month["n_days"], month["skill"]) == (10, pytest.approx(0.35))


def test_series_pool_by_points_and_knowledge_separates():
    methods = {"forecast": [10.0] * 7, "persistence": [20.0] * 7}
    other = make_rows({"forecast": [90.0] * 7, "persistence": [100.0] * 7}, entity="SA1")
    midnight = make_rows(methods, known_to="midnight")
    skill = measure_skill(pl.concat([make_rows(methods), other, midnight]))
    pooled = pick(skill, known_to="issue-time", entity=POOLED, span_days=7, reference="persistence")
    assert (pooled["n_days"], pooled["skill"]) == (7, pytest.approx(1 - 50 / 60))
    assert pick(skill, known_to="midnight", entity=POOLED, span_days=7)["skill"] == 0.5


def test_the_newest_issue_stands_for_its_day(tmp_path):
    write_forecast(tmp_path, DAY, POINT)
    first = score(tmp_path, make_truth())
    write_forecast(tmp_path, DAY, POINT | {("forecast", None): 104.0}, supersede=True)
    both = score(tmp_path, make_truth(), first.rows, hours=24)
    assert (both.added, both.revised) == (4, 0)
    own = both.rows.filter(pl.col("method") == "forecast")
    assert dict(own.select("issue", "mae").iter_rows()) == {1: 10.0, 2: 4.0}

    skill = measure_skill(both.rows)
    row = pick(skill, reference="published", span_days=7, entity="NSW1")
    assert (row["mae"], row["n_days"]) == (4.0, 1)
    assert find_drift(both.rows, "issue-time", "published").n_days == 1
    # Daily use counts the newest issue, for any coverage of the older one.
    bands, newer = (make_rows({"forecast": [1.0]}, coverage=[share]) for share in (0.0, 1.0))
    newer = newer.with_columns(pl.lit(2, pl.Int64).alias("issue"))
    assert measure_coverage(pl.concat([bands, newer]), "issue-time").share == 1.0


@pytest.mark.parametrize(
    ("unknown_steps", "hours", "is_on_time"),
    # Before the day begins, or a little later where it knows to midnight.
    [(14, -6.0, True), (14, 0.5, False), (0, 0.5, True), (0, 3.5, False)],
)
def test_a_timely_forecast_precedes_any_knowledge(tmp_path, unknown_steps, hours, is_on_time):
    issued_at = FIRST + timedelta(days=14, hours=hours)
    write_forecast(tmp_path, DAY, POINT, unknown_steps=unknown_steps, issued_at=issued_at)
    rows = score(tmp_path, make_truth()).rows
    assert rows["is_on_time"].unique().to_list() == [is_on_time]


def test_days_filled_later_have_own_skill():
    on_time = make_rows({"forecast": [90.0] * 3, "persistence": [100.0] * 3})
    errors = {"forecast": [10.0] * 4, "persistence": [100.0] * 4}
    later = make_rows(errors, first_day=FIRST_DAY + timedelta(days=3), is_on_time=False)
    skill = measure_skill(pl.concat([on_time, later]))
    wanted = {"reference": "persistence", "span_days": 28, "entity": POOLED}
    found = [pick(skill, is_on_time=flag, **wanted) for flag in (True, False)]
    assert [(row["n_days"], row["mae"]) for row in found] == [(3, 90.0), (4, 10.0)]
    assert found[0]["last_day"] == FIRST_DAY + timedelta(days=2)


DAYS = 200


def draw_days(seed, shift=0.0, days=DAYS):
    """Days alike as those of 2025 (lag one: 0.25), with a shift of the second half."""
    noise = np.random.default_rng(seed).normal(size=days) * np.sqrt(1 - 0.25**2)
    values = lfilter([1.0], [1.0, -0.25], noise)
    values[days // 2 :] += shift
    return values


def test_alarms_are_rare_and_growth_found_soon():
    # 40 years: one in 25 has an alarm on average.
    alarms = sum(chart_growth(draw_days(seed, days=365)).max() > LIMIT for seed in range(40))
    assert alarms <= 5

    delays = []
    for seed in range(20):
        # Growth by one standard deviation.
        sums = chart_growth(draw_days(seed, shift=1.0))
        late = np.flatnonzero(sums[DAYS // 2 :] > LIMIT)
        delays.append(late[0] if late.size else DAYS)
    assert np.median(delays) < 35


def make_errors(log_ratio, model="m", **options):
    errors = {"forecast": list(100 * np.exp(log_ratio)), "published": [100.0] * log_ratio.size}
    return make_rows(errors, model=model, **options)


def test_drift_is_relative_to_the_reference():
    old = make_errors(0.1 * draw_days(0, shift=2.0))
    drifted = find_drift(old, "issue-time", "published")
    assert drifted.is_alarm and drifted.n_days == DAYS
    assert drifted.since is not None
    assert abs((drifted.since - FIRST_DAY).days - DAYS // 2) < 10

    # Where days are hard for both, nothing has drifted.
    is_hard = pl.col("day") > FIRST_DAY + timedelta(days=100)
    hard = make_errors(0.1 * draw_days(0)).with_columns(pl.col("mae") * (1 + 2 * is_hard))
    assert not find_drift(hard, "issue-time", "published").is_alarm

    # Another model starts another chart.
    new = make_errors(0.1 * draw_days(3, days=30), "n", first_day=FIRST_DAY + timedelta(days=DAYS))
    found = find_drift(pl.concat([old, new]), "issue-time", "published")
    assert (found.n_days, found.is_alarm) == (30, False)


@pytest.mark.parametrize(
    ("share", "is_alarm"), [(0.8, False), (0.66, False), (0.6, True), (0.95, True)]
)
def test_the_band_must_cover_as_trials_allow(share, is_alarm):
    days = 60
    # The first days were far off; they are no longer among the last 28.
    coverage = [0.0] * (days - 28) + [share] * 28
    found = measure_coverage(make_rows({"forecast": [1.0] * days}, coverage=coverage), "issue-time")
    assert (found.n_days, found.share) == (28, pytest.approx(share))
    assert (found.low, found.high) == (18 / 28, 26 / 28)
    assert found.is_alarm is is_alarm


VALUES = POINT | {("base-0", None): 1.0, ("published", 0.1): 80.0, ("published", 0.9): 95.0}
# The last two days of the series: 100 MW, and 100 MW in the first half of the last one.
TRUTH = [100.0] * 15 * 48


def test_a_monthly_row_has_error_bias_and_band(tmp_path):
    write_forecast(tmp_path, DAY, VALUES)
    write_forecast(tmp_path, DAY - timedelta(days=1), VALUES)
    rows = score_by_step(tmp_path, grid([*TRUTH[:-24], *[92.0] * 24]))
    assert dict(rows.schema) == OPERATOR_SCHEMA
    assert set(rows["method"]) == {"forecast", "published"} and rows.height == 2 * 48

    at = {row["at"]: row for row in rows.filter(method="published").iter_rows(named=True)}
    assert list(at)[:2] == ["00:00", "00:30"] and set(rows["month"]) == {"2026-02"}
    # In the evening of one of both days the truth is in the band, and is 2 MW above.
    assert (at["00:00"]["mae"], at["00:00"]["bias"], at["00:00"]["coverage_80"]) == (10, -10, 0)
    assert (at["23:30"]["mae"], at["23:30"]["bias"], at["23:30"]["coverage_80"]) == (6, -6, 0.5)
    assert at["23:30"]["n_points"] == 2 and at["23:30"]["width_80"] == 15.0
    assert rows.filter(method="forecast")["coverage_80"].is_null().all()


def test_the_newest_issue_with_truth_counts(tmp_path):
    write_forecast(tmp_path, DAY, VALUES)
    write_forecast(tmp_path, DAY, VALUES | {("forecast", None): 103.0}, supersede=True)
    values = [*TRUTH[:-1], None]
    pooled = {row["method"]: row for row in pool(score_by_step(tmp_path, grid(values))).to_dicts()}
    assert (pooled["forecast"]["mae"], pooled["forecast"]["n_points"]) == (3.0, 47)

    # Of a day that is not over the steps that were measured count.
    write_forecast(tmp_path, DAY + timedelta(days=1), VALUES)
    assert pool(score_by_step(tmp_path, grid([*TRUTH, 100.0])))["n_points"].to_list() == [49, 49]

    record = next(tmp_path.glob("*/known-*/forecast.parquet"))
    record.write_bytes(record.read_bytes() + b"x")
    with pytest.raises(CheckpointMismatch, match="altered"):
        score_by_step(tmp_path, grid(TRUTH))


def test_the_page_shows_least_knowledge_by_month(tmp_path):
    write_forecast(tmp_path, DAY, VALUES)
    write_forecast(tmp_path, DAY, VALUES | {("forecast", None): 100.0}, unknown_steps=0)
    rows = score_by_step(tmp_path, grid(TRUTH))
    assert set(rows["known_to"]) == {"midnight", "issue-time"}
    view = view_operator(rows, {})
    assert view is not None and view["known_to"] == "issue-time"
    own = ["10.00", "-10.00", "0.0 %", "10.00", "+10.00", "n/a", "48"]
    assert view["months"].rows[0] == ["2026-02", "NSW1", *own]
    assert view["months"].rows[1][1] == "pooled"
    assert [row[0] for row in view["methods"].rows] == ["forecast", "published"]
    assert len(view["errors"]["chart"].steps) == 48

    nobody = rows.filter(pl.col("method") != "published")
    assert view_operator(nobody, {}) is None


def test_months_and_series_are_pooled_by_their_points():
    row = dict.fromkeys(OPERATOR_SCHEMA) | {"known_to": "midnight", "unit": "MW", "bias": 0.0}
    row |= {"month": "2026-01", "at": "00:00"}
    of_a = {"entity": "A", "n_points": 1, "mae": 10.0, "n_banded": 0}
    of_b = {"entity": "B", "n_points": 3, "mae": 2.0, "n_banded": 3, "coverage_80": 0.5}
    methods = ("published", "forecast")
    cells = [row | {"method": method} | numbers for numbers in (of_a, of_b) for method in methods]
    rows = pl.DataFrame(cells, schema=OPERATOR_SCHEMA)
    together = month_table(rows).rows[-1]

    assert together[1:5] == ["pooled", "4.00", "+0.00", "50.0 %"]
    assert score_table(rows, {}).rows[0][1] == "4.000"
