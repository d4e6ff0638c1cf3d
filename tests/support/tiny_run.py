"""One trained tiny run for many tests: the fixture ``tiny_run`` makes it once.

It has all that a run can have in six rounds: two supervised ones and four more, dropout of adapters
and of news, two policy updates a rewriting, which is every other round, and rewards of a part of
the windows. So every generator is used.
"""

import json

from safetensors.torch import load_file

from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny, windows

ROUNDS = 6
MEASURED = {"seconds", "eta_seconds", "train_seconds"}
"""Keys of a round that differ from one training to the next."""


def train_tiny(out, **options):
    config = tiny(
        run__supervised_epochs=1,
        run__rounds=ROUNDS - 2,
        run__validate_every=4,
        evolution__every=2,
        population__dropout=0.1,
        news__dropout=0.5,
        grpo__iterations=2,
        grpo__reward_windows=1,
    )
    return train_days(config, out, days=2, **options)


def train_days(config, out, *, days=8, val_days=3, news=None, **options):
    val = windows("val", val_days, first_day=20)
    return train(config, windows("train", days), val, news or news_pool(), out, **options)


def read_records(run):
    """Return the rounds of a run without what time measured."""
    lines = (run / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in MEASURED} for line in lines]


def read_tensors(folder):
    """Return all tensors below a folder, by the file they are in and their name."""
    files = {path.relative_to(folder): path for path in folder.rglob("*.safetensors")}
    return {f"{at}/{k}": v for at, path in files.items() for k, v in load_file(path).items()}


def read_hash(run):
    return str(json.loads((run / "model" / "manifest.json").read_text())["hash"])


class Killed(BaseException):
    """A kill, which no code can catch by accident."""


def kill_after(number):
    """Return what kills a training after a round: for ``on_round``."""

    def kill(record):
        if record.round == number:
            raise Killed

    return kill
