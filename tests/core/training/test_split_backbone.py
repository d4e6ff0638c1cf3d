"""A training whose processes split the backbone in place of the agents: the numbers of one."""

import json
import shutil

import pytest
import torch

from compevo_core.runtime.distributed import AgentShards
from tests.support.shard_worker import run
from tests.support.trained_runs import (
    assert_same_model,
    read_rounds,
    read_tensors,
    train_in_processes,
)

pytestmark = pytest.mark.slow

# Few passes: every product waits for the other process.
SETTINGS = {
    "optim__max_grad_norm": 0.1,
    "population__agents": 2,
    "population__dropout": 0.1,
    "grpo__group_size": 2,
    "run__rounds": 2,
    "run__batch_size": 1,
    "run__fixed_logics": 0,
    "run__validate_every": 0,
    "evolution__max_new_tokens": 4,
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Return a folder of one run by one process and by two that split the backbone."""
    root = tmp_path_factory.mktemp("split")
    assert run({"out": str(root / "one"), "set": SETTINGS}) == ""
    codes, errors = train_in_processes(
        2, [{"out": str(root / "two"), "set": SETTINGS, "shard": True}]
    )
    assert codes == [0, 0], errors
    assert [(root / f"two.rank{rank}").read_text() for rank in (0, 1)] == ["", ""]
    return root


def test_two_processes_that_split_the_backbone_train_the_weights_of_one(out):
    # With dropout too: processes with the same agents must draw the same masks.
    assert_same_model(out / "one", out / "two")
    still = [k for k, v in read_tensors(out / "two").items() if "lora_B" in k and not v.any()]
    assert not still, "an adapter that never moved proves nothing"
    losses = [[record["loss"] for record in read_rounds(out / run)] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_they_exchange_gradients_and_no_agent(out):
    for record in read_rounds(out / "two"):
        assert set(record["exchanged_bytes"]) <= {"agreement", "gradients"}
    manifest = json.loads((out / "two" / "model" / "manifest.json").read_text())
    assert manifest["processes"] == 2


def test_one_process_goes_on_from_what_two_wrote(out, tmp_path):
    shutil.copytree(out / "two", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "round_000002")
    assert run({"out": str(tmp_path / "run"), "set": SETTINGS}) == ""
    assert_same_model(tmp_path / "run", out / "one")


def test_one_process_alone_cannot_split_a_backbone(tmp_path):
    job = {"out": str(tmp_path / "run"), "set": SETTINGS, "split_alone": True}
    assert "there is one: start several" in run(job)


def test_each_holds_all_agents_and_the_first_writes_them():
    shards = [AgentShards(3, rank, 4, splits_agents=False) for rank in range(4)]
    assert all(one.local_agents == range(3) for one in shards), "more processes than agents"
    assert [list(one.written_agents) for one in shards] == [[0, 1, 2], [], [], []]
    assert {one.dropout_stream for one in shards} == {0}
    assert torch.equal(shards[2].all_gather(torch.ones(3, 2), "losses"), torch.ones(3, 2))
