"""Run folders: their names, which run of a data set is the current one, and what is removed when.

What belongs here: naming a run by what decides it, the pointer to the newest finished one, the
version of the code that an asset trained it by, and the rule of cleaning. What does not: the files
in a run folder (``compevo_core.training.run_folder``), when cleaning runs (``defs.assets.report``).
"""

import contextlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISREG

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.runtime.files import PART_SUFFIX, StoreBusy, read_json, write_json, write_text
from compevo_core.training.run_folder import RunFolder, verify_manifest
from compevo_pipeline.config.settings import Layout

KEPT_RUNS = 3  # finished runs of one name that stay
UNFINISHED_AGE = timedelta(days=30)  # how long an unfinished run may rest before it is removed
UNUSED_AGE = timedelta(days=30)  # how long fits and states of daily use stay without being used
PART_AGE = timedelta(days=1)  # how old a part file is when whoever wrote it is certainly gone
POPULATION_LABEL = "compevo"  # begins the names of runs with a language model
_POINTERS = "current-*.json"
_PARTS = (f".*{PART_SUFFIX}", ".part-*")
_HASH_DIGITS = 8


def make_run_name(label: str, config: RunConfig, windows: WindowSet) -> str:
    """Return ``<label>-<hash of the configuration>-<hash of the data>``.

    The same training started twice finds its own checkpoints, and another one never overwrites it.
    The data is what a training sees: other test or inference windows are no reason to train again.
    """
    digits = _HASH_DIGITS
    return f"{label}-{config.hash[:digits]}-{windows.training_hash[:digits]}"


def set_current_run(layout: Layout, dataset: str, name: str) -> None:
    """Make a finished run the one that evaluation, leakage check and report use."""
    # One small file, replaced atomically: a reader sees the run before or this one.
    write_text(_pointer(layout, dataset), json.dumps({"run": name}))


def has_current_run(layout: Layout, dataset: str) -> bool:
    """Whether a training of the data set has finished."""
    return _pointer(layout, dataset).exists()


def find_population(layout: Layout, dataset: str, windows: WindowSet) -> Path | None:
    """Return the newest finished run with a language model that saw the same training data."""
    data = windows.training_hash[:_HASH_DIGITS]
    runs = layout.run("any").parent.glob(f"{POPULATION_LABEL}-{dataset}-*-{data}")
    finished = [run for run in runs if RunFolder(run).is_finished]
    return max(finished, key=lambda run: RunFolder(run).metrics_file.stat().st_mtime, default=None)


def find_current_run(layout: Layout, dataset: str) -> Path:
    """Return the folder of the current run.

    DataError if no training of the data set has finished.
    """
    pointer = _pointer(layout, dataset)
    if not pointer.exists():
        raise DataError(
            f"nothing is trained for {dataset} in {layout.root}: run `compevo fit {dataset}`, or "
            f"materialize models/compevo/{dataset}"
        )

    return layout.run(_read_pointer(pointer))


def _read_pointer(pointer: Path) -> str:
    """Return the name of the run that a pointer names; DataError where it names none."""
    remedy = "remove it, and run `compevo fit` again: it finds the finished run"
    name = read_json(pointer, remedy).get("run")
    if not isinstance(name, str):
        raise DataError(f"{pointer}: names no run; {remedy}")
    return name


def hash_model(run: Path) -> str:
    """Return the hash of a run's sealed model."""
    return str(verify_manifest(RunFolder(run).model)["hash"])


def write_code_version(run: Path, version: str) -> None:
    """Keep by which version of the code a run was trained that has just finished."""
    write_json(RunFolder(run).code_file, {"code_version": version, "model": hash_model(run)})


def read_code_version(run: Path) -> str | None:
    """Return by which version of the code a finished run was trained.

    None if it was not recorded, as for a run that a command trained, also in place of another.
    CheckpointMismatch if the model is unfinished or was altered.
    """
    file = RunFolder(run).code_file
    if not file.is_file():
        return None
    written = json.loads(file.read_text(encoding="utf-8"))
    return str(written["code_version"]) if written["model"] == hash_model(run) else None


