"""The definitions: assets, pools, checks, jobs, freshness, code versions, imports, families."""

import functools
import re
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import numpy as np
import polars as pl
import pytest
import yaml

from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_core.errors import ConfigError
from compevo_core.forecast.issued import FACTS_FILE, find_issued
from compevo_core.paper.changes import FULL_METHOD, list_changes
from compevo_pipeline.config.settings import REPOSITORY, Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.alerts import _find_late_forecasts
from compevo_pipeline.defs.asset_keys import DATASETS, model_key, next_day_key, windows_key
from compevo_pipeline.defs.assets import windows
from compevo_pipeline.defs.assets.training import TrainConfig
from compevo_pipeline.defs.jobs import choose_day, run_config, run_job
from compevo_pipeline.paper import definitions
from compevo_pipeline.paper.assets import AblationConfig
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.nem import NEM_ZONE
from compevo_pipeline.sources.registry import BUILT_IN, load_registry
from compevo_pipeline.storage import code_versions
from compevo_pipeline.storage.code_versions import code_version
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import DATA_VERSION_TAG
from compevo_pipeline.work.results import write_forecasts
from tests.pipeline.defs.test_schedules import evaluate
from tests.pipeline.sources.test_registry import SOUND, declare
from tests.support.commands import invoke
from tests.support.deployment import DagsterHome, InlineLauncher, SetClock

REFRESHED_DAILY = ("series/", "news/", "windows/", "forecast/next_day")
CODE = '"""A text."""\n\n\ndef f():\n    """A text."""\n    return 1\n'


@pytest.mark.parametrize(
    ("mode", "meaning"),
    [(Mode.SAMPLE, "synthetic data"), (Mode.ARCHIVE, "files"), (Mode.LIVE, "endpoints")],
)
def test_assets_and_launchpad_say_the_mode(tmp_path, mode, meaning):
    declare(tmp_path / "datasets", SOUND)
    defs = build_defs(Settings(home=tmp_path, mode=mode, archive=tmp_path))
    graph = defs.resolve_asset_graph()
    # What is real is not called made up either.
    real = {"demand": "your own files"}
    real |= {"exchange": "published rates, synthetic news"} if mode is Mode.SAMPLE else {}
    for key in graph.executable_asset_keys:
        shown, tags = graph.get(key).description, graph.get(key).tags
        assert shown.startswith(f"[{mode}: ")
        assert real.get(tags.get("dataset"), meaning) in shown.split("]")[0]
        assert mode in graph.get(key).kinds
    assert meaning in defs.metadata["mode"].value

    resolved = dg.validate_run_config(defs.resolve_job_def("full"), {})
    assert resolved["resources"]["workspace"]["config"]["mode"] == mode


def test_every_asset_is_described(graph):
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.owners and node.description and node.kinds, key


def test_nights_need_no_research(defs, research):
    """A fault of the wing, or a reload of its location, touches no refresh and no forecast."""
    shown = "import sys, compevo_pipeline.definitions as d; print(*sys.modules)"
    command = [sys.executable, "-c", shown]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not [name for name in loaded.stdout.split() if re.match(r"compevo_\w+\.paper", name)]

    workspace = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text("utf-8"))
    entries = [entry["python_module"] for entry in workspace["load_from"]]
    assert {entry["location_name"]: entry["module_name"] for entry in entries} == {
        "compevo": "compevo_pipeline.definitions",
        "research": "compevo_pipeline.paper.definitions",
    }
    # Forecasts come before research in a list of all, and no asset is of two locations.
    product, wing = (one.resolve_asset_graph().executable_asset_keys for one in (defs, research))
    assert {key.path[0] for key in wing} == {"research"} and not product & wing


def test_inference_follows_new_windows(both):
    instance = dg.DagsterInstance.ephemeral()
    cursor = None

    def request(*updated, version="1"):
        nonlocal cursor
        for name in updated:
            key, tags = dg.AssetKey(name.split("/")), {DATA_VERSION_TAG: version}
            instance.report_runless_asset_event(dg.AssetMaterialization(key, tags=tags))
        found = dg.evaluate_automation_conditions(both, instance, cursor=cursor)
        cursor = found.cursor
        return found.total_requested

    assert request() == 0
    assert request("windows/electricity", "news/embeddings") == 0  # there is no population
    assert request("models/compevo/electricity") == 1
    assert request("news/embeddings", "windows/traffic", version="2") == 0
    assert request("windows/electricity") == 0  # made again, and the same
    assert request("windows/electricity", version="2") == 1


def test_every_job_shows_that_its_runs_live(defs, research):
    for job in [*defs.resolve_all_job_defs(), *research.resolve_all_job_defs()]:
        # A run that does not would count as started for days when its machine dies: the resource
        # shows it, in the process of the run.
        assert job.executor_def is dg.in_process_executor, job.name
        needed = [node.required_resource_keys for node in job.all_node_defs]
        assert any("workspace" in names for names in needed), job.name


def test_the_demo_runs_on_sample_data(tmp_path):
    archive = Settings(home=tmp_path, mode=Mode.ARCHIVE, archive=tmp_path)
    config = build_defs(archive).resolve_job_def("demo").run_config
    launched = Path(REPOSITORY / "dagster_home" / "demo.yaml").read_text()  # from a shell
    assert config == run_config("demo") == yaml.safe_load(launched)
    assert config["resources"]["workspace"]["config"] == {"mode": "sample"}


def list_due(graph):
    keys = graph.get_all_asset_keys()
    return {key.to_user_string() for key in keys if graph.get(key).freshness_policy is not None}


