"""The summary of a finished run, ``metrics.json``.

What belongs here: numbers over all rounds. What does not: numbers of one round
(``training.round_record``), errors on the test split (``evaluation``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.diagnostics.regret_growth import summarize_regret_growth
from compevo_core.process_memory import peak_memory_gigabytes
from compevo_core.training.round_record import RoundRecord


def summarize_run(
    records: Sequence[RoundRecord],
    *,
    identity: Mapping[str, str],
    artifact_hash: str,
    chosen_round: int,
    best_error: float,
    train_windows: int,
    dropped_windows: int,
    seed: int,
) -> dict[str, Any]:
    """Return the summary by key.

    Args:
        records: of all rounds.
        identity: hashes of settings and data.
        artifact_hash: of the sealed model.
        chosen_round: number of rounds after which the model was taken.
        best_error: lowest scaled validation error; infinite if none was measured.
        train_windows: windows trained on.
        dropped_windows: train windows without any known target.
        seed: of the run, for the bootstrap of the regret exponent.
    """
    # Over the whole run: a rate by round would weigh rounds of few answers as much as others.
    unread_answers = sum(record.unread_answers for record in records)
    answers = sum(record.answers for record in records)

    return {
        **identity,
        "artifact_hash": artifact_hash,
        "rounds": records[-1].rounds,
        "chosen_round": chosen_round,
        "val_mae_scaled": best_error if math.isfinite(best_error) else None,
        "train_windows": train_windows,
        "train_windows_without_target": dropped_windows,
        "seconds": records[-1].train_seconds,
        "peak_memory_gb": peak_memory_gigabytes(),
        "equal_groups": sum(record.equal_groups for record in records),
        "empty_logics": sum(record.empty_logics for record in records),
        "regret_exponent": summarize_regret_growth([record.regret for record in records], seed),
        "parse_failure_rate": unread_answers / max(1, answers),
    }
