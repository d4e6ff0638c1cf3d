"""How a training tells how far it is: one line a round, and asset observations that the UI plots.

What belongs here: reading and wording ``rounds.jsonl`` records. What does not: writing them (the trainer does).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from compevo_core.durations import format_duration

OBSERVED = (
    *("loss", "loss_pred", "loss_pg", "loss_div", "loss_prune"),
    *("kl", "grad_norm", "weight_entropy", "val_mae_scaled"),
)
"""Numbers of a round that become an asset observation."""


@dataclass(slots=True)
class RoundTail:
    """Reads the records added to ``rounds.jsonl`` since the last look; a half-written line waits.

    It starts behind what an earlier, interrupted training has already reported.
    """

    path: Path
    _offset: int = field(init=False)

    def __post_init__(self) -> None:
        """Remember where the file ends now."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yields whole new records."""
        if not self.path.exists():
            return
        if self.path.stat().st_size < self._offset:  # a fresh training replaced the file
            self._offset = 0
        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


def observation(
    context: dg.AssetExecutionContext, record: Mapping[str, Any], run: str
) -> dg.AssetObservation:
    """An asset observation of one round."""
    left = float(record.get("eta_seconds") or 0.0)
    metadata: dict[str, Any] = {"run": run, "round": int(record["round"]) + 1, "eta_seconds": left}
    metadata |= {name: float(record[name]) for name in OBSERVED if record.get(name) is not None}
    metadata |= {
        f"reward_agent_{i:02d}": float(r) for i, r in enumerate(record.get("rewards") or [])
    }
    partition = context.partition_key if context.has_partition_key else None
    return dg.AssetObservation(asset_key=context.asset_key, partition=partition, metadata=metadata)


def describe_round(record: Mapping[str, Any], rounds: int) -> str:
    """One line: step, losses, best reward, validation error, time left."""
    parts = [f"round {int(record['round']) + 1}" + (f"/{rounds}" if rounds else "")]
    losses = [name for name in ("loss", "loss_pred", "loss_pg") if record.get(name) is not None]
    parts += [f"{name} {float(record[name]):.4f}" for name in losses]
    if record.get("rewards"):
        parts.append(f"best reward {max(record['rewards']):.4f}")
    if record.get("val_mae_scaled") is not None:
        parts.append(f"validation MAE {float(record['val_mae_scaled']):.4f} (scaled)")
    parts.append(f"{float(record['seconds']):.1f} s")
    if record.get("eta_seconds") is not None:
        parts.append(f"{format_duration(float(record['eta_seconds']))} left")
    return ", ".join(parts)
