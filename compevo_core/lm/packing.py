"""Prompts of several agents packed without padding between them: what a group shares is read once.

What belongs here: the layout of token rows in one batch and the indices into it. What does not: attention over the
layout (``attention``), what the tokens mean.
A tree is a prompt (the stem) and what continues it (the branches). All trees of an agent stand one after the other in
one row; identical branches of a tree stand there once. Rows of different agents are padded to the longest.
Legend: A agents, R leaves of an agent, L packed length, P longest path.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class PromptGroup:
    """Token ids of a stem (at least one), and of what continues it; without branches the stem itself is the leaf."""

    stem: Sequence[int]
    branches: Sequence[Sequence[int]] = ()


@dataclasses.dataclass(frozen=True)
class Segment:
    """Tokens [begin, end) of a packed row, and the index of the segment they continue."""

    begin: int
    end: int
    parent: int | None = None


@dataclasses.dataclass(frozen=True)
class PackedPrompts:
    """A batch of trees: token ids and positions (A, L); for each agent its segments and the segment of each leaf."""

    ids_AL: Tensor
    positions_AL: Tensor
    segments: list[list[Segment]]
    leaves: list[list[int]]

    def lengths(self, agent: int) -> list[int]:
        """Tokens of each segment of an agent, then the padding if there is any."""
        sizes = [s.end - s.begin for s in self.segments[agent]]
        rest = self.ids_AL.shape[1] - sum(sizes)
        return [*sizes, rest] if rest else sizes

    def last(self) -> Tensor:
        """Packed index of the last token of every leaf, (A, R)."""
        ends = [[self.segments[a][i].end - 1 for i in row] for a, row in enumerate(self.leaves)]
        return torch.tensor(ends, device=self.ids_AL.device)

    def path(self, agent: int, leaf: int) -> list[int]:
        """Packed indices of all tokens from the stem's first to the leaf's last."""
        segment = self.segments[agent][self.leaves[agent][leaf]]
        before = [] if segment.parent is None else _span(self.segments[agent][segment.parent])
        return before + _span(segment)


def pack(trees: Sequence[Sequence[PromptGroup]], pad: int, device: torch.device) -> PackedPrompts:
    """Packs each agent's trees; every agent must have the same number of leaves (a branch that is empty is its stem).

    Raises:
        ValueError: agents differ in their number of leaves, or a stem is empty.
    """
    rows, positions, segments, leaves = [], [], [], []
    for own in (map(_straightened, agent) for agent in trees):
        ids: list[int] = []
        places: list[int] = []
        spans: list[Segment] = []
        ends: list[int] = []
        for tree in own:
            if not tree.stem:
                raise ValueError("a tree has an empty stem; every prompt needs at least one token")
            stem = len(spans)
            known: dict[tuple[int, ...], int] = {(): stem}
            spans.append(Segment(len(ids), len(ids) + len(tree.stem)))
            ids += tree.stem
            places += range(len(tree.stem))
            for branch in map(tuple, tree.branches):
                if branch not in known:
                    known[branch] = len(spans)
                    spans.append(Segment(len(ids), len(ids) + len(branch), stem))
                    ids += branch
                    places += range(len(tree.stem), len(tree.stem) + len(branch))
                ends.append(known[branch])
            if not tree.branches:
                ends.append(stem)
        rows.append(ids)
        positions.append(places)
        segments.append(spans)
        leaves.append(ends)
    if len({len(row) for row in leaves}) > 1:
        raise ValueError(
            f"agents have {sorted({len(row) for row in leaves})} leaves; give every agent the same number"
        )
    width = max(map(len, rows))
    return PackedPrompts(
        _padded(rows, pad, width, device), _padded(positions, 0, width, device), segments, leaves
    )


def _straightened(tree: PromptGroup) -> PromptGroup:
    """The same leaves; one branch alone is no branch but the rest of the stem."""
    kinds = {tuple(branch) for branch in tree.branches}
    return (
        PromptGroup([*tree.stem, *kinds.pop()], [()] * len(tree.branches))
        if len(kinds) == 1
        else tree
    )


def _padded(rows: Sequence[Sequence[int]], fill: int, width: int, device: torch.device) -> Tensor:
    return torch.tensor(
        [[*row, *[fill] * (width - len(row))] for row in rows], dtype=torch.long, device=device
    )


def _span(segment: Segment) -> list[int]:
    return list(range(segment.begin, segment.end))