def test_published_data_alone_are_refreshed_daily(tmp_path):
    for mode in (Mode.SAMPLE, Mode.ARCHIVE):
        files = build_defs(Settings(home=tmp_path, mode=mode, archive=tmp_path))
        assert list_due(files.resolve_asset_graph()) == set()

    declare(tmp_path / "datasets", SOUND)
    graph = build_defs(Settings(home=tmp_path, mode=Mode.LIVE)).resolve_asset_graph()
    names = {key.to_user_string() for key in graph.get_all_asset_keys()}

    assert {"series/demand", "windows/demand"} < names
    assert list_due(graph) == {
        name
        for name in names
        if name.startswith(REFRESHED_DAILY) and not name.endswith(("/demand", "/months"))
    }
    for key in graph.get_all_asset_keys():
        policy = graph.get(key).freshness_policy
        if key == dg.AssetKey(["forecast", "next_day"]):
            assert (policy.deadline_cron, policy.timezone) == ("45 18 * * *", NEM_ZONE)
        elif policy is not None:
            # One refresh may take its time; a second missed one is a failure.
            assert timedelta(days=1) < policy.warn_window.to_timedelta() < timedelta(days=2)
            assert policy.fail_window.to_timedelta() > timedelta(days=2)


def test_months_are_partitions_where_they_can_be_fetched(tmp_path, graph):
    declare(tmp_path / "datasets", SOUND)
    live = build_defs(Settings(home=tmp_path, mode=Mode.LIVE)).resolve_asset_graph()
    months = {key for key in live.executable_asset_keys if "months" in key.path}
    fetched = {f"months/{dataset}" for dataset in DATASETS} | {"news/months"}
    assert {key.to_user_string() for key in months} == fetched
    days = live.get(dg.AssetKey(["months", "electricity-operational"])).partitions_def
    assert days.get_first_partition_key() == "2025-05-01"
    # Nothing that one run makes with its inputs needs a partition.
    windows = dg.AssetSelection.assets("windows/electricity").upstream().resolve(live)
    assert not windows & months and not any(live.get(key).partitions_def for key in windows)
    assert not any("months" in key.path for key in graph.executable_asset_keys)


def test_equal_code_has_an_equal_version(graph):
    keys = graph.get_all_asset_keys()
    versions = {key.to_user_string(): graph.get(key).code_version for key in keys}

    assert all(len(version) == 12 for version in versions.values())
    assert len({versions[f"series/{dataset}"] for dataset in DATASETS}) == 1
    assert versions["series/traffic"] != versions["windows/traffic"]
    # Windows hold public holidays, which another release of their library may name otherwise.
    for release, is_equal in ((HOLIDAYS_VERSION, True), ("0.1", False)):
        version = code_version(*windows.stored_windows.CUTTING_CODE, data_release=release)
        assert (versions["windows/traffic"] == version) is is_equal


@pytest.mark.parametrize(
    ("name", "first", "text", "is_equal"),
    [
        ("a.py", CODE, CODE.replace("A", "Another").replace("return", "# why\n    return"), True),
        ("a.py", CODE, CODE.replace("1", "2"), False),
        ("a.toml", "a = 1", "# why\na = 1", True),
        ("a.toml", "a = 1", "a = 2", False),
        ("room/a.toml", "a = 1", "a = 2", False),
    ],
)
def test_a_code_version_follows_statements(tmp_path, monkeypatch, name, first, text, is_equal):
    monkeypatch.setattr(code_versions, "REPOSITORY", tmp_path)
    versions, file = [], tmp_path / name
    file.parent.mkdir(exist_ok=True)
    for content in (first, text):
        code_versions.code_version.cache_clear()
        file.write_text(content)
        versions.append(code_version(name.partition("/")[0]))
    assert (versions[0] == versions[1]) is is_equal


def test_the_demos_ablation_changes_its_population():
    ops = run_config("demo")["ops"]
    training = TrainConfig(**ops["models__compevo__electricity"]["config"]).resolve("demo")
    ops = definitions.run_config("demo_research")["ops"]
    ablation = AblationConfig(**ops["research__ablation__electricity"]["config"])

    assert ablation.resolve("demo") == training
    assert ablation.scopes is None
    changes = ablation.select_variants()
    assert changes[0].name == FULL_METHOD
    assert {change.name for change in changes} < set(list_changes("variant", "control"))
    assert not any(change.changes_nothing(training) for change in changes)


@pytest.mark.parametrize(
    ("dataset", "job"), [("exchange", "refresh_exchange"), ("electricity-operational", "refresh")]
)
def test_a_refresh_is_of_the_named_data(dataset, job):
    asked = Mock(**{"resolve_job_def.side_effect": LookupError})
    with pytest.raises(LookupError):
        run_job(asked, "refresh", dataset)
    asked.resolve_job_def.assert_called_once_with(job)


def test_a_refresh_chooses_its_day(defs):
    evening = datetime(2026, 3, 30, 15, 0, tzinfo=UTC)
    days = {name: choose_day(one, evening) for name, one in BUILT_IN.items()}

    # It is the 31st already in Brisbane.
    assert days["electricity-operational"] == "2026-04-01" and days["electricity"] == "2026-03-31"
    assert days["exchange"] == "2026-03-30" and days["traffic"] == ""
    with pytest.raises(ConfigError, match="--day 2026-03-30"):
        run_job(defs, "refresh", "traffic", "2026-03-30")
    with pytest.raises(ConfigError, match="2026-02-18"):
        run_job(defs, "refresh", "electricity-operational", "2026-02-18")


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

    assert re.findall(r"(?m)^sales-.*", fitted) == [f"{name}:" for name in BLOCKS]
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
