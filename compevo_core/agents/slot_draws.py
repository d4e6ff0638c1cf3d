"""Sentences with slots that are drawn by chance: plain search, which a policy must beat.

What belongs here: the draw of a sentence, new or crossed with others. What does not: the texts of
the slots (``agents.logics``), sentences that a language model writes (``agents.logic_writer``).
"""

from collections.abc import Sequence

import torch

from compevo_core.agents.logics import build_slots, cross_logics
from compevo_core.config.run import RunConfig


class SlotDraws:
    """Draws sentences, every text of a slot as likely as any other."""

    def __init__(self, config: RunConfig, entities: Sequence[str]) -> None:
        """Take the settings, and the entities of the data set for the regions of the slots."""
        self._cross_share = config.evolution.cross_share
        self.slots = build_slots(
            entities,
            config.evolution.topics,
            selects=config.news.selects,
            top_k=config.news.top_k,
        )

    def draw(
        self,
        count: int,
        logics: Sequence[str],
        agent: int,
        peers: Sequence[int],
        generator: torch.Generator,
    ) -> list[str]:
        """Return so many sentences for an agent, the first crossed with its own logic and a peer's.

        ``logics`` are those that all agents play.
        """

        def choose(below: int) -> int:
            return int(torch.randint(below, (1,), generator=generator, device=generator.device))

        group = [self._fill_slots(generator) for _ in range(count)]
        for number in range(round(self._cross_share * count)):
            peer = [logics[peers[choose(len(peers))]]] if peers else []
            group[number] = cross_logics([logics[agent], *peer, group[number]], choose)
        return group

    def _fill_slots(self, generator: torch.Generator) -> str:
        sizes = torch.tensor([len(slot) for slot in self.slots], device=generator.device)
        share_S = torch.rand(len(sizes), generator=generator, device=generator.device)
        texts = zip(self.slots, (share_S * sizes).long().tolist(), strict=True)
        return "".join(slot[i] for slot, i in texts).strip()
