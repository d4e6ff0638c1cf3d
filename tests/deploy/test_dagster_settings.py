"""Dagster's settings of every deployment: one source, and accepted by Dagster."""

import importlib
from pathlib import Path

import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config

REPO = Path(__file__).resolve().parents[2]
LOCAL = yaml.safe_load((REPO / "dagster_home" / "dagster.yaml").read_text("utf-8"))
DEPLOYMENTS = ("compose", "kubernetes")
OF_ITS_OWN = {
    "compose": {"storage", "local_artifact_storage", "compute_logs"},
    "kubernetes": {"storage", "local_artifact_storage", "compute_logs", "run_launcher"},
}
"""What a deployment may decide for itself; all else is dagster_home/dagster.yaml."""


def read(deployment):
    path = REPO / "deploy" / deployment / "dagster.yaml"
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_pools_monitoring_and_retries_are_those_of_a_single_machine(deployment):
    own = OF_ITS_OWN[deployment]
    shared = {name: value for name, value in read(deployment).items() if name not in own}
    assert shared == {name: value for name, value in LOCAL.items() if name not in own}


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_dagster_accepts_the_settings_and_its_launcher_too(deployment, monkeypatch):
    monkeypatch.setenv("DAGSTER_PG_HOST", "postgres")
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "p@ss")
    folder = str(REPO / "deploy" / deployment)

    config, _ = dagster_instance_config(folder)
    assert config["run_monitoring"]["free_slots_after_run_end_seconds"] > 0

    launcher = getattr(
        importlib.import_module(config["run_launcher"]["module"]), config["run_launcher"]["class"]
    )
    given = config["run_launcher"].get("config", {})
    checked = process_config(resolve_to_config_type(launcher.config_type()), given)
    assert checked.success, checked.errors


def test_the_drivers_name_is_in_the_address_of_the_records(monkeypatch):
    # SQLAlchemy 2.1 takes psycopg 3 for an address without it, and dagster-postgres needs another.
    import psycopg2
    from dagster_postgres.utils import pg_url_from_config
    from sqlalchemy import create_engine

    for deployment in DEPLOYMENTS:
        values = read(deployment)["storage"]["postgres"]["postgres_db"]
        plain = values | {"hostname": "postgres", "password": "p@ss/word"}
        engine = create_engine(pg_url_from_config({"postgres_db": plain}))
        assert engine.dialect.dbapi is psycopg2 and engine.url.password == "p@ss/word"


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_the_webserver_asks_the_code_location_by_its_name_and_port(deployment):
    path = REPO / "deploy" / deployment / "workspace.yaml"
    (entry,) = yaml.safe_load(path.read_text("utf-8"))["load_from"]
    assert entry["grpc_server"] == {
        "host": "code-location",
        "port": 4000,
        "location_name": "compevo",
    }
