"""How far a training is: new records of ``rounds.jsonl``, and one line of text a round.

What belongs here: following and wording :class:`~compevo_core.training.round_record.RoundRecord`.
What does not: writing records (``compevo_core.training.trainer``), Dagster events
(``launchers.process``); the training process imports this module, so it imports no Dagster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compevo_core.durations import format_duration
from compevo_core.training.round_record import RoundRecord


@dataclass(slots=True)
class RoundTail:
    """Reads the records added to a ``rounds.jsonl`` since the last read.

    It starts at the end of what an earlier, interrupted training has already reported.
    """

    path: Path
    _offset: int = field(init=False)

    def __post_init__(self) -> None:
        """Remember where the file ends now."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0

    def read_new(self) -> Iterator[RoundRecord]:
        """Yield the new records; a half-written line is left for the next read."""
        if not self.path.exists():
            return

        # A training that starts over replaces the file, a resumed one cuts it at its checkpoint.
        if self.path.stat().st_size < self._offset:
            self._offset = 0

        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield RoundRecord.from_json_line(line)


def describe_round(record: RoundRecord) -> str:
    """Return a round as one line: number, stage, losses, best reward, validation, time left."""
    stage = " (supervised)" if record.stage == "supervised" else ""
    parts = [
        f"round {record.round + 1}/{record.rounds}{stage}",
        f"loss {record.loss:.4f}",
        f"loss_pred {record.loss_pred:.4f}",
        f"best reward {max(record.rewards):.4f}",
    ]
    # Most rounds are not followed by a validation.
    if record.val_mae_scaled is not None:
        parts.append(f"validation MAE {record.val_mae_scaled:.4f} (scaled)")

    # Before the middle, the most expensive kind of work may not have been seen yet.
    about = "about " if record.train_seconds < record.eta_seconds else ""
    parts += [f"{record.seconds:.1f} s", f"{about}{format_duration(record.eta_seconds)} left"]
    return ", ".join(parts)
