"""Draws with a seed of their own: as after torch.manual_seed, and nobody's generator moves."""

import ast
import contextlib
from pathlib import Path

import numpy as np
import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.runtime import seeding
from compevo_core.runtime.seeding import derive_seed, use_seed

CORE = Path(seeding.__file__).parents[1]


def list_calls(name, *rooms):
    paths = [path for room in rooms for path in (CORE / room).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func).split(".")[-1] == name]


def test_each_stream_of_a_training_has_a_name_of_its_own():
    rooms = ("agents", "lm", "training")
    names = [ast.literal_eval(call.args[1]) for call in list_calls("derive_seed", *rooms)]
    assert len(names) == len(set(names)) == 10
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


class MadeUpAccelerator:
    """A device module whose generator is the last seed that it was given."""

    def __init__(self):
        self.state, self.devices = 7, []

    def get_rng_state(self, device):
        return self.state

    def set_rng_state(self, state, device):
        self.state = state

    def device(self, device):
        self.devices.append(device)
        return contextlib.nullcontext()

    def manual_seed(self, seed):
        self.state = seed


def test_draws_are_those_of_the_seed_and_the_callers_go_on():
    torch.manual_seed(5)
    own, following = torch.randn(2, 3)
    torch.manual_seed(2**40 + 3)
    expected = torch.randn(3)

    torch.manual_seed(5)
    assert torch.equal(torch.randn(3), own)
    with use_seed(2**40 + 3):
        assert torch.equal(torch.randn(3), expected)
    assert torch.equal(torch.randn(3), following)


def test_an_accelerator_that_nothing_is_drawn_on_keeps_its_generator(monkeypatch):
    seeded = []
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeded.append)
    with use_seed(3):
        torch.randn(3)
    load_backbone(BackboneConfig(name_or_path=TINY, weights="random"), device="cpu")
    assert not seeded


def test_the_accelerator_of_the_block_is_seeded_and_goes_on_where_it_was(monkeypatch):
    accelerator, device = MadeUpAccelerator(), torch.device("cuda", 1)
    monkeypatch.setattr(torch, "get_device_module", lambda _: accelerator)
    with use_seed(3, device):
        assert accelerator.state == 3
    assert accelerator.state == 7
    assert accelerator.devices == [device]
