"""The asset of a model: when it trains, when it takes the finished run, and what it says of it."""

import re
import shutil

import dagster as dg
import pytest

from compevo_core.training.run_folder import RunFolder, write_manifest
from compevo_pipeline.config.settings import REPOSITORY
from compevo_pipeline.defs import definition
from compevo_pipeline.defs.assets import training
from compevo_pipeline.storage.runs import find_current_run, hash_model
from tests.support.deployment import deploy, read_materialization
from tests.support.round_records import round_record

MODEL = "models/compevo/traffic"


class FakeLauncher:
    """Writes a run folder as the trainer does: a finished run stays unless it starts over."""

    def __init__(self):
        self.trained = []

    def launch(self, context, jobs, kind, processes):
        (job,) = jobs
        folder = job.folder
        if folder.is_finished and job.resume:
            return {"artifact_hash": hash_model(folder.path)}

        if not job.resume:
            folder.begin_again()
        self.trained.append(job.resume)
        folder.model.mkdir(parents=True)
        (folder.model / "weights").write_text(f"training {len(self.trained)}")
        folder.append_round(round_record(0))
        sealed = write_manifest(folder.model, {"start": folder.read_start()})
        folder.write_metrics({"artifact_hash": sealed})
        return {"artifact_hash": sealed}


@pytest.fixture(scope="module")
def home(tmp_path_factory, sample_home):
    return shutil.copytree(sample_home.home, tmp_path_factory.mktemp("home") / "copy")


def materialize(home, launcher):
    deployment = deploy(home, launchers=launcher)
    tags = read_materialization(deployment.materialize(MODEL)).tags
    return tags["dagster/data_version"], tags["dagster/code_version"]


def use_code(monkeypatch, version):
    for module in (definition, training):
        monkeypatch.setattr(module, "code_version", lambda *sources, **_: version)


@pytest.mark.slow
def test_other_code_trains_anew(home, monkeypatch):
    launcher = FakeLauncher()
    use_code(monkeypatch, "version-one")
    first = materialize(home, launcher)
    assert materialize(home, launcher) == first and launcher.trained == [True]

    use_code(monkeypatch, "version-two")
    second = materialize(home, launcher)
    assert launcher.trained == [True, False]
    assert (first[1], second[1]) == ("version-one", "version-two")
    assert materialize(home, launcher) == second and len(launcher.trained) == 2

    # The version is that of the model: what is scored with another one is stale.
    run = find_current_run(deploy(home).layout, "traffic")
    assert second[0] == hash_model(run) != first[0]


@pytest.mark.slow
def test_a_commands_run_is_taken(home, monkeypatch):
    launcher = FakeLauncher()
    use_code(monkeypatch, "version-two")
    before = materialize(home, launcher)
    run = find_current_run(deploy(home).layout, "traffic")
    # Trained again by a command, in the place of the asset's: what is kept is of another model.
    (RunFolder(run).model / "weights").write_text("of a command")
    write_manifest(RunFolder(run).model, {"start": RunFolder(run).read_start()})
    trained = len(launcher.trained)

    use_code(monkeypatch, "version-three")
    assert materialize(home, launcher)[0] == hash_model(run) != before[0]
    assert len(launcher.trained) == trained


def test_a_model_needs_windows_first(tmp_path):
    with pytest.raises(dg.Failure, match="windows/"):
        deploy(tmp_path).materialize(MODEL)


def test_imported_packages_decide_the_version():
    text = "".join(path.read_text() for path in (REPOSITORY / "compevo_core/training").glob("*.py"))
    imported = set(re.findall(r"from (compevo_core)\.(\w+)\.", text))
    # Diagnostics measure a training and decide nothing of it.
    decisive = {"/".join(names) for names in imported} - {"compevo_core/diagnostics"}
    assert decisive <= set(training.TRAINING_CODE) and len(decisive) > 4
