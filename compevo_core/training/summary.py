"""The summary of a finished run, ``metrics.json``.

What belongs here: numbers over all rounds. What does not: numbers of one round
(``training.round_record``), errors on the test split (``evaluation``).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.diagnostics.regret_growth import summarize_regret_growth
from compevo_core.process_memory import peak_memory_gigabytes
from compevo_core.training.calibration import CalibrationReport
from compevo_core.training.round_record import RoundRecord


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """What was decided after the last round.

    Attributes:
        chosen_round: number of rounds after which the model was taken; 0 is the untrained one.
        best_error: scaled validation error of that round; infinite if none was measured.
        calibration: what calibration did; None without validation windows.
        is_refit: whether the model was trained once more on train and validation.
    """

    chosen_round: int
    best_error: float
    calibration: CalibrationReport | None
    is_refit: bool


def summarize_run(
    records: Sequence[RoundRecord],
    outcome: RunOutcome,
    *,
    identity: Mapping[str, str],
    artifact_hash: str,
    train_windows: int,
    dropped_windows: int,
    seed: int,
) -> dict[str, Any]:
    """Return the summary by key.

    Args:
        records: of all rounds of the first training.
        outcome: what was decided after them.
        identity: hashes of settings and data.
        artifact_hash: of the sealed model.
        train_windows: windows that the sealed model was trained on.
        dropped_windows: such windows without any known target.
        seed: of the run, for the bootstrap of the regret exponent.
    """
    # Over the whole run: a rate by round would weigh rounds of few answers as much as others.
    unread_answers = sum(record.unread_answers for record in records)
    answers = sum(record.answers for record in records)

    # Rounds without rewriting score no logics: their regret stands still, and would bend the curve.
    regrets = [record.regret for record in records if record.evolved]
    calibration = outcome.calibration

    return {
        **identity,
        "artifact_hash": artifact_hash,
        "rounds": records[-1].rounds,
        "supervised_rounds": sum(record.stage == "supervised" for record in records),
        "rewriting_rounds": sum(record.evolved for record in records),
        "chosen_round": outcome.chosen_round,
        "refit": outcome.is_refit,
        "val_mae_scaled": outcome.best_error if math.isfinite(outcome.best_error) else None,
        "calibration": None if calibration is None else dataclasses.asdict(calibration),
        "val_prior_mae_scaled": calibration.prior_mae if calibration else None,
        "val_raw_mae_scaled": calibration.raw_mae if calibration else None,
        "val_sealed_mae_scaled": calibration.calibrated_mae if calibration else None,
        "train_windows": train_windows,
        "train_windows_without_target": dropped_windows,
        "seconds": records[-1].train_seconds,
        "peak_memory_gb": peak_memory_gigabytes(),
        "equal_groups": sum(record.equal_groups for record in records),
        "empty_logics": sum(record.empty_logics for record in records),
        "cut_prompts": sum(record.cut_prompts for record in records),
        "regret_exponent": summarize_regret_growth(regrets, seed),
        "parse_failure_rate": unread_answers / max(1, answers),
    }
