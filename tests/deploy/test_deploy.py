"""Files of the deployment: images and manifests are valid, and of one mind with the project."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config

from compevo_core.errors import ConfigError
from compevo_pipeline.launchers.process import IMAGE_GROUP, PodSpec
from compevo_pipeline.storage.code_versions import read_commit

REPO = Path(__file__).resolve().parents[2]
DEPLOY = REPO / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))
SERVICES = COMPOSE["services"]
with_git = pytest.mark.skipif(not (REPO / ".git").exists(), reason="no checkout of git")
FOLDER = REPO / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))
DAGSTER = yaml.safe_load((FOLDER / "dagster.yaml").read_text("utf-8"))
LAUNCHER = DAGSTER["run_launcher"]["config"]
MANIFESTS = [(FOLDER / name).read_text("utf-8") for name in KUSTOMIZATION["resources"]]
OBJECTS = [found for text in MANIFESTS for found in yaml.safe_load_all(text)]
POD = PodSpec.read(FOLDER / "training-pod.toml")
DEPLOYMENTS = ("compose", "kubernetes")


def run_tool(name, *arguments):
    tool = Path(sys.executable).with_name(name)
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_container_file_passes_its_linter():
    assert run_tool("hadolint", DEPLOY / "Dockerfile") == (0, "")


@pytest.mark.slow
def test_the_compose_files_keep_the_compose_specification():
    files = [DEPLOY / "compose" / name for name in ("compose.yaml", "compose.gpu.yaml")]
    code, said = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)
    assert code == 0, said


def test_the_image_installs_the_lock():
    assert "pip install --require-hashes --no-deps --requirement requirements.lock" in DOCKERFILE
    assert "COPY constraints.txt deploy/requirements.lock ./" in DOCKERFILE
    assert "torch==2.13.0" in DOCKERFILE and "torch==2.13.0" in (REPO / "Makefile").read_text()
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["1000:1000"] and "HEALTHCHECK" in DOCKERFILE


def test_foreign_images_are_pinned_by_digest():
    pinned = re.compile(r"(\S+?:\S+)@sha256:[0-9a-f]{64}")
    assert pinned.fullmatch(re.search(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)[1])
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}

    texts = "\n".join(file.read_text("utf-8") for file in DEPLOY.rglob("*.yaml"))
    images = re.findall(r"^\s*-?\s*image: (\S+)$", texts, re.MULTILINE)
    others = {image for image in images if not image.startswith("compevo:")}
    names = sorted(pinned.fullmatch(image)[1] for image in others)
    assert names == ["caddy:2.10-alpine", "postgres:17-alpine"]


def test_the_image_copies_its_context():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignore and names == {line[1:] for line in ignore if line.startswith("!")}
    assert all((REPO / name).exists() for name in names)


@with_git
def test_an_image_knows_its_commit(tmp_path, monkeypatch):
    assert re.search(r"^ARG COMPEVO_COMMIT", DOCKERFILE, flags=re.MULTILINE)
    assert "ENV COMPEVO_COMMIT=${COMPEVO_COMMIT}" in DOCKERFILE
    assert COMPOSE["x-compevo"]["build"]["args"] == {"COMPEVO_COMMIT": "${COMPEVO_COMMIT:-}"}

    read_commit.cache_clear()
    monkeypatch.setenv("COMPEVO_COMMIT", "0123456789ab")
    assert read_commit(tmp_path) == "0123456789ab"
    # Git knows better where there is one.
    assert read_commit(REPO) != "0123456789ab"
    read_commit.cache_clear()
    monkeypatch.setenv("COMPEVO_COMMIT", "")
    assert read_commit(tmp_path) == "unknown"
    monkeypatch.setenv("COMPEVO_COMMIT", "main")
    with pytest.raises(ConfigError, match="COMPEVO_COMMIT"):
        read_commit(tmp_path / "other")
    read_commit.cache_clear()


@with_git
def test_git_ignores_the_file_of_passwords():
    def is_ignored(name):
        command = ["git", "check-ignore", "--quiet", f"deploy/compose/{name}"]
        return subprocess.run(command, cwd=REPO, check=False).returncode == 0

    assert is_ignored(".env") and is_ignored(".env.production")
    assert not is_ignored(".env.example")


def test_images_carry_the_version_of_the_project():
    texts = [path.read_text("utf-8") for path in DEPLOY.rglob("*") if path.is_file()]
    versions = {match for text in texts for match in re.findall(r"\bcompevo:([\w.]+)", text)}
    project = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]
    assert versions == {project["version"]}


def test_services_declare_what_they_open():
    found = {
        key: [name for name, service in SERVICES.items() if key in service]
        for key in ("ports", "env_file", "healthcheck")
    }
    assert found == {
        "ports": ["login"],
        "env_file": ["code-location", "research"],  # the credentials of sources
        # The webserver's is the image's.
        "healthcheck": ["postgres", "code-location", "research", "daemon"],
    }
    assert SERVICES["login"]["ports"] == ["127.0.0.1:3000:3000"]  # only from this machine
    assert all(service["read_only"] for name, service in SERVICES.items() if name != "postgres")


def test_a_link_cannot_start_a_run():
    rules = (DEPLOY / "compose" / "Caddyfile").read_text()
    refused = rules.partition("@link {")[2].partition("}")[0].split()
    assert {"GET", "HEAD", "/graphql", "query=*"} <= set(refused)
    assert re.search(r"respond @link .* 405\n\s*reverse_proxy", rules)


def test_no_secret_is_written_down():
    example = (DEPLOY / "compose" / ".env.example").read_text("utf-8")
    assert "DAGSTER_PG_PASSWORD=\n" in example
    given = [service.get("environment", {}) for service in SERVICES.values()]
    passwords = [str(one[name]) for one in given for name in one if "PASSWORD" in name]
    assert len(passwords) == 5
    assert all(value.startswith("${DAGSTER_PG_PASSWORD:?") for value in passwords)


@pytest.mark.slow
def test_the_commands_of_the_services_exist():
    for name in ("code-location", "research", "daemon"):
        command = SERVICES[name]["command"]
        options = [word for word in command if str(word).startswith("--")]
        words = command[: command.index(options[0])]
        code, said = run_tool(words[0], *words[1:], "--help")
        assert code == 0 and all(option in said for option in options), json.dumps(command)


def objects(*kinds):
    return {found["metadata"]["name"]: found for found in OBJECTS if found["kind"] in kinds}


def templates():
    services = objects("Deployment", "StatefulSet")
    return {name: found["spec"]["template"] for name, found in services.items()}


def training_pod():
    """Return the pod that the Pipes client sends to the cluster, as the cluster's API reads it."""
    from dagster_k8s.pipes import build_pod_body  # seconds, as below
    from kubernetes.client import ApiClient

    body = build_pod_body(
        pod_name="training",
        image=None,
        command=POD.command(["/data/compevo/real/runs/one/job.json"]),
        env_vars={"DAGSTER_PIPES_MESSAGES": "x"},
        base_pod_meta=None,
        base_pod_spec=POD.pod_spec(),
    )
    sent = ApiClient().sanitize_for_serialization(body)
    return {"apiVersion": "v1", "kind": "Pod"} | sent


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.29", "1.37"])  # the oldest and the newest that run it
def test_kubernetes_accepts_every_manifest(version):
    import kubernetes_validate  # seconds, which no worker needs that collects this file

    for found in [*OBJECTS, training_pod()]:
        kubernetes_validate.validate(found, version, strict=True)


