"""What a population has learned from past days, and how it is stored from night to night.

What belongs here: this state, the steps of the days that went by, and the folder of snapshots. What
does not: forecasting (``forecast.forecaster``), when a night forecasts (the pipeline).

A night resumes from the newest snapshot whose days are a prefix of the days known now: the same
windows with the same values, by a hash of all of them. If a value was revised, it resumes from
before that day. Forecasts are bit-identical with snapshots and without.

A snapshot is a cache: its files are sealed by a manifest, and a damaged one is removed, so that the
night resumes from an earlier one, or learns the days again.

A snapshot is taken before the newest truth is observed: tomorrow's list of days includes a forecast
that was made before that truth was known. Forecasts not yet observed by then are stored with it.

Shapes: A agents, N windows, H horizon.
"""

import copy
import dataclasses
import hashlib
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from safetensors.numpy import load_file, save_file

from compevo_core.agents.online_selection import Experience, PopulationWeights
from compevo_core.baselines.known_errors import NOT_STARTED
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import Window, count_minutes, replay_days
from compevo_core.data.window import WindowSet, serialize_for_hash
from compevo_core.errors import CompEvoError, DataError
from compevo_core.runtime.files import fill_folder_atomically, hash_file, read_json, write_json
from compevo_core.training.prior import PriorSet
from compevo_core.training.run_folder import verify_manifest, write_manifest

log = logging.getLogger(__name__)

KEPT_NIGHTS = 3  # newest states that are kept: values of the last days are revised most often

_FORMAT = 2
_FACTS_FILE = "state.json"
_ARRAYS_FILE = "state.safetensors"
_EXPERIENCE = "experience"
_HASH_DIGITS = 16


class DayForecasts(NamedTuple):
    """Scaled forecasts of one window, by the agents and by the population."""

    agents_AH: FloatArray
    mixture_H: FloatArray


Pending = dict[str, DayForecasts]  # what was forecast and has not ended, by window


@dataclasses.dataclass
class DailyState:
    """What a population knows of days that are over."""

    priors: PriorSet  # with their levels, and their fits if they are refitted in use
    weighting: PopulationWeights
    experience: Experience  # forecasts of days whose truth is known
    known_until: datetime | None = None  # end of the newest observed target

    @property
    def minute(self) -> int:
        """Origin of the last window whose truth is known, in minutes since 1970."""
        levels = self.priors.levels
        return max(levels.minute if levels else NOT_STARTED, self.experience.minute)

    def observe(
        self,
        windows: Sequence[Window],
        agents_NAH: FloatArray,
        mixture_NH: FloatArray,
        truth_NH: FloatArray,
    ) -> None:
        """Take note of windows in the order of time.

        All forecasts are scaled. The windows hold their truth in the series' unit, ``truth_NH``
        scaled, NaN where missing.
        """
        views = [window.view for window in windows]
        self.priors.observe(windows)
        forecasts = agents_NAH, mixture_NH, truth_NH
        observed = Experience.of(self.experience.entities, views, *forecasts)
        self.weighting.observe(observed)
        self.experience = self.experience.join(observed)
        self.known_until = max(view.end_utc for view in views)

    def copy(self) -> Self:
        """Return a copy that learns independently."""
        weighting = copy.deepcopy(self.weighting)
        return dataclasses.replace(self, priors=self.priors.copy(), weighting=weighting)


@dataclasses.dataclass(frozen=True)
class Replay:
    """Days that went by since a model was sealed, step by step."""

    windows: WindowSet  # those whose truth is known, at least in part
    # Positions of the windows that have ended by an instant, and of those that are then forecast;
    # the last step forecasts none
    steps: Sequence[tuple[list[int], list[int]]]
    model_hash: str  # of the sealed model

    @classmethod
    def of(cls, windows: WindowSet, model_hash: str = "") -> Self:
        """Put the windows in the order in which they went by."""
        return cls(windows, list(replay_days(windows.views())), model_hash)

    @cached_property
    def hashes(self) -> list[str]:
        """Of the model and of all windows that are forecast before each step."""
        hashes = [self.model_hash]
        for _, today in self.steps:
            digest = hashlib.sha256(hashes[-1].encode())
            for i in today:
                digest.update(serialize_for_hash(self.windows[i]))
            hashes.append(digest.hexdigest())
        return hashes

    def list_forecast(self, step: int) -> list[Window]:
        """Return the windows that are forecast in a step or later."""
        return [self.windows[i] for _, today in self.steps[step:] for i in today]


