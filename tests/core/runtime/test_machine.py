"""What the machine can do and hold; the peak memory of a process, on every platform."""

import ast
import importlib
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from compevo_core.config.run import RunConfig
from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import CheckpointMismatch, ConfigError
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.runtime import seeding, usage
from compevo_core.runtime.distributed import AgentShards, process_group
from compevo_core.runtime.seeding import derive_seed, use_seed
from compevo_core.runtime.usage import Steps, lacks_bfloat16, memory_bytes, peak_memory_gigabytes

MEASURED = {resource.RUSAGE_SELF: 2_000_000, resource.RUSAGE_CHILDREN: 500_000}


@pytest.mark.parametrize(
    ("platform", "own", "with_children"), [("linux", 2.048, 2.56), ("darwin", 0.002, 0.0025)]
)
def test_linux_reports_kibibytes_and_macos_bytes(platform, own, with_children, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=MEASURED[who]))
    module = importlib.reload(usage)
    assert module.peak_memory_gigabytes() == pytest.approx(own)
    assert module.peak_memory_gigabytes(include_children=True) == pytest.approx(with_children)
    monkeypatch.undo()
    importlib.reload(usage)


def test_a_childs_memory_is_measured():
    alone = peak_memory_gigabytes()
    subprocess.run([sys.executable, "-c", "x = b'x' * 10**8"], check=True)
    assert peak_memory_gigabytes(include_children=True) > alone + 0.1


def test_a_processor_without_bfloat16_is_recognised():
    assert lacks_bfloat16("flags\t\t: fma avx2 avx512f\n")
    assert not lacks_bfloat16("flags\t\t: fma avx2 avx512_bf16\n")
    assert not lacks_bfloat16("flags\t\t: fma avx2 amx_bf16 amx_tile\n")
    assert not lacks_bfloat16("")


@pytest.mark.parametrize(
    ("facts", "has_gpu", "dtype"),
    [
        ("flags\t\t: fma avx512_bf16\n", False, "mixed"),
        ("flags\t\t: fma avx2\n", False, "float32"),
        ("flags\t\t: fma avx2\n", True, "mixed"),
        ("", False, "float32"),
    ],
)
def test_the_machines_type_is_in_the_settings(facts, has_gpu, dtype, monkeypatch):
    monkeypatch.setattr(usage, "read_cpu_facts", lambda: facts)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    chosen = RunConfig().with_overrides({"backbone.dtype": "auto"})
    assert chosen == RunConfig().with_overrides({"backbone.dtype": dtype})
    assert chosen.to_dict()["backbone"]["dtype"] == dtype


@pytest.mark.parametrize(
    ("limit", "bytes_"), [("4096\n", 4096), ("max\n", 64 * 2**30), (None, 64 * 2**30)]
)
def test_a_container_has_its_own_memory_limit(limit, bytes_, tmp_path, monkeypatch):
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(usage, "_CONTAINER_LIMIT", file)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**24}.get)
    assert memory_bytes(torch.device("cpu")) == bytes_


def test_the_time_left_goes_by_what_steps_cost():
    now, said = [100.0], list[str]()
    steps = Steps([1.0, 3.0, 4.0], said.append, lambda: now[0])
    steps.begin("ridge")
    now[0] += 10.0
    steps.begin("trees")
    now[0] += 110.0
    steps.begin("validation")
    # 120 s for costs of four; four are left.
    assert said == ["1/3 ridge", "2/3 trees, about 1m10s left", "3/3 validation, about 2m00s left"]


def list_calls(name, *rooms):
    core = Path(seeding.__file__).parents[1]
    paths = [path for room in rooms for path in (core / room).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func).split(".")[-1] == name]


def test_each_training_stream_has_its_own_name():
    rooms = ("agents", "lm", "training")
    names = [ast.literal_eval(call.args[1]) for call in list_calls("derive_seed", *rooms)]
    assert len(names) == len(set(names)) == 9
    # Numbers in a list are not a key: their last zeros do not count.
    assert not [c for c in list_calls("default_rng", *rooms) if isinstance(c.args[0], ast.List)]


