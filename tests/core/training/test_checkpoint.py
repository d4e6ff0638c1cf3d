"""Contents of a checkpoint, which one a run resumes from, stages that several runs share."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file

from compevo_core.config.run import iterate_settings
from compevo_core.errors import CheckpointMismatch, CompEvoError, DataError
from compevo_core.paper.changes import FULL_METHOD, find_variant, list_changes
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.checkpoint import (
    _LATER_SETTINGS,
    TrainState,
    hash_stage,
    load_newest_checkpoint,
    save_checkpoint,
)
from compevo_core.training.round_record import RoundRecord, RoundResult
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_manifest
from tests.support.population import tiny
from tests.support.round_records import round_record
from tests.support.tiny_run import Killed, kill_after, train_days

ONE_PROCESS = AgentShards(2)


def save(root, round_number, start=0):
    tensors = {"x": torch.full((3,), float(round_number))}
    agents = dict.fromkeys(range(2), tensors)
    captured = TrainState(agents, tensors, {"r": round_number})
    return save_checkpoint(root, round_number, captured, ONE_PROCESS, start=start)


def test_the_newest_two_are_kept(tmp_path):
    for round_number in (2, 10, 9, 11):
        save(tmp_path, round_number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round_000010", "round_000011"]

    newest = load_newest_checkpoint(tmp_path, ONE_PROCESS)
    assert newest is not None and newest.state == {"r": 11}
    for name in ("agent_01.safetensors", "shared.safetensors"):
        assert load_file(newest.folder / name)["x"].tolist() == [11.0] * 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shared.safetensors", b"torn"),
        ("agent_01.safetensors", b"torn"),
        ("state.json", None),
        ("manifest.json", None),
        ("manifest.json", b'{"files": '),
        ("manifest.json", b"{}"),
    ],
)
def test_a_damaged_newest_checkpoint_leaves_the_one_before(name, content, tmp_path, caplog):
    save(tmp_path, 1)
    damaged = save(tmp_path, 2) / name
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)

    taken = load_newest_checkpoint(tmp_path, ONE_PROCESS)

    assert taken is not None and taken.state == {"r": 1}
    assert "round_000002" in caplog.text


def test_a_previous_runs_checkpoint_is_passed_over(tmp_path):
    save(tmp_path, 60)
    assert load_newest_checkpoint(tmp_path, ONE_PROCESS, start=1) is None

    save(tmp_path, 5, start=1)
    taken = load_newest_checkpoint(tmp_path, ONE_PROCESS, start=1)
    assert taken is not None and taken.state == {"r": 5}


IDENTITY = {"config_hash": "c", "data_hash": "d", "news_hash": "n"}
SHARING = [name for name in list_changes("variant") if name not in (FULL_METHOD, "uniform-weights")]
OTHERS = [name for name in (*SHARING, "fixed-logics") if name != "no-grpo"]
DAYS = 6


def full_method():
    return tiny(run__supervised_epochs=1, run__rounds=2, run__validate_every=1, run__seed=3)


def run(config, out, **options):
    return train_days(config, out, days=DAYS, val_days=2, clock=lambda: 0.0, **options)


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """The stage of the full method, kept as its training went past it."""
    folder = tmp_path_factory.mktemp("stages")
    run(full_method(), folder / "full", stages=folder / "kept")
    return folder / "kept"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["no-grpo", *OTHERS])
def test_a_shared_stage_changes_no_variant(variant, stages, tmp_path):
    config = find_variant(variant).configure(full_method())
    played = []
    alone = run(config, tmp_path / "alone")
    options = {"stages": stages, "on_round": lambda record: played.append(record.round)}
    shared = run(config, tmp_path / "shared", **options)

    assert shared["artifact_hash"] == alone["artifact_hash"]
    records = [RunFolder(tmp_path / name).read_rounds() for name in ("alone", "shared")]
    assert records[0] == records[1]
    # The rounds of the stage are on record, and were not trained again.
    assert [record.round for record in records[1]] == [*range(len(records[1]))]
    assert played == [record.round for record in records[1] if record.stage == "evolution"]


@pytest.mark.slow
def test_a_shared_stage_seals_best_and_continues(tmp_path):
    # At this rate validation gets worse after the first round.
    config = full_method().with_overrides({"optim.forecast_lr": 1e-2})
    kept = tmp_path / "kept"

    first, second = (run(config, tmp_path / name, stages=kept) for name in ("first", "second"))

    assert 0 < second["chosen_round"] == first["chosen_round"] < DAYS
    assert second["artifact_hash"] == first["artifact_hash"]
    rounds = [RunFolder(tmp_path / name).read_rounds() for name in ("first", "second")]
    assert rounds[0] == rounds[1]


@pytest.mark.slow
def test_a_continued_run_resumes_from_its_folder(stages, tmp_path):
    config = find_variant("no-grpo").configure(full_method())
    with pytest.raises(Killed):
        run(config, tmp_path / "run", stages=stages, on_round=kill_after(DAYS))
    resumed = run(config, tmp_path / "run")
    assert resumed["artifact_hash"] == run(config, tmp_path / "alone")["artifact_hash"]


def test_later_settings_of_a_stage_exist():
    # A name that is none would leave its successor out, and equal stages would be trained apart.
    known = {name for name, _ in iterate_settings()}
    later = {f"{section}.{name}" for section, names in _LATER_SETTINGS.items() for name in names}
    assert later <= known
    config = tiny(evolution__form="slots", evolution__flat_share=0.5)
    crossed = config.with_overrides({"evolution.cross_share": 0.5})
    assert hash_stage(crossed, IDENTITY) == hash_stage(config, IDENTITY)


@pytest.mark.parametrize(
    "change",
    [
        {"run.seed": 4},
        {"selection.uniform": True},
        {"objective.lambda_own": 0.5},
        {"optim.forecast_lr": 2e-3},
        {"run.rounds": 3},
        {"evolution.form": "slots"},
    ],
)
def test_what_acts_in_the_stage_makes_it_another(change):
    config = full_method()
    key = hash_stage(config, IDENTITY)
    assert hash_stage(config.with_overrides(change), IDENTITY) != key
    # So do other windows and articles; the hash of all settings does not.
    assert hash_stage(config, IDENTITY | {"config_hash": "x"}) == key
    others = {hash_stage(config, IDENTITY | {name: "x"}) for name in ("data_hash", "news_hash")}
    assert len(others - {key}) == 2


@pytest.mark.parametrize("key", ["round", "loss_pred", "rewards", "logics", "seconds"])
def test_a_line_without_a_key_is_an_error(key):
    values = round_record(0).to_dict()
    del values[key]
    with pytest.raises(ValueError, match=key):
        RoundRecord.from_json_line(json.dumps(values))


def test_every_key_of_a_round_is_described():
    for model in (RoundResult, RoundRecord):
        described = model.model_json_schema()["properties"]
        assert described.keys() == model.model_fields.keys()
        assert all(entry["description"] for entry in described.values())


def write_rounds(path, count):
    folder = RunFolder(path)
    for number in range(count):
        folder.append_round(round_record(number))
    return folder


@pytest.mark.parametrize("torn", ['{"round": 2, "lo', '{"round": 2}', "[1]"])
def test_a_torn_line_is_named_by_its_number(tmp_path, torn):
    folder = write_rounds(tmp_path, 2)
    with folder.rounds_file.open("a") as stream:
        stream.write(torn)
    with pytest.raises(DataError, match="line 3"):
        folder.read_rounds()


def test_only_rounds_behind_the_checkpoint_are_dropped(tmp_path):
    folder = write_rounds(tmp_path, 4)
    assert [record.round for record in folder.read_rounds()] == list(range(4))
    before = folder.rounds_file.read_text().splitlines(keepends=True)

    folder.truncate_rounds(2)
    assert folder.rounds_file.read_text() == "".join(before[:2])
    with pytest.raises(CheckpointMismatch, match=r"2 rounds.* 3"):
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


@pytest.mark.parametrize("name", ["head.txt", "agent/adapter/weights.txt"])
def test_altered_and_missing_files_are_refused(sealed, name):
    (sealed / name).write_text("3", encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match=f"{name} is altered"):
        verify_manifest(sealed)

    (sealed / name).unlink()
    with pytest.raises(CheckpointMismatch, match=f"{name} is missing"):
        verify_manifest(sealed)


def test_a_flipped_bit_of_a_manifest_is_a_clear_error(sealed):
    path = sealed / "manifest.json"
    sound = path.read_bytes()
    refused = 0
    for place, bit in itertools.product(range(len(sound)), (0, 6)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << bit]) + sound[place + 1 :])
        try:
            manifest = verify_manifest(sealed)
        except CompEvoError:
            refused += 1
        else:  # no hash covers facts of the training
            assert manifest["files"] == json.loads(sound)["files"]
    assert refused > len(sound)


def test_the_hash_covers_files_and_no_facts(sealed):
    manifest = verify_manifest(sealed)
    assert sorted(manifest["files"]) == ["agent/adapter/weights.txt", "head.txt"]
    assert manifest["rounds"] == 3

    first = manifest["hash"]
    assert write_manifest(sealed, {"rounds": 4}) == first
    (sealed / "head.txt").write_text("4", encoding="utf-8")
    assert write_manifest(sealed, {"rounds": 4}) != first
