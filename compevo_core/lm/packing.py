"""Prompts of several agents packed without padding between them, shared prefixes stored once.

What belongs here: the layout of token rows in one batch and the indices into it. What does not:
attention over the layout (``lm.attention``), what the tokens mean (``agents.prompts``).

A prompt group is a prefix and the suffixes that continue it; every suffix ends one prompt. All
groups of an agent follow one another in one row, in segments: the prefix, then each distinct
suffix once. Rows of different agents are padded to the longest.

Ids are opaque here. Those from the vocabulary size on name rows of a table of embeddings
(``Population.soft_token_id``). Suffixes are folded by their ids, so equal soft ids must mean equal
embeddings, and prompts whose embeddings differ need ids that differ.

Shapes: A agents, R prompts of an agent, L packed length, P tokens of the longest prompt, C last
tokens of each prompt.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclasses.dataclass(frozen=True)
class PromptGroup:
    """Token ids of prompts that begin alike: a prefix, and what continues it in each prompt.

    Without suffixes the prefix itself is the one prompt. Equal suffixes are read once.
    """

    prefix: Sequence[int]
    suffixes: Sequence[Sequence[int]] = ()


@dataclasses.dataclass(frozen=True)
class Segment:
    """Tokens [begin, end) of a packed row, and the index of the segment they continue."""

    begin: int
    end: int
    parent: int | None = None


@dataclasses.dataclass(frozen=True)
class PackedPrompts:
    """A batch of prompt groups, a row per agent."""

    ids_AL: Tensor
    positions_AL: Tensor  # of each token in its own prompt
    segments: list[list[Segment]]
    prompt_segments: list[list[int]]  # for each agent, the segment that ends each prompt

    def last_token_indices(self, count: int = 1) -> Tensor:
        """Return the packed indices of the last C tokens of every prompt, in order, (A, R, C).

        ValueError if a prompt has fewer tokens, or none is asked for.
        """
        last = [
            [self.token_indices(agent, prompt)[-count:] for prompt in range(len(numbers))]
            for agent, numbers in enumerate(self.prompt_segments)
        ]

        shortest = min(len(indices) for row in last for indices in row)
        if not 0 < count <= shortest:
            raise ValueError(
                f"{count} last tokens are asked for, and the shortest prompt has {shortest}; ask "
                "for one or more tokens that every prompt has"
            )
        return torch.tensor(last, device=self.ids_AL.device)

    def token_indices(self, agent: int, prompt: int) -> list[int]:
        """Return the packed indices of all tokens of one prompt, prefix first."""
        segments = self.segments[agent]
        segment = segments[self.prompt_segments[agent][prompt]]
        prefix = [] if segment.parent is None else _indices(segments[segment.parent])
        return prefix + _indices(segment)


def pack(
    groups: Sequence[Sequence[PromptGroup]], pad_id: int, device: torch.device
) -> PackedPrompts:
    """Pack each agent's prompt groups into one row per agent; ``pad_id`` fills shorter rows.

    ValueError if agents differ in their number of prompts, or a prefix is empty.
    """
    rows = [_PackedRow() for _ in groups]
    for row, agent_groups in zip(rows, groups, strict=True):
        for group in agent_groups:
            row.append(_fold_single_suffix(group))

    # The agents' states are stacked into one tensor (A, R, D).
    counts = sorted({len(row.prompt_segments) for row in rows})
    if len(counts) > 1:
        raise ValueError(f"agents have {counts} prompts; give every agent the same number")

    return PackedPrompts(
        _pad_rows([row.ids for row in rows], pad_id, device),
        _pad_rows([row.positions for row in rows], 0, device),
        [row.segments for row in rows],
        [row.prompt_segments for row in rows],
    )


class _PackedRow:
    """The row of one agent while it grows."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.segments: list[Segment] = []
        self.prompt_segments: list[int] = []

    def append(self, group: PromptGroup) -> None:
        """Append a prefix and its distinct suffixes."""
        if not group.prefix:
            raise ValueError(
                "a prompt group has an empty prefix; every prompt needs at least one token"
            )

        prefix = self._append_segment(group.prefix, first_position=0, parent=None)
        # Greedy samples and equal logics repeat suffixes: each is computed once.
        segment_of: dict[tuple[int, ...], int] = {(): prefix}

        for suffix in map(tuple, group.suffixes):
            if suffix not in segment_of:
                segment_of[suffix] = self._append_segment(
                    suffix, first_position=len(group.prefix), parent=prefix
                )
            self.prompt_segments.append(segment_of[suffix])

        if not group.suffixes:
            self.prompt_segments.append(prefix)

    def _append_segment(
        self, ids: Sequence[int], *, first_position: int, parent: int | None
    ) -> int:
        begin = len(self.ids)
        self.ids += ids
        # Every suffix counts on from its prefix, wherever it stands in the row.
        self.positions += range(first_position, first_position + len(ids))
        self.segments.append(Segment(begin, len(self.ids), parent))
        return len(self.segments) - 1


def _fold_single_suffix(group: PromptGroup) -> PromptGroup:
    """Fold a single distinct suffix into the prefix: nothing is shared, so one segment does."""
    distinct = {tuple(suffix) for suffix in group.suffixes}
    if len(distinct) != 1:
        return group

    return PromptGroup([*group.prefix, *distinct.pop()], [()] * len(group.suffixes))


def _pad_rows(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    # Built on the processor and moved once.
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill).to(device)


def _indices(segment: Segment) -> list[int]:
    return list(range(segment.begin, segment.end))
