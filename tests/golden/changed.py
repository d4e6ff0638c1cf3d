"""What had to change since the golden files were written, and why.

Change nothing here to make a test pass: a difference that has no reason is a fault in the code.
The golden files themselves stay as they are.
"""

from tests.golden.compare import Change, Edits

CHANGED: dict[str, Change | Edits] = {}
"""Values that are meant to differ, by path.

A path is the file's name and the keys below it, joined by "/"; ``*`` stands for anything. An entry
names the old value, the new one and the reason; ``ABSENT`` stands for a value that is not there:

    "run_head/metrics/config_hash": Change("436472635df6a050", "0123456789abcdef", "renamed keys")

An entry must hold for every value that its path matches, and must match at least one. Give the hash
itself for a hash over floats, and the whole list for a list of numbers.
"""

RENAMED_KEYS: dict[str, str] = {}
"""New names of keys in configurations, records and manifests, by old name.

The old name alone renames the key wherever it stands; a path, as above, only there:

    "*/config/run/rounds": "training_rounds"
"""
