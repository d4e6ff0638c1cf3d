"""The files of one training run, and how a folder is sealed.

A sealed folder is valid only with its manifest, which has the hash of every file and is written
last: a crash leaves none, and an altered file differs from it (decision 11-settings). Nothing here
imports torch.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.runtime import files
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.round_record import RoundRecord

MANIFEST_FILE = "manifest.json"

_TEMPORARY_PREFIX = ".part-"
_REMEDY = "restore it or train again"


def _path(name: str, doc: str) -> Path:
    """Return a property: a path below a run folder, with what it holds as its description."""
    return property(lambda run: run.path / name, doc=doc)  # type: ignore[return-value]


class RunFolder:
    """One run folder, which need not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        """Return the folder, and whether its training has ended."""
        return f"RunFolder({str(self.path)!r}): {'finished' if self.is_finished else 'unfinished'}"

    @property
    def name(self) -> str:
        """Name of the folder, which is the name of the run."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """Whether training has ended, with model and summary, since the run was last started."""
        return self.is_sealed and self.metrics_file.is_file()

    @property
    def is_sealed(self) -> bool:
        """Whether the model belongs to the training that was last started here."""
        if not self.model_manifest_file.exists():
            return False
        manifest = files.read_json(self.model_manifest_file, _REMEDY)
        return int(manifest.get("start", 0)) >= self.read_start()

    @contextlib.contextmanager
    def hold(self, *, wait_seconds: float = files.WAIT_SECONDS) -> Iterator[None]:
        """Be the only process that writes the run, for the length of the block.

        StoreBusy if another training writes it for longer than ``wait_seconds``.
        """
        # Outside the folder, which may be removed while it is held; then the lock is removed too.
        lock = self.path.with_name(f"{self.name}.lock")
        with files.file_lock(lock, exclusive=True, wait_seconds=wait_seconds):
            yield
            if not self.path.exists():
                lock.unlink()

    # ---- written by training ----

    job_file = _path("job.json", "Settings and data that the training process was started with.")
    config_file = _path("config.json", "Resolved settings, as the pipeline asked for them.")
    start_file = _path("start.json", "How often the run was started over; absent if never.")
    rounds_file = _path("rounds.jsonl", "One :class:`RoundRecord` a line.")
    metrics_file = _path("metrics.json", "Summary of the finished run.")
    checkpoints = _path("checkpoints", "Checkpoints that an interrupted run resumes from.")
    best = _path("best", "Checkpoints with the lowest validation error.")
    refit = _path("refit", "Run folder of the second training, on train and validation, if any.")
    model = _path("model", "Sealed model: adapters, logics, base models, scales, settings.")
    model_config_file = _path("model/config.json", "Settings that the model was trained with.")
    model_logics_file = _path("model/logics.json", "Logic texts of the agents, if any.")
    model_inputs_file = _path("model/inputs.json", "Train statistics of what agents read.")
    model_scaler_file = _path("model/scaler.json", "Scales of the series, without agents.")
    model_manifest_file = _path(
        f"model/{MANIFEST_FILE}", "Hash of every file of the model; without it, it is unfinished."
    )

    # ---- written by the asset of a model, after training ----

    daily = _path("daily", "States of daily use, a folder per version of the code that fits.")
    code_file = _path("code.json", "Version of the code that trained the model, and its hash.")

    # ---- written by evaluation ----

    panels_file = _path("panels.jsonl", "Forecast windows that the report draws, one a line.")
    predictions_file = _path("predictions.parquet", "Forecasts of scored windows, by method.")

    # ---- written by the measurement of logic updates (LUD) ----

    lud_summary_file = _path("lud.json", "LUD by agent and judge, and how far the judges agree.")
    lud_rows_file = _path("lud.csv", "One row per agent, update and judge.")
    verdicts_file = _path("verdicts.json", "Verdicts by the hash of what a judge was asked.")

    def read_start(self) -> int:
        """Return how often the run was started over."""
        if not self.start_file.is_file():
            return 0
        return int(files.read_json(self.start_file, _REMEDY)["start"])

    def begin_again(self) -> None:
        """Start the run over: what was trained before is no longer valid, and is removed.

        The number of the start is written first; checkpoints and models carry their own.
        """
        files.write_json(self.start_file, {"start": self.read_start() + 1})
        self.remove_training()

    def remove_training(self) -> None:
        """Remove everything that a training writes, except the number of its start."""
        for folder in (self.model, self.refit, self.best, self.checkpoints):
            if folder.is_dir():
                shutil.rmtree(folder)
        for file in (self.metrics_file, self.rounds_file):
            file.unlink(missing_ok=True)

    def require_identity(self, saved: Mapping[str, Any], expected: Mapping[str, str]) -> None:
        """Raise a CheckpointMismatch if the files here belong to another run."""
        differing = sorted(name for name in expected if saved.get(name) != expected[name])
        if differing:
            raise CheckpointMismatch(
                f"{self.path} holds a run with another {' and '.join(differing)}; choose another "
                "run folder, or start over with resume=False"
            )

    def read_rounds(self) -> list[RoundRecord]:
        """Return the finished rounds, oldest first; DataError for no file or a torn line in it."""
        if not self.rounds_file.is_file():
            raise DataError(
                f"{self.path}: no {self.rounds_file.name}; this is not a run folder, or training "
                "has not finished a round"
            )

        # A process that was killed while it appended leaves half a line.
        records = []
        lines = self.rounds_file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                records.append(RoundRecord.from_json_line(line))
            except ValueError as error:
                raise DataError(
                    f"{self.rounds_file}, line {number}: not the record of a round ({error}); "
                    "resume the run, or remove the line"
                ) from error
        return records

    def append_round(self, record: RoundRecord) -> None:
        """Add the record of a round that has just ended, and flush it to disk."""
        with self.rounds_file.open("a", encoding="utf-8") as stream:
            stream.write(record.to_json_line() + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def truncate_rounds(self, count: int) -> None:
        """Keep the first ``count`` records; later rounds are repeated and recorded again."""
        self.require_rounds(count)
        files.write_text(self.rounds_file, "".join(self._read_round_lines()[:count]))

    def count_rounds(self) -> int:
        """Return the number of whole records."""
        return len(self._read_round_lines())

    def require_rounds(self, count: int) -> None:
        """Raise a CheckpointMismatch if there are fewer than ``count`` records."""
        recorded = self.count_rounds()
        if recorded < count:
            raise CheckpointMismatch(
                f"{self.rounds_file} has {recorded} rounds, the checkpoint {count}; restore the "
                "file or start over with resume=False"
            )

    def read_metrics(self) -> dict[str, Any]:
        """Return the summary of the finished run; DataError if it is not finished."""
        if not self.metrics_file.is_file():
            raise DataError(
                f"{self.path}: no {self.metrics_file.name}; this is not a run folder, or training "
                "has not finished"
            )

        return files.read_json(self.metrics_file, _REMEDY)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the summary of the finished run."""
        files.write_json(self.metrics_file, dict(metrics))

    def _read_round_lines(self) -> list[str]:
        # Text lines, as parsed records would lose what another version has added. A kill or a power
        # cut may leave half a line; that round is repeated.
        if not self.rounds_file.is_file():
            return []
        whole = []
        with self.rounds_file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                try:
                    if not isinstance(json.loads(line), dict) or not line.endswith("\n"):
                        break
                except ValueError:
                    break
                whole.append(line)
        return whole


