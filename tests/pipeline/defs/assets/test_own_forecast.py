"""The next day of a user's own data set, through its assets: issued, refused, scored, refreshed."""

from datetime import UTC, date, datetime, timedelta

import dagster as dg
import polars as pl
import pytest

from compevo_core.data.datasets import DATASETS
from compevo_core.forecast.issued import find_issued, read_issued
from compevo_pipeline.defs.asset_keys import make_target_days
from compevo_pipeline.sources.registry import load_registry
from compevo_pipeline.work.results import read_scored
from tests.pipeline.sources.test_registry import SOUND
from tests.support.deployment import QUIET, deploy, read_materialization
from tests.support.own_tables import declare_demand, write_demand

pytestmark = pytest.mark.slow

DAYS = 50  # 2024-01-01 to 2024-02-19
NEXT = "2024-02-20"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """An own data set with a trained population, whose file ends before the day to forecast."""
    home = tmp_path_factory.mktemp("home")
    declare_demand(home / "datasets", SOUND, days=DAYS, article_day="2024-02-18")
    found = deploy(home)
    found.materialize("series/demand")
    found.materialize("news/embeddings", "windows/demand", "models/compevo/demand")
    return found


def issue(deployment, day, **options):
    return deployment.materialize("forecast/next_day/demand", partition=day, **options)


def read_metadata(result):
    return dict(read_materialization(result).metadata)


def test_the_day_after_the_file_is_issued(deployment):
    first = read_metadata(issue(deployment, NEXT))
    assert (first["issued_now"].value, first["mode"].value) == (True, "sample")
    assert set(first["by_series"].records[0].data) == {"method", "load_mw"}

    again = read_metadata(issue(deployment, NEXT))
    assert (again["issued_now"].value, again["notes"].value) == (False, "none")

    # The page begins with the day: a table of the series and a drawing of each, then the charts.
    names = [name for name in first if not name.startswith("dagster/")]
    assert names[:4] == ["day", "forecast", "peak", "charts"]
    assert [record.data["series"] for record in first["forecast"].records] == ["load_mw"]
    assert names.index("chain_head") > names.index("weights")

    # Midnight in Paris without daylight saving.
    origin = load_registry(deployment.home / "datasets")["demand"].spec.market_offset
    assert origin == timedelta(hours=1)
    assert first["known_until"].value == "2024-02-20 00:00 UTC+1"


def test_a_grown_file_is_scored_and_forecast(deployment):
    issue(deployment, NEXT)
    write_demand(deployment.home / "datasets" / "demand.csv", days=DAYS + 1)
    result = deployment.defs.resolve_job_def("refresh_demand").execute_in_process(
        partition_key="2024-02-21", instance=deployment.instance, run_config={"loggers": QUIET}
    )
    made = [event.asset_key.to_user_string() for event in result.get_asset_materialization_events()]
    assert made[0] == "series/demand" and made[-2:] == ["report/site", "report/cleaned"]
    assert made.index("forecast/next_day/demand") < made.index("forecast/scored/demand")
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["drift"].passed and checks["next_inputs"].passed

    rows = read_scored(deployment.layout, "demand")
    assert set(rows["day"]) == {date(2024, 2, 20)}
    assert {"forecast", "persistence"} <= set(rows["method"])
    # The new day was issued too, and waits for its truth.
    spec = load_registry(deployment.home / "datasets")["demand"].spec
    origin = pl.Series([date(2024, 2, 21)]).cast(pl.Datetime("us", "UTC"))[0] - spec.market_offset
    issued = read_issued(find_issued(deployment.layout.issued("demand"), origin, origin))
    assert issued.origin.date() == date(2024, 2, 21)


def test_a_launch_must_name_its_day(deployment):
    with pytest.raises(dg.Failure, match="partition"):
        deployment.materialize("forecast/next_day/demand")


def test_days_reach_from_test_to_tomorrow(deployment):
    days = make_target_days(load_registry(deployment.home / "datasets")["demand"].spec)
    assert days.get_first_partition_key() == "2024-02-10"
    # 1:00 on 2 March at UTC+14, where tomorrow is the 3rd.
    now = datetime(2024, 3, 1, 11, tzinfo=UTC)
    assert days.get_partition_keys(current_time=now)[-1] == "2024-03-03"
    assert make_target_days(DATASETS["exchange"]).get_first_partition_key() == "2000-01-01"