def _pointer(layout: Layout, dataset: str) -> Path:
    return layout.root / "runs" / f"current-{dataset}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A file or folder that was removed, or would be; its size in bytes, and why."""

    path: Path
    size: int
    reason: str


def clean(
    layout: Layout, now: datetime, *, keep: int = KEPT_RUNS, dry: bool = False
) -> list[Removed]:
    """Remove old runs and leftovers; return them.

    The rule (decision 20-operations): nothing that is being written, and nothing that a result
    needs, is removed. A finished run keeps its sealed model, records and scores, and no checkpoint.
    Of finished runs of one name (the part before the hashes), the newest stay, and every current
    one. Unfinished runs, unused fits and part files go when they are old. With ``dry`` all stay.
    """
    removed = []
    removals = [
        (path, "left by a process that was killed")
        for path, status in sorted(_walk(layout.root))
        if any(fnmatchcase(path.name, pattern) for pattern in _PARTS)
        and now.timestamp() - status.st_mtime > PART_AGE.total_seconds()
    ]
    runs = layout.run("any").parent
    current = {_read_pointer(file) for file in runs.glob(_POINTERS)}
    finished: dict[str, list[RunFolder]] = defaultdict(list)
    for path in sorted(path for path in runs.glob("[!.]*") if path.is_dir()):
        run = RunFolder(path)
        if run.is_finished:
            finished[path.name.rsplit("-", 2)[0]].append(run)
        elif now.timestamp() - _last_written(path) > UNFINISHED_AGE.total_seconds():
            removals.append((path, f"unfinished, and untouched for {UNFINISHED_AGE.days} days"))
    for of_one_name in finished.values():
        newest_first = sorted(of_one_name, key=lambda run: -run.metrics_file.stat().st_mtime)
        for number, run in enumerate(newest_first):
            if number >= keep and run.name not in current:
                removals.append((run.path, f"{keep} finished runs of its name are newer"))
                continue
            folders = (run.checkpoints, run.best, run.refit)
            removals += [
                (each, "a finished run does not resume") for each in folders if each.is_dir()
            ]

    fits = [path for path in layout.fits.glob("*/*") if path.is_dir()]
    states = [path for run in runs.glob("[!.]*") for path in RunFolder(run).daily.glob("*")]
    removals += [
        (path, f"unused for {UNUSED_AGE.days} days, and can be made again")
        for path in sorted((*fits, *states))
        if now.timestamp() - _last_written(path) > UNUSED_AGE.total_seconds()
    ]

    for path, reason in removals:
        with _held(layout, path) as is_free:
            # Gone if its folder was removed just before.
            if not is_free or not path.exists():
                continue
            entries = [status for _, status in _walk(path)] if path.is_dir() else [path.stat()]
            size = sum(status.st_size for status in entries if S_ISREG(status.st_mode))
            removed.append(Removed(path=path, size=size, reason=reason))
            if not dry and path.is_dir():
                # Out of sight in one step: half a run folder would pass for an unfinished run.
                shutil.rmtree(path.rename(path.with_name(f".{path.name}{PART_SUFFIX}")))
            elif not dry:
                path.unlink(missing_ok=True)

    return removed


@contextlib.contextmanager
def _held(layout: Layout, path: Path) -> Iterator[bool]:
    """Hold the run that a path belongs to, if any; yield False where a training holds it."""
    runs = layout.run("any").parent
    if runs not in path.parents:
        yield True
        return

    run = RunFolder(runs / path.relative_to(runs).parts[0])
    try:
        with run.hold(wait_seconds=0.0):
            yield True
    except StoreBusy:
        yield False


def _last_written(folder: Path) -> float:
    return max([folder.stat().st_mtime, *(status.st_mtime for _, status in _walk(folder))])


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all below a folder with its status, but for what goes while it is looked at."""
    # Concurrent runs rename part files all the time; rglob would fail there.
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            yield path, status
