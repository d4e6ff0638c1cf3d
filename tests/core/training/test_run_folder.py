"""A run folder's rounds and summary: read back whole, refused with file, line and remedy."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.training.round_record import RoundRecord, RoundResult
from compevo_core.training.run_folder import RunFolder
from tests.support.round_records import round_record

OLD_RUN = Path(__file__).parents[2] / "golden" / "old_run" / "run"
LATER_KEYS = (
    *("regret", "fixed_rewards", "played_rewards", "group_regret", "fixed_unread_answers"),
    *("val_prior_mae_scaled", "exchanged_bytes", "stage", "evolved", "cut_prompts", "loss_own"),
    *("error_correlation", "gain_over_best", "effective_agents"),
)


def test_a_line_that_an_earlier_version_wrote_keeps_every_value() -> None:
    lines = (OLD_RUN / "rounds.jsonl").read_text().splitlines()
    records = RunFolder(OLD_RUN).read_rounds()
    for record, line in zip(records, lines, strict=True):
        values = json.loads(line)
        written = json.loads(record.to_json_line())
        assert {key: written[key] for key in values} == values
    # Those versions rewrote the logics in every round.
    assert all(record.evolved and record.stage == "evolution" for record in records)
    assert [record.round for record in records] == [0, 1]


def test_a_run_without_the_keys_that_were_added_later_can_be_read() -> None:
    values = round_record(3).to_dict()
    line = json.dumps({k: v for k, v in values.items() if k not in LATER_KEYS} | {"unknown": 1})
    record = RoundRecord.from_json_line(line)
    assert record.regret is None
    assert record.exchanged_bytes == {}
    assert record.loss == round_record(3).loss


@pytest.mark.parametrize("key", ["round", "loss_pred", "rewards", "logics", "seconds"])
def test_a_line_without_a_key_that_every_version_wrote_is_refused_by_its_name(key: str) -> None:
    values = round_record(0).to_dict()
    del values[key]
    with pytest.raises(ValueError, match=key):
        RoundRecord.from_json_line(json.dumps(values))


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        round_record(0).loss = 1.0


def test_every_key_of_a_round_is_described() -> None:
    for model in (RoundResult, RoundRecord):
        described = model.model_json_schema()["properties"]
        assert described.keys() == model.model_fields.keys()
        assert all(entry["description"] for entry in described.values())


def test_rounds_are_appended_and_read_back_in_order(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    written = [round_record(number) for number in range(3)]
    for record in written:
        folder.append_round(record)
    assert folder.read_rounds() == written


def test_a_folder_without_rounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no rounds\.jsonl"):
        RunFolder(tmp_path).read_rounds()


@pytest.mark.parametrize("torn", ['{"round": 2, "lo', '{"round": 2}', "[1]"])
def test_a_torn_line_is_named_by_its_number(tmp_path: Path, torn: str) -> None:
    folder = RunFolder(tmp_path)
    folder.append_round(round_record(0))
    folder.append_round(round_record(1))
    with folder.rounds_file.open("a") as stream:
        stream.write(torn)
    with pytest.raises(DataError, match="line 3"):
        folder.read_rounds()


def test_rounds_behind_the_checkpoint_are_dropped_and_the_others_stay_as_they_are(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    for number in range(4):
        folder.append_round(round_record(number))
    before = folder.rounds_file.read_text().splitlines(keepends=True)
    folder.truncate_rounds(2)
    assert folder.rounds_file.read_text() == "".join(before[:2])


def test_fewer_rounds_than_the_checkpoint_knows_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_round(round_record(0))
    with pytest.raises(CheckpointMismatch, match="has 1 rounds, the checkpoint 2"):
        folder.truncate_rounds(2)


def test_a_fresh_run_starts_with_an_empty_file_of_rounds(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new")
    folder.truncate_rounds(0)
    assert folder.read_rounds() == []


def test_the_summary_is_read_back_and_missing_before_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(DataError, match=r"no metrics\.json"):
        folder.read_metrics()
    folder.write_metrics({"rounds": 3, "val_mae_scaled": None})
    assert folder.read_metrics() == {"rounds": 3, "val_mae_scaled": None}
