"""Seeds of separate random streams, and draws that leave torch's generators as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compevo_core.runtime.files import hash_text

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, stream: str, *parts: int | str) -> int:
    """Return the seed of one stream of a run's random numbers.

    A stream is identified by its name and, where it has several, by their numbers. Numbers would
    not be enough: numpy takes ``[seed, 1]`` and ``[seed, 1, 0]`` as one seed.
    """
    key = "/".join(map(str, (seed, stream, *parts)))
    return int(hash_text(key)[:15], 16)  # as many digits as torch takes


@contextmanager
def use_seed(seed: int, device: "torch.device | None" = None) -> Iterator[None]:
    """Seed torch's global generators within the block, and give them back as they were.

    ``device`` is an accelerator on which the block samples too, for example dropout masks. The
    generators of other devices stay: ``torch.manual_seed`` would reseed them for good.
    """
    import torch  # only where torch samples: seeds are derived without it

    kind = "cpu" if device is None else device.type
    accelerators = [] if device is None or kind == "cpu" else [device]
    with torch.random.fork_rng(accelerators, device_type=kind):
        torch.default_generator.manual_seed(seed)
        for accelerator in accelerators:
            module = torch.get_device_module(accelerator)
            with module.device(accelerator):
                module.manual_seed(seed)
        yield
