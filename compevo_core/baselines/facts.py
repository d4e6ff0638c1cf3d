"""What a fitted method tells about itself, for its result rows.

What belongs here: the facts and how a scorer asks for them. What does not: what it measures itself,
as times and memory (``evaluation.baseline_scores``), columns of rows (``evaluation.result_rows``).
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from compevo_core.baselines.base import Forecaster


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFacts:
    """Facts about a fitted method; each default says that there is no such thing.

    Attributes:
        trainable_parameters: weights that the fit changed; None where they were not counted.
        learning_rate: what the fit used; None without one.
        backbone: name or path of the pretrained model.
        knowledge_cutoff: end of its training data, as ``result_rows.Identity`` has it.
        device: where it forecasts.
        config_hash: hash of the configuration.
        seedless_hash: hash of the configuration without its seed.
        artifact_hash: hash of the sealed model.
        news_top_k: articles that it reads of a window's candidates; None where it reads none.
        train_seconds: what its training took, for one that can be stopped and resumed: its updates,
            without the priors that several share; None: the clock around the fit says it.
        peak_memory_gb: of that training; None: the process that fits and forecasts says it.
    """

    trainable_parameters: int | None = None
    learning_rate: float | None = None
    backbone: str = ""
    knowledge_cutoff: str = ""
    device: str = "cpu"
    config_hash: str = ""
    seedless_hash: str = ""
    artifact_hash: str = ""
    news_top_k: int | None = None
    train_seconds: float | None = None
    peak_memory_gb: float | None = None


@runtime_checkable
class DescribedForecaster(Forecaster, Protocol):
    """A forecaster that has facts for its rows."""

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        ...


@runtime_checkable
class AnsweringForecaster(Forecaster, Protocol):
    """A forecaster whose model answers in text, which may be unreadable."""

    def count_answers(self) -> tuple[int, int]:
        """Return how many answers could not be read so far, and how many there were."""
        ...


def read_facts(forecaster: Forecaster) -> MethodFacts:
    """Return the facts of a fitted method; those of a method that tells none are empty."""
    return forecaster.facts if isinstance(forecaster, DescribedForecaster) else MethodFacts()


def count_answers(forecaster: Forecaster) -> tuple[int, int]:
    """Return how many answers could not be read so far and how many there were; 0, 0 without."""
    return forecaster.count_answers() if isinstance(forecaster, AnsweringForecaster) else (0, 0)