def test_every_pod_may_run_restricted():
    for template in [*templates().values(), training_pod()]:
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert rights["readOnlyRootFilesystem"] is True
            assert "temporary" in [mount["name"] for mount in container["volumeMounts"]]
    own = LAUNCHER["run_k8s_config"]

    assert own["pod_spec_config"]["security_context"]["run_as_non_root"] is True
    rights = own["container_config"]["security_context"]
    assert rights["allow_privilege_escalation"] is False
    assert rights["read_only_root_filesystem"] is True


def test_what_a_pod_names_exists():
    made = {generator["name"] for generator in KUSTOMIZATION["configMapGenerator"]}
    claims = objects("PersistentVolumeClaim")
    secrets = {"compevo-postgres", "compevo-sources"}  # made by hand, see the page on clusters
    for template in templates().values():
        spec = template["spec"]
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert volume["configMap"]["name"] in made
            elif "emptyDir" not in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        for container in spec["containers"]:
            for source in container.get("envFrom", []):
                name = source.get("configMapRef", source.get("secretRef"))["name"]
                assert name in made | secrets

    assert LAUNCHER["instance_config_map"] in made
    assert set(LAUNCHER["env_config_maps"]) <= made and set(LAUNCHER["env_secrets"]) <= secrets
    assert LAUNCHER["postgres_password_secret"] in secrets
    assert POD.volume_claim in claims


