"""A later month in the archive folder: series, windows, forecasts and inference grow by it."""

from datetime import date, timedelta

import polars as pl
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.evaluation.result_rows import POOLED
from compevo_pipeline.sources.common.base import read_sample_files
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work.results import read_scored
from tests.pipeline.sources.common.test_decode import tar
from tests.support import population as small
from tests.support.deployment import deploy

ELECTRICITY, OPERATIONAL = "electricity", "electricity-operational"
DAY = date(2026, 3, 4)
REGIONS = 5
ONE_ROUND = {"settings": {"run": {"rounds": 1, "validate_every": 0, "checkpoint_every": 1}}}


def make_archive(root):
    """Write what a population of electricity is trained and validated on."""
    for source in ("aemo_histdemand", "aemo_price_and_demand"):
        (root / source).mkdir(parents=True)
        for raw in read_sample_files(source):
            if source == "aemo_histdemand" or "_2020" in raw.name:
                (root / source / raw.name).write_bytes(raw.content)


def drop_days(root, first, last):
    """Drop a bundle of days of operational demand into the archive, as a later month comes."""
    folder = root / "aemo_operational_demand"
    folder.mkdir(exist_ok=True)
    names = {f"{first + timedelta(days=n)}.json" for n in range((last - first).days + 1)}
    days = [(raw.name, raw.content) for raw in read_sample_files(folder.name) if raw.name in names]
    (folder / f"{first:%Y-%m}.tar.gz").write_bytes(tar(*days))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Both populations, trained on an archive that ends with February 2026."""
    home, archive = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("archive")
    make_archive(archive)
    drop_days(archive, date(2025, 8, 2), date(2025, 8, 31))
    drop_days(archive, date(2026, 2, 8), date(2026, 2, 28))

    found = deploy(home, archive=archive)
    NewsStore(found.layout.news_database).upsert_articles(small.news_pool().articles)
    refresh(found)
    for dataset in (ELECTRICITY, OPERATIONAL):
        found.materialize("models/compevo", dataset=dataset, config={"models/compevo": ONE_ROUND})
    return found


def refresh(deployment):
    for dataset in (ELECTRICITY, OPERATIONAL):
        deployment.materialize(f"series/{dataset}", f"windows/{dataset}")


def infer(deployment):
    """Infer 2026 and return the population's pooled rows by month, and of the named subset."""
    key = "leakage/inference_2026"
    result = deployment.materialize(key, config={key: {"seeds": 1}})
    assert all(check.passed for check in result.get_asset_check_evaluations())
    rows = pl.read_csv(deployment.layout.results / "leakage-2026.csv")
    return rows.filter(entity=POOLED, method="compevo").select("subset", "n_windows", "mae")


def forecast(deployment):
    return deployment.materialize("forecast/next_day", partition=f"{DAY}", raise_on_error=False)


def read_last_day(deployment, dataset):
    store = SeriesStore(deployment.layout.root)
    known = store.read(dataset).filter(pl.col("series_id") == "AEMO/OPERATIONAL_DEMAND/NSW1")
    last = known["start_utc"].dt.convert_time_zone("Australia/Brisbane").max()
    assert last is not None
    return last.date()


@pytest.mark.slow
def test_a_month_that_is_dropped_into_the_folder_extends_everything_that_is_made_of_it(
    deployment, tmp_path
):
    before = infer(deployment)
    assert dict(before.select("subset", "n_windows").iter_rows()) == {
        "inference-2026-100": 5 * REGIONS,  # of every second day
        "inference-2026-02": 10 * REGIONS,
    }
    result = forecast(deployment)
    assert not result.success
    said = str(result.failure_data_for_node("forecast__next_day"))
    assert "the series does not reach over the inputs" in said

    # A file more, and the refresh of every day: no code and no configuration changes.
    archive = deployment.defs.resources["workspace"].settings.archive
    drop_days(archive, date(2026, 3, 1), DAY)
    refresh(deployment)
    assert read_last_day(deployment, ELECTRICITY) == DAY
    assert read_last_day(deployment, OPERATIONAL) == DAY
    windows = WindowSet.read(deployment.layout.windows(ELECTRICITY))
    assert len(windows.split("inference")) == 14 * REGIONS

    after = infer(deployment)
    counts = dict(after.select("subset", "n_windows").iter_rows())
    assert counts.pop("inference-2026-03") == 4 * REGIONS
    assert counts["inference-2026-02"] == 10 * REGIONS
    # The frozen population forecasts February as before.
    kept = pl.col("subset") == "inference-2026-02"
    assert after.filter(kept).equals(before.filter(kept))

    assert forecast(deployment).success
    deployment.materialize("forecast/scored")
    rows = read_scored(deployment.layout, OPERATIONAL)
    assert set(rows["day"]) == {DAY} and rows["entity"].n_unique() == REGIONS
