"""A finished run folder with known logics, without any training, and a judge that counts."""

import json

from compevo_core.config.run import RunConfig
from compevo_core.paper.lud import JudgeReplyError, JudgeVerdict
from compevo_core.training.run_folder import RunFolder, write_manifest
from tests.support.round_records import round_record

LOGICS = (
    ("watch the weather", "read policy news"),
    ("watch storms instead", "read policy news"),
    ("watch storms instead", "read policy and trade news"),
    ("follow plant outages", "count public holidays"),
    ("watch the weather", "count public holidays"),
)


def finished_run(folder, logics=LOGICS, *, form="free"):
    """Write a run folder whose rounds have the given logics, by round and agent."""
    run = RunFolder(folder)
    run.model.mkdir(parents=True)
    config = RunConfig.preset("tiny").with_overrides({"evolution.form": form})
    run.model_config_file.write_text(json.dumps(config.to_dict()))
    write_manifest(run.model, {"identity": {}})

    for number, row in enumerate(logics):
        run.append_round(round_record(number, agents=len(row), logics=list(row)))
    return folder


class ScriptedJudge:
    """Marks a strategy shift in every update, except to a text that holds one of two words.

    ``zero`` makes it no change; ``fails`` makes the reply prose, or the error.
    """

    name = "scripted"

    def __init__(self, *, zero="\x00", fails="\x00", error=None):
        self.asked = []
        self.zero = zero
        self.fails = fails
        self.error = error or JudgeReplyError("prose")

    def judge(self, previous, current):
        self.asked.append((previous, current))
        if self.fails in current:
            raise self.error
        return JudgeVerdict(0, 0) if self.zero in current else JudgeVerdict(1, 0)
