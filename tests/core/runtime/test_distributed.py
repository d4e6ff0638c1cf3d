"""Who owns which agents, and what one process alone does."""

import pytest
import torch

from compevo_core.errors import CheckpointMismatch, ConfigError
from compevo_core.runtime.distributed import AgentShards, process_group


@pytest.mark.parametrize(("agents", "processes"), [(10, 3), (3, 2), (4, 4), (7, 1)])
def test_every_agent_has_one_owner_and_shares_differ_by_one_at_most(agents, processes):
    owned = [AgentShards(agents, rank, processes).local_agents for rank in range(processes)]
    assert [agent for own in owned for agent in own] == list(range(agents))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert len(owned[0]) == max(map(len, owned))  # the size that others pad to


def test_more_processes_than_agents_are_refused():
    with pytest.raises(ConfigError, match=r"population\.agents"):
        AgentShards(2, 0, 3)


def test_one_process_gets_back_what_it_gave_and_sends_nothing():
    alone = AgentShards(3)
    own = torch.ones(3, 2, requires_grad=True)
    assert alone.all_gather(own, "forecasts") is own
    assert alone.all_gather_json(["a", "b", "c"]) == ["a", "b", "c"]
    assert alone.all_reduce_sum([2, 3]) == [2, 3]
    assert alone.broadcast("said") == "said"
    alone.assert_identical("gates", "one")
    alone.barrier()
    assert alone.take_received() == {}


def test_copies_that_drifted_apart_are_refused(monkeypatch):
    shards = AgentShards(2, 0, 2)
    monkeypatch.setattr(shards, "_all_gather_values", lambda value, what: [value, "another"])
    with pytest.raises(CheckpointMismatch, match="gates differ between the processes"):
        shards.assert_identical("gates", "one")


def test_a_process_without_a_gpu_of_its_own_is_told_how_many_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="one process a GPU"), process_group(1, 2, 1):
        pass


def test_where_processes_split_a_backbone_each_holds_all_agents_and_the_first_writes_them():
    shards = [AgentShards(3, rank, 4, splits_agents=False) for rank in range(4)]
    assert all(one.local_agents == range(3) for one in shards), "more processes than agents"
    assert [list(one.written_agents) for one in shards] == [[0, 1, 2], [], [], []]
    assert {one.dropout_stream for one in shards} == {0}
    assert torch.equal(shards[2].all_gather(torch.ones(3, 2), "losses"), torch.ones(3, 2))
