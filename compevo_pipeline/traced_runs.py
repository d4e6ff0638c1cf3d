"""The traces of a run folder of this deployment, as rows of the results.

What belongs here: what command and benchmark share: which run it is, and the encoder. What does
not: the rows and their files (``compevo_core.mechanism``).
"""

from pathlib import Path

from compevo_core.config import RunConfig
from compevo_core.lm.encoder import load_encoder
from compevo_core.mechanism.files import write_traces
from compevo_core.mechanism.traces import RunIdentity
from compevo_pipeline.provenance import read_commit


def trace_run(
    results: Path, run: Path, config: RunConfig, *, dataset: str, method: str, budget: str
) -> tuple[Path, Path]:
    """Put what a run's folder says into the results; return the two files.

    Args:
        results: folder of the rows.
        run: folder of a finished run.
        config: that it was trained with; logics are embedded by its encoder.
        dataset: data set that it was trained on.
        method: its name in the rows.
        budget: budget of the benchmark; empty for a run of its own.

    Raises:
        DataError: no round is there, or a file of the results holds something else.
    """
    identity = RunIdentity(
        dataset=dataset,
        method=method,
        budget=budget,
        seed=config.run.seed,
        commit=read_commit(),
        config_hash=config.hash,
    )
    return write_traces(results, run, identity, load_encoder(config.news.encoder))
