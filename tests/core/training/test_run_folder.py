"""A run folder's rounds and summary, and sealed folders."""

import json

import pytest

from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.training.round_record import RoundRecord, RoundResult
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_manifest
from tests.support.round_records import round_record


@pytest.mark.parametrize("key", ["round", "loss_pred", "rewards", "logics", "seconds"])
def test_a_line_without_a_key_is_an_error_that_names_it(key):
    values = round_record(0).to_dict()
    del values[key]
    with pytest.raises(ValueError, match=key):
        RoundRecord.from_json_line(json.dumps(values))


def test_every_key_of_a_round_is_described():
    for model in (RoundResult, RoundRecord):
        described = model.model_json_schema()["properties"]
        assert described.keys() == model.model_fields.keys()
        assert all(entry["description"] for entry in described.values())


@pytest.mark.parametrize("torn", ['{"round": 2, "lo', '{"round": 2}', "[1]"])
def test_a_torn_line_is_named_by_its_number(tmp_path, torn):
    folder = RunFolder(tmp_path)
    folder.append_round(round_record(0))
    folder.append_round(round_record(1))
    with folder.rounds_file.open("a") as stream:
        stream.write(torn)
    with pytest.raises(DataError, match="line 3"):
        folder.read_rounds()


def test_rounds_behind_the_checkpoint_are_dropped_and_the_others_stay_as_they_are(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(4):
        folder.append_round(round_record(number))
    assert [record.round for record in folder.read_rounds()] == list(range(4))
    before = folder.rounds_file.read_text().splitlines(keepends=True)
    folder.truncate_rounds(2)
    assert folder.rounds_file.read_text() == "".join(before[:2])
    with pytest.raises(CheckpointMismatch, match="2 rounds, the checkpoint 3"):
        folder.truncate_rounds(3)
    folder.truncate_rounds(0)
    assert folder.read_rounds() == []


def test_records_and_summary_are_missing_before_the_end(tmp_path):
    folder = RunFolder(tmp_path)
    for read in (folder.read_metrics, folder.read_rounds):
        with pytest.raises(DataError, match=r"no (metrics\.json|rounds\.jsonl)"):
            read()
    folder.write_metrics({"rounds": 3, "val_mae_scaled": None})
    assert folder.read_metrics() == {"rounds": 3, "val_mae_scaled": None}


@pytest.fixture
def sealed(tmp_path):
    (tmp_path / "agent" / "adapter").mkdir(parents=True)
    (tmp_path / "head.txt").write_text("1", encoding="utf-8")
    (tmp_path / "agent" / "adapter" / "weights.txt").write_text("2", encoding="utf-8")
    write_manifest(tmp_path, {"rounds": 3})
    return tmp_path


def test_a_sealed_folder_verifies_and_names_all_files(sealed):
    manifest = verify_manifest(sealed)
    assert sorted(manifest["files"]) == ["agent/adapter/weights.txt", "head.txt"]
    assert manifest["rounds"] == 3


@pytest.mark.parametrize("name", ["head.txt", "agent/adapter/weights.txt"])
def test_an_altered_file_and_a_missing_one_are_refused_by_name(sealed, name):
    (sealed / name).write_text("3", encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match=f"{name} is altered"):
        verify_manifest(sealed)

    (sealed / name).unlink()
    with pytest.raises(CheckpointMismatch, match=f"{name} is missing"):
        verify_manifest(sealed)


def test_the_hash_is_that_of_the_files_and_not_of_the_facts(sealed):
    first = verify_manifest(sealed)["hash"]
    assert write_manifest(sealed, {"rounds": 4}) == first
    (sealed / "head.txt").write_text("4", encoding="utf-8")
    assert write_manifest(sealed, {"rounds": 4}) != first
