"""Draws with a seed of their own: as after torch.manual_seed, and nobody's generator moves."""

import contextlib

import pytest
import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.runtime.seeding import use_seed


class MadeUpAccelerator:
    """A device module whose generator is the last seed that it was given."""

    def __init__(self) -> None:
        self.state, self.devices = 7, []

    def get_rng_state(self, device: torch.device) -> int:
        return self.state

    def set_rng_state(self, state: int, device: torch.device) -> None:
        self.state = state

    def device(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        self.devices.append(device)
        return contextlib.nullcontext()

    def manual_seed(self, seed: int) -> None:
        self.state = seed


def test_draws_are_those_of_the_seed_and_the_callers_go_on() -> None:
    torch.manual_seed(5)
    own, following = torch.randn(2, 3)
    torch.manual_seed(2**40 + 3)
    expected = torch.randn(3)

    torch.manual_seed(5)
    assert torch.equal(torch.randn(3), own)
    with use_seed(2**40 + 3):
        assert torch.equal(torch.randn(3), expected)
    assert torch.equal(torch.randn(3), following)


def test_an_accelerator_that_nothing_is_drawn_on_keeps_its_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeded = []
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeded.append)
    with use_seed(3):
        torch.randn(3)
    load_backbone(BackboneConfig(name_or_path=TINY, weights="random"), device="cpu")
    assert not seeded


def test_the_accelerator_of_the_block_is_seeded_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accelerator, device = MadeUpAccelerator(), torch.device("cuda", 1)
    monkeypatch.setattr(torch, "get_device_module", lambda _: accelerator)
    with use_seed(3, device):
        assert accelerator.state == 3
    assert accelerator.state == 7
    assert accelerator.devices == [device]