def test_every_service_finds_its_pods():
    labels = [template["metadata"]["labels"] for template in templates().values()]
    services = objects("Service")
    for service in services.values():
        assert sum(service["spec"]["selector"].items() <= one.items() for one in labels) == 1
    for folder in (FOLDER, FOLDER.with_name("compose")):
        entries = yaml.safe_load((folder / "workspace.yaml").read_text("utf-8"))["load_from"]
        asked = {entry["grpc_server"]["location_name"]: entry["grpc_server"] for entry in entries}
        assert list(asked) == ["compevo", "research"]

    for location, server in asked.items():
        assert services[server["host"]]["spec"]["ports"][0]["port"] == server["port"] == 4000
        containers = templates()[server["host"]]["spec"]["containers"]
        for command in (containers[0]["args"], SERVICES[server["host"]]["command"]):
            named = dict(pairwise(command))
            assert named["--location-name"] == location
            importlib.import_module(named["--module-name"])


def test_rights_are_of_who_starts_runs():
    accounts = {name: one["spec"].get("serviceAccountName") for name, one in templates().items()}
    assert {name for name, account in accounts.items() if account} == {"webserver", "daemon"}
    assert LAUNCHER["service_account_name"] in objects("ServiceAccount")
    for name in ("code-location", "research", "postgres"):
        assert templates()[name]["spec"]["automountServiceAccountToken"] is False
    assert training_pod()["spec"]["automountServiceAccountToken"] is False

    (role,) = objects("Role").values()
    named = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert named == {"jobs", "jobs/status", "pods", "pods/log", "pods/status", "events"}
    assert objects("ClusterRole") == {}


def test_pods_reach_publishers_and_no_private_address():
    inside, outside = objects("NetworkPolicy").values()
    assert inside["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert inside["spec"]["ingress"] == [{"from": [{"podSelector": {}}]}]

    (rule,) = outside["spec"]["egress"]
    (to,) = rule["to"]
    assert {"10.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16"} <= set(to["ipBlock"]["except"])
    assert {"port": 443} in rule["ports"]


def test_runs_and_trainings_see_one_volume():
    assert POD.mount_path in {mount["mountPath"] for mount in LAUNCHER["volume_mounts"]}
    for name in ("compute_logs", "local_artifact_storage"):
        assert DAGSTER[name]["config"]["base_dir"].startswith(f"{POD.mount_path}/")
    assert f"COMPEVO_HOME={POD.mount_path}/" in DOCKERFILE
    assert f"--gid {IMAGE_GROUP}" in DOCKERFILE


def test_a_file_of_no_pod_is_refused(tmp_path):
    path = tmp_path / "pod.toml"
    path.write_text('image = "i"\nvolume_claim = "v"\nmount_path = "/data"\ngpu = 1\n')
    with pytest.raises(ConfigError, match=r"pod\.toml.*COMPEVO_POD"):
        PodSpec.read(path)


def read_settings(folder):
    return yaml.safe_load((REPO / folder / "dagster.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("deployment", "others"), [("compose", []), ("kubernetes", ["run_launcher"])]
)
def test_deployments_share_the_settings(deployment, others):
    shared, local = (read_settings(folder) for folder in (f"deploy/{deployment}", "dagster_home"))
    for name in ("storage", "local_artifact_storage", "compute_logs", *others):
        for settings in (shared, local):
            settings.pop(name, None)
    # Pods are other machines: more of them run at once.
    runs = [each["concurrency"]["runs"].pop("max_concurrent_runs") for each in (shared, local)]
    assert shared == local
    assert (runs[0] > runs[1]) == (deployment == "kubernetes")


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_dagster_accepts_the_settings(deployment, monkeypatch):
    monkeypatch.setenv("DAGSTER_PG_HOST", "postgres")
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "p@ss")
    config, _ = dagster_instance_config(str(REPO / "deploy" / deployment))
    assert config["run_monitoring"]["free_slots_after_run_end_seconds"] > 0

    named = config["run_launcher"]
    launcher = getattr(importlib.import_module(named["module"]), named["class"])
    schema = resolve_to_config_type(launcher.config_type())
    checked = process_config(schema, named.get("config", {}))
    assert checked.success, checked.errors


def test_the_records_address_names_its_driver(monkeypatch):
    # SQLAlchemy 2.1 takes psycopg 3 for an address without it, and dagster-postgres needs another.
    import psycopg2
    from dagster_postgres.utils import pg_url_from_config
    from sqlalchemy import create_engine

    for deployment in DEPLOYMENTS:
        values = read_settings(f"deploy/{deployment}")["storage"]["postgres"]["postgres_db"]
        plain = values | {"hostname": "postgres", "password": "p@ss/word"}
        engine = create_engine(pg_url_from_config({"postgres_db": plain}))
        assert engine.dialect.dbapi is psycopg2 and engine.url.password == "p@ss/word"
