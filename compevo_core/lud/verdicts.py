"""Verdicts remembered by content: what a judge was shown and what it answered.

What belongs here: the cache file of a run folder (``verdicts.jsonl``), its key, and judging many
pairs through it. What does not: judges and prompts (``lud.judge``).

A judge is asked once per distinct pair, ever: endpoints cost money, and measuring a run again must
give the same numbers.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compevo_core.data.files import hash_text, write_text
from compevo_core.errors import DataError
from compevo_core.lud.judge import Judge, JudgeReplyError, JudgeVerdict, build_judge_messages

log = logging.getLogger(__name__)
SAVE_EVERY = 16
"""Verdicts after which the cache is written: so many are lost, and paid again, in a crash."""


def hash_question(name: str, previous: str, current: str) -> str:
    """Return the sha256 of a judge's name and of the exact messages that it gets."""
    # The messages and not the two logics: under a new prompt an old verdict answers nothing.
    question = [name, build_judge_messages(previous, current)]
    return hash_text(json.dumps(question, sort_keys=True, separators=(",", ":")))


class VerdictCache:
    """A JSON-lines file of verdicts; every save replaces the file whole.

    A save keeps what other processes added. Two processes that save at the same instant can lose
    one's newest verdicts, never damage the file; what is lost is asked again.

    Raises:
        DataError: a line of the file is no verdict.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = self._read()
        self._n_unsaved = 0

    def __len__(self) -> int:
        """Return the number of verdicts."""
        return len(self._rows)

    def get(self, key: str) -> JudgeVerdict | None:
        """Return the verdict under ``key``, if there is one."""
        row = self._rows.get(key)
        if row is None:
            return None
        return JudgeVerdict(row["strategy_shift"], row["evidence_recombination"])

    def put(self, key: str, verdict: JudgeVerdict, *, judge: str) -> None:
        """Add a verdict; it reaches the disk with the next save, at the latest after a few."""
        self._rows[key] = {
            "key": key,
            "judge": judge,
            "strategy_shift": verdict.strategy_shift,
            "evidence_recombination": verdict.evidence_recombination,
        }

        self._n_unsaved += 1
        if self._n_unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write all verdicts, with those that other processes have written since."""
        if not self._n_unsaved:
            return

        # Read again: another process may have judged other updates into the same file.
        self._rows = {**self._read(), **self._rows}
        # In the order of keys: the same verdicts give the same file, whoever judged first.
        rows = [self._rows[key] for key in sorted(self._rows)]
        lines = [json.dumps(row, separators=(",", ":")) for row in rows]
        write_text(self._path, "".join(f"{line}\n" for line in lines))
        self._n_unsaved = 0

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._path.exists():
            return {}

        rows: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                # Made here to be checked: a number other than 0 and 1 would spoil every mean.
                JudgeVerdict(row["strategy_shift"], row["evidence_recombination"])
                rows[str(row["key"])] = row
            except (ValueError, KeyError, TypeError, JudgeReplyError) as error:
                raise DataError(
                    f"{self._path}, line {number} is not a verdict ({error}): delete that line; "
                    "its pair will be judged again"
                ) from error
        return rows


def judge_pairs(
    judge: Judge, pairs: Sequence[tuple[str, str]], *, cache: VerdictCache | None = None
) -> list[JudgeVerdict | None]:
    """Return verdicts for (previous, current) pairs, in order.

    Only pairs that the cache lacks reach the judge. A reply that is no verdict gives None, which
    the caller counts, and is asked again the next time. Any other error ends the work; what was
    judged before it is saved.
    """
    verdict_of: dict[str, JudgeVerdict | None] = {}
    verdicts = []
    try:
        for previous, current in pairs:
            key = hash_question(judge.name, previous, current)
            # Failed replies too: a pair that comes twice in one call is not asked twice.
            if key not in verdict_of:
                verdict_of[key] = _judge_pair(judge, previous, current, key, cache)
            verdicts.append(verdict_of[key])
    finally:
        if cache is not None:
            cache.save()
    return verdicts


def _judge_pair(
    judge: Judge, previous: str, current: str, key: str, cache: VerdictCache | None
) -> JudgeVerdict | None:
    cached = cache.get(key) if cache is not None else None
    if cached is not None:
        return cached

    try:
        verdict = judge.judge(previous, current)
    except JudgeReplyError as error:
        # Not cached: a failure says nothing about the pair, and the next run may get an answer.
        log.warning("%s gave no verdict, which is counted: %s", judge.name, error)
        return None

    if cache is not None:
        cache.put(key, verdict, judge=judge.name)
    return verdict