@contextlib.contextmanager
def write_sealed_folder(
    root: Path, target: Path, facts: Mapping[str, Any], shards: AgentShards
) -> Iterator[Path]:
    """Give all processes one temporary folder to fill, then seal it and move it to ``target``.

    A reader sees the old folder, none, or the complete new one. ``root`` is on the file system of
    ``target``, so that the move is a rename; leftovers of interrupted writes in it are removed.
    """
    part = root / f"{_TEMPORARY_PREFIX}{target.name}"
    if shards.is_first:
        for torn in root.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(torn)
        part.mkdir(parents=True)
    shards.barrier()  # no process writes before the folder is there

    yield part

    shards.barrier()  # nothing is sealed before all processes have written
    if shards.is_first:
        write_manifest(part, facts)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    shards.barrier()  # no process reads the target before it is there


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> str:
    """Seal a folder by the manifest of all files below it; return the hash over their hashes."""
    hashes = {
        path.relative_to(folder).as_posix(): files.hash_file(path)
        for path in sorted(folder.rglob("*"))
        # A lock is not content: a copy of a folder may lack it.
        if path.is_file() and path.name not in (MANIFEST_FILE, files.LOCK_FILE)
    }
    folder_hash = _hash_files(hashes)
    files.write_json(folder / MANIFEST_FILE, {**facts, "files": hashes, "hash": folder_hash})
    return folder_hash


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Return a sealed folder's manifest after checking every file against it.

    CheckpointMismatch if there is no manifest, or a file is missing or altered.
    """
    manifest_file = folder / MANIFEST_FILE
    if not manifest_file.is_file():
        if not folder.parent.is_dir():
            raise CheckpointMismatch(f"no folder {folder.parent}; give a training run's folder")
        raise CheckpointMismatch(
            f"{folder} has no {MANIFEST_FILE}: it was never finished; delete it and train again"
        )

    try:
        manifest = files.read_json(manifest_file, _REMEDY)
    except DataError as error:
        raise CheckpointMismatch(str(error)) from error
    hashes = manifest.get("files", {})
    if manifest.get("hash") != _hash_files(hashes):
        raise CheckpointMismatch(f"{manifest_file} is altered since it was written; {_REMEDY}")
    for name, expected_hash in hashes.items():
        path = folder / name
        if not path.is_file() or files.hash_file(path) != expected_hash:
            state = "altered" if path.is_file() else "missing"
            raise CheckpointMismatch(f"{path} is {state} since it was written; {_REMEDY}")
    return manifest


def _hash_files(hashes: Mapping[str, str]) -> str:
    # Without facts such as the device, which may differ between equal models.
    return files.hash_text(json.dumps(hashes, sort_keys=True))