def select_known(windows: WindowSet, after: int, until: datetime) -> WindowSet:
    """Return the windows whose errors are known by an instant, that begin after a minute."""
    known = [
        window
        for window, minute in zip(windows, count_minutes(windows.views()), strict=True)
        if minute > after and window.view.end_utc <= until and np.isfinite(window.y).any()
    ]
    return WindowSet(known, dataset=windows.dataset)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A stored state, and the days that resume from it."""

    path: Path  # its folder
    facts: Mapping[str, Any]  # what made it
    replay: Replay
    step: int  # the next step of the replay


class Snapshots:
    """States of one model below a folder, one folder for each version of the code that fits."""

    def __init__(self, folder: Path, model_hash: str, version: str) -> None:
        """Take the folder, the hash of the sealed model and the present version of the code."""
        self._folder = folder
        self._model_hash = model_hash
        self.version = version
        self.damaged: list[str] = []  # states that were damaged, and removed

    def find(self, windows: WindowSet, until: datetime) -> Snapshot | None:
        """Return the last state that known windows can resume from; this version's first.

        ``windows`` are all since the model was sealed, or earlier; their errors must be known by
        ``until``.
        """
        replays: dict[int, Replay] = {}
        usable: dict[tuple[bool, int], Snapshot] = {}
        for facts_file in self._folder.glob(f"*/[!.]*/{_FACTS_FILE}"):
            facts = self._read_facts(facts_file)
            if facts is None or (facts["format"], facts["model"]) != (_FORMAT, self._model_hash):
                continue

            after = int(facts["after_minute"])
            if after not in replays:
                replays[after] = Replay.of(select_known(windows, after, until), self._model_hash)
            replay = replays[after]
            if facts["hash"] in replay.hashes:
                step = replay.hashes.index(facts["hash"])
                is_own = facts["made_by"] == self.version
                usable[is_own, step] = Snapshot(facts_file.parent, facts, replay, step)
        return usable[max(usable)] if usable else None

    def _read_facts(self, path: Path) -> dict[str, Any] | None:
        """Return the facts of a state; a damaged one is removed and gives None."""
        facts = self._verify(path)
        if facts is None:
            log.warning("%s is damaged: it is removed, and learnt again", path.parent)
            shutil.rmtree(path.parent, ignore_errors=True)
            self.damaged.append(path.parent.name)
        return facts

    def list_damaged(self) -> list[Path]:
        """Return the damaged states of all models; nothing is removed."""
        files = self._folder.glob(f"*/[!.]*/{_FACTS_FILE}")
        return sorted(file.parent for file in files if self._verify(file) is None)

    def _verify(self, path: Path) -> dict[str, Any] | None:
        """Return the facts of a state; None if any of its files is damaged."""
        try:
            verify_manifest(path.parent)
            facts = read_json(path, "it is made again")
            for name, digest in facts[_EXPERIENCE]:
                if hash_file(self._part(path.parents[1], name)) != digest:
                    raise DataError(f"{name} is altered")
        except (CompEvoError, OSError, KeyError, ValueError):
            return None
        return facts

    def load(self, snapshot: Snapshot, state: DailyState) -> Pending:
        """Bring the sealed state of a model to a snapshot; return forecasts not yet observed."""
        arrays = load_file(snapshot.path / _ARRAYS_FILE)
        start = "weighting/"
        of_weighting = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
        state.weighting.set_arrays(of_weighting)

        for name, _ in snapshot.facts[_EXPERIENCE]:
            part = self._part(snapshot.path.parent, name)
            stored = Experience.load(state.experience.entities, part)
            state.experience = state.experience.join(stored)
        replay = snapshot.replay
        observed = [replay.windows[i] for ended, _ in replay.steps[: snapshot.step] for i in ended]
        state.priors.load_observed(snapshot.path, observed, snapshot.facts["fitted_utc"])
        if observed:
            state.known_until = max(window.view.end_utc for window in observed)
        return {
            name: DayForecasts(*(arrays[f"{field}/{name}"] for field in DayForecasts._fields))
            for name in snapshot.facts["pending"]
        }

    def save(
        self,
        state: DailyState,
        pending: Pending,
        replay: Replay,
        step: int,
        *,
        after_minute: int,
        sealed: int,
        before: Snapshot | None,
    ) -> None:
        """Store a state before a step, and remove snapshots that are no longer needed.

        ``pending`` was forecast and has not ended. ``after_minute`` is the origin of the last
        window that the sealed model knew, ``sealed`` counts the windows of its experience, and
        ``before`` is the state that this one resumed from, if any.
        """
        made_by = str(before.facts["made_by"]) if before else self.version
        folder = self._folder / made_by
        name = replay.hashes[step][:_HASH_DIGITS]
        if (folder / name).exists():
            return

        parts = list(before.facts[_EXPERIENCE]) if before else []
        first = sealed + sum(int(name.rpartition("-")[2]) for name, _ in parts)
        added = state.experience.select_from(first)
        if len(added):
            part = self._part(folder, f"{name}-{len(added)}")
            part.parent.mkdir(parents=True, exist_ok=True)
            added.save(part)
            parts.append((part.stem, hash_file(part)))

        arrays = {f"weighting/{key}": of for key, of in state.weighting.to_arrays().items()}
        for window, forecasts in pending.items():
            arrays |= {f"{k}/{window}": v for k, v in forecasts._asdict().items()}
        newest = max(window.view.origin_utc for window in replay.windows)
        memory = state.priors.memory
        facts = {
            "format": _FORMAT,
            "model": self._model_hash,
            "made_by": made_by,
            "hash": replay.hashes[step],
            "after_minute": after_minute,
            "newest_origin": newest.isoformat(),
            "pending": sorted(pending),
            _EXPERIENCE: parts,
            "fitted_utc": memory.fitted_utc.isoformat() if memory else None,
        }

        def fill(part: Path) -> None:
            # In the order of C, as the format wants it; numbers stay numbers.
            ready = {key: np.array(value, order="C") for key, value in arrays.items()}
            save_file(ready, part / _ARRAYS_FILE)
            state.priors.save_observed(part)
            write_json(part / _FACTS_FILE, facts)
            write_manifest(part, {})

        fill_folder_atomically(folder / name, fill)
        self._thin(folder)

    def _thin(self, folder: Path) -> None:
        """Keep the last nights, and fewer farther back: one in each doubling of weeks.

        So a revision replays less than four times its reach, and two years leave at most eleven.
        """
        read = {file: self._read_facts(file) for file in folder.glob(f"[!.]*/{_FACTS_FILE}")}
        states = {file.parent: facts for file, facts in read.items() if facts is not None}
        newest_of = {
            path: datetime.fromisoformat(facts["newest_origin"]) for path, facts in states.items()
        }
        # Of two states of one night the later one has the revised values.
        newest_first = sorted(
            states, key=lambda path: (newest_of[path], path.stat().st_mtime_ns), reverse=True
        )
        newest = newest_of[newest_first[0]]

        staying = set(newest_first[:KEPT_NIGHTS])
        oldest_of: dict[int, Path] = {}
        for path in newest_first:
            weeks = (newest - newest_of[path]).total_seconds() / (7 * 86_400)
            oldest_of[math.floor(math.log2(weeks)) if weeks >= 1 else -1] = path
        staying |= set(oldest_of.values())

        for path in states.keys() - staying:
            shutil.rmtree(path, ignore_errors=True)
        needed = {name for path in staying for name, _ in states[path][_EXPERIENCE]}
        for part in (folder / _EXPERIENCE).glob("*.safetensors"):
            if part.stem not in needed:
                part.unlink(missing_ok=True)

    @staticmethod
    def _part(folder: Path, name: str) -> Path:
        return folder / _EXPERIENCE / f"{name}.safetensors"
