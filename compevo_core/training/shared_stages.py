"""The supervised stage of several runs, trained once: what the variants of an ablation share.

What belongs here: which settings act after the stage alone, keeping the state at its end, handing
it to the next run. What does not: the stage itself (``training.loop``), what a state holds
(``training.train_state``), who shares (the ``ablation`` asset).

A variant that changes how logics are rewritten has the supervised stage of the full method, to the
last bit: nothing is drawn, scored or pruned in it. Most of a training is that stage.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from compevo_core.config import RunConfig
from compevo_core.data.files import hash_text, write_text
from compevo_core.distributed import AgentShards
from compevo_core.training.checkpoint import Checkpoint, load_newest_checkpoint
from compevo_core.training.run_folder import RunFolder

_LATER_ALONE = {
    "evolution": ("update", "instruction", "max_new_tokens", "temperature", "every"),
    "grpo": (
        *("enabled", "group_size", "kl_coefficient", "clip_range", "iterations"),
        *("carry", "reward_windows"),
    ),
    "objective": ("lambda_pg", "lambda_div", "lambda_prune"),
    "optim": ("policy_lr",),
}
"""Settings that act in the evolution stage alone, by section."""

_KEY_CHARACTERS = 16
_END = "end"
_BEST = "best"
_ROUNDS_FILE = "rounds.jsonl"


def hash_stage(config: RunConfig, identity: Mapping[str, str]) -> str:
    """Return what runs with one supervised stage have in common: settings, windows and articles."""
    settings = config.to_dict()
    for section, names in _LATER_ALONE.items():
        settings[section] = {k: v for k, v in settings[section].items() if k not in names}

    data = {name: value for name, value in identity.items() if name != "config_hash"}
    return hash_text(repr((sorted(data.items()), settings)))[:_KEY_CHARACTERS]


class SharedStages:
    """States at the end of supervised stages, by :func:`hash_stage`.

    Args:
        folder: where they are kept; it must be one of this version of the code, as a state is known
            by its settings, not by what trained it. Remove it when the last run has ended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str, shards: AgentShards) -> tuple[Checkpoint, Checkpoint | None] | None:
        """Return the state at the end of a stage and the best one in it, or None.

        The second is None where nothing was validated in the stage.
        """
        end = load_newest_checkpoint(self._folder / key / _END, shards)
        if end is None:
            return None
        return end, load_newest_checkpoint(self._folder / key / _BEST, shards)

    def copy_rounds(self, key: str, run: RunFolder) -> None:
        """Give a run the records of a stage as its own."""
        text = (self._folder / key / _ROUNDS_FILE).read_text(encoding="utf-8")
        write_text(run.rounds_file, text)

    def keep(self, key: str, run: RunFolder) -> None:
        """Keep the state of a run whose newest checkpoint is that at the end of its stage."""
        kept = self._folder / key
        if kept.is_dir():
            shutil.rmtree(kept)

        # The checkpoint at the end comes last: a stage that has one is complete.
        write_text(kept / _ROUNDS_FILE, run.rounds_file.read_text(encoding="utf-8"))
        if run.best.is_dir():
            shutil.copytree(run.best, kept / _BEST)
        newest = max(run.checkpoints.glob("round_*"))
        part = kept / f".part-{_END}"
        shutil.copytree(newest, part / newest.name)
        part.rename(kept / _END)
