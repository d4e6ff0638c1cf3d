"""Draws from torch's global generators that leave them as the caller had them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CPU = torch.device("cpu")


@contextmanager
def use_seed(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Seed torch's global generators within the block, and give them back as they were.

    ``device`` is an accelerator on which the block samples too, for example dropout masks. The
    generators of other devices stay: ``torch.manual_seed`` would reseed them for good.
    """
    accelerators = [] if device.type == _CPU.type else [device]
    with torch.random.fork_rng(accelerators, device_type=device.type):
        torch.default_generator.manual_seed(seed)
        for accelerator in accelerators:
            module = torch.get_device_module(accelerator)
            with module.device(accelerator):
                module.manual_seed(seed)
        yield
