"""Reflection: which news a forecaster missed on its worst days, and a refined selection logic.

What belongs here: the missed articles, the prompt of the reflection, writing the next logic. What
does not: retrieval (``agents.retrieval``), the forecasts that are reflected on (``news2forecast``).

Reflection sees validation days and their errors. A missed article is a candidate of the day that
the logic did not choose: known before the forecast like those that were read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compevo_core.agents.logic_grammar import build_slots
from compevo_core.agents.prompts import LOGIC_CHARACTERS, clean_text
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.tokens import list_stop_tokens, tokenize_prompt
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.lm.grammar import SlotGrammar
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population

WORST_DAYS = 3
MISSED_ARTICLES = 2
"""Headlines of each of the worst days that the logic left out."""

_TITLE_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLogic:
    """What a logic led to on validation days.

    Attributes:
        logic: how news were selected.
        views: the days.
        errors: mean absolute error of each, scaled.
    """

    logic: str
    views: Sequence[WindowView]
    errors: FloatArray

    @property
    def error(self) -> float:
        """Mean over the days."""
        return float(self.errors.mean())


class Reflector:
    """Writes selection logics with the backbone as it was before any fine-tuning."""

    def __init__(
        self,
        population: Population,
        retriever: NewsRetriever,
        entities: Sequence[str],
        *,
        temperature: float,
        seed: int,
    ) -> None:
        """Take what writes and what retrieves.

        Args:
            population: whose backbone writes, without its adapters.
            retriever: ranks candidates by a logic.
            entities: those of the data set, whose regions a logic may name.
            temperature: of the draws; the grammar leaves few tokens, and the likeliest are always
                the same.
            seed: of the draws.
        """
        self._population = population
        self._retriever = retriever
        self._temperature = temperature
        self._tokenizer = population.backbone.tokenizer
        self._stop_tokens = list_stop_tokens(self._tokenizer)
        slots = build_slots(entities)
        self._grammar = SlotGrammar(slots, self._tokenizer, self._stop_tokens[:1])
        self._generator = torch.Generator(device=population.backbone.device).manual_seed(seed)

    def refine(self, tried: TriedLogic) -> str:
        """Return a new logic, written in view of what the present one led to."""
        # The backbone before fine-tuning writes: the adapter learnt to answer with numbers.
        prompt = write_reflection_prompt(tried, self.list_missed(tried))
        group = PromptGroup(tokenize_prompt(self._tokenizer, prompt))

        with self._population.use_adapters(None):
            ids_AMT, mask_AMT = self._population.sample(
                self._population.prefill(self._population.pack([[group]])),
                max_new_tokens=self._grammar.max_tokens,
                temperature=self._temperature,
                stop_tokens=self._stop_tokens,
                generators=[self._generator],
                grammar=self._grammar,
            )
        ids = ids_AMT[0, 0][mask_AMT[0, 0].bool()].tolist()
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)).strip()

    def list_missed(self, tried: TriedLogic) -> list[str]:
        """Return headlines of the worst days that the logic did not select, closest first."""
        # The largest errors first; errors are scaled, so that no large series fills the list.
        pool, worst = self._retriever.pool, np.argsort(-tried.errors)[:WORST_DAYS]
        titles: list[str] = []
        for number in worst:
            view = tried.views[int(number)]
            # Candidates were known before the view was made: nothing later is reflected on.
            left_out = self._retriever.rank(tried.logic, view)[self._retriever.top_k :]
            titles += [pool.get_title(name) for name in left_out[:MISSED_ARTICLES]]
        return titles


def write_reflection_prompt(tried: TriedLogic, missed: Sequence[str]) -> str:
    """Return the task, the present logic, its error and what it missed; news is data, cleaned."""
    # Headlines are data: cleaned, cut and listed, they cannot end the prompt or begin another.
    headlines = "".join(f"- {clean_text(title, _TITLE_CHARACTERS)}\n" for title in missed)
    return (
        "A forecaster reads news that a logic selects.\n"
        f"Present logic: {clean_text(tried.logic, LOGIC_CHARACTERS)}\n"
        f"Mean error on validation days: {tried.error:.4f} (lower is better).\n"
        f"Headlines that it left out on its worst days:\n{headlines or '- none' + chr(10)}"
        "Decide whether important news was missed, and refine the logic in one sentence.\n"
        "Refined logic:"
    )