def test_no_two_streams_are_equal():
    numbers = [(), *((a,) for a in range(12)), *((a, b) for a in range(12) for b in range(12))]
    names = ("days", "logics", "peers", "dropout", "news", "weights")
    seeds = [derive_seed(run, name, *n) for run in range(12) for name in names for n in numbers]
    assert len(set(seeds)) == len(seeds)
    first = [np.random.default_rng(seed).random() for seed in seeds[:1000]]
    torch_first = [torch.rand(2, generator=torch.Generator().manual_seed(s)) for s in seeds[:1000]]
    assert len(set(first)) == len({tuple(pair.tolist()) for pair in torch_first}) == 1000
    # Equal on every machine and with every version of Python.
    assert derive_seed(7, "days", 3) == derive_seed(7, "days", "3") == 733913751057564626


def test_draws_follow_the_seed_and_spare_callers():
    torch.manual_seed(5)
    own, following = torch.randn(2, 3)
    torch.manual_seed(2**40 + 3)
    expected = torch.randn(3)

    torch.manual_seed(5)
    assert torch.equal(torch.randn(3), own)
    with use_seed(2**40 + 3):
        assert torch.equal(torch.randn(3), expected)
    assert torch.equal(torch.randn(3), following)


def test_an_idle_accelerator_keeps_its_generator(monkeypatch):
    seeded = []
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeded.append)
    with use_seed(3):
        torch.randn(3)
    load_backbone(BackboneConfig(name_or_path=TINY, weights="random"), device="cpu")
    assert not seeded


def test_the_blocks_accelerator_is_seeded_and_restored(monkeypatch):
    accelerator, device = MagicMock(), torch.device("cuda", 1)
    monkeypatch.setattr(torch, "get_device_module", lambda _: accelerator)
    own = accelerator.get_rng_state.return_value
    with use_seed(3, device):
        accelerator.manual_seed.assert_called_once_with(3)
        accelerator.set_rng_state.assert_not_called()
    called = [name for name, *_ in accelerator.method_calls]
    assert called.index("get_rng_state") < called.index("manual_seed")
    accelerator.set_rng_state.assert_called_once_with(own, device)
    accelerator.device.assert_called_once_with(device)


@pytest.mark.parametrize(("agents", "processes"), [(10, 3), (3, 2), (4, 4), (7, 1)])
def test_every_agent_has_one_owner(agents, processes):
    owned = [AgentShards(agents, rank, processes).local_agents for rank in range(processes)]
    assert [agent for own in owned for agent in own] == list(range(agents))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert len(owned[0]) == max(map(len, owned))  # the size that others pad to


def test_one_process_exchanges_nothing():
    alone = AgentShards(3)
    own = torch.ones(3, 2, requires_grad=True)
    assert alone.all_gather(own, "forecasts") is own
    assert alone.all_gather_json(["a", "b", "c"]) == ["a", "b", "c"]
    assert alone.all_reduce_sum([2, 3]) == [2, 3]
    assert alone.broadcast("said") == "said"
    alone.assert_identical("gates", "one")
    alone.barrier()
    assert alone.take_received() == {}


def test_unfit_or_drifted_processes_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"population\.agents"):
        AgentShards(2, 0, 3)
    shards = AgentShards(2, 0, 2)
    monkeypatch.setattr(shards, "_all_gather_values", lambda value, what: [value, "another"])
    with pytest.raises(CheckpointMismatch, match="gates differ"):
        shards.assert_identical("gates", "one")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="a GPU"), process_group(1, 2, 1):
        pass


def test_split_backbones_hold_all_agents_everywhere():
    shards = [AgentShards(3, rank, 4, splits_agents=False) for rank in range(4)]
    assert all(one.local_agents == range(3) for one in shards), "more processes than agents"
    assert [list(one.written_agents) for one in shards] == [[0, 1, 2], [], [], []]
    assert {one.dropout_stream for one in shards} == {0}
    assert torch.equal(shards[2].all_gather(torch.ones(3, 2), "losses"), torch.ones(3, 2))
