"""What the processes of one training tell each other, and how many bytes that is (torchrun; design decision 29).

What belongs here: every collective operation of the core, which agents a process owns, the byte counter.
What does not: what is told (``rounds``, ``logics``), files (``checkpoint``, ``artifact``), the environment (``cli``).
Each process holds the whole frozen backbone and a contiguous slice of the agents. Forecasts, losses, one state a
candidate, the gradients of the soft prompts, logic texts and sums of squares are told to all; the backbone's other
activations, adapters and the gradient of any parameter never are.
Everything told is gathered in the order of the ranks, so that all processes compute the same from it, bit for bit.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch import distributed as dist

from compevo_core.errors import CheckpointMismatch, ConfigError


class Exchange:
    """The agents of a training, the slice of them that is this process's own, and the talk with the others.

    With one process nothing is sent: every method gives back what it was given.
    """

    def __init__(self, agents: int, rank: int = 0, processes: int = 1) -> None:
        if processes > agents:
            raise ConfigError(f"{processes} processes cannot share {agents} agent(s): each needs one of its own; "
                              "start fewer processes or raise population.agents")
        self.rank, self.processes = rank, processes
        self._owned = [_slice(agents, one, processes) for one in range(processes)]
        self.own = self._owned[rank]
        self.received: Counter[str] = Counter()

    @classmethod
    def of_process_group(cls, agents: int) -> Self:
        """The exchange of torch's process group; of one process where there is none."""
        if not dist.is_initialized():
            return cls(agents)
        return cls(agents, dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this process writes the records and what all share."""
        return self.rank == 0

    def of_own(self, everyone: Any) -> Any:  # noqa: ANN401 - a list or a tensor, given back as it came
        """This process's part of a list or tensor over all agents."""
        return everyone[self.own.start:self.own.stop]

    def join(self, own: Tensor, what: str) -> Tensor:
        """Own rows to all agents' rows: (own agents, ...) to (A, ...).

        Own rows keep their gradient path, the others' have none.
        """
        if self.processes == 1:
            return own
        padded = own.detach().new_zeros(len(self._owned[0]), *own.shape[1:])
        padded[: len(self.own)] = own.detach()
        parts = [block[: len(owned)].to(own.device)
                 for block, owned in zip(self._gather(padded, what), self._owned, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)

    def texts(self, own: Sequence[Any], what: str = "texts") -> list[Any]:
        """Own items to all agents' items; an item is what JSON can hold."""
        if self.processes == 1:
            return list(own)
        return [item for part in self._messages(list(own), what) for item in part]

    def totals(self, numbers: Sequence[float], what: str = "counts") -> list[float]:
        """Sums of numbers over the processes."""
        if self.processes == 1:
            return list(numbers)
        here = torch.tensor(numbers, dtype=torch.float64)
        return [float(total) for total in torch.stack(self._gather(here, what)).sum(0)]

    def from_first(self, value: Any) -> Any:  # noqa: ANN401 - what JSON can hold
        """What the first process says; the others' ``value`` is ignored."""
        return value if self.processes == 1 else self._messages(value if self.first else None, "agreement")[0]

    def same(self, name: str, value: str) -> None:
        """Makes sure that all processes hold the same.

        Raises:
            CheckpointMismatch: on every process, if one differs.
        """
        if self.processes > 1 and len(set(self._messages(value, "agreement"))) > 1:
            raise CheckpointMismatch(f"{name} differ between the processes; all must run the same code on the same "
                                     "kind of device and see one shared run folder. Resume with fewer processes")

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.processes > 1:
            dist.barrier()

    def take_received(self) -> dict[str, int]:
        """Bytes that each process received from the others since the last call, by what they were for."""
        taken = dict(sorted(self.received.items()))
        self.received.clear()
        return taken

    def _messages(self, value: Any, what: str) -> list[Any]:  # noqa: ANN401 - what JSON can hold
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [int(n) for n in self._gather(torch.tensor([data.numel()]), what)]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: data.numel()] = data
        blocks = self._gather(padded, what)
        return [json.loads(bytes(block[:n].tolist())) for block, n in zip(blocks, lengths, strict=True)]

    def _gather(self, here: Tensor, what: str) -> list[Tensor]:
        """The tensors of all processes, equal in shape, in the order of the ranks."""
        device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
        here = here.to(device).contiguous()
        blocks = [torch.empty_like(here) for _ in range(self.processes)]
        dist.all_gather(blocks, here)
        self.received[what] += (self.processes - 1) * here.numel() * here.element_size()
        return blocks


def torchrun_rank(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, number of processes and rank on this machine as torchrun sets them; (0, 1, 0) outside torchrun."""
    names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    rank, processes, local_rank = (int(environment.get(name, default)) for name, default in names.items())
    return rank, processes, local_rank


@contextlib.contextmanager
def process_group(rank: int, processes: int, local_rank: int) -> Iterator[None]:
    """Joins the processes that torchrun started: NCCL on ``local_rank``'s GPU, Gloo without one; alone it does nothing.

    Raises:
        ConfigError: the machine has fewer GPUs than processes.
    """
    if processes == 1:
        yield
        return
    device = None
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(f"process {local_rank} of this machine has no GPU of its own: there are "
                              f"{torch.cuda.device_count()}. Start one process a GPU (--nproc-per-node)")
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device is None else "nccl", rank=rank, world_size=processes, device_id=device)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _slice(agents: int, rank: int, processes: int) -> range:
    size, larger = divmod(agents, processes)
    start = rank * size + min(rank, larger)
    return range(start, start + size + (rank < larger))
