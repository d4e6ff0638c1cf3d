"""Collectives between training processes, with a counter of the bytes each one receives.

Each process holds the whole frozen backbone and a contiguous slice of the agents. Forecasts,
losses, candidate states, gradients of soft prompts, logic texts and sums of squares are gathered in
rank order, so that all processes compute the same values from them, bit for bit.

A backbone that one device cannot hold is split instead (``lora.backbone``). Each process then
holds all agents and computes what the others compute; only the first one's gradients are sent, as a
GPU's sums differ in their last bits from run to run.

Shapes: A agents.
"""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from compevo_core.errors import CheckpointMismatch, ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class AgentShards:
    """The agents of a training run, split over its processes.

    With one process nothing is sent: every method returns its argument. Without ``splits_agents``
    each process has all agents, and all split the backbone. Of ``written_agents`` this process
    writes the files.
    """

    def __init__(
        self, agents: int, rank: int = 0, processes: int = 1, *, splits_agents: bool = True
    ) -> None:
        if splits_agents and processes > agents:
            raise ConfigError(
                f"{processes} processes cannot share {agents} agent(s), as each needs at least "
                "one; start fewer processes or raise population.agents"
            )

        self.rank = rank
        self.processes = processes
        self.splits_agents = splits_agents
        shares = processes if splits_agents else 1
        size, larger = divmod(agents, shares)
        starts = [share * size + min(share, larger) for share in range(shares + 1)]
        self._agents_by_rank = [range(start, end) for start, end in pairwise(starts)]
        self.local_agents = self._agents_by_rank[rank if splits_agents else 0]
        self.written_agents = self.local_agents if splits_agents or rank == 0 else range(0)
        self.received: Counter[str] = Counter()

    @classmethod
    def from_process_group(cls, agents: int, *, splits_agents: bool = True) -> Self:
        """Split the agents over torch's process group; keep them in one process without a group."""
        # Without torch, which takes a second to import, no group can have started.
        if "torch" not in sys.modules:
            return cls(agents)

        from torch import distributed as dist

        if not dist.is_initialized():
            return cls(agents)

        rank, processes = dist.get_rank(), dist.get_world_size()
        return cls(agents, rank, processes, splits_agents=splits_agents)

    @property
    def is_first(self) -> bool:
        """Whether this process writes the records and the shared files."""
        return self.rank == 0

    @property
    def dropout_stream(self) -> int:
        """Number of the dropout generator: processes with the same agents must draw the same."""
        return self.rank if self.splits_agents else 0

    def local(self, everyone: Any) -> Any:  # noqa: ANN401 - a list or a tensor, returned as given
        """Return this process's part of a list or tensor over all agents."""
        return everyone[self.local_agents.start : self.local_agents.stop]

    def all_gather(self, local: Any, purpose: str) -> Any:  # noqa: ANN401 - a tensor or an array
        """Gather the rows of all agents: (local agents, ...) to (A, ...).

        Local rows keep their gradient path; the others have none. What one process holds is
        returned as it is, arrays of several become a tensor.
        """
        if len(self._agents_by_rank) == 1:
            return local

        import torch

        local = torch.as_tensor(local)
        # Shards differ by one agent at most, and all_gather needs equal shapes.
        padded = local.detach().new_zeros(len(self._agents_by_rank[0]), *local.shape[1:])
        padded[: len(self.local_agents)] = local.detach()

        blocks = self._all_gather_equal(padded, purpose)
        parts = [
            block[: len(agents)].to(local.device)
            for block, agents in zip(blocks, self._agents_by_rank, strict=True)
        ]

        # The gathered copy of the local rows is detached: put the differentiable one in its place.
        parts[self.rank] = local
        return torch.cat(parts)

    def all_gather_json(self, local: Sequence[Any]) -> list[Any]:
        """Gather the items of all agents; an item is any JSON value."""
        if len(self._agents_by_rank) == 1:
            return list(local)
        return [item for part in self._all_gather_values(list(local), "texts") for item in part]

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        """Sum numbers over the processes."""
        if len(self._agents_by_rank) == 1:
            return list(numbers)

        parts = self._all_gather_equal(np.array(numbers, dtype=np.float64), "counts")
        return [float(sum(part[i] for part in parts)) for i in range(len(numbers))]

    def broadcast(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return the first process's value on every process."""
        if self.processes == 1:
            return value

        return self._all_gather_values(value if self.is_first else None, "agreement")[0]

    def assert_identical(self, name: str, value: str) -> None:
        """Check that all processes hold the same value.

        CheckpointMismatch if on every process, if one differs.
        """
        if self.processes > 1 and len(set(self._all_gather_values(value, "agreement"))) > 1:
            raise CheckpointMismatch(
                f"{name} differ between the processes; all must run the same code on the same kind "
                "of device and see one shared run folder. Resume with fewer processes"
            )

    def unify_gradients(self, gradients: "Iterable[Tensor]") -> None:
        """Give every process the first one's gradients, where all compute the same ones.

        A GPU adds in no fixed order: without this the copies of one adapter would drift apart, and
        processes that must take the same steps would sample different texts.
        """
        if self.splits_agents:
            return

        from torch import distributed as dist

        for gradient in gradients:
            dist.broadcast(gradient.detach(), src=0)
            self.received["gradients"] += 0 if self.is_first else gradient.nbytes

    def barrier(self) -> None:
        """Wait until every process has reached this call."""
        if self.processes > 1:
            from torch import distributed as dist

            dist.barrier()

    def take_received(self) -> dict[str, int]:
        """Return the bytes received since the last call, by purpose, and reset the counter."""
        taken = dict(sorted(self.received.items()))
        self.received.clear()
        return taken

    def _all_gather_values(self, value: Any, purpose: str) -> list[Any]:  # noqa: ANN401 - of JSON
        data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        lengths = [int(n[0]) for n in self._all_gather_equal(np.array([data.size]), purpose)]

        padded = np.zeros(max(lengths), dtype=np.uint8)
        padded[: data.size] = data
        blocks = self._all_gather_equal(padded, purpose)
        return [
            json.loads(bytes(block[:length].tolist()))
            for block, length in zip(blocks, lengths, strict=True)
        ]

    def _all_gather_equal(
        self, values: "Tensor | npt.NDArray[Any]", purpose: str
    ) -> "list[Tensor]":
        """Gather one tensor or array of each process, all of one shape, in rank order."""
        import torch
        from torch import distributed as dist

        # NCCL moves tensors between GPUs only.
        device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
        local = torch.as_tensor(values).to(device).contiguous()
        blocks = [torch.empty_like(local) for _ in range(self.processes)]
        dist.all_gather(blocks, local)

        self.received[purpose] += (self.processes - 1) * local.numel() * local.element_size()
        return blocks


def torchrun_rank(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Read rank, number of processes and local rank from torchrun; (0, 1, 0) outside it."""
    defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    values = {**defaults, **environment}
    return int(values["RANK"]), int(values["WORLD_SIZE"]), int(values["LOCAL_RANK"])


@contextlib.contextmanager
def process_group(rank: int, processes: int, local_rank: int) -> Iterator[None]:
    """Join the processes that torchrun started; do nothing for a single process.

    NCCL is used where there is a GPU, with one process a GPU, and Gloo where there is none.
    ConfigError if the machine has fewer GPUs than processes.
    """
    if processes == 1:
        yield
        return

    import torch
    from torch import distributed as dist

    device = None
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_rank} of this machine has no GPU of its own: there are "
                f"{torch.cuda.device_count()}. Start one process a GPU (--nproc-per-node)"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)

    backend = "gloo" if device is None else "nccl"
    dist.init_process_group(backend, rank=rank, world_size=processes, device_id=device)
    try:
        yield
    finally:
        dist.destroy_process_group()
