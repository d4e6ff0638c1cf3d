"""A table of several files: a family, whose blocks of series are partitions of its assets."""

import functools
import shutil
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import numpy as np
import polars as pl
import pytest

from compevo_core.errors import ConfigError
from compevo_core.forecast.issued import FACTS_FILE, find_issued
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.alerts import _find_late_forecasts
from compevo_pipeline.defs.asset_keys import model_key, next_day_key, windows_key
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.registry import load_registry
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.results import write_forecasts
from tests.pipeline.defs.test_schedules import evaluate
from tests.support.commands import invoke
from tests.support.deployment import DagsterHome, InlineLauncher, SetClock

FIRST, DAYS = date(2025, 1, 1), 150
NEXT = FIRST + timedelta(days=DAYS)
BLOCKS = ["sales-north", "sales-south"]
NIGHT = '[schedule]\nat = "20:00"\nzone = "UTC"\ndeadline = "21:00"\n'


def write_sales(folder):
    folder.mkdir(parents=True)
    for region in ("North", "South"):
        level = np.arange(DAYS) % 7 + (0.0 if region == "North" else 100.0)
        days = pl.date_range(FIRST, NEXT, closed="left", eager=True)
        columns = [{"day": days, "shop": f"{region}{n}", "sold": level + n} for n in (1, 2)]
        pl.concat(map(pl.DataFrame, columns)).write_csv(folder / f"{region}.csv")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a declared family, and a function that runs a command in it."""
    folder = tmp_path_factory.mktemp("family")
    write_sales(folder / "sales")
    run = functools.partial(invoke, home=folder)
    run("init", folder / "sales" / "*.csv", "--unit", "items", "--horizon", "7")
    path = folder / "datasets" / "sales.toml"
    path.write_text(path.read_text() + NIGHT, encoding="utf-8")
    return folder, run


def declare_again(home, folder):
    shutil.copytree(home[0] / "datasets", folder / "datasets")
    return Settings(home=folder, mode="sample", schedules=("sales",))


def test_each_file_is_a_data_set(home):
    registry = load_registry(home[0] / "datasets")

    assert not registry.broken and [each.name for each in registry.own] == BLOCKS
    assert registry.find_blocks("sales") == BLOCKS and "sales" in registry.declared
    with pytest.raises(ConfigError, match="2 blocks of series: name one, such as sales-north"):
        registry["sales"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("*.csv", "*.parquet", "no file matches"),
        ("*.csv", "*orth*.csv", "no file matches"),
        ("[evaluation]", "[totals]\nall = ['*']\n[evaluation]", "belong to no single block"),
        ('# gdelt = ""', 'gdelt = "strike"', "belong to no single block"),
    ],
)
def test_a_family_that_cannot_be_is_refused(home, tmp_path, old, new, said):
    text = (home[0] / "datasets" / "sales.toml").read_text()
    assert old in text
    (tmp_path / "sales.toml").write_text(text.replace(old, new))

    registry = load_registry(tmp_path)

    assert said in registry.broken["sales"] and not registry.own


def test_two_files_never_make_one_block(home, tmp_path):
    write_sales(tmp_path / "sales")
    (tmp_path / "sales" / "north.csv").write_text((tmp_path / "sales" / "North.csv").read_text())
    text = (home[0] / "datasets" / "sales.toml").read_text()
    (tmp_path / "sales.toml").write_text(text.replace(str(home[0]), str(tmp_path)))

    broken = load_registry(tmp_path).broken["sales"]

    assert "north.csv: its block is 'north'" in broken and "rename the file" in broken


def test_commands_do_all_blocks(home):
    folder, run = home
    table = folder / "out.csv"

    fitted = run("fit", "sales", "--method", "calendar-ridge")
    shown = run("forecast", "sales", "--csv", table)

    assert [line for line in fitted.splitlines() if line.startswith("sales-")] == [
        f"{name}:" for name in BLOCKS
    ]
    assert shown.count("Record: ") == 2
    rows = pl.read_csv(table)
    assert rows["entity"].unique().sort().to_list() == ["North1", "North2", "South1", "South2"]
    page = write_forecasts(Deployment(settings=Settings(home=folder, mode="sample")))
    assert "sales" not in page.read_text()
    # A block is learnt by itself: the other's level of 100 is not in its forecast.
    north = rows.filter(pl.col("entity").str.starts_with("North"))["calendar-ridge"]
    assert north.max() < 20 < rows.filter(pl.col("entity") == "South1")["calendar-ridge"].min()


def test_a_partition_makes_its_block_alone(home, tmp_path):
    defs = build_defs(declare_again(home, tmp_path), launchers=InlineLauncher())
    deployment = DagsterHome(tmp_path, defs, defs, dg.DagsterInstance.ephemeral())
    keys = [f"{kind}/sales" for kind in ("series", "windows", "models/compevo")]
    config = {"models/compevo/sales": {"method": "calendar-ridge"}}

    deployment.materialize(*keys, partition="sales-south", config=config)
    issue = "forecast/next_day/sales"
    deployment.materialize(issue, partition="sales-south", config={issue: {"day": f"{NEXT}"}})

    stored = [path.name for path in (deployment.layout.root / "windows").iterdir()]
    assert stored == ["sales-south"]
    for key in (windows_key("sales"), model_key("sales"), next_day_key("sales")):
        assert deployment.instance.get_materialized_partitions(key) == {"sales-south"}
    # As the command forecasts it, to the last bit.
    issued = next(deployment.layout.issued("sales-south").glob("*/*/*.parquet"))
    home[1]("fit", "sales-south", "--method", "calendar-ridge")
    home[1]("forecast", "sales-south", "--day", f"{NEXT}")
    (other,) = (home[0] / "sample" / "forecasts" / "issued" / "sales-south").glob("*/*/*.parquet")
    assert pl.read_parquet(issued).equals(pl.read_parquet(other))


def test_a_night_starts_a_run_a_block(home, tmp_path):
    settings = declare_again(home, tmp_path)
    now = datetime.combine(NEXT, datetime.min.time(), UTC)
    defs = build_defs(settings, clock=SetClock(now + timedelta(hours=22)))
    schedule = "refresh_sales_daily"

    with dg.DagsterInstance.local_temp() as instance:

        def list_requests(minutes):
            at = now + timedelta(hours=20, minutes=minutes)
            return evaluate(instance, defs.get_repository_def(), schedule, at).run_requests

        requests = list_requests(0)
        assert [request.partition_key for request in requests] == BLOCKS
        config = {"waits": True, "day": f"{NEXT}"}
        assert requests[0].run_config["ops"] == {"forecast__next_day__sales": {"config": config}}
        assert len({request.run_key for request in requests}) == 2

        # A later tick asks for what is missing only.
        folder = find_issued(settings.layout(Mode.SAMPLE).issued("sales-north"), now, now)
        folder.mkdir(parents=True)
        (folder / FACTS_FILE).touch()
        assert [request.partition_key for request in list_requests(30)] == ["sales-south"]


def test_a_late_family_is_one_alert(home, tmp_path):
    now = datetime.combine(NEXT, datetime.min.time(), UTC) + timedelta(days=3, hours=22)
    settings = declare_again(home, tmp_path)

    (late,) = _find_late_forecasts(Deployment(settings=settings, clock=SetClock(now)), now)

    assert late.fault == f"late sales {now.date()}"
    assert "sales-north and 1 more" in late.text and "compevo refresh sales-north" in late.text
