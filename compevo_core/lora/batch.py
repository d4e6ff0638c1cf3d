"""Prompts of several adapters packed without padding between them, shared prefixes stored once.

A prompt group is a prefix and the suffixes that continue it; every suffix ends one prompt. All
groups of an adapter follow one another in one row, in segments: the prefix, then each distinct
suffix once. Rows of different adapters are padded to the longest. So the rows, one after the
other, are made of parts: segments, and padding after each row. The place of a token is its number
among all tokens, A L of them.

Ids from the vocabulary size on name rows of a table of embeddings (``Population.soft_token_id``).
Suffixes are folded by their ids, so equal soft ids must mean equal embeddings.

Shapes: A adapters, R prompts of an adapter, L packed length, C last tokens of each prompt.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


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
class Batch:
    """A batch of prompt groups, a row per adapter; a prompt ends with its answer, if it has one."""

    ids_AL: Tensor
    positions_AL: Tensor  # of each token in its own prompt
    lengths: list[int]  # of all parts
    segments: list[list[int]]  # the numbers of the parts that each segment attends to, itself last
    prompts: list[list[list[int]]]  # of each adapter, the places of each prompt's tokens
    answers: list[list[Sequence[int]]]  # of each adapter, the answer to each prompt

    def last_places(self, count: int = 1) -> Tensor:
        """Return the places of the last C tokens of every prompt, in order, (A, R, C).

        ValueError if a prompt has fewer tokens, or none is asked for.
        """
        shortest = min(len(places) for row in self.prompts for places in row)
        if not 0 < count <= shortest:
            raise ValueError(
                f"{count} last tokens are asked for, and the shortest prompt has {shortest}; ask "
                "for one or more tokens that every prompt has"
            )
        last = [[places[-count:] for places in row] for row in self.prompts]
        return torch.tensor(last, device=self.ids_AL.device)


def pack(groups: Sequence[Sequence[PromptGroup]], pad_id: int, device: torch.device) -> Batch:
    """Pack the prompt groups of each adapter into one row; ``pad_id`` fills shorter rows.

    ValueError if adapters differ in their number of prompts, or a prefix is empty.
    """
    folded = [[_fold(group) for group in row] for row in groups]
    answers = [[group.answer for group in row for _ in group.suffixes or [()]] for row in groups]
    # The states of all rows are stacked into one tensor (A, R, D).
    counts = sorted({len(row) for row in answers})
    if len(counts) > 1:
        raise ValueError(f"the rows have {counts} prompts; give every one the same number")

    # Greedy samples repeat suffixes: each is computed once.
    length = max(
        sum(len(prefix) + sum(map(len, set(suffixes))) for prefix, suffixes in row)
        for row in folded
    )
    ids = [pad_id] * (len(groups) * length)
    positions = [0] * len(ids)
    lengths: list[int] = []
    segments: list[list[int]] = []
    prompts: list[list[list[int]]] = [[] for _ in groups]
    for row, folded_groups in enumerate(folded):
        begin = row * length
        for prefix, suffixes in folded_groups:
            places: dict[tuple[int, ...], range] = {}
            first_part = len(lengths)
            for suffix in dict.fromkeys([(), *suffixes]):
                tokens = suffix or prefix
                end = begin + len(tokens)
                # Every suffix counts on from its prefix, wherever it stands in the row.
                first = len(prefix) if suffix else 0
                ids[begin:end] = tokens
                positions[begin:end] = range(first, first + len(tokens))
                places[suffix] = range(begin, end)
                segments.append([first_part, len(lengths)] if suffix else [first_part])
                lengths.append(len(tokens))
                begin = end
            prompts[row] += [
                [*places[()], *(places[suffix] if suffix else ())] for suffix in suffixes
            ]
        lengths.append((row + 1) * length - begin)  # padding

    # Built on the processor and moved once.
    ids_AL, positions_AL = (
        torch.tensor(numbers, dtype=torch.long).reshape(len(groups), length).to(device)
        for numbers in (ids, positions)
    )
    return Batch(ids_AL, positions_AL, lengths, segments, prompts, answers)


def _fold(group: PromptGroup) -> tuple[Sequence[int], list[tuple[int, ...]]]:
    """Return the tokens that the prompts of a group share, and the others of each prompt."""
    prefix = group.prefix
    suffixes = [(*suffix, *group.answer) for suffix in group.suffixes or [()]]
    if len(set(suffixes)) == 1:
        # All prompts are the same: one segment is enough.
        prefix, suffixes = [*prefix, *suffixes[0]], [()] * len(suffixes)
    if not prefix:
        raise ValueError("a prompt group has an empty prefix; give every prompt a token or more")
    return prefix, suffixes
