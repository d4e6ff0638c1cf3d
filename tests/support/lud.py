"""A finished run folder with known logics, without any training; and a judge that can be counted."""

import json
from pathlib import Path

from compevo_core.config import RunConfig
from compevo_core.lud.judge import JudgeReplyError, Verdict
from compevo_core.training.checkpoint import seal

LOGICS = (
    ("watch the weather", "read policy news"),
    ("watch storms instead", "read policy news"),
    ("watch storms instead", "read policy and trade news"),
    ("follow plant outages", "count public holidays"),
    ("watch the weather", "count public holidays"),
)


def finished_run(folder: Path, logics: tuple[tuple[str, ...], ...] = LOGICS) -> Path:
    (folder / "model").mkdir(parents=True)
    config = RunConfig.preset("tiny").to_dict()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    seal(folder / "model", {"identity": {}})
    lines = [json.dumps({"round": t, "logics": list(row)}) for t, row in enumerate(logics)]
    (folder / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


class Scripted:
    """Says (1, 0) of every update but those whose new text holds a word; None in ``fails`` is a reply in prose."""

    def __init__(self, name: str = "scripted", *, zero: str = "\0", fails: str = "\0") -> None:
        self.name, self.asked, self._zero, self._fails = name, [], zero, fails

    def judge(self, previous: str, current: str) -> Verdict:
        self.asked.append((previous, current))
        if self._fails in current:
            raise JudgeReplyError("prose")
        return Verdict(0, 0) if self._zero in current else Verdict(1, 0)
