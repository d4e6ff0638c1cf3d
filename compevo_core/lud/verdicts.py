"""Verdicts remembered by content: what a judge was shown and what it said, one JSON object a line.

What belongs here: the cache file, its key, and judging many pairs through it.
What does not: judges and prompts (``judge``). A judge is asked once per distinct pair, ever.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compevo_core.errors import DataError
from compevo_core.lud.judge import Judge, JudgeReplyError, Verdict, judge_messages

log = logging.getLogger(__name__)
SAVE_EVERY = 16


def content_key(name: str, previous: str, current: str) -> str:
    """sha256 of the judge's name and of the exact messages it gets, so that a new prompt never meets old verdicts."""
    shown = json.dumps(
        [name, judge_messages(previous, current)], sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(shown.encode()).hexdigest()


class VerdictCache:
    """A JSON-lines file of verdicts; every save replaces the file whole, keeping what other processes added.

    Two processes that save at the same instant can lose one's newest verdicts, never damage the file; what is lost is
    asked again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = self._read()
        self._unsaved = 0

    def __len__(self) -> int:
        """Number of verdicts held."""
        return len(self._rows)

    def get(self, key: str) -> Verdict | None:
        """The verdict under ``key``, if there is one."""
        row = self._rows.get(key)
        return (
            None if row is None else Verdict(row["strategy_shift"], row["evidence_recombination"])
        )

    def put(self, key: str, verdict: Verdict, *, judge: str) -> None:
        """Holds a verdict; it reaches the disk with the next ``save`` or after ``SAVE_EVERY`` of them."""
        self._rows[key] = {
            "key": key,
            "judge": judge,
            "strategy_shift": verdict.strategy_shift,
            "evidence_recombination": verdict.evidence_recombination,
        }
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Writes everything to a temporary file beside the target and renames it into place."""
        if not self._unsaved:
            return
        self._rows = {**self._read(), **self._rows}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(
            json.dumps(self._rows[key], separators=(",", ":")) + "\n" for key in sorted(self._rows)
        )
        handle, part = tempfile.mkstemp(prefix=self._path.name, dir=self._path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(part).replace(self._path)
        finally:
            Path(part).unlink(missing_ok=True)
        self._unsaved = 0

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._path.exists():
            return {}
        rows: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                Verdict(row["strategy_shift"], row["evidence_recombination"])
                rows[str(row["key"])] = row
            except (ValueError, KeyError, TypeError, JudgeReplyError) as error:
                raise DataError(
                    f"{self._path}, line {number} is not a verdict ({error}): delete that line; "
                    "its pair will be judged again"
                ) from error
        return rows


def judge_pairs(
    judge: Judge, pairs: Sequence[tuple[str, str]], *, cache: VerdictCache | None = None
) -> list[Verdict | None]:
    """Verdicts for (previous, current) pairs, in order; only pairs that the cache lacks reach the judge.

    A reply that is no verdict gives None: to be counted by the caller, and asked again the next time. Any other error
    ends the work; what was judged before it is saved.
    """
    store: dict[str, Verdict | None] = {}
    verdicts = []
    try:
        for previous, current in pairs:
            key = content_key(judge.name, previous, current)
            if key not in store:
                store[key] = _verdict(judge, previous, current, key, cache)
            verdicts.append(store[key])
    finally:
        if cache is not None:
            cache.save()
    return verdicts


def _verdict(
    judge: Judge, previous: str, current: str, key: str, cache: VerdictCache | None
) -> Verdict | None:
    known = cache.get(key) if cache is not None else None
    if known is not None:
        return known
    try:
        verdict = judge.judge(previous, current)
    except JudgeReplyError as error:
        log.warning("%s gave no verdict, which is counted: %s", judge.name, error)
        return None
    if cache is not None:
        cache.put(key, verdict, judge=judge.name)
    return verdict
