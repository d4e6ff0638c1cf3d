"""The container file and the compose files: linted, valid, and of one mind with the project."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from compevo_core.errors import ConfigError
from compevo_pipeline.storage.code_versions import read_commit

REPO = Path(__file__).resolve().parents[2]
DEPLOY = REPO / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))
SERVICES = COMPOSE["services"]
with_git = pytest.mark.skipif(not (REPO / ".git").exists(), reason="no checkout of git")
VERSION = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def run_tool(name, *arguments):
    """Run a tool that lies beside the interpreter; return its exit code and what it says."""
    tool = Path(sys.executable).with_name(name)
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_container_file_has_no_fault_that_its_linter_knows():
    assert run_tool("hadolint", DEPLOY / "Dockerfile") == (0, "")


@pytest.mark.slow
def test_the_compose_files_keep_the_compose_specification():
    files = [DEPLOY / "compose" / name for name in ("compose.yaml", "compose.gpu.yaml")]
    code, said = run_tool("check-jsonschema", *("--builtin-schema", "vendor.compose-spec", *files))
    assert code == 0, said


def test_the_image_installs_the_lock_and_its_hashes_and_no_root_runs_it():
    assert "pip install --require-hashes --no-deps --requirement requirements.lock" in DOCKERFILE
    assert "COPY constraints.txt deploy/requirements.lock ./" in DOCKERFILE
    assert "torch==2.13.0" in DOCKERFILE and "torch==2.13.0" in (REPO / "Makefile").read_text()
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["1000:1000"] and "HEALTHCHECK" in DOCKERFILE


def test_images_of_others_are_pinned_by_digest_the_same_one_everywhere():
    pinned = re.compile(r"(\S+?:\S+)@sha256:[0-9a-f]{64}")
    assert pinned.fullmatch(re.search(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)[1])
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}

    images = {
        match[1]
        for file in DEPLOY.rglob("*.yaml")
        for match in re.finditer(r"^\s*-?\s*image: (\S+)$", file.read_text("utf-8"), re.MULTILINE)
    }
    others = {image for image in images if not image.startswith("compevo:")}
    assert [pinned.fullmatch(image)[1] for image in others] == ["postgres:17-alpine"]


def test_what_is_copied_into_the_image_is_what_its_context_holds():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore and names == allowed
    assert all((REPO / name).exists() for name in names)


@with_git
def test_an_image_knows_its_commit_where_there_is_no_git(tmp_path, monkeypatch):
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
def test_git_ignores_the_file_of_passwords_and_keeps_its_example():
    def is_ignored(name):
        command = ["git", "check-ignore", "--quiet", f"deploy/compose/{name}"]
        return subprocess.run(command, cwd=REPO, check=False).returncode == 0

    assert is_ignored(".env") and is_ignored(".env.production")
    assert not is_ignored(".env.example")


def test_images_carry_the_version_of_the_project():
    texts = [path.read_text("utf-8") for path in DEPLOY.rglob("*") if path.is_file()]
    versions = {match for text in texts for match in re.findall(r"\bcompevo:([\w.]+)", text)}
    assert versions == {VERSION}


def test_the_ui_is_reached_from_this_machine_alone_and_nothing_else_is():
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"webserver": ["127.0.0.1:3000:3000"]}


def test_credentials_of_sources_reach_the_code_location_alone():
    assert [name for name, service in SERVICES.items() if "env_file" in service] == [
        "code-location"
    ]


def test_no_secret_is_written_down():
    example = (DEPLOY / "compose" / ".env.example").read_text("utf-8")
    assert "DAGSTER_PG_PASSWORD=\n" in example
    passwords = [
        str(value)
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if "PASSWORD" in name
    ]
    assert len(passwords) == 4
    assert all(value.startswith("${DAGSTER_PG_PASSWORD:?") for value in passwords)


def test_every_service_says_whether_it_is_well():
    asked = [name for name, service in SERVICES.items() if "healthcheck" in service]
    assert asked == ["postgres", "code-location", "daemon"], "the webserver's is the image's own"


@pytest.mark.slow
def test_the_commands_of_the_services_exist():
    for name in ("code-location", "daemon"):
        command = SERVICES[name]["command"]
        options = [word for word in command if str(word).startswith("--")]
        words = command[: command.index(options[0])]
        code, said = run_tool(words[0], *words[1:], "--help")
        assert code == 0 and all(option in said for option in options), json.dumps(command)
