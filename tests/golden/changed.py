"""What had to change since the golden files were written, and why.

Change nothing here to make a test pass: a difference that has no reason is a fault in the code.
The golden files themselves stay as they are.
"""

import json
from pathlib import Path

from tests.golden.compare import Change

_KEYS = "settings have the field's names, and the configuration is hashed with its keys"
_SEALED = "the sealed folder holds config.json, whose keys were renamed; its other files are equal"
_SAME_ROWS = "evaluate makes the rows of the asset"

_REPORT = Path(__file__).parent / "files" / "report.json"
_PAGE = json.loads(_REPORT.read_text(encoding="utf-8"))["runs"]
# Edges of the three regimes, their updates, means of LUD and of the error saved; then Pearson's r
# of the two, its p-value and its number of updates.
_GAINS = [
    "0.265",
    "0",
    "0.265",
    "0.6",
    "0",
    "0.6",
    "6",
    "0.9099",
    "1.46e-06",
    "0.7840",
    "0.0649",
    "6",
]
_AFTER_LUD = 266

CHANGED: dict[str, Change] = {
    "evaluated/kept_configs": Change(
        ["436472635df6a050.json", "c551925267d965c7.json"],
        ["1e30da8a934397cb.json", "e75e1c2840c7da27.json"],
        _KEYS,
    ),
    "evaluated/rows/head/[012]/artifact_hash": Change(
        "a9c1a614f0bbae43b548287c44245aa9c9d2971ded5b190ffff45bbb3e08c3e1",
        "34006b7e59dcc7cfb8e35e8f256a1de81267ad29caa55827e4dde5fddcbb1b5f",
        _SEALED,
    ),
    "evaluated/rows/head/[012]/config_hash": Change("436472635df6a050", "1e30da8a934397cb", _KEYS),
    "evaluated/rows/variant/[012]/artifact_hash": Change(
        "b5744d48eef065233cfcc4b6854083f8dc424e6b19e156f38f63d4332a461a0d",
        "e504b47eeea9aaa626d7d8b4dd8715b0e79948a5b68fac0c8f26160260a6dde8",
        _SEALED,
    ),
    "evaluated/rows/variant/[012]/config_hash": Change(
        "c551925267d965c7", "e75e1c2840c7da27", _KEYS
    ),
    "lud/summary/artifact_hash": Change(
        "a9c1a614f0bbae43b548287c44245aa9c9d2971ded5b190ffff45bbb3e08c3e1",
        "34006b7e59dcc7cfb8e35e8f256a1de81267ad29caa55827e4dde5fddcbb1b5f",
        _SEALED,
    ),
    "lud/summary/config_hash": Change("436472635df6a050", "1e30da8a934397cb", _KEYS),
    "report/runs": Change(
        _PAGE,
        [*_PAGE[:_AFTER_LUD], *_GAINS, *_PAGE[_AFTER_LUD:]],
        "the page shows what logic updates saved by LUD regime, a table of the paper",
    ),
    "presets/default/hash": Change("35a37b7dca5b29d9", "14f20f2d156f0e17", _KEYS),
    "presets/default/json_sha256": Change(
        "35a37b7dca5b29d94dfc0d77a1b9a569dcb6539ddd6f21fef9c16b90773e80d8",
        "14f20f2d156f0e17e5128ea45bf681f079b0a8362058f6c72ffc46fb0c4a6258",
        _KEYS,
    ),
    "presets/demo/hash": Change("77bf3b82790737e7", "1ddc667b4d2ee5a8", _KEYS),
    "presets/demo/json_sha256": Change(
        "77bf3b82790737e74122078d35522da9430f955988f33956c8425b89edfce73f",
        "1ddc667b4d2ee5a8662d68c9d671161394adc3bd067e497d1488f89bc4eda5e3",
        _KEYS,
    ),
    "presets/paper/hash": Change("d456440a32bbb0dd", "c01fb68d63ca9482", _KEYS),
    "presets/paper/json_sha256": Change(
        "d456440a32bbb0dda1893d5632cb3d87c932c1f0c55683054cf10d8bd0103be8",
        "c01fb68d63ca9482f8905479a996688602c642aec41939da9118291dd8f7915a",
        _KEYS,
    ),
    "presets/tiny/hash": Change("93591909d070f7f1", "64e14b898a70e2eb", _KEYS),
    "presets/tiny/json_sha256": Change(
        "93591909d070f7f12b098dbd783c6c3cc25987d9051f716058d2544d27da1c80",
        "64e14b898a70e2eb6b1d9185182a6ea91231e722421be20d9fa6223cf9a2418c",
        _KEYS,
    ),
    "run_head/artifact": Change(
        "a9c1a614f0bbae43b548287c44245aa9c9d2971ded5b190ffff45bbb3e08c3e1",
        "34006b7e59dcc7cfb8e35e8f256a1de81267ad29caa55827e4dde5fddcbb1b5f",
        _SEALED,
    ),
    "run_head/files/config.json": Change(
        "1d69aacf13c9f9a3443531c2ea5625346f4644d000e2cca172e10ab36677f219",
        "c74665a0945c425f16a9da7f2393939fb3c1f4778b928b12ff1dca1d4698788f",
        _KEYS,
    ),
    "run_head/metrics/artifact_hash": Change(
        "a9c1a614f0bbae43b548287c44245aa9c9d2971ded5b190ffff45bbb3e08c3e1",
        "34006b7e59dcc7cfb8e35e8f256a1de81267ad29caa55827e4dde5fddcbb1b5f",
        _SEALED,
    ),
    "run_head/metrics/config_hash": Change("436472635df6a050", "1e30da8a934397cb", _KEYS),
    "run_text/artifact": Change(
        "7252a96b0e3d1661d9e9599e4ee30e5ba28c14eaeb2c02fc030f9057a0b4f9db",
        "ab8bdd1109fd203dd9604caded8b9d1950ed53be838e93188f575c5e53b7e2d9",
        _SEALED,
    ),
    "run_text/files/config.json": Change(
        "721da9a95be9d7b553f628f27073547e561f3cde4fd4461d553fbe2cbea418e2",
        "b0ac238dcfd53df783973da06149d5c5855bcc7f06e9a98fb045afa6797c946c",
        _KEYS,
    ),
    "run_text/metrics/artifact_hash": Change(
        "7252a96b0e3d1661d9e9599e4ee30e5ba28c14eaeb2c02fc030f9057a0b4f9db",
        "ab8bdd1109fd203dd9604caded8b9d1950ed53be838e93188f575c5e53b7e2d9",
        _SEALED,
    ),
    "run_text/metrics/config_hash": Change("85e102191d553815", "ec1c120d7866ef50", _KEYS),
    "run_variant/artifact": Change(
        "b5744d48eef065233cfcc4b6854083f8dc424e6b19e156f38f63d4332a461a0d",
        "e504b47eeea9aaa626d7d8b4dd8715b0e79948a5b68fac0c8f26160260a6dde8",
        _SEALED,
    ),
    "run_variant/files/config.json": Change(
        "f4caa0a892d6a3da82deefd877ed1f5969701b55f876cb367f1d2eaf081f6c96",
        "9884ea96408952716e5fb96fe0e772e29ebcaaeb398633c39ae2f84420032b83",
        _KEYS,
    ),
    "run_variant/metrics/artifact_hash": Change(
        "b5744d48eef065233cfcc4b6854083f8dc424e6b19e156f38f63d4332a461a0d",
        "e504b47eeea9aaa626d7d8b4dd8715b0e79948a5b68fac0c8f26160260a6dde8",
        _SEALED,
    ),
    "run_variant/metrics/config_hash": Change("c551925267d965c7", "e75e1c2840c7da27", _KEYS),
    # The command and the asset make the same rows by the same call: whole splits carry their name,
    # and the population's rows say how many of its answers could not be parsed.
    "evaluated/rows/head/*/subset": Change("", "test", _SAME_ROWS),
    "evaluated/rows/variant/*/subset": Change("", "inference", _SAME_ROWS),
    "evaluated/rows/*/[012]/parse_failure_rate": Change(None, 0.0, _SAME_ROWS),
}
"""Values that are meant to differ, by path.

A path is the file's name and the keys below it, joined by "/"; ``*`` stands for anything. An entry
names the old value, the new one and the reason; ``ABSENT`` stands for a value that is not there:

    "run_head/metrics/config_hash": Change("436472635df6a050", "0123456789abcdef", "renamed keys")

An entry must hold for every value that its path matches, and must match at least one. Give the hash
itself for a hash over floats, and the whole list for a list of numbers.
"""

RENAMED_KEYS: dict[str, str] = {
    "*/backbone/spec": "name_or_path",
    "*/backbone/context_tokens": "context_length",
    "*/evolution/logic_tokens": "max_new_tokens",
    "*/grpo/kl": "kl_coefficient",
    "*/grpo/clip": "clip_range",
    "*/optim/gradient_clip": "max_grad_norm",
    "*/run/batch_windows": "batch_size",
    "*/run/micro_windows": "micro_batch_size",
}
"""New names of keys in configurations, records and manifests, by old name.

The old name alone renames the key wherever it stands; a path, as above, only there:

    "*/config/run/rounds": "training_rounds"
"""
