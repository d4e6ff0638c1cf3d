"""Prompts of several adapters packed without padding between them, shared prefixes stored once.

A prompt group is a prefix and the suffixes that continue it; every suffix ends one prompt. All
groups of an adapter follow one another in one row, in segments: the prefix, then each distinct
suffix once. Rows of different adapters are padded to the longest.

Ids from the vocabulary size on name rows of a table of embeddings (``Population.soft_token_id``).
Suffixes are folded by their ids, so equal soft ids must mean equal embeddings.

Shapes: A adapters, R prompts of an adapter, L packed length, P tokens of the longest prompt, C last
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

    Without suffixes the prefix itself is the one prompt. Equal suffixes are read once. An answer
    follows each of the prompts, and is what a loss scores.
    """

    prefix: Sequence[int]
    suffixes: Sequence[Sequence[int]] = ()
    answer: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Segment:
    """Tokens [begin, end) of a packed row, and the index of the segment they continue."""

    begin: int
    end: int
    parent: int | None = None


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of prompt groups, a row per adapter; a prompt ends with its answer, if it has one."""

    ids_AL: Tensor
    positions_AL: Tensor  # of each token in its own prompt
    segments: list[list[Segment]]
    prompt_segments: list[list[int]]  # of each adapter, the segment that ends each prompt
    answers: list[list[Sequence[int]]]  # of each adapter, the answer to each prompt

    def last_token_indices(self, count: int = 1) -> Tensor:
        """Return the packed indices of the last C tokens of every prompt, in order, (A, R, C).

        ValueError if a prompt has fewer tokens, or none is asked for.
        """
        last = [
            [self.token_indices(row, prompt)[-count:] for prompt in range(len(numbers))]
            for row, numbers in enumerate(self.prompt_segments)
        ]

        shortest = min(len(indices) for row in last for indices in row)
        if not 0 < count <= shortest:
            raise ValueError(
                f"{count} last tokens are asked for, and the shortest prompt has {shortest}; ask "
                "for one or more tokens that every prompt has"
            )
        return torch.tensor(last, device=self.ids_AL.device)

    def token_indices(self, row: int, prompt: int) -> list[int]:
        """Return the packed indices of all tokens of one prompt, prefix first."""
        segments = self.segments[row]
        segment = segments[self.prompt_segments[row][prompt]]
        read = [segment] if segment.parent is None else [segments[segment.parent], segment]
        return [index for part in read for index in range(part.begin, part.end)]


def pack(groups: Sequence[Sequence[PromptGroup]], pad_id: int, device: torch.device) -> Batch:
    """Pack the prompt groups of each adapter into one row; ``pad_id`` fills shorter rows.

    ValueError if adapters differ in their number of prompts, or a prefix is empty.
    """
    rows = [_PackedRow() for _ in groups]
    for row, row_groups in zip(rows, groups, strict=True):
        for group in row_groups:
            row.append(group)

    # The states of all rows are stacked into one tensor (A, R, D).
    counts = sorted({len(row.prompt_segments) for row in rows})
    if len(counts) > 1:
        raise ValueError(f"the rows have {counts} prompts; give every one the same number")

    return Batch(
        _pad_rows([row.ids for row in rows], pad_id, device),
        _pad_rows([row.positions for row in rows], 0, device),
        [row.segments for row in rows],
        [row.prompt_segments for row in rows],
        [row.answers for row in rows],
    )


class _PackedRow:
    """The row of one adapter while it grows."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.segments: list[Segment] = []
        self.prompt_segments: list[int] = []
        self.answers: list[Sequence[int]] = []

    def append(self, group: PromptGroup) -> None:
        """Append a prefix and its distinct suffixes, each with the answer behind it."""
        suffixes = [(*suffix, *group.answer) for suffix in group.suffixes or [()]]
        prefix_ids = group.prefix
        if len(set(suffixes)) == 1:
            # Nothing is shared: one segment does.
            prefix_ids, suffixes = [*prefix_ids, *suffixes[0]], [()] * len(suffixes)
        if not prefix_ids:
            raise ValueError(
                "a prompt group has an empty prefix; every prompt needs at least one token"
            )

        prefix = self._append_segment(prefix_ids, first_position=0, parent=None)
        # Greedy samples and equal logics repeat suffixes: each is computed once.
        segment_of: dict[tuple[int, ...], int] = {(): prefix}

        for suffix in suffixes:
            if suffix not in segment_of:
                segment_of[suffix] = self._append_segment(
                    suffix, first_position=len(prefix_ids), parent=prefix
                )
            self.prompt_segments.append(segment_of[suffix])
            self.answers.append(group.answer)

    def _append_segment(
        self, ids: Sequence[int], *, first_position: int, parent: int | None
    ) -> int:
        begin = len(self.ids)
        self.ids += ids
        # Every suffix counts on from its prefix, wherever it stands in the row.
        self.positions += range(first_position, first_position + len(ids))
        self.segments.append(Segment(begin, len(self.ids), parent))
        return len(self.segments) - 1


def _pad_rows(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    # Built on the processor and moved once.
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill).to(device)
