"""Segments of packed prompts in batches of equal shape, for one attention call a batch.

What belongs here: which segments attend together, and whose keys they meet. What does not: the
layout of a row (``lm.packing``), attention itself (``lm.prefill``).

Short prompts make hundreds of segments of few tokens: one call for all of a shape takes half the
time of a call for each.
"""

import dataclasses

from compevo_core.lm.packing import PackedPrompts

_KEYS_PER_BATCH = 1 << 14  # tokens whose keys are held at a time; bounds memory, not results


@dataclasses.dataclass(frozen=True)
class SegmentBatch:
    """Segments of one length that continue parents of one length, or none, of any agent.

    Attributes:
        numbers: the segments, by their place among the parts of :class:`SegmentLayout`.
        key_numbers: the parts whose keys they meet, segment after segment: the parent where there
            is one, then the segment itself.
        parent_length: tokens of each parent; 0 without.
    """

    numbers: list[int]
    key_numbers: list[int]
    parent_length: int


class SegmentLayout:
    """The tokens of all agents, row behind row, in parts: the segments, and padding after each row.

    Attributes:
        lengths: tokens of each part.
        padding: the parts that are padding.
        batches: the others, each in one batch.
    """

    def __init__(self, packed: PackedPrompts) -> None:
        self.lengths: list[int] = []
        self.padding: list[int] = []
        by_shape: dict[tuple[int, int], list[tuple[int, ...]]] = {}

        for segments in packed.segments:
            first = len(self.lengths)
            for segment in segments:
                number = len(self.lengths)
                self.lengths.append(segment.end - segment.begin)

                parents = () if segment.parent is None else (first + segment.parent,)
                shape = (self.lengths[number], sum(self.lengths[part] for part in parents))
                by_shape.setdefault(shape, []).append((*parents, number))

            # Rows end where the longest one does.
            if padding := packed.ids_AL.shape[1] - sum(self.lengths[first:]):
                self.padding.append(len(self.lengths))
                self.lengths.append(padding)

        self.batches = [
            batch
            for (length, parent_length), parts in by_shape.items()
            for batch in _split_batch(parts, length, parent_length)
        ]


def _split_batch(
    parts: list[tuple[int, ...]], length: int, parent_length: int
) -> list[SegmentBatch]:
    size = max(1, _KEYS_PER_BATCH // (length + parent_length))
    return [
        SegmentBatch(
            numbers=[own[-1] for own in parts[begin : begin + size]],
            key_numbers=[number for own in parts[begin : begin + size] for number in own],
            parent_length=parent_length,
        )
        for begin in range(0, len(parts), size)
    ]
